"""What the HDF5 reader and writer share: h5py, its errors, a walk through a file, and checks."""

from __future__ import annotations

import errno
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError, damage
from castwise.checkpoint._tensors import format_of

if TYPE_CHECKING:
    import h5py
    from _typeshed import ReadableBuffer, WriteableBuffer

# A link may lead back to a group that holds it, and so without end.
_MAX_DEPTH = 256
_PIECE_BYTES = 1 << 20
# libhdf5 unpacks a chunk again for each block that it does not find in its cache.
_CHUNK_CACHE_BYTES = 1 << 24
_MIN_LIMIT = 1 << 26  # bytes that a dataset may have whose data is not stored
_DEFLATE_LIMIT = 1032  # bytes that one stored byte can become
# The filters that come with HDF5 or h5py; for any other HDF5 would load a program.
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}

# Signature and version of a global heap, and the bytes of its header and of an object's.
_HEAP, _HEAP_HEADER = b"GCOL\1\0\0\0", 16


def h5py_module() -> ModuleType:
    """Import h5py, which only these files need; the refusal says how to install it."""
    try:
        import h5py  # noqa: PLC0415
    except ImportError as error:
        raise CheckpointError(
            "HDF5 and Keras files need h5py: pip install 'castwise[h5]'"
        ) from error
    module: ModuleType = h5py
    return module


@contextmanager
def explain_errors(path: Path | None) -> Iterator[None]:
    """Name the file in every error, and make one kind of error of h5py's many."""
    where = "" if path is None else f"{path}: "
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{where}{error}") from error
    except (RuntimeError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        raise damage(f"{where}the HDF5 file is damaged: {error}") from error
    except OSError as error:
        if error.errno not in {None, errno.EINVAL}:  # the second: a place before the file
            raise
        raise damage(f"{where}the HDF5 file is damaged: {error}") from error


class Window(io.RawIOBase):
    """A part of an open file as a file of its own: from `begin`, `size` bytes, or to its end."""

    def __init__(self, file: BinaryIO, begin: int = 0, size: int | None = None) -> None:
        super().__init__()
        self._file = file
        self._begin = begin
        self._size = size
        self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset from the begin or the end of the part, or from here."""
        if whence == io.SEEK_CUR:
            offset += self._at
        elif whence == io.SEEK_END:
            offset += self._length()
        self._at = offset
        return offset

    def _length(self) -> int:
        if self._size is not None:
            return self._size
        return max(self._file.seek(0, io.SEEK_END) - self._begin, 0)

    def tell(self) -> int:
        """Return the offset from the begin of the part."""
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read as many bytes as there are; h5py checks how many it wants."""
        view = memoryview(buffer).cast("B")
        if self._size is not None:
            view = view[: max(self._size - self._at, 0)]
        self._file.seek(self._begin + self._at)
        count = self._file.readinto(view)  # type: ignore[attr-defined]
        if view[: len(_HEAP)] == _HEAP:
            self._check_heap()
        self._at += count
        return int(count)

    def _check_heap(self) -> None:
        """OSError unless the objects of a global heap lie in it: libhdf5 would loop for ever."""
        self._file.seek(self._begin + self._at + len(_HEAP))
        size = int.from_bytes(self._file.read(8), "little")
        heap = self._file.read(min(size, self._length() - self._at) - _HEAP_HEADER)
        at = 0
        while len(heap) - at >= _HEAP_HEADER:
            is_free = heap[at : at + 2] == b"\0\0"
            length = int.from_bytes(heap[at + 8 : at + 16], "little")
            if is_free and length < _HEAP_HEADER:  # which it includes
                break
            at += length if is_free else _HEAP_HEADER + -(-length // 8) * 8
        if len(heap) - at not in range(_HEAP_HEADER):
            raise OSError("the objects of a global heap do not lie in it")

    def write(self, data: ReadableBuffer) -> int:
        self._file.seek(self._begin + self._at)
        count = self._file.write(data)
        self._at += count
        return count

    def truncate(self, size: int | None = None) -> int:
        """End the file after `size` bytes of the part."""
        length = self._at if size is None else size
        self._file.flush()
        self._file.truncate(self._begin + length)
        return length

    def flush(self) -> None:
        """Write what is still in memory."""
        if self._file.writable():
            self._file.flush()


def holds_numbers(item: object) -> bool:
    """Return True for a dataset whose elements numpy has a format for, or are raw bytes."""
    if not isinstance(item, h5py_module().Dataset) or item.shape is None:
        return False
    dtype = item.dtype
    raw = dtype.kind == "V" and dtype.names is None and dtype.subdtype is None
    return raw or (dtype.kind in "biufc" and format_of(dtype) is not None)


def walk(
    group: h5py.Group, name: str = "", depth: int = 0, addresses: set[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield groups, datasets and types of an HDF5 file by path, groups before their members."""
    # `addresses` are those of the groups before.
    h5py = h5py_module()
    if depth > _MAX_DEPTH:
        raise damage(f"groups stand more than {_MAX_DEPTH} deep, or inside of themselves")
    addresses = set() if addresses is None else addresses
    if (address := h5py.h5o.get_info(group.id).addr) in addresses:
        raise CheckpointError(
            f"group {name!r} stands at two places; write the file anew without links"
        )
    addresses.add(address)
    yield name, group
    for key in group:
        path = f"{name}/{key}" if name else key
        link = group.get(key, getlink=True)
        if not isinstance(link, h5py.HardLink):
            kind = "another file" if isinstance(link, h5py.ExternalLink) else "another name"
            raise CheckpointError(
                f"{path!r} is a link to {kind}, which castwise does not follow; copy what it "
                "leads to into its place"
            )
        item = group[key]
        if isinstance(item, h5py.Group):
            yield from walk(item, path, depth + 1, addresses)
        else:
            yield path, item


def texts(group: h5py.HLObject) -> dict[str, str]:
    texts = {}
    for key in group.attrs:
        value = group.attrs[key]
        if isinstance(value, str):
            texts[key] = value
    return texts


def check_storage(name: str, dataset: h5py.Dataset, size: int) -> None:
    """Refuse a dataset whose data is not in a file of `size` bytes, or not plausible."""
    if dataset.is_virtual:
        raise CheckpointError(
            f"dataset {name!r} is a view of other datasets, which may be anywhere; copy "
            "their data into it"
        )
    if dataset.external:
        raise CheckpointError(
            f"the data of {name!r} is in another file, {dataset.external[0][0]}; copy "
            "it into this file"
        )
    properties = dataset.id.get_create_plist()
    for index in range(properties.get_nfilters()):
        code = properties.get_filter(index)[0]
        if code not in _FILTERS:
            raise CheckpointError(
                f"dataset {name!r} needs the HDF5 filter {code}, a plugin; castwise reads "
                f"{', '.join(_FILTERS.values())}; write it anew with one of these (h5repack)"
            )
    nbytes = math.prod(dataset.shape) * dataset.dtype.itemsize
    stored_bytes = min(dataset.id.get_storage_size(), size)
    if nbytes > max(stored_bytes * _DEFLATE_LIMIT, _MIN_LIMIT):
        raise damage(
            f"dataset {name!r} claims {nbytes:,} bytes, and {stored_bytes:,} are stored, which "
            "cannot hold so much"
        )


def order_of(dtype: np.dtype[Any]) -> Literal["<", ">"]:
    """Return the byte order of a dtype; "<" where it has none."""
    return ">" if dtype.str[0] == ">" else "<"


def open_hdf5(window: Window) -> h5py.File:
    return h5py_module().File(window, "r", rdcc_nbytes=_CHUNK_CACHE_BYTES)


def blocks(dataset: h5py.Dataset, shape: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    """Read a dataset in C order, about a mebibyte at a time."""
    # Chunks that HDF5 does not keep until the next block are read with all beside them, or each
    # block would unpack them again.
    if not shape:
        yield np.asarray(dataset[()])
        return
    if (chunks := dataset.chunks) is not None:
        width = math.prod(shape[1:]) * dataset.dtype.itemsize
        if min(chunks[0], shape[0]) * width > _CHUNK_CACHE_BYTES:
            for begin in range(0, shape[0], chunks[0]):
                yield dataset[begin : begin + chunks[0]]
            return
    # Whole rows behind `axis`, several along it, and one of all before it.
    axis, row = len(shape) - 1, dataset.dtype.itemsize
    while axis and row * shape[axis] <= _PIECE_BYTES:
        row *= shape[axis]
        axis -= 1
    count = max(_PIECE_BYTES // max(row, 1), 1)
    for prefix in np.ndindex(*shape[:axis]):
        for begin in range(0, shape[axis], count):
            yield dataset[(*prefix, slice(begin, min(begin + count, shape[axis])))]
