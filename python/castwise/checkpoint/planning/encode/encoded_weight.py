"""Quantize weights while they are read, in slabs of whole blocks.

Each weight is read, quantized and measured once, whatever it is stored as. Only a scale of a whole
tensor, or of several that share it, needs the largest magnitude first, which is one more reading.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import product
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, block_amax, report_losses
from castwise.checkpoint._tensors import TensorInfo, format_of, numpy_dtype
from castwise.checkpoint.planning.derived_reader import (
    STACK_ELEMENTS,
    Arrays,
    DerivedTensor,
    WeightJob,
    WeightSlab,
    WeightStack,
    derived_info,
)
from castwise.checkpoint.planning.encode.blocks import (
    add_saturated,
    blocks_of_row,
    check_finite,
    encode_rows,
    is_of_blocks,
    measured_dtype,
    weighted_report,
)
from castwise.checkpoint.planning.importance import ChannelNumbers
from castwise.checkpoint.planning.stored_tensors import Range, StoredTensors
from castwise.checkpoint.results.report import Report
from castwise.quantization import QuantizedArray
from castwise.quantization.arrays.comparison import report_rows
from castwise.quantization.arrays.decode import decode_array
from castwise.quantization.arrays.named_parts import marker_of
from castwise.quantization.arrays.quantize import quantize_slab
from castwise.quantization.arrays.scale_range import (
    amax_near_one,
    exceeds_scales,
    keep_all,
    lost_to_scales,
)
from castwise.quantization.arrays.views import views_of
from castwise.quantization.producers.names import name_part
from castwise.quantization.producers.producer import Encoding
from castwise.quantization.producers.registry import find_recipe

# Elements of all slabs that are read, encoded or waiting to be written at a time.
_FLIGHT_ELEMENTS = 4 << 20

# The format of blocks.
_BYTES = np.dtype(np.uint8).name

Array = NDArray[Any]


class _EncodedPart(NamedTuple):
    """A tensor that a quantized matrix is stored as."""

    key: str  # what the producer calls it
    format: str  # its format
    shape: tuple[int, ...]  # its elements along each axis
    value: Array | None  # what it holds, if that follows from the shape of the weight; else None
    elements: int  # those of it that a matrix becomes
    # Those of each step of rows; 0 if slabs do not follow each other: it is one for the weight
    step_count: int


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
    group = Shared(weights)
    for weight in weights:
        weight.group = group


def encoding_threads(weights: Sequence[tuple[Sequence[int], Encoding]], threads: int) -> int:
    """Return how many threads may encode at a time, as the widest row of blocks allows."""
    widest = max(
        _step(encoding) * shape[-2 if encoding.written.is_transposed else -1]
        for shape, encoding in weights
    )
    return max(min(threads, _FLIGHT_ELEMENTS // widest), 1)


class EncodedKind:
    """What weights of one shape and format become that are encoded alike."""

    def __init__(
        self,
        info: TensorInfo,  # one of them as it is
        stored_tensors: StoredTensors,  # the tensors of all shards
        encoding: Encoding,  # what they become
        threads: int,  # how many threads encode slabs
    ) -> None:
        self.stored_tensors, self.encoding, self.threads = stored_tensors, encoding, threads
        *stack, rows, columns = info.shape
        if encoding.written.is_transposed:
            rows, columns = columns, rows
        self.place_shape, self.rows, self.columns = tuple(stack), rows, columns
        self.dtype = numpy_dtype(info.format or "")
        self.is_of_blocks = is_of_blocks(encoding)
        matrix_parts = self._parts_of_matrix()
        self.parts: Sequence[_EncodedPart] = matrix_parts
        if stack:
            self.parts = [part._replace(shape=(*stack, *part.shape)) for part in matrix_parts]
        is_whole = encoding.written.row.global_scale or encoding.block == (0, 0)
        self.needs_amax = is_whole and not all(part.step_count for part in matrix_parts)
        self.step = _step(encoding)
        is_small = not stack and 2 * rows * columns <= STACK_ELEMENTS
        is_plain = not (self.is_of_blocks or encoding.written.is_transposed)
        can_be_stacked = is_plain and is_small and encoding.block != (0, 0)
        self.stack = (
            WeightStack(rows * columns, self._encode_stack)
            if can_be_stacked and stored_tensors.are_stacked(info.name)
            else None
        )

    def _parts_of_matrix(self) -> tuple[_EncodedPart, ...]:
        """Return what a matrix of so many rows and columns becomes."""
        if not self.is_of_blocks:
            return _parts(self.encoding, self.dtype, self.rows, self.columns)
        blocks = blocks_of_row(self.encoding, self.columns)
        shape, row_bytes = (self.rows, *blocks), math.prod(blocks)
        return (_EncodedPart("weight", _BYTES, shape, None, self.rows * row_bytes, row_bytes),)

    def _encode_stack(
        self, weights: Sequence[EncodedWeight]
    ) -> tuple[Sequence[Array], Sequence[Report]] | None:
        """Read, quantize and measure small weights; None if one is refused, or is a finding."""
        stack = self.stored_tensors.stack([weight.info.name for weight in weights])
        matrices: Iterable[Array] = stack if self.needs_amax else [stack]
        magnitudes = [block_amax(matrix, threads=1) for matrix in matrices]
        if not all(map(math.isfinite, magnitudes)):
            return None
        amax = None
        if self.needs_amax:
            for weight, magnitude in zip(weights, magnitudes, strict=True):
                weight.largest = magnitude
            amax = [weight.group_amax() for weight in weights]
        q = quantize_slab(stack, **_options(self.encoding, stack.shape), amax=amax, threads=1)
        reports = compare_decoded(stack, q)
        if not keep_all(reports, q, stack.dtype):
            return None
        arrays = q.parts()
        return [
            arrays[part.key].reshape(len(stack), *part.shape)
            if part.value is None
            else np.broadcast_to(part.value, (len(stack), *part.shape))
            for part in self.parts
        ], reports


class EncodedWeight:
    """A weight on its way into a quantized checkpoint."""

    def __init__(
        self,
        info: TensorInfo,  # the weight as it is
        kind: EncodedKind,  # what it becomes, as others do
        # What weights the errors of its input channels; None for nothing
        numbers: ChannelNumbers | None = None,
    ) -> None:
        self.info = info
        self.encoding = kind.encoding
        # The weights that share a scale with it
        self.group = Shared([self]) if kind.needs_amax else None
        self.largest: float | None = None  # its largest magnitude, once that was read
        self._kind = kind
        self._numbers = numbers

    def tensors(self) -> list[DerivedTensor]:
        """Describe the tensors that it becomes, the payload first."""
        name, label, nbytes = self.info.name, self.info.label, self.info.nbytes
        sources = (
            [name] if self.group is None else [sharer.info.name for sharer in self.group.weights]
        )
        kind = self._kind
        names = [self._name(part.key) for part in kind.parts]
        stack = None if self._numbers is not None else kind.stack
        job = WeightJob(names[0], self._slabs, stack, self, names)
        return [
            DerivedTensor(
                derived_info(part_name, label, part.shape, 0 if number else nbytes),
                part.format,
                name,
                sources,
                job,
                scheme=None if number else self.encoding.written.scheme,
            )
            for number, (part_name, part) in enumerate(zip(names, kind.parts, strict=True))
        ]

    def _name(self, key: str) -> str:
        """Name a part, from what its producer calls it."""
        name, suffix = self.info.name, "weight"
        if self.encoding.written.is_transposed:
            return f"{name}_{key}"
        if name.endswith(suffix):
            return name.removesuffix(suffix) + key
        return name + key.removeprefix(suffix) if key.startswith(suffix) else name_part(key, name)

    def _slabs(self, names: Collection[str], _format: str | None) -> Iterator[WeightSlab]:
        """List the slabs that make some parts; the first has what does not depend on rows, too."""
        parts = {name: part for part in self._kind.parts if (name := self._name(part.key)) in names}
        rows = [(name, part) for name, part in parts.items() if part.step_count]
        if not rows:
            counts = {name: math.prod(part.shape) for name, part in parts.items()}
            zeros = np.zeros((self._kind.step, self._kind.columns), self._kind.dtype)
            q = partial(self._quantize_scaled, zeros, 0)
            yield WeightSlab(counts, lambda: (_take_parts(parts, q()), None))
            return
        step, by_rows, counts = self._kind.step, dict(rows), {}
        for place, start, stop in self._rows_of_slabs():
            parts = by_rows if counts else parts
            counts = {name: math.prod(part.shape) for name, part in parts.items()} | {
                name: (part.elements if stop == self._kind.rows else stop // step * part.step_count)
                - start // step * part.step_count
                for name, part in rows
            }
            ranges = self._ranges(place, start, stop)
            numbers = self._numbers
            # The place has one number, that of an expert, or none.
            importance = None if numbers is None else numbers.of(sum(place))
            yield WeightSlab(counts, partial(self._encode, parts, ranges, importance))

    def _rows_of_slabs(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Divide the weight: a place in its stack, and where rows of blocks begin and end."""
        step = self._kind.step
        room = _FLIGHT_ELEMENTS // (self._kind.threads + 2)
        high = max(room // max(self._kind.columns, 1) // step, 1) * step
        for place in product(*map(range, self._kind.place_shape)):
            for start in range(0, self._kind.rows, high):
                yield place, start, min(start + high, self._kind.rows)

    def _ranges(self, place: Sequence[int], start: int, stop: int) -> Sequence[Range]:
        """Return the ranges of rows along the axes of the stored tensor."""
        rows, columns = (start, stop), (0, self._kind.columns)
        is_transposed = self.encoding.written.is_transposed
        outer = [(index, index + 1) for index in place]
        return [*outer, *((columns, rows) if is_transposed else (rows, columns))]

    def _read(self, ranges: Sequence[Range]) -> Array:
        array = self._kind.stored_tensors.box(self.info.name, ranges)
        return array.reshape(array.shape[-2:])

    def _arguments(self, shape: tuple[int, ...], exponent: int = 0) -> dict[str, Any]:
        """Return how a matrix, times a power of two, is quantized as by the producer."""
        amax = amax_near_one(self.group_amax(), exponent) if self._kind.needs_amax else None
        return {**_options(self.encoding, shape), "amax": amax, "threads": 1}

    def _quantize_scaled(
        self, array: Array, exponent: int, importance: Array | None = None
    ) -> QuantizedArray:
        """Quantize a matrix whose magnitudes are multiplied by a power of two."""
        return quantize_slab(array, **self._arguments(array.shape, exponent), importance=importance)

    def _encode(
        self, parts: Mapping[str, _EncodedPart], ranges: Sequence[Range], importance: Array | None
    ) -> tuple[Arrays, Report | None]:
        """Read a slab, quantize it, and measure that if its payload is among the parts."""
        array, is_weighted = self._read(ranges), self._numbers is not None
        if self._kind.is_of_blocks:  # in a tensor of its own name
            (first, _), _ = ranges[-2:]
            place = self.info.name, first, self.encoding
            blocks, loss = encode_rows(array, *place, importance, is_weighted=is_weighted)
            return dict.fromkeys(parts, blocks), loss
        if not self._kind.needs_amax:
            check_finite(array, self.info.name, threads=1)
        arguments = self._arguments(array.shape)
        q = quantize_slab(array, **arguments, importance=importance)
        whole: Report | None = None
        if self._kind.parts[0] in parts.values():
            to = measured_dtype(array.dtype)
            report, values = None if is_weighted else report_rows(array, q, to), None
            if report is None:
                values = decode_array(q, to, arithmetic="peer", threads=1)
                report = report_losses(array, values)
            # Values whose scales are beyond the range of their format are saturated: no others are.
            quantize = partial(self._quantize_scaled, importance=importance)
            if exceeds_scales(lost_to_scales(array, q, quantize, threads=1)):
                report = add_saturated(report, report.count - report.zero_in)
            whole = report
            if is_weighted and values is not None:
                axis = -2 if self.encoding.written.is_transposed else -1
                whole = weighted_report(report, array, values, importance, axis)
        return _take_parts(parts, q), whole

    def group_amax(self) -> float:
        """Return the largest magnitude of the weights that share its scale; files are open."""
        assert self.group is not None, "it needs that"  # noqa: S101
        return self.group.amax()

    def amax(self) -> float:
        if self.largest is None:
            self.largest = self._read_amax()
        return self.largest

    def _read_amax(self) -> float:
        cuts = (self._ranges(*rows) for rows in self._rows_of_slabs())
        return max(
            (
                check_finite(self._read(ranges), self.info.name, self._kind.threads)
                for ranges in cuts
            ),
            default=0.0,
        )


def _take_parts(parts: Mapping[str, _EncodedPart], q: QuantizedArray) -> Arrays:
    """Take the parts of a slab, by the names of their tensors."""
    arrays = q.parts()
    return {
        name: arrays[part.key] if part.value is None else part.value for name, part in parts.items()
    }


def _step(encoding: Encoding) -> int:
    return math.lcm(encoding.block[0] or 1, encoding.written.step)


@lru_cache
def _options(encoding: Encoding, shape: tuple[int, ...]) -> dict[str, Any]:
    row = encoding.written
    scheme, block = row.scheme, encoding.block
    if block == (1, 0) and row.as_groups:
        scheme = f"{scheme.rpartition('_')[0]}_group"
        block = (1, shape[-1])
    return {
        "scheme": scheme,
        "recipe": row.recipe,
        "block": block if min(block) > 0 else None,
        "axis": -2 if row.is_transposed else -1,
        "scales": encoding.scales,
        "symmetric": row.symmetric,
    }


@cache
def _parts(
    encoding: Encoding, dtype: np.dtype[Any], rows: int, columns: int
) -> tuple[_EncodedPart, ...]:
    """Return the parts of a matrix, from what a few rows of it become."""
    step = _step(encoding)
    step_array = _quantize_zeros(encoding, dtype, step, columns)
    step_parts = step_array.parts()
    pair_parts = _quantize_zeros(encoding, dtype, 2 * step, columns).parts()
    remainder_parts = {}
    if rows % step:
        remainder_parts = _quantize_zeros(encoding, dtype, rows % step, columns).parts()
    views = replace(views_of(step_array), shape=(rows, columns))
    constants = {
        part.name: value
        for part in views.layout.parts
        if part.use == "marker" and (value := marker_of(views)) is not None
    }
    parts = []
    for key, part in step_parts.items():
        row = format_of(part.dtype)
        assert row is not None, "of the table"  # noqa: S101
        step_count = part.size if part.shape != pair_parts[key].shape else 0
        shape, value = part.shape, constants.get(key)
        if value is not None:
            shape, step_count = value.shape, 0
        elif step_count:
            shape = tuple(
                length
                if length == pair_length
                else rows // step * length
                + (remainder_parts[key].shape[axis] if remainder_parts else 0)
                for axis, (length, pair_length) in enumerate(
                    zip(shape, pair_parts[key].shape, strict=True)
                )
            )
        elif row.kind != "float":  # the shape of the weight
            is_shape = part.tolist() == [step, columns]
            value = np.array([rows, columns], part.dtype) if is_shape else part
        parts.append(_EncodedPart(key, row.name, shape, value, math.prod(shape), step_count))
    if encoding.input_scale is not None:
        parts.append(_input_scale(encoding, encoding.input_scale))
    return tuple(parts)


def _input_scale(encoding: Encoding, scale: float) -> _EncodedPart:
    """Return the tensor of a constant scale of inputs, as the producer stores it."""
    producer, is_level = find_recipe(encoding.written.recipe), encoding.written.row.global_scale
    divides = is_level and producer.divides
    value = np.full(producer.scalar, 1 / scale if divides else scale, np.float32)
    key = "input_global_scale" if divides else "input_scale"
    return _EncodedPart(key, value.dtype.name, value.shape, value, 1, 0)


def _quantize_zeros(
    encoding: Encoding, dtype: np.dtype[Any], rows: int, columns: int
) -> QuantizedArray:
    zeros = np.zeros((rows, columns), dtype)
    array = zeros.T if encoding.written.is_transposed else zeros
    return quantize_slab(array, threads=1, **_options(encoding, array.shape))


def compare_decoded(stack: Array, q: QuantizedArray) -> list[CastReport]:
    values = decode_array(q, measured_dtype(stack.dtype), arithmetic="peer", threads=1)
    return [*map(report_losses, stack, values.reshape(stack.shape))]
