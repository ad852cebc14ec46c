"""How a weight is cut into slabs, and what of each stored tensor a slab needs.

A slab is some rows of the plain weight, of one matrix of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
"""What was read of stored tensors, by name."""

Range = tuple[int, int]
"""Where elements along an axis begin and end."""

TILE_ROWS = 128
"""Rows of a tile of swizzled scales."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stored tensor and what of it belongs to rows of the plain weight.

    Attributes
    ----------
    name
        Its name.
    axis
        The axis of it along which the rows lie, from its end; None if every slab needs all of it.
    rows
        The rows for one of its elements along that axis.
    is_stacked
        True if its first axes are those of the stack.

    """

    name: str
    axis: int | None = None
    rows: Fraction = Fraction(1)
    is_stacked: bool = False


@dataclass(frozen=True, slots=True)
class Slab:
    """Rows of one matrix of a weight.

    Attributes
    ----------
    shape
        Its rows and columns.
    boxes
        What it needs of each stored tensor: for every axis where the elements begin and end.

    """

    shape: tuple[int, int]
    boxes: Mapping[str, Sequence[Range]]


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a weight is, and how it is decoded.

    Attributes
    ----------
    shape
        Its shape in a plain model.
    stack
        How many of the first axes are those of a stack of matrices.
    unit
        Slabs begin at multiples of so many rows.
    parts
        The stored tensors that are read.
    shapes
        Their shapes.
    decode
        Decodes a slab, given what was read of each part, into an array of two axes.

    """

    shape: tuple[int, ...]
    stack: int
    unit: int
    parts: Sequence[Part]
    shapes: Mapping[str, tuple[int, ...]]
    decode: Callable[[Arrays, NDArray[Any]], None]

    def slabs(self, elements: int) -> Iterator[Slab]:
        """Cut the weight into slabs of about so many elements, at least one unit of rows."""
        rows = self.shape[self.stack] if len(self.shape) > self.stack else 1
        columns = math.prod(self.shape[self.stack + 1 :])
        step = max(elements // max(columns, 1) // self.unit, 1) * self.unit
        for place in np.ndindex(*self.shape[: self.stack]):
            for first in range(0, rows, step) if columns else ():
                last = min(first + step, rows)
                boxes = {part.name: self._box(part, place, first, last) for part in self.parts}
                yield Slab((last - first, columns), boxes)

    def _box(self, part: Part, place: Sequence[int], first: int, last: int) -> list[Range]:
        shape = self.shapes[part.name]
        box = [(0, count) for count in shape]
        if part.is_stacked:
            box[: self.stack] = [(index, index + 1) for index in place]
        if part.axis is not None:
            end = min(math.ceil(last / part.rows), shape[part.axis])
            box[part.axis] = (math.floor(first / part.rows), end)
        return box


@dataclass(frozen=True, slots=True)
class Reshaped(Decoding):
    """A weight whose slabs are cut as of another shape with the same elements in the same order."""

    cut: Decoding | None = None

    @classmethod
    def of(cls, cut: Decoding, shape: tuple[int, ...]) -> Reshaped:
        return cls(shape, cut.stack, cut.unit, cut.parts, cut.shapes, cut.decode, cut)

    def slabs(self, elements: int) -> Iterator[Slab]:
        """Cut it into slabs, as `Decoding.slabs`."""
        assert self.cut is not None, "by `of`"  # noqa: S101
        return self.cut.slabs(elements)


@dataclass(frozen=True, slots=True)
class WholeTiles(Decoding):
    """A weight whose scales stand in tiles of 128 rows, all of which a slab needs."""

    def _box(self, part: Part, place: Sequence[int], first: int, last: int) -> list[Range]:
        end = last
        if part is self.parts[1]:
            end = -(-last // TILE_ROWS) * TILE_ROWS
        return Decoding._box(self, part, place, first, end)
