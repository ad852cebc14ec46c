"""Stored tensors that are read where they are indexed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

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
        """View the tensor in another shape."""
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
        """Return the ranges of the stored axes."""
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
