"""Cut streams of flat arrays into matrices of whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrices = tuple[NDArray[Any], NDArray[Any]]
"""Some whole rows of two tensors."""


class RowCutter:
    """Cuts two streams of flat arrays into matrices of whole rows.

    Each has a multiple of `size` elements, and as many as `most` has; the last one what is left.
    """

    def __init__(self, columns: int, size: int, most: int) -> None:
        self._columns, self._size = columns, size
        self._most = max(most // size, 1) * size
        self._lefts: list[NDArray[Any]] = []
        self._rights: list[NDArray[Any]] = []
        self._waiting = 0

    def add(self, left: NDArray[Any], right: NDArray[Any]) -> Iterator[Matrices]:
        """Take two arrays, and return the rows that are complete."""
        self._lefts.append(left)
        self._rights.append(right)
        self._waiting += left.size
        if self._waiting < self._size:
            return
        ahead, behind = joined(self._lefts), joined(self._rights)
        end = self._waiting // self._size * self._size
        self._lefts, self._rights = [ahead[end:]], [behind[end:]]
        self._waiting -= end
        for begin in range(0, end, self._most):
            cut = slice(begin, min(begin + self._most, end))
            yield ahead[cut].reshape(-1, self._columns), behind[cut].reshape(-1, self._columns)

    def end(self) -> Iterator[Matrices]:
        """Return the rows that are left."""
        if self._waiting:
            shape = -1, self._columns
            yield joined(self._lefts).reshape(shape), joined(self._rights).reshape(shape)
        self._lefts, self._rights, self._waiting = [], [], 0


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Return flat arrays as one."""
    arrays = [array for array in arrays if array.size]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
