"""The arguments of conversions by name, for the types of their overloads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeAlias, TypedDict

from castwise._dtype_map import DtypeMap
from castwise._options import (
    Arithmetic,
    ConsumerName,
    FindingKind,
    Like,
    Nan,
    Overflow,
    Role,
    Rounding,
    TranscodedScheme,
    WrittenRecipe,
)
from castwise.checkpoint.report import Progress

PathArgument: TypeAlias = str | os.PathLike[str]
Block: TypeAlias = int | tuple[int, int]
MapArgument: TypeAlias = Mapping[str, Any] | PathArgument


class SharedArguments(TypedDict, total=False):
    """What all conversions take, except `dry_run`, which decides the class of the result."""

    threads: int | None
    overwrite: bool
    resumable: bool
    resume: bool
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    max_shard_size: int | str | None
    measure: bool
    part: str | tuple[int, int] | None
    executor: Executor | None
    fail_on: FindingKind | Iterable[FindingKind]
    max_zeros: float | None
    progress: Callable[[Progress], None] | None


class CastArguments(SharedArguments, total=False):
    """What `cast_file` takes beside its positional arguments and `dry_run`."""

    dtype_map: MapArgument | DtypeMap | None
    policy: object
    role: Role
    rounding: Rounding | None
    overflow: Overflow
    nan: Nan
    seed: int | None
    like: Like | None
    assume: str | Mapping[str, str] | None
    architecture: PathArgument | None
    keep_config: bool
    raw: bool
    as_bytes: bool


class DequantizeArguments(SharedArguments, total=False):
    """What `dequantize_file` takes beside its positional arguments and `dry_run`."""

    arithmetic: Arithmetic
    only: str | None


class QuantizeArguments(SharedArguments, total=False):
    """What `quantize_file` takes beside its positional arguments and `dry_run`."""

    recipe: WrittenRecipe | None
    consumer: ConsumerName | None
    block: Block | None
    dtype_map: MapArgument | None
    ignore: str | Sequence[str]
    quantize_embeddings: bool
    architecture: PathArgument | None


class TranscodeArguments(SharedArguments, total=False):
    """What `transcode_file` takes beside its positional arguments and `dry_run`."""

    scheme: TranscodedScheme | None
    architecture: PathArgument | None
