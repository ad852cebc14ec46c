"""Quantise weights while they are read, in slabs of whole blocks.

A scale of a whole tensor, or of several that share it, needs the largest magnitude first: then the
weights are read twice. Parts that stand apart in the new file are made each in its own turn; small
ones are kept from the turn of the payload as far as they fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, block_amax, compare, restore_report
from castwise._wording import argument
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo, format_of, numpy_dtype
from castwise.checkpoint.planning._derived_reader import DerivedTensor, Slab, derived_info
from castwise.checkpoint.planning._stored_tensors import Range, StoredTensors
from castwise.quantization import QuantizedArray, dequantize
from castwise.quantization.arrays import (
    exceeds_scales,
    lost_to_scales,
    marker_of,
    quantize_slab,
    views_of,
)
from castwise.quantization.producers import Encoding

_KEPT_BYTES = 8 << 20
_FLIGHT_ELEMENTS = 4 << 20
"""Elements of all slabs that are read, encoded or waiting to be written at a time."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _EncodedPart:
    """A tensor that a quantised matrix is stored as.

    Attributes
    ----------
    key
        What the producer calls it.
    format
        Its format.
    shape
        Its elements along each axis.
    value
        What it holds, if that follows from the shape of the weight; else None.
    by_rows
        True if slabs of it follow each other; False if there is one for all of the weight.

    """

    key: str
    format: str
    shape: tuple[int, ...]
    value: Array | None
    by_rows: bool


@dataclass(slots=True)
class Shared:
    """The largest magnitude of the weights that share a scale."""

    weights: list[EncodedWeight]
    largest: float | None = None
    lock: Lock = field(default_factory=Lock)

    def amax(self) -> float:
        """Read the weights, the first time."""
        with self.lock:
            if self.largest is None:
                self.largest = max(weight.amax() for weight in self.weights)
            return self.largest


def share(weights: list[EncodedWeight]) -> None:
    """Let weights have a scale in common."""
    shared = Shared(weights)
    for weight in weights:
        weight.shared = shared


def encoding_threads(weights: Sequence[tuple[Sequence[int], Encoding]], threads: int) -> int:
    """Return how many threads may encode at a time, as the widest row of blocks allows."""
    widest = max(
        _step(encoding) * shape[-2 if encoding.written.transposed else -1]
        for shape, encoding in weights
    )
    return max(min(threads, _FLIGHT_ELEMENTS // widest), 1)


class EncodedWeight:
    """A weight on its way into a quantised checkpoint.

    Parameters
    ----------
    info
        The weight as it is.
    stored
        The tensors of all shards.
    encoding
        What it becomes.
    kept
        Parts that were made with others.
    threads
        How many threads encode slabs.

    """

    def __init__(
        self,
        info: TensorInfo,
        stored: StoredTensors,
        encoding: Encoding,
        kept: Kept,
        threads: int,
    ) -> None:
        self.info = info
        self.encoding = encoding
        self.shared = Shared([self])
        self._stored = stored
        self._kept = kept
        self._threads = threads
        *stack, rows, columns = info.shape
        if encoding.written.transposed:
            rows, columns = columns, rows
        self._stack, self._rows, self._columns = tuple(stack), rows, columns
        self._dtype = numpy_dtype(info.format or "")
        self._report = CastReport()
        self._lock = Lock()
        matrix_parts = _parts(encoding, self._dtype, rows, columns)
        self._parts: Sequence[_EncodedPart] = matrix_parts
        if stack:
            self._parts = [replace(part, shape=(*stack, *part.shape)) for part in matrix_parts]
        is_whole = encoding.written.row.global_scale or encoding.block == (0, 0)
        self._needs_amax = is_whole and not all(part.by_rows for part in matrix_parts)

    def tensors(self) -> list[DerivedTensor]:
        """Describe the tensors that it becomes, the payload first."""
        name, stored, nbytes = self.info.name, self.info.label, self.info.nbytes
        sources = [sharer.info.name for sharer in self.shared.weights]
        return [
            DerivedTensor(
                derived_info(self._name(part.key), stored, part.shape, 0 if number else nbytes),
                part.format,
                name,
                sources,
                partial(self._slabs, part, number == 0),
                None if number else self._measured,
                scheme=None if number else self.encoding.written.scheme,
            )
            for number, part in enumerate(self._parts)
        ]

    def _name(self, key: str) -> str:
        """Name a part, from what its producer calls it."""
        name, suffix = self.info.name, "weight"
        if self.encoding.written.transposed:
            return f"{name}_{key}"
        if name.endswith(suffix):
            return name.removesuffix(suffix) + key
        return name + key.removeprefix(suffix)

    def _measured(self) -> CastReport:
        """Return what quantising it lost, when its payload is made."""
        return self._report

    def _slabs(self, part: _EncodedPart, is_payload: bool, _format: str) -> Iterator[Slab]:
        """List the slabs of a part, each of which can be made by another thread."""
        if is_payload:
            self._report = CastReport()  # also where it is made again
        if part.value is not None:
            yield partial(np.asarray, part.value)
        elif not part.by_rows:
            yield partial(self._constant, part.key)
        else:
            for number, cut in enumerate(self._cuts()):
                yield partial(self._encoded, part.key, number, cut, is_payload)

    def _cuts(self) -> Iterator[Sequence[Range]]:
        """Cut the weight into rows of blocks: as ranges along the axes of the stored tensor."""
        step = _step(self.encoding)
        room = _FLIGHT_ELEMENTS // (self._threads + 2)
        high = max(room // max(self._columns, 1) // step, 1) * step
        for place in product(*map(range, self._stack)):
            outer = [(place_on_axis, place_on_axis + 1) for place_on_axis in place]
            for start in range(0, self._rows, high):
                rows, columns = (start, min(start + high, self._rows)), (0, self._columns)
                is_transposed = self.encoding.written.transposed
                yield [*outer, *((columns, rows) if is_transposed else (rows, columns))]

    def _read(self, cut: Sequence[Range]) -> Array:
        """Read a slab as a matrix."""
        array = self._stored.box(self.info.name, cut)
        return array.reshape(array.shape[-2:])

    def _quantized(self, array: Array) -> QuantizedArray:
        return _quantized(self.encoding, array, self.shared.amax() if self._needs_amax else None)

    def _quantized_near_one(self, array: Array, factor: float) -> QuantizedArray:
        amax = self.shared.amax() * factor if self._needs_amax else None
        return _quantized(self.encoding, array, amax)

    def _encoded(self, key: str, number: int, cut: Sequence[Range], is_payload: bool) -> Array:
        """Make one part of a slab."""
        kept = None if is_payload else self._kept.taken(self.info.name, number, key)
        if kept is not None:
            return kept
        array = self._read(cut)
        if not self._needs_amax:
            self._largest(array, threads=1)
        quantized = self._quantized(array)
        parts = quantized.parts()
        if is_payload:
            (report,) = compare_decoded(array[None], quantized)
            # Values whose scales are beyond the range of their format are saturated: no others are.
            if exceeds_scales(lost_to_scales(array, quantized, self._quantized_near_one)):
                report = _with_saturated(report, report.count - report.zero_in)
            with self._lock:
                self._report += report
            rows = {part.key for part in self._parts if part.by_rows and part.key != key}
            self._kept.put(self.info.name, number, {part_key: parts[part_key] for part_key in rows})
        return parts[key]

    def _constant(self, key: str) -> Array:
        """Make a part that does not depend on single rows."""
        zeros = np.zeros((_step(self.encoding), self._columns), self._dtype)
        return self._quantized(zeros).parts()[key]

    def amax(self) -> float:
        """Read the weight for its largest magnitude; its file is open."""
        cuts = self._cuts()
        return max((self._largest(self._read(cut), self._threads) for cut in cuts), default=0.0)

    def _largest(self, array: Array, threads: int) -> float:
        """Return the largest magnitude; refuse what is not finite."""
        largest = block_amax(array, threads=threads)
        if not math.isfinite(largest):
            description = "NaN" if math.isnan(largest) else "infinite"
            raise CheckpointError(
                f"tensor {self.info.name!r} cannot be quantised: it has an element that is "
                f"{description}, for which no scale is right; mend it, or leave it as it is "
                f"({argument('ignore')})"
            )
        return largest


class Kept:
    """Parts of slabs whose payload was made last, up to a limit for all weights together.

    Some may never be taken: a worker that makes a payload need not be the one that makes its scale.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int, str], Array] = {}
        self._nbytes = 0
        self._lock = Lock()

    def put(self, name: str, number: int, parts: Mapping[str, Array]) -> None:
        """Keep the parts of a slab in the place of older ones, or none if there is no room."""
        size = sum(part.nbytes for part in parts.values())
        with self._lock:
            for key in parts:
                self._drop((name, number, key))
            while self._parts and self._nbytes + size > _KEPT_BYTES:
                self._drop(next(iter(self._parts)))
            if self._nbytes + size <= _KEPT_BYTES:
                self._nbytes += size
                self._parts |= {(name, number, key): part for key, part in parts.items()}

    def taken(self, name: str, number: int, key: str) -> Array | None:
        """Return a part, which then is not kept any more."""
        with self._lock:
            return self._drop((name, number, key))

    def _drop(self, place: tuple[str, int, str]) -> Array | None:
        part = self._parts.pop(place, None)
        self._nbytes -= 0 if part is None else part.nbytes
        return part


def _step(encoding: Encoding) -> int:
    return math.lcm(encoding.block[0] or 1, encoding.written.step)


def _quantized(encoding: Encoding, array: Array, amax: float | None) -> QuantizedArray:
    """Quantise a matrix as the producer does."""
    written = encoding.written
    scheme, block = written.scheme, encoding.block
    if block == (1, 0) and written.as_groups:
        scheme = f"{scheme.rpartition('_')[0]}_group"
        block = (1, array.shape[-1])
    return quantize_slab(
        array,
        scheme,
        recipe=written.recipe,
        block=block if min(block) > 0 else None,
        axis=-2 if written.transposed else -1,
        amax=amax,
        symmetric=written.symmetric,
        threads=1,
    )


@cache
def _parts(
    encoding: Encoding, dtype: np.dtype[Any], rows: int, columns: int
) -> tuple[_EncodedPart, ...]:
    """Return the parts of a matrix, from what a few rows of it become."""
    step = _step(encoding)
    first, *others = (
        _of_zeros(encoding, dtype, count, columns) for count in (step, 2 * step, rows % step)
    )
    assert first is not None, "of some rows"  # noqa: S101
    once, (twice, rest) = first.parts(), ({} if q is None else q.parts() for q in others)
    views = replace(views_of(first), shape=(rows, columns))
    constants = {
        part.name: value
        for part in views.layout.parts
        if part.use == "marker" and (value := marker_of(views)) is not None
    }
    parts = []
    for key, part in once.items():
        row = format_of(part.dtype)
        assert row is not None, "of the table"  # noqa: S101
        by_rows = part.shape != twice[key].shape
        shape, value = part.shape, constants.get(key)
        if value is not None:
            shape, by_rows = value.shape, False
        elif by_rows:
            shape = tuple(
                two
                if length == two
                else rows // step * length + (rest[key].shape[axis] if rest else 0)
                for axis, (length, two) in enumerate(zip(shape, twice[key].shape, strict=True))
            )
        elif row.kind != "float":  # the shape of the weight
            is_shape = part.tolist() == [step, columns]
            value = np.array([rows, columns], part.dtype) if is_shape else part
        parts.append(_EncodedPart(key, row.name, shape, value, by_rows=by_rows))
    return tuple(parts)


def _of_zeros(
    encoding: Encoding, dtype: np.dtype[Any], rows: int, columns: int
) -> QuantizedArray | None:
    """Quantise so many rows of zeros; None if there are none."""
    if not rows:
        return None
    zeros = np.zeros((rows, columns), dtype)
    return _quantized(encoding, zeros.T if encoding.written.transposed else zeros, None)


def compare_decoded(stack: Array, quantized: QuantizedArray) -> list[CastReport]:
    """Compare each array of a stack with what it is decoded to."""
    dtype = np.float64 if stack.dtype == np.float64 else np.float32
    decoded = dequantize(quantized, dtype, threads=1).reshape(stack.shape)
    reports = [
        compare(array, values, measure=True, threads=1).report
        for array, values in zip(stack, decoded, strict=True)
    ]
    return [report for report in reports if report is not None]  # all are measured


def _with_saturated(report: CastReport, saturated: int) -> CastReport:
    counts, *sums = report.__reduce__()[1]
    names = ("count", "exact", "overflowed", "saturated")
    return restore_report([*counts[: len(names) - 1], saturated, *counts[len(names) :]], *sums)
