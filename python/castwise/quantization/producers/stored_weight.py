"""One quantized weight of a checkpoint: its stored tensors, and what is stated of them.

The tensors are read where they are indexed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from castwise._numbers import BYTE_BITS
from castwise.quantization.producers.found import QuantizedWeight
from castwise.quantization.producers.layouts import FLOAT8, I8, MATRIX, OF_E8M0, U8, dtype_of
from castwise.quantization.producers.names import Described
from castwise.quantization.producers.schemes import schemes
from castwise.quantization.producers.stated import json_of

# Where elements along an axis begin and end.
Range = tuple[int, int]

Item: TypeAlias = int | slice | EllipsisType
Index: TypeAlias = Item | tuple[Item, ...]


@dataclass(slots=True, eq=False)  # not frozen, which takes longer to make, for each weight
class LazyArray:
    """A stored tensor in the place of an array: indexing it reads what is asked for."""

    name: str  # its name
    shape: tuple[int, ...]  # the shape that it is seen in
    dtype: np.dtype[Any]  # of its elements
    # Its shape as stored, which differs in axes of one element, or in last axes that are joined
    stored_shape: tuple[int, ...]
    # Reads what is within ranges, one for each stored axis
    box: Callable[[Sequence[Range]], NDArray[Any]]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def reshape(self, shape: Sequence[int]) -> LazyArray:
        shape = tuple(shape)
        if shape == self.shape:
            return self
        return LazyArray(self.name, shape, self.dtype, self.stored_shape, self.box)

    def as_rows(self, shape: tuple[int, int]) -> LazyArray:
        """View the tensor as a matrix whose rows may lie in several first axes; any can be read."""
        if self.ndim <= len(shape) or self.shape[0] == shape[0] or not self.size:
            return self.reshape(shape)
        row_count = shape[0] // self.shape[0]  # of one index of the first axis

        def box(ranges: Sequence[Range]) -> NDArray[Any]:
            (begin, end), (low, high) = ranges
            rows = self[begin // row_count : -(-end // row_count)].reshape(-1, shape[1])
            offset = begin % row_count
            return rows[offset : offset + end - begin, low:high]

        return LazyArray(self.name, shape, self.dtype, shape, box)

    def take_last(self, index: NDArray[Any]) -> LazyArray:
        """View the elements at these places of the last axis; all of that axis is read."""
        shape = (*self.shape[:-1], len(index))

        def box(ranges: Sequence[Range]) -> NDArray[Any]:
            *outer, (begin, end) = ranges
            return self[tuple(slice(*bounds) for bounds in outer)][..., index[begin:end]]

        return LazyArray(self.name, shape, self.dtype, shape, box)

    def __getitem__(self, index: Index) -> NDArray[Any]:
        if index is ... or index == (...,):
            return self.box([(0, count) for count in self.stored_shape]).reshape(self.shape)
        items = [
            item for item in (index if isinstance(index, tuple) else (index,)) if item is not ...
        ]
        items += [slice(None)] * (self.ndim - len(items))
        ranges: list[Range] = []
        shape: list[int] = []
        for item, count in zip(items, self.shape, strict=True):
            if isinstance(item, slice):
                begin, end, _ = item.indices(count)
                ranges.append((begin, end))
                shape.append(end - begin)
            else:
                ranges.append((item, item + 1))
        return self.box(self._stored_ranges(ranges)).reshape(shape)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self[...], dtype, copy=copy)

    def _stored_ranges(self, ranges: Sequence[Range]) -> list[Range]:
        boxes: list[Range] = []
        ranges_seen = ((n, bounds) for n, bounds in zip(self.shape, ranges, strict=True) if n != 1)
        for axis, count in enumerate(self.stored_shape):
            if count == 1:
                boxes.append((0, 1))
                continue
            size, bounds = next(ranges_seen)
            if size != count:
                assert bounds == (0, size), "of joined axes all is wanted"  # noqa: S101
                return [*boxes, *((0, n) for n in self.stored_shape[axis:])]
            boxes.append(bounds)
        return boxes


class Undecodable(ValueError):  # noqa: N818  (it says what is wrong)
    """A weight cannot be decoded; the message says why."""


class WeightForm(NamedTuple):
    """What is known of a weight beside its parts: arguments of `QuantizedArray.from_parts`."""

    scheme: str
    block: tuple[int, int] | None = None
    shape: tuple[int, ...] | None = None
    axis: int = -1
    variant: str | None = None
    # Its shape in an unquantized model, if that is another one with the same elements.
    plain: tuple[int, ...] | None = None
    # Names of its parts, where the checkpoint has others; what is not needed is left out.
    names: Mapping[str, str] | None = None
    groups: str | None = None  # the tensor with the scale and zero point of each row, if reordered
    has_tiles: bool = False  # scales are in tiles, and codes are not padded to them
    loose: int | None = None  # bits of codes that stand one in a byte, where others are packed
    is_centered: bool = False  # zero points are stated to be half of the range


# Reads of a tensor, given its name, what is within ranges, one for each axis.
Read = Callable[[str, Sequence[Range]], NDArray[Any]]


class StoredWeight:
    """One weight, its stored tensors, and what is stated of them."""

    def __init__(
        self,
        weight: QuantizedWeight,
        tensors: Mapping[str, Described],
        read: Read,
        section: Mapping[str, Any],
    ) -> None:
        self.weight = weight  # the payload, the parts with their roles, the block that is stated
        self.tensors = tensors  # all of the checkpoint by name, as headers describe them
        self._read = read
        self.section = section  # what states the method, as its producer writes it, or nothing
        self.payload = weight.payload  # the name of the tensor with the codes
        self.scheme = weight.scheme or ""  # what names, formats and statements tell is stored

    def unknown(self) -> Undecodable:
        """Say that its scheme is not one that its producer is known to store so."""
        producers = " or ".join(self.weight.recipes)
        return Undecodable(
            f"castwise cannot decode {self.scheme or 'its scheme'} of {producers} yet"
        )

    @property
    def format(self) -> str:
        return self.tensors[self.payload].format or ""

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def matrix(self) -> tuple[int, int]:
        shape = self.shape(self.payload)
        if len(shape) != MATRIX:
            raise Undecodable(f"{self.payload!r} has the shape {shape}, which is not a matrix")
        return shape[0], shape[1]

    def length(self, axis: int) -> int:
        """Return the length of an axis of the payload, counted from the last one, -1."""
        shape = self.shape(self.payload)
        if len(shape) < -axis:
            raise Undecodable(f"{self.payload!r} has the shape {shape}, which is not a matrix")
        return shape[axis]

    def part(self, ending: str) -> str | None:
        """Name the first part whose name ends so."""
        return next((name for name in self.weight.parts if name.endswith(ending)), None)

    def require_part(self, ending: str) -> str:
        name = self.part(ending)
        if name is None:
            raise Undecodable(
                f"it has no {ending.lstrip('._')}, without which its codes mean nothing"
            )
        return name

    def scale(self) -> str:
        scale = self.weight.scale
        if scale is None:
            raise Undecodable("it has no scale")
        return scale

    def block(self) -> tuple[int, int]:
        """Return the block, 0 for a whole axis."""
        if self.scheme.endswith("_tensor"):
            return 0, 0
        if self.scheme.endswith("_channel"):
            return 1, 0
        block, scale = self.weight.block, self.weight.scale
        if block is None and scale is not None and math.prod(self.shape(scale)) == 1:
            return 0, 0
        if block is None:
            raise Undecodable("nothing states how many elements share a scale")
        return block[0], block[1]

    def group(self, inputs: int) -> tuple[int, int]:
        """Return the block of a scheme of groups; channels are groups of all inputs."""
        block = self.block()
        return (1, block[1] or inputs)

    def bits(self) -> int:
        number = self.scheme.removeprefix("int").partition("_")[0]
        if not self.scheme.startswith("int") or not number.isdigit():
            raise Undecodable("nothing states of how many bits its codes are")
        if not 1 <= int(number) <= 8:  # noqa: PLR2004
            raise Undecodable(f"castwise cannot decode codes of {number} bits")
        return int(number)

    def wrong(self, name: str, needed_shape: object) -> Undecodable:
        return Undecodable(
            f"{name!r} has the shape {self.shape(name)}, and {needed_shape} is what "
            f"{self.payload!r} of shape {self.shape(self.payload)} needs"
        )

    def whole(self, bits: int, words: int, width: int = 32) -> int:
        """Return how many codes fill words."""
        if words * width % bits:
            raise Undecodable(
                f"{self.payload!r} has the shape {self.shape(self.payload)}, and {words} words do "
                f"not end with a code of {bits} bits"
            )
        return words * width // bits

    def lazy(self, name: str) -> LazyArray:
        tensor = self.tensors[name]
        if tensor.format is None:
            raise Undecodable(f"{name!r} has a format that castwise cannot unpack")
        dtype, box = dtype_of(tensor.format), partial(self._read, name)
        return LazyArray(name, tensor.shape, dtype, tensor.shape, box)

    def json(self, name: str) -> dict[str, Any]:
        """Parse a tensor of JSON."""
        try:
            return json_of(name, self.lazy(name))
        except ValueError as error:
            raise Undecodable(str(error).removesuffix(".")) from error


# What a weight is whose producer stores it as most do


FLOAT_BITS = {
    row.name: row.bits
    for row in schemes()
    if row.element.startswith("float") and row.bits < BYTE_BITS
}

GRANULARITY = {(0, 0): "tensor", (1, 0): "channel"}


def usual(case: StoredWeight) -> WeightForm:
    """Describe codes in bytes whose rows are those of the plain weight, and integers in words."""
    tail, scheme = case.payload.rpartition(".")[2], case.scheme
    if tail == "qweight" or not case.weight.recipes:
        raise case.unknown()
    if case.format in FLOAT8:
        return _bytes(case, _of_float8(case))
    if tail.endswith("_packed") and "32" in case.format:
        return _words(case)
    if scheme in FLOAT_BITS:
        axis = _axis_of_codes(case)
        case.whole(FLOAT_BITS[scheme], case.length(axis), 8)
        return WeightForm(scheme, case.block(), axis=axis)
    if case.format == I8 and scheme.startswith("int"):
        return _bytes(case, "int8_{}")
    if case.format == U8 and scheme.startswith("int4_"):
        return WeightForm(scheme, case.block())
    raise case.unknown()


def _axis_of_codes(case: StoredWeight) -> int:
    """Return the axis that codes are packed along: their scales are fewer along it."""
    payload, scale = case.shape(case.payload), case.shape(case.scale())
    across = len(payload) > MATRIX and len(scale) == len(payload) and scale[-1] == payload[-1]
    return -2 if across else -1


def _of_float8(case: StoredWeight) -> str:
    """Return the scheme of one float8 per byte; "{}" stands for what shares a scale."""
    if case.scheme.startswith("mxfp8_") and case.tensors[case.scale()].format in OF_E8M0:
        names = [
            row.name for row in schemes() if row.element == case.format and row.name[:2] == "mx"
        ]
        if names:
            return names[0]
    if not case.scheme.startswith(("fp8", "mxfp8_")):
        raise case.unknown()
    return "fp8_{}"


def _bytes(case: StoredWeight, scheme: str) -> WeightForm:
    block, shape = case.block(), case.shape(case.payload)
    kind = GRANULARITY.get(block, "block" if scheme[0] == "f" else "group")
    if block == (0, 0) and len(shape) != MATRIX and math.prod(case.shape(case.scale())) == 1:
        # One scale for all, so that any number of axes is as good as two.
        matrix = (shape[0] if shape else 1, math.prod(shape[1:]))
        return WeightForm(scheme.format(kind), block, matrix, plain=shape)
    if len(shape) < MATRIX:
        raise case.wrong(case.scale(), "one scale")
    return WeightForm(scheme.format(kind), block, shape)


def _words(case: StoredWeight) -> WeightForm:
    """Describe compressed-tensors' integers in words of 32 bits."""
    bits, block = case.bits(), case.block()
    name = case.require_part("_shape")
    shape = [int(n) for n in case.lazy(name)[...].reshape(-1)]
    if len(shape) < MATRIX:
        raise Undecodable(f"{name!r} has {len(shape)} numbers, which is not the shape of a matrix")
    if 0 in block and (case.part("_g_idx") is not None or block == (0, 0)):
        block = (block[0] or shape[-2], shape[-1])
    return WeightForm(f"int{bits}_{'channel' if block == (1, 0) else 'group'}", block)


def matrices(case: StoredWeight) -> tuple[int, ...]:
    """Return the shape of a matrix, or of the matrices of experts, all of one shape."""
    shape = case.shape(case.payload)
    return shape if len(shape) == MATRIX + 1 else case.matrix()
