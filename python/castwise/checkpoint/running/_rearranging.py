"""Bring the items of a tensor into another order, from file to file, in blocks.

A block is chosen so that its items stand in long runs in both files: for a matrix and its transpose
a square. So the memory is that of a few blocks, however large and of whatever shape the tensor is.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from itertools import product
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from castwise import _core
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned, TensorInfo
from castwise.checkpoint.containers._interface import Arrangement, Elements, Reader, Writer

_BLOCK_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
_PAGE_BYTES = 4096
"""Items further apart are read one by one."""

_MAX_RUNS = 1 << 16

_COPIED_AS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""The dtypes of which numpy copies an item of so many bytes fast."""


class Rearranged:
    """One tensor of a reader, in C order: a reader of what stands in a temporary file."""

    def __init__(self, reader: Reader, name: str, file: BinaryIO) -> None:
        self.path = reader.path
        self.tensors: dict[str, TensorInfo] = {name: reader.tensors[name]}
        elements = reader.elements(name)
        self._elements = None if elements is None else elements._replace(fortran=False)
        self._file = file

    def elements(self, _name: str) -> Elements | None:
        """Return how the elements stand in the file."""
        return self._elements

    def arrangement(self, _name: str) -> None:
        """Say that they are in C order."""

    def place(self, _name: str) -> tuple[BinaryIO, int]:
        """Return the file, and the offset in it."""
        return self._file, 0

    def expect(self, _names: object) -> None:
        """There is nothing to be fetched."""

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Read the tensor's bytes, `nbytes` at a time."""
        return pieces_of(self._file, self.tensors[name].nbytes, nbytes)


class InCOrder:
    """A writer of one tensor into a temporary file, as another writer wants it but in C order."""

    def __init__(self, writer: Writer, name: str, file: BinaryIO) -> None:
        self.planned: dict[str, Planned] = {name: writer.planned[name]}
        self.order = [name]
        self._elements = writer.elements(name)._replace(fortran=False)
        self._file = file

    def keeps(self, _name: str) -> bool:
        """Return False: what stays as it is need not be brought into another order."""
        return False

    def elements(self, _name: str) -> Elements:
        """Return how the elements must stand in the file."""
        return self._elements

    def place(self, _name: str) -> tuple[BinaryIO, int]:
        """Return the file, and the offset in it."""
        return self._file, 0


@contextmanager
def in_c_order(reader: Reader, name: str, folder: Path | None) -> Iterator[Rearranged]:
    """Bring a tensor into C order in a temporary file of that folder, for a block.

    Raises
    ------
    CheckpointError
        The file of the reader ends early.
    OSError
        The temporary file cannot be written.

    """
    arrangement = reader.arrangement(name)
    assert arrangement is not None, "a tensor in C order stays where it is"  # noqa: S101
    with temporary_file(folder) as ordered, temporary_file(folder) as unpacked:
        place = reader.place(name)
        if place is None:
            done = 0
            for piece in reader.pieces(name, _PIECE_BYTES):
                _write_at(unpacked, memoryview(piece), done)
                done += len(piece)
            place = unpacked, 0
        try:
            rearrange(arrangement, arrangement.in_c_order(), place, ordered)
        except EOFError as error:
            raise CheckpointError(
                f"{reader.path}: truncated while it was read; tensor {name!r}"
            ) from error
        unpacked.truncate(0)
        yield Rearranged(reader, name, ordered)


@contextmanager
def temporary_file(folder: Path | None) -> Iterator[BinaryIO]:
    """Open a file for a block that is removed at its end; without a folder in the system's."""
    with tempfile.TemporaryFile(buffering=0, dir=folder) as file:
        yield cast("BinaryIO", file)


def pieces_of(file: BinaryIO, length: int, nbytes: int) -> Iterator[bytes]:
    """Read the first `length` bytes of a file, `nbytes` at a time."""
    file.seek(0)
    for done in range(0, length, nbytes):
        yield file.read(min(nbytes, length - done))


def rearrange(
    old: Arrangement, new: Arrangement, source: tuple[BinaryIO, int], target: BinaryIO
) -> None:
    """Copy all items of a tensor from a place in a file to the begin of another one.

    `old` and `new` have the same shape and size of items; those of `new` do not overlap.

    Raises
    ------
    EOFError
        The source ends early.
    OSError
        It cannot be read, or the target not be written.

    """
    shape, item, (file, begin) = old.shape, old.item, source
    if 0 in shape:
        return
    orders = [_by_stride(arrangement) for arrangement in (old, new)]
    limits, count = list(shape), _BLOCK_BYTES // item
    if _gap(old, orders[0]) > item:
        # A run is read with its gaps; and there is a number for each run, however short.
        limits[orders[0][0]] = max(_BLOCK_BYTES // _gap(old, orders[0]), 1)
        count = min(count, _MAX_RUNS)
    extents = _extents(shape, limits, orders, max(count, 1))
    for corner in product(*map(range, (0,) * len(shape), shape, extents)):
        size = [min(*pair) for pair in zip(extents, np.subtract(shape, corner), strict=True)]
        block = _read(old, orders[0], corner, size, file, begin)
        _write(new, orders[1], corner, block, target)


def _by_stride(arrangement: Arrangement) -> list[int]:
    """Return the axes longer than 1 from the one that varies fastest; repeated ones at the end."""
    axes = [axis for axis, count in enumerate(arrangement.shape) if count > 1]
    return sorted(axes, key=lambda axis: arrangement.strides[axis] or math.inf)


def _gap(arrangement: Arrangement, order: Sequence[int]) -> int:
    """Return the bytes from an item to the nearest one."""
    return arrangement.strides[order[0]] if order else 0


def _extents(
    shape: Sequence[int], limits: Sequence[int], orders: Sequence[Sequence[int]], count: int
) -> list[int]:
    """Return the extents of a block of at most `count` items: the runs of both orders alike."""
    extents = [1] * len(shape)
    while True:
        runs = []
        for order in orders:
            run = 1
            for axis in order:
                run *= extents[axis]
                if extents[axis] < shape[axis]:
                    runs.append((run, axis))
                    break
        # Doubled, the shorter run first, as far as it goes.
        for _, axis in sorted(runs):
            grown = min(2 * extents[axis], shape[axis], limits[axis])
            if grown > extents[axis] and math.prod(extents) // extents[axis] * grown <= count:
                extents[axis] = grown
                break
        else:
            return extents


def _runs(
    arrangement: Arrangement, order: Sequence[int], corner: Sequence[int], size: Sequence[int]
) -> tuple[int, list[int]]:
    """Return the items of a run, all in one piece, and where each run of a block begins."""
    items, rest = 1, list(order)
    while rest and arrangement.strides[rest[0]] == items * arrangement.item:
        axis = rest.pop(0)
        items *= size[axis]
        if size[axis] < arrangement.shape[axis]:
            break
    begins = np.array([np.dot(corner, arrangement.strides)], np.int64)
    for axis in rest:
        steps = np.arange(size[axis], dtype=np.int64) * arrangement.strides[axis]
        begins = (steps[:, None] + begins).reshape(-1)
    return items, begins.tolist()


def _read(  # noqa: PLR0917
    arrangement: Arrangement,
    order: Sequence[int],
    corner: Sequence[int],
    size: Sequence[int],
    file: BinaryIO,
    begin: int,
) -> NDArray[np.generic]:
    """Read a block; returns it with its axes in their order."""
    dtype = np.dtype(_COPIED_AS.get(arrangement.item, f"V{arrangement.item}"))
    items, begins = _runs(arrangement, order, corner, size)
    gap = _gap(arrangement, order)
    if arrangement.item < gap <= _PAGE_BYTES:
        # One read for all items along the first axis, and what stands between them.
        count = size[order[0]]
        span = np.empty((count - 1) * gap + arrangement.item, np.uint8)
        picked = np.ndarray((count,), dtype, span, strides=(gap,))
        flat = np.empty(math.prod(size), dtype)
        items, begins = count, _runs(arrangement, order[1:], corner, size)[1]
        for number, place in enumerate(begins):
            _read_at(file, span.data, begin + place)
            flat[number * count : (number + 1) * count] = picked
    else:
        flat = np.empty(math.prod(size), dtype)
        view, nbytes = flat.view(np.uint8).data, items * arrangement.item
        for number, place in enumerate(begins):
            _read_at(file, view[number * nbytes : (number + 1) * nbytes], begin + place)
    others = [axis for axis in range(len(size)) if axis not in order]
    slowest_first = [*others, *reversed(order)]
    block = flat.reshape([size[axis] for axis in slowest_first])
    return block.transpose(np.argsort(slowest_first))


def _write(
    arrangement: Arrangement,
    order: Sequence[int],
    corner: Sequence[int],
    block: NDArray[np.generic],
    file: BinaryIO,
) -> None:
    """Write a block whose axes are in their order."""
    items, begins = _runs(arrangement, order, corner, block.shape)
    others = [axis for axis in range(block.ndim) if axis not in order]
    turned = block.transpose([*others, *reversed(order)])
    result = np.empty(turned.shape, turned.dtype)
    if turned.dtype.kind == "u":
        # Up to ten times as fast as numpy, in tiles of the cache.
        _core.cast(turned, turned.dtype.name, out=result, threads=1)
    else:
        result[...] = turned
    view, nbytes = result.reshape(-1).view(np.uint8).data, items * arrangement.item
    for number, place in enumerate(begins):
        _write_at(file, view[number * nbytes : (number + 1) * nbytes], place)


def _read_at(file: BinaryIO, data: memoryview, place: int) -> None:
    """Fill `data` from a place in a file."""
    while data:
        if hasattr(os, "preadv"):
            count = os.preadv(file.fileno(), [data], place)
        else:
            file.seek(place)
            count = cast("FileIO", file).readinto(data)
        if not count:
            raise EOFError
        data, place = data[count:], place + count


def _write_at(file: BinaryIO, data: memoryview, place: int) -> None:
    """Write all of `data` at a place in a file without a buffer."""
    while data:
        if hasattr(os, "pwrite"):
            count = os.pwrite(file.fileno(), data, place)
        else:
            file.seek(place)
            count = file.write(data)
        data, place = data[count:], place + count
