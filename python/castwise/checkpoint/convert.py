"""Cast a whole checkpoint, in memory bounded by its largest tensor."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from castwise._dtype_map import DtypeMap
from castwise.checkpoint.arguments import check_assume, checked_path
from castwise.checkpoint.atomic import replacing_file
from castwise.checkpoint.cast_tensors import Progress, ProgressMeter, cast_tensors
from castwise.checkpoint.containers import container_of, new_writer, open_reader
from castwise.checkpoint.convert_folder import cast_folder
from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.npz_file import NpzReader
from castwise.checkpoint.options import CastOptions
from castwise.checkpoint.plan import plan, unused_patterns
from castwise.checkpoint.summary import CastRow, CastSummary
from castwise.checkpoint.tensor_info import Planned
from castwise.dtype_policies import DTypePolicy

_LOGGER = logging.getLogger(__name__)
_NPY = ".npy"


def cast_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    dtype: Any = None,
    *,
    dtype_map: Mapping[str, Any] | DtypeMap | str | os.PathLike[str] | None = None,
    policy: Any = None,
    role: str = "variable",
    rounding: str | None = None,
    overflow: str = "ieee",
    nan: str = "keep",
    seed: int | None = None,
    threads: int | None = None,
    assume: str | Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CastSummary:
    """Cast the tensors of a checkpoint and write a new one.

    `source` is a `.safetensors`, `.npz` or `.npy` file, or a folder of safetensors shards;
    `destination` is one of these, and may be `source` itself. It appears, or is replaced, when it
    is complete; a run that is stopped at any moment leaves what was there before. At any time one
    tensor and its result are in memory.

    Metadata is kept, and so, byte for byte, is every tensor that is not to be cast.

    Parameters
    ----------
    source
        What to read.
    destination
        What to write. A file is replaced; a folder only with `overwrite`.
    dtype
        Format for all floating tensors. Integers, bools and complex numbers stay. A mapping is
        taken as `dtype_map`, a `DTypePolicy` as `policy`.
    dtype_map
        Instead of `dtype`, a mapping or a JSON or TOML file of regular expression to
        format; see `DtypeMap`. A key that matches a name wholly decides for it, whatever its
        kind; `default` is for the other floating tensors.
    policy
        Instead of either, a `DTypePolicy` or `DTypePolicyMap`, its name, its config, or a `.json`
        file with the config as Keras writes it. Each floating tensor gets the dtype of its policy.
    role
        Which dtype of the policy: "variable", what variables are kept in, or "compute".
    rounding
        As in `castwise.cast`, like the four after it.
    overflow
        "ieee", "saturate" or "raise".
    nan
        "keep", "raise" or "zero".
    seed
        For stochastic rounding; each tensor draws from `tensor_seed(seed, name)`.
    threads
        How many threads may cast.
    assume
        The format of arrays that numpy saved as raw bytes (`|V2`): one name for all, or
        a mapping from name to format. Nothing is guessed.
    overwrite
        Replace the folder `destination` if it holds another checkpoint.
    progress
        Called before every tensor and at the end.

    Returns
    -------
    What each tensor became and what that lost.

    Raises
    ------
    CheckpointError
        The source is damaged, or what is asked makes no sense for it.
    ValueError, TypeError
        An option, the map or a format is wrong.
    OverflowError, ValueError
        `overflow="raise"` or `nan="raise"` met such a value; the
        message names tensor, index and value.
    OSError
        A file cannot be read or written, or the disk is full.

    """
    old, new = checked_path(source), checked_path(destination)
    check_assume(assume)
    dtypes = _dtypes(dtype, dtype_map, policy, role)
    options = CastOptions.checked(
        rounding=rounding, overflow=overflow, nan=nan, seed=seed, threads=threads
    )
    if old.is_dir():
        rows, planned = cast_folder(
            old, new, dtypes, options, overwrite=overwrite, listener=progress
        )
    else:
        rows, planned = _cast_single(old, new, dtypes, options, assume=assume, listener=progress)
    return CastSummary(
        str(old), str(new), options.to_dict(), rows, unused_patterns(planned, dtypes)
    )


def _cast_single(
    source: Path,
    destination: Path,
    dtypes: DtypeMap,
    options: CastOptions,
    *,
    assume: str | Mapping[str, str] | None,
    listener: Callable[[Progress], None] | None,
) -> tuple[list[CastRow], list[Planned]]:
    with open_reader(source, assume) as reader:
        container = container_of(destination)
        if _NPY in {container, container_of(source)} and container != container_of(source):
            raise CheckpointError(f"{source} to {destination}: .npy can only become .npy")
        if isinstance(reader, NpzReader) and container != container_of(source) and reader.others:
            _LOGGER.warning("%s: left out, no arrays: %s", source, ", ".join(reader.others))
        planned = plan(reader.tensors.values(), dtypes)
        meter = ProgressMeter(sum(one.info.nbytes for one in planned), listener)
        with replacing_file(destination) as file:
            with new_writer(destination, file, planned, reader.metadata, reader) as writer:
                rows = list(cast_tensors(reader, writer, planned, options, meter))
            meter.starts(None)
    return rows, planned


def _dtypes(
    dtype: Any,
    dtype_map: Mapping[str, Any] | DtypeMap | str | os.PathLike[str] | None,
    policy: Any,
    role: str,
) -> DtypeMap:
    if sum(argument is not None for argument in (dtype, dtype_map, policy)) != 1:
        raise CheckpointError("give either dtype, dtype_map or policy, and only one of them")
    if policy is None and role != "variable" and not isinstance(dtype, DTypePolicy):
        raise CheckpointError(f"role={role!r} chooses a dtype of a policy; give one as policy")
    if policy is not None:
        return DtypeMap.from_policy_argument(policy, role)
    if isinstance(dtype_map, str | os.PathLike):
        return DtypeMap.from_file(checked_path(dtype_map))
    return DtypeMap.of(dtype if dtype_map is None else dtype_map, role)
