"""Compare the values of two checkpoints, whatever they are stored as."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import compare
from castwise._dtype_map import DtypeMap
from castwise._measures import LargestGap
from castwise._options import Arithmetic, Like, MapArgument, Nan, Overflow, PathArgument, Rounding
from castwise._wording import argument
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import format_info
from castwise.checkpoint.comparison._conversions import MapConversion
from castwise.checkpoint.comparison._sides import Side, common_format, in_step, read_ahead
from castwise.checkpoint.comparison._verification import Difference, Verification
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.planning import FORMATS
from castwise.checkpoint.report import Progress, ProgressMeter

_WITH_ULPS = frozenset((*FORMATS, "float64"))
_NO_OPTIONS = {"rounding": None, "overflow": "ieee", "nan": "keep", "seed": None, "like": None}


def verify(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    dtype_map: MapArgument | DtypeMap | None = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    seed: int | None = None,
    like: Like | None = None,
    dtype: object = None,
    arithmetic: Arithmetic = "peer",
    architecture: PathArgument | None = None,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Compare the values of two checkpoints, each unquantised or quantised in any way.

    Quantised weights are decoded, in slabs, as `dequantize_file` does. Tensors are compared by the
    names that they have in an unquantised model; a GGUF file beside a folder has those of
    transformers.
    Where floats of one are in another format than those of the other, both are compared in float32,
    or in float64 if one of them is; integers are compared with floats by their exact values.

    Parameters
    ----------
    first, second
        Files or folders, as `cast_file` and `dequantize_file` take.
    dtype_map
        Ask whether the second is exactly what this map makes of the first, by `cast_file`, or by
        `quantize_file` if it names schemes: every tensor in the format of the map, with the same
        bits, and nothing is decoded. `Verification.statement` says so in a line that can be kept.
    rounding, overflow, nan, seed, like
        With a map of formats, the options that it was made with, as in `cast_file`; stochastic
        rounding needs its seed.
    dtype
        What quantised weights are decoded to, as in `dequantize_file`. By default the format of the
        other one if that is plain; bfloat16 if both are quantised. With a map that has no default,
        that.
    arithmetic
        As in `dequantize_file`. Two producers may decode the same codes and scales to values that
        differ in the last bit; with "exact" they are the same.
    architecture
        With a map, a file with what the parameters of the model are, as in `quantize_file`.
    threads
        How many threads may decode.
    progress
        Called when a tensor begins, now and then within a large one, and at the end.

    Returns
    -------
    The tensors that differ, with the largest differences and where they are.

    Raises
    ------
    CheckpointError
        One is damaged, or cannot be decoded for certain.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> _ = checkpoint.cast_file("model.safetensors", "small.safetensors", "bfloat16")
    >>> checkpoint.verify("model.safetensors", "small.safetensors")
    <Verification 'model.safetensors' and 'small.safetensors', 1 tensor, 4,096 values, equal>

    """
    options = {"rounding": rounding, "overflow": overflow, "nan": nan, "seed": seed, "like": like}
    conversion = None
    if dtype_map is not None:
        conversion = MapConversion.checked(dtype_map, dtype, options, threads, architecture)
    elif options != _NO_OPTIONS:
        names = (argument(name) for name in options if options[name] != _NO_OPTIONS[name])
        raise CheckpointError(
            f"{', '.join(names)}: options of a cast go with its map ({argument('dtype_map')})"
        )
    elif architecture is not None:
        raise CheckpointError(
            f"{argument('architecture', str(architecture))} goes with a map "
            f"({argument('dtype_map')}): what is in the files is compared as it is"
        )
    with ExitStack() as stack:
        sources = [
            stack.enter_context(
                open_checkpoint(source_path(path, name), decodes=conversion is None)
            )
            for name, path in (("first", first), ("second", second))
        ]
        if conversion is None:
            left, right = (
                Side.decoded(source, beside, dtype=dtype, arithmetic=arithmetic, threads=threads)
                for source, beside in zip(sources, reversed(sources), strict=True)
            )
        else:
            left, right = conversion.side(*sources), Side(sources[1])
        for side in (left, right):
            stack.callback(side.close)
        shared = [name for name in left.names if name in right.names]
        meter = ProgressMeter(sum(left.info(name).nbytes for name in shared), progress)
        differences = [
            Difference(name, "only in the first") for name in left.names if name not in right.names
        ]
        values = 0
        for name in shared:
            meter.starts(name)
            values += math.prod(left.shape(name))
            difference = _compared(
                name, left, right, meter, threads, converted=conversion is not None
            )
            if difference is not None:
                differences.append(difference)
            meter.finished(left.info(name).nbytes)
        meter.starts(None)
        differences += [
            Difference(name, "only in the second") for name in right.names if name not in left.names
        ]
        left.check_unchanged()
        right.check_unchanged()
        return Verification(
            str(first),
            str(second),
            len(shared),
            values,
            tuple(differences),
            None if conversion is None else conversion.to_dict(left, sources),
        )


def _compared(
    name: str,
    left: Side,
    right: Side,
    meter: ProgressMeter,
    threads: int | None,
    *,
    converted: bool,
) -> Difference | None:
    """Compare two tensors; None if they are the same."""
    shapes = left.shape(name), right.shape(name)
    if shapes[0] != shapes[1]:
        return Difference(name, "shapes", shapes=shapes)
    formats = left.info(name).format, right.info(name).format
    formats = left.format(name, formats[1]), right.format(name, formats[0])
    common = formats[0] if formats[0] == formats[1] else None
    if not converted:
        common = common_format(*formats)
    stored = left.info(name).stored, right.info(name).stored
    if common is None and (formats != (None, None) or stored[0] != stored[1]):
        labels = [known or label for known, label in zip(formats, stored, strict=True)]
        return Difference(name, "formats", formats=(labels[0], labels[1]))
    kinds = {format_info(known).kind for known in formats if known is not None}
    total = _Total(common if kinds == {"float"} else None, threads)
    pieces = in_step(left.pieces(name, formats[0]), right.pieces(name, formats[1]))
    for pair in read_ahead(pieces):
        total.add(*pair)
        part = total.count / max(math.prod(left.shape(name)), 1)
        meter.reaches(round(part * left.info(name).nbytes), name)
    if not total.different:
        return None
    index = np.unravel_index(total.gap.place, left.shape(name)) if common else (total.gap.place,)
    return Difference(
        name,
        "values",
        common,
        total.count,
        total.different,
        total.gap.size,
        total.max_ulp,
        tuple(int(axis) for axis in index),
        total.gap.values,
    )


class _Total:
    """What differs in a pair of tensors, added up over their pieces."""

    def __init__(self, format_name: str | None, threads: int | None) -> None:
        self._threads = threads
        self.count = 0
        self.different = 0
        self.gap = LargestGap()
        self.max_ulp: int | None = 0 if format_name in _WITH_ULPS else None

    def add(self, left: NDArray[Any], right: NDArray[Any]) -> None:
        """Compare two pieces, in the format that holds both."""
        start = self.count
        self.count += left.size
        comparison = compare(left, right, threads=self._threads)
        if not comparison.different:
            return
        self.gap.add(comparison, left, right, start)
        self.different += comparison.different
        if self.max_ulp is not None and comparison.largest_ulps is not None:
            self.max_ulp = max(self.max_ulp, comparison.largest_ulps[0])
