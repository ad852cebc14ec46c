"""Read parts of stored tensors, from whatever shard they are in, by several threads."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, product
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo, numpy_dtype
from castwise.checkpoint.containers.array_bytes import from_bytes, native
from castwise.checkpoint.containers.interface import ChunkedReader, Reader
from castwise.checkpoint.containers.plain import PlainReader
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.containers.whole_models import WholeModelReader

# Those that read any part of a tensor.
_Ranged = SafetensorsReader | WholeModelReader | ChunkedReader | PlainReader

_RANGED = get_args(_Ranged)
# Most readers, by their exact types: `isinstance` of a protocol's class takes much longer.
_UNCHUNKED = (SafetensorsReader, WholeModelReader)

# Room for what was read last: a matrix of 4096 x 3072 in bfloat16.
_RECENT_BYTES = 24 << 20
# Runs of at least so many bytes are read each by itself.
_SHORT_BYTES = 16 << 10
# Boxes that pay for the reading of a range that has them all.
_FEW = 2

# Where elements along an axis begin and end.
Range = tuple[int, int]


class StoredTensors(Mapping[str, TensorInfo]):
    """The tensors of shards that belong together."""

    def __init__(self, shards: Mapping[str, Reader]) -> None:
        self._readers: dict[str, Reader] = {}
        self._users: dict[Reader, int] = {}
        self._recent = _Recent()
        self._lock = Lock()
        self._are_safetensors = all(
            isinstance(reader, SafetensorsReader) for reader in shards.values()
        )
        homes: dict[str, str] = {}
        for shard, reader in shards.items():
            for name in reader.tensors:
                if name in self._readers:
                    raise CheckpointError(
                        f"tensor {name!r} is in {homes[name]} and in {shard}; remove one of them"
                    )
                self._readers[name], homes[name] = reader, shard

    def __getitem__(self, name: str) -> TensorInfo:
        return self._readers[name].tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def readers(self, names: Iterable[str]) -> list[Reader]:
        return list(dict.fromkeys(self._readers[name] for name in names))

    @contextmanager
    def open_files(self, readers: Sequence[Reader]) -> Iterator[None]:
        """Keep the files of some shards open for a block, also if other blocks need them."""
        newly_open: list[Reader] = []
        try:
            with self._lock:
                for reader in readers:
                    if not (reader.reopens or isinstance(reader, WholeModelReader)):
                        continue  # it is open as long as the run lasts
                    if not self._users.get(reader):
                        reader.__enter__()
                    self._users[reader] = self._users.get(reader, 0) + 1
                    newly_open.append(reader)
            yield
        finally:
            with self._lock:
                for reader in newly_open:
                    self._users[reader] -= 1
                    if not self._users[reader]:
                        reader.__exit__(None, None, None)
                        self._recent = _Recent()

    def read(self, name: str, ranges: Sequence[Range] | None = None) -> NDArray[Any]:
        """Read a tensor as an array of its format, or what is within ranges."""
        # Its shard is opened for that if no block keeps it open.
        reader = self._readers[name]
        ranges = ranges or [(0, count) for count in reader.tensors[name].shape]
        if self._users.get(reader):
            return self.box(name, ranges)
        with self.open_files(self.readers([name])):
            return self.box(name, ranges)

    def box(self, name: str, ranges: Sequence[Range]) -> NDArray[Any]:
        """Read the elements within ranges, one for each axis, as an array of their format."""
        # Only their bytes are read, if they lie in the file as they are; of a matrix that is cut
        # into short runs all of them, once, or as many neighbors of each as there is room for. Of
        # chunks all that the box meets are read, once.
        reader = self._readers[name]
        info = reader.tensors[name]
        if info.format is None:
            raise CheckpointError(
                f"{reader.path}: tensor {name!r} is stored as {info.stored}, which castwise cannot "
                "unpack"
            )
        if not isinstance(reader, _RANGED) or math.prod(info.shape) == 0:
            with self._lock:
                whole = self._recent.get((name,), lambda: native(reader.read(name)))
            return whole[tuple(slice(*bounds) for bounds in ranges)]
        if (isinstance(reader, _UNCHUNKED) or not isinstance(reader, ChunkedReader)) and all(
            bounds == (0, count) for bounds, count in zip(ranges[1:], info.shape[1:], strict=True)
        ):
            return _read_rows(reader, info, ranges)
        with self._lock:
            chunks = reader.chunks(name) if isinstance(reader, ChunkedReader) else None
            whole_ranges = (
                _wider(info, ranges) if chunks is None else _of_chunks(info, ranges, chunks)
            )
            if whole_ranges is not None:
                whole = self._recent.get(
                    (name, *whole_ranges), lambda: _read(reader, info, whole_ranges)
                )
                part = whole[
                    tuple(
                        slice(begin - start, end - start)
                        for (begin, end), (start, _) in zip(ranges, whole_ranges, strict=True)
                    )
                ]
                return np.ascontiguousarray(part)
            if isinstance(reader, ChunkedReader):
                return _read(reader, info, ranges)
        return _read(reader, info, ranges)

    def are_stacked(self, name: str) -> bool:
        """Return True for a tensor that `stack` reads: its bytes are those of its elements."""
        info = self[name]
        size = math.prod(info.shape) * numpy_dtype(info.format).itemsize if info.format else -1
        return self._are_safetensors and size == info.nbytes

    def stack(self, names: Sequence[str]) -> NDArray[Any]:
        """Read open tensors of one shape and format, along a new first axis."""
        info = self[names[0]]
        raw = np.empty((len(names), info.nbytes), np.uint8)
        begin = 0
        for reader, group in groupby(names, self._readers.__getitem__):
            assert isinstance(reader, SafetensorsReader), "by `are_stacked`"  # noqa: S101
            names_of_reader = [*group]
            end = begin + len(names_of_reader)
            reader.read_stack(names_of_reader, raw[begin:end])
            begin = end
        return from_bytes(
            raw.reshape(-1), numpy_dtype(info.format or ""), (len(names), *info.shape)
        )


class _Recent:
    """What was read last: as much as a limit allows, or the largest array and a half of that."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, ...], NDArray[Any]] = {}

    def get(self, key: tuple[Any, ...], read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        recent = self._arrays.pop(key, None)
        self._arrays[key] = array = read() if recent is None else recent
        if recent is not None:
            return array
        # The largest array and half of it, so that small ones beside the largest stay.
        limit = max(_RECENT_BYTES, 3 * max(other.nbytes for other in self._arrays.values()) // 2)
        while sum(other.nbytes for other in self._arrays.values()) > limit:
            del self._arrays[next(iter(self._arrays))]
        return array


def _matrix(shape: Sequence[int], ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges of all of the matrix that a box is in: single places of a stack stay."""
    single = 0
    while single < len(ranges) and ranges[single][1] - ranges[single][0] == 1:
        single += 1
    return [*ranges[:single], *((0, count) for count in shape[single:])]


def _wider(info: TensorInfo, ranges: Sequence[Range]) -> list[Range] | None:
    """Return the ranges that are worth reading, and keeping, for a box of many short runs."""
    # The ranges are those of the box's matrix, or of a part of the matrix with room for several
    # such boxes; None if the box is to be read by itself.
    runs = _runs(info.shape, ranges)
    _, count = next(runs)
    itemsize = numpy_dtype(info.format or "").itemsize
    if next(runs, None) is None or count * itemsize >= _SHORT_BYTES:
        return None
    wide_ranges = _matrix(info.shape, ranges)
    nbytes = math.prod(end - begin for begin, end in wide_ranges) * itemsize
    if nbytes <= _RECENT_BYTES:
        return wide_ranges
    axis = max(axis for axis, bounds in enumerate(ranges) if bounds != (0, info.shape[axis]))
    begin, end = ranges[axis]
    step, length = end - begin, info.shape[axis]
    # Half of what is kept, so that two tensors that are read by turns both stay.
    boxes = _RECENT_BYTES // 2 * length // nbytes // step
    if boxes < _FEW:
        return None
    start = begin // (boxes * step) * boxes * step
    wide_ranges[axis] = start, min(start + boxes * step, length)
    return wide_ranges if end <= wide_ranges[axis][1] else None


def _of_chunks(info: TensorInfo, ranges: Sequence[Range], sizes: Sequence[int]) -> list[Range]:
    """Return the ranges of all chunks that a box meets: each is unpacked as a whole."""
    return [
        (begin // size * size, min(-(-end // size) * size, length))
        for (begin, end), size, length in zip(ranges, sizes, info.shape, strict=True)
    ]


def _read_rows(
    reader: SafetensorsReader | WholeModelReader | PlainReader,
    info: TensorInfo,
    ranges: Sequence[Range],
) -> NDArray[Any]:
    """Read what is within ranges, of which all but the first are whole."""
    dtype = numpy_dtype(info.format or "")
    shape = tuple(end - begin for begin, end in ranges)
    raw = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    begin = ranges[0][0] * math.prod(shape[1:]) if ranges else 0
    reader.read_into(info.name, begin * dtype.itemsize, raw.data)
    return from_bytes(raw, dtype, shape)


def _read(reader: _Ranged, info: TensorInfo, ranges: Sequence[Range]) -> NDArray[Any]:
    order: Literal["<", ">"] = "<"
    if isinstance(reader, ChunkedReader):
        if reader.place(info.name) is None:
            return reader.box(info.name, ranges)
        order = reader.order(info.name)
    dtype = numpy_dtype(info.format or "")
    shape = tuple(end - begin for begin, end in ranges)
    raw = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    data, offset = raw.data, 0
    for begin, count in _runs(info.shape, ranges):
        size = count * dtype.itemsize
        reader.read_into(info.name, begin * dtype.itemsize, data[offset : offset + size])
        offset += size
    return from_bytes(raw, dtype, shape, order)


def _runs(shape: Sequence[int], ranges: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Cut a box of an array in C order into runs of neighbors, each by its begin and length."""
    axis = len(shape)
    # An axis of which all is wanted does not end a run.
    while axis > 0 and ranges[axis - 1] == (0, shape[axis - 1]):
        axis -= 1
    inner = math.prod(shape[axis:])
    if axis == 0:
        yield 0, inner
        return
    start, last = ranges[axis - 1]
    # In elements: how far apart neighbors along each axis are.
    strides = [math.prod(shape[dimension + 1 :]) for dimension in range(axis)]
    for places in product(*(range(*bounds) for bounds in ranges[: axis - 1])):
        begin = sum(place * stride for place, stride in zip(places, strides, strict=False))
        yield begin + start * inner, (last - start) * inner
