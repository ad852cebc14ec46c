"""Quantise the weights of a checkpoint, a file or folders of shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Unpack, overload

from castwise._dtype_map import DEFAULT, KEEP, DtypeMap, mapping_in
from castwise._numbers import is_integer
from castwise._options import ConsumerName, FindingKind, WrittenRecipe, WrittenScheme
from castwise._spelling import typed_values
from castwise._wording import argument, function, given, is_for_command
from castwise.checkpoint._arguments import Block, MapArgument, PathArgument, QuantizeArguments
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files import checked_path
from castwise.checkpoint.maps import is_map_name, named_map
from castwise.checkpoint.planning import (
    Encode,
    architecture_option,
    checked_architecture,
    checked_threads,
    consumer_named,
    encode_checkpoint,
    is_scheme,
    recipe_for,
    written,
)
from castwise.checkpoint.preview import CastPlan
from castwise.checkpoint.report import LOSSES, Progress
from castwise.checkpoint.requests import DeriveRequest, Make, RunOptions, carry_out
from castwise.checkpoint.summary import CastSummary
from castwise.quantization import consumers


@overload
def quantize_file(
    source: PathArgument,
    destination: PathArgument,
    scheme: WrittenScheme | None = None,
    *,
    dry_run: Literal[False] = False,
    **arguments: Unpack[QuantizeArguments],
) -> CastSummary: ...
@overload
def quantize_file(
    source: PathArgument,
    destination: PathArgument,
    scheme: WrittenScheme | None = None,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[QuantizeArguments],
) -> CastPlan: ...
@overload
def quantize_file(
    source: PathArgument,
    destination: PathArgument,
    scheme: WrittenScheme | None = None,
    *,
    dry_run: bool,
    **arguments: Unpack[QuantizeArguments],
) -> CastSummary: ...
def quantize_file(
    source: PathArgument,
    destination: PathArgument,
    scheme: WrittenScheme | None = None,
    *,
    recipe: WrittenRecipe | None = None,
    consumer: ConsumerName | None = None,
    block: Block | None = None,
    dtype_map: MapArgument | None = None,
    ignore: str | Sequence[str] = (),
    quantize_embeddings: bool = False,
    architecture: PathArgument | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    resumable: bool = False,
    resume: bool = False,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    max_shard_size: int | str | None = None,
    dry_run: bool = False,
    measure: bool = False,
    part: str | tuple[int, int] | None = None,
    executor: Executor | None = None,
    fail_on: FindingKind | Iterable[FindingKind] = LOSSES,
    max_zeros: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> CastSummary:
    """Quantise the weights of a checkpoint, as a producer stores them, and write a new one.

    The matrices of linear layers, and of experts stacked in one tensor, become the codes and scales
    that the producer's own tools make of them, bit for bit, under its names. Embeddings, norms,
    routers, heads and adapters stay as they are unless the map names them, and so do biases and all
    other tensors. `config.json` states the quantisation, and the modules that it leaves out; the
    index names the new tensors. No scales of inputs are made: those need data.

    It appears when it is complete, as with `cast_file`. Slabs of whole blocks are read, quantised
    and written, so memory does not grow with the size of tensors. Weights with a scale of the whole
    tensor are read twice. What engines fuse (q, k and v; gate and up) shares its global scale.

    Parameters
    ----------
    source
        What to read, as in `cast_file`.
    destination
        What to write: a folder, or one `.safetensors` file, whose metadata then state what
        `config.json` does else. What is there is replaced only with `overwrite`.
    scheme
        What linear layers become: one of `castwise.quantization.schemes()`. None: only what the map
        says.
    recipe
        The producer: "deepseek", "transformers", "compressed-tensors", "modelopt", "gpt-oss",
        "comfy" or "mlx". By default the first of these that stores the scheme.
    consumer
        Who is to load the result: one of `castwise.quantization.consumers()`, whose producer is the
        default of `recipe`. What it does not load is refused, and no warning is about others.
    block
        The (rows, columns) that share a scale, where the scheme has a choice; one number is
        columns. By default the producer's.
    dtype_map
        As in `cast_file`, a mapping of regular expressions, its file, or the name of a map that
        comes with castwise. A scheme may stand wherever a dtype may, also under "default": then it
        is that of linear layers.
    ignore
        Regular expressions that match the whole names of weights, or of their modules, to leave.
    quantize_embeddings
        Whether embeddings and heads get the scheme, too. Else those alone do that the map names.
    architecture
        A file with what the parameters of the model are, where castwise does not know the class or
        the type that `config.json` states.
    threads
        How many threads may quantise.
    overwrite, resumable, resume, include, exclude, max_shard_size, dry_run, measure
        As in `cast_file`.
    fail_on, max_zeros, progress
        As in `cast_file`.
    part, executor
        As in `cast_file`; a weight is quantised whole by one part or batch.

    Returns
    -------
    What each tensor became; a `CastPlan` if `dry_run`. The row of a payload has the scheme as its
    `target`, and what the decoded values lost as its report.

    Raises
    ------
    CheckpointError
        The checkpoint is quantised already; the scheme and the recipe do not go together, or one of
        them is unknown; the recipe cannot hold a weight; a weight has infinite or NaN elements; no
        weight would be quantised; or what makes `cast_file` raise it.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read or written, or the disk is full.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> summary = checkpoint.quantize_file("model.safetensors", "small.safetensors", "fp8_channel")
    >>> [(row.name, row.target) for row in summary.rows]
    [('fc.weight_scale', 'float32'), ('fc.weight', 'fp8_channel')]

    """
    return carry_out(QuantizeRequest, **locals())


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeRequest(DeriveRequest):
    """All that decides what is quantised, as given to `quantize_file`."""

    command: ClassVar[str] = "quantize"
    action: ClassVar[str] = "quantised"
    decodes: ClassVar[bool] = False
    scheme: str | None
    recipe: str | None
    consumer: str | None
    block: int | tuple[int, int] | None
    dtype_map: Mapping[str, Any] | str | os.PathLike[str] | None
    ignore: str | Sequence[str]
    quantize_embeddings: bool
    architecture: str | os.PathLike[str] | None

    def __post_init__(self) -> None:
        """Take a mapping as a dict, which can be sent to other processes."""
        if isinstance(self.dtype_map, Mapping):
            object.__setattr__(self, "dtype_map", dict(self.dtype_map))

    def checked(self, threads: int | None) -> tuple[RunOptions, Make]:
        """Check what is to be quantised, and how."""
        encode = checked_encode(
            self.scheme,
            self.recipe,
            self.block,
            self.dtype_map,
            consumer=self.consumer,
            ignore=self.ignore,
            embeddings=checked_embeddings(self.quantize_embeddings or False, self.consumer),
            architecture=self.architecture,
            threads=threads,
        )
        asked = {
            "scheme": encode.scheme,
            "recipe": encode.recipe,
            "block": None if encode.block is None else list(encode.block),
            "map": dict(encode.mapping),
            "ignore": list(encode.ignore),
            **({"embeddings": True} if encode.embeddings else {}),
            **architecture_option(encode.architecture),
        }
        return RunOptions(threads=encode.threads, asked=asked), partial(
            encode_checkpoint, encode=encode
        )


def checked_encode(
    scheme: str | None,
    recipe: object,
    block: object,
    dtype_map: object,
    *,
    ignore: object,
    threads: object,
    consumer: object = None,
    embeddings: bool = False,
    architecture: PathArgument | None = None,
) -> Encode:
    """Check what is to be quantised, and how."""
    map_name = dtype_map if isinstance(dtype_map, str) and is_map_name(dtype_map) else None
    mapping, origin = _mapping(None if map_name else dtype_map)
    if (default := mapping.get(DEFAULT)) is not None and is_scheme(default):
        if scheme is not None and scheme != default:
            raise CheckpointError(
                f"{origin} has the {DEFAULT} {default!r}, and "
                f"{argument('scheme', scheme)} is another; leave "
                "one out"
            )
        scheme = mapping.pop(DEFAULT)
    schemes = {key: value for key, value in mapping.items() if is_scheme(value)}
    formats = {key: KEEP if key in schemes else value for key, value in mapping.items()}
    dtypes = named_map(map_name) if map_name else DtypeMap.from_mapping(formats, origin)
    origin = dtypes.origin
    if scheme is None and not schemes:
        raise CheckpointError(
            f"{origin} names no scheme; give one for the weights that no key matches "
            f"({argument('scheme')}), or a key one; {function('cast')} takes maps of dtypes alone"
            if dtype_map is not None
            else f"give a scheme ({argument('scheme')}), or a map that names one "
            f"({argument('dtype_map')})"
        )
    if recipe is not None and not isinstance(recipe, str):
        raise TypeError(f"recipe must be the name of a producer, not {recipe!r}")
    names = list(dict.fromkeys([*([] if scheme is None else [scheme]), *schemes.values()]))
    reader = None if consumer is None else consumer_named(consumer)
    if reader is not None:
        recipe = recipe_for(reader, names, recipe)
    for name in names:
        recipe = written(name, recipe).recipe
    if not isinstance(ignore, str) and not isinstance(ignore, Sequence):
        raise TypeError(f"ignore is a regular expression or several, not {ignore!r}")
    patterns = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"ignore: {pattern!r} is not a regular expression, which is a str")
    assert recipe is not None, "some scheme is written"  # noqa: S101
    encode = Encode(
        scheme,
        recipe,
        _block(block),
        patterns,
        dtypes,
        schemes,
        checked_threads(threads),
        map_name,
        consumer=None if reader is None else reader.name,
        embeddings=embeddings,
        architecture=checked_architecture(architecture),
    )
    for name in names:
        encode.encoding(name)
    return encode


def checked_embeddings(value: object, consumer: object) -> bool:
    """Return whether embeddings and heads may get schemes; None: if the consumer loads them so."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(
            f"{given('quantize_embeddings', value)} is not valid; use True, False or None"
        )
    loads_them = consumer is None or consumer_named(consumer).embeddings
    if value and not loads_them:
        loaders = ", ".join(row.name for row in consumers() if row.embeddings)
        raise CheckpointError(
            f"{given('quantize_embeddings', 'yes' if is_for_command() else True)}: {consumer} "
            "loads no embeddings and heads that are quantised; leave it out, or name who does "
            f"({argument('consumer')}): {loaders}"
        )
    return loads_them if value is None else value


def _mapping(source: object) -> tuple[dict[str, Any], str]:
    """Return the values of a map by its patterns, and what errors call it."""
    if source is None:
        return {}, "map"
    if isinstance(source, Mapping):
        return typed_values(source), "map"
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            "dtype_map must be a mapping of regular expressions, the path of one, or the name of a "
            f"map, not {source!r}"
        )
    path = checked_path(source, "dtype_map")
    return mapping_in(path), str(path)


def _block(block: object) -> tuple[int, int] | None:
    if block is None:
        return None
    pair = (1, block) if is_integer(block) else block if isinstance(block, Sequence) else ()
    if len(pair) != 2 or not all(is_integer(size) and size > 0 for size in pair):  # noqa: PLR2004
        typed = block if isinstance(block, int) else "x".join(map(str, pair))
        said, remedy = (
            (typed, "ROWSxCOLUMNS, or COLUMNS")
            if is_for_command()
            else (block, "(rows, columns), or columns")
        )
        raise ValueError(f"{argument('block', said)} is not valid; use {remedy}")
    return int(pair[0]), int(pair[1])
