"""What differs between two checkpoints, by how much, and what explains it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import numpy as np

from castwise._numbers import is_real
from castwise._options import Arithmetic, MapArgument, PathArgument
from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint.comparison._comparing import Comparing, worker_count
from castwise.checkpoint.comparison._pairing import pair_tensors, rename_mapping
from castwise.checkpoint.comparison._sides import Side
from castwise.checkpoint.comparison.results import Diff, TensorDiff, severity
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.plan import Decide, plan_by_map
from castwise.checkpoint.planning.checkpoint_model import CheckpointModel
from castwise.checkpoint.requests.cast import chosen_dtypes
from castwise.checkpoint.results.report import Progress
from castwise.text.wording import argument

# Below 32 MiB, up to which glibc raises its threshold for mmap to what was freed (mallopt(3)).
_KEPT_BYTES = 16 << 20
# Threads that decode slabs of a side ahead, each of which holds some MiB: decoding takes a fraction
# of the time of a comparison.
_MOST_DECODERS = 2


def diff(
    first: PathArgument,
    second: PathArgument,
    *,
    dtype_map: MapArgument | DtypeMap | None = None,
    rename: Mapping[str, str] | str | os.PathLike[str] | None = None,
    reference: PathArgument | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    dtype: object = None,
    arithmetic: Arithmetic = "peer",
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Diff:
    """Compare two checkpoints: names, shapes, formats, metadata and values, and explain these.

    castwise matches tensors by name, and tensors without a counterpart by their values. If the
    values or the formats of floats differ, castwise tries recipes that may have made B from A: all
    roundings, the rules for overflow and NaN, an intermediate format, zeros for subnormals, a
    factor, and for quantized weights the rules of scales. It tries the plainest recipe that fits a
    sample on every element, and the result has the number of elements that it does not explain.

    Parameters
    ----------
    first, second
        A and B: files or folders, as `verify` takes.
    dtype_map
        A map as in `cast_file`: B is compared with the result of the map on A.
    rename
        A mapping from names in A to names in B, or a JSON or TOML file with one.
    reference
        A checkpoint with the names of A, from which the errors of A and of B are measured. Each
        error is divided by that of the reference rounded once to the same format.
    rtol, atol
        The tolerances of `|a - b| <= atol + rtol |a|`, as in `numpy.isclose`. If one is given, the
        other is 0 by default, and differences of formats, names and metadata do not count.
    dtype, arithmetic
        As in `verify`. With a map that has no default, `dtype` is that.
    threads
        How many threads may decode and compare.
    progress
        Called when a tensor begins, now and then within a large one, and at the end.

    Returns
    -------
    All tensors, the worst first.

    Raises
    ------
    CheckpointError
        A checkpoint is damaged, or castwise cannot decode it with certainty; or a name of `rename`
        is not that of a tensor.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> weight = np.linspace(0, 1, 9, dtype=np.float32) / 3
    >>> checkpoint.save("model.safetensors", {"fc.weight": weight})
    >>> _ = checkpoint.cast_file("model.safetensors", "small.safetensors", "bfloat16")
    >>> difference = checkpoint.diff("model.safetensors", "small.safetensors").tensors[0]
    >>> print(difference.explanation)
    B is A rounded once (every element)

    """
    tolerances = _tolerances(rtol, atol)
    dtypes = None if dtype_map is None else chosen_dtypes(dtype, dtype_map, None, "variable")
    format_asked = None if dtypes is not None else dtype
    paths = {"first": first, "second": second} | (
        {} if reference is None else {"reference": reference}
    )
    with ExitStack() as stack:
        checkpoints = [
            stack.enter_context(open_checkpoint(source_path(path, name), decodes=True))
            for name, path in paths.items()
        ]
        decide: Decide | None = None
        if dtypes is not None:
            if dtypes.is_general:
                dtypes = CheckpointModel(checkpoints[0]).bind(dtypes)
            decide = partial(plan_by_map, dtypes)
        first_side, second_side, *others = (
            Side.decode(
                source,
                checkpoints[place == 0],
                dtype=format_asked,
                arithmetic=arithmetic,
                threads=min(worker_count(threads), _MOST_DECODERS),
                decide=decide if place == 0 else None,
            )
            for place, source in enumerate(checkpoints)
        )
        for side in (first_side, second_side, *others):
            stack.callback(side.close)
        pairing = pair_tensors(
            first_side, second_side, rename_mapping(rename, first_side, second_side)
        )
        comparing = Comparing(
            first_side,
            second_side,
            arithmetic,
            threads=threads,
            reference=others[0] if others else None,
            tolerances=tolerances,
        )
        # Blocks up to the largest that was freed are not mapped anew by glibc, as pieces would be.
        np.empty(_KEPT_BYTES, np.uint8)
        tensors = [
            TensorDiff(name, reason, tied_to=tied, beyond=tolerances and 1)
            for reason, lonely in (
                ("only in A", pairing.only_left),
                ("only in B", pairing.only_right),
            )
            for name, tied in lonely.items()
        ]
        tensors += comparing.compare_all(pairing.pairs, progress)
        return Diff(
            str(first),
            str(second),
            None if reference is None else str(reference),
            tuple(sorted(tensors, key=severity)),
            _metadata(first_side, second_side),
            tolerances is not None,
        )


def _tolerances(rtol: float | None, atol: float | None) -> tuple[float, float] | None:
    if rtol is None and atol is None:
        return None
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (is_real(value) and value >= 0 and math.isfinite(value)):
            raise ValueError(argument(name) + f" must be a number from 0 on, not {value!r}")
    return rtol or 0.0, atol or 0.0


def _metadata(original: Side, copy: Side) -> dict[str, tuple[str | None, str | None]]:
    """Return the keys of metadata that differ; none where one of the two is decoded."""
    if original.decodes or copy.decodes:
        return {}
    first_pairs, second_pairs = original.metadata, copy.metadata
    return {
        key: (first_pairs.get(key), second_pairs.get(key))
        for key in dict.fromkeys([*first_pairs, *second_pairs])
        if first_pairs.get(key) != second_pairs.get(key)
    }
