"""What every container can do.

A reader is made from headers alone and says how the elements of each tensor stand in its file. A
writer is told first what will come, because some containers state everything in their first bytes,
and says how elements must stand in its own. Data passes between the two in pieces. Where the bytes
of a tensor lie in a file as they are, readers and writers name the place, so that the engine can
read and write there; else the pieces pass through them, in the order that the writer asks for.

Both are context managers: a reader closes its file, a writer completes the container unless there
was an error (the file it writes into is its caller's).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from castwise._numbers import BYTE_BITS
from castwise.checkpoint._errors import CheckpointError, damage
from castwise.checkpoint._tensors import Planned, TensorInfo, format_info
from castwise.checkpoint.containers.array_bytes import to_bytes
from castwise.checkpoint.files.remote import RemoteSource, Upload
from castwise.checkpoint.files.source_files import JoinedFiles, SourceFile

_File = TypeVar("_File", bound=SourceFile | RemoteSource | JoinedFiles)


class Elements(NamedTuple):
    """How the elements of one tensor stand in a file.

    Attributes
    ----------
    format
        Name of their format.
    packed
        True if elements of less than a byte share bytes.
    order
        Their byte order, "<" or ">".
    fortran
        True if the first axis varies fastest.

    """

    format: str
    packed: bool = False
    order: str = "<"
    fortran: bool = False

    def nbytes(self, count: int) -> int:
        """Return the bytes that so many elements take in the file."""
        return count * _bits(self.format)[self.packed] // BYTE_BITS


class Arrangement(NamedTuple):
    """Where the items of a tensor stand that are not in C order.

    Attributes
    ----------
    item
        The bytes of an item: an element, or several that share bytes.
    shape
        The number of items along each axis.
    strides
        Bytes from one item to the next along each axis, not negative; 0 where items repeat.

    """

    item: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def fortran(cls, item: int, shape: tuple[int, ...]) -> Arrangement:
        """Return the one in which the first axis varies fastest."""
        return cls(item, shape, tuple(accumulate(shape[:-1], mul, initial=item)) if shape else ())

    @property
    def reach(self) -> int:
        """The bytes from the first item to the end of the last."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        return self.item + sum((count - 1) * stride for count, stride in steps)

    def in_c_order(self) -> Arrangement:
        """Return that of the same items without gaps, the last axis varying fastest."""
        reversed_axes = Arrangement.fortran(self.item, self.shape[::-1])
        return Arrangement(self.item, self.shape, reversed_axes.strides[::-1])


class Reader(Protocol):
    """An open checkpoint file whose headers have been read and checked."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    other_entries: list[str]
    """What else the file holds, which another container cannot hold."""

    reopens: bool
    """Whether its file can be closed and opened again, as that of a shard."""

    @property
    def state(self) -> list[int]:
        """Size and time of the file, which a change of its contents changes."""

    def check_unchanged(self) -> None:
        """Refuse a file that was changed since its headers were read."""

    def elements(self, name: str) -> Elements | None:
        """Return how a tensor stands in the file; None if castwise cannot read its elements."""

    def arrangement(self, name: str) -> Arrangement | None:
        """Return where the items of a tensor stand; None if they are in C order, without gaps."""

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return file and offset of a tensor's bytes; None if they pass through `pieces`."""

    def stated(self) -> object:
        """Return what the file itself states of its quantized layers; None if nothing."""
        return None

    def lost_entries(self) -> list[str]:
        """List what would be lost if a file of its tensors took its place."""

    def expect(self, names: Iterable[str]) -> None:
        """Take note of the tensors that will be read by pieces, in this order."""

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Read a tensor's bytes, `nbytes` at a time."""

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor as an array of its format; CheckpointError if that cannot be had."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


class FileReader(Generic[_File]):
    """The file of a reader: closed at the end of a block, and opened again at the begin of another.

    Opened again, it must be as it was.
    """

    # Not derived from `Reader`: `isinstance` of what derives from a protocol runs Python.
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    reopens = False

    def __init__(self, file: _File) -> None:
        self.path = file.path
        self._file = file
        self.other_entries: list[str] = []

    @property
    def state(self) -> list[int]:
        """Size and time of the file, which a change of its contents changes."""
        return self._file.state

    def check_unchanged(self) -> None:
        """Refuse a file that was changed since it was first opened."""
        self._file.check_unchanged()

    def expect(self, names: Iterable[str]) -> None:
        """Take note of the tensors that will be read, in this order."""

    def stated(self) -> object:
        """Return None: nothing is stated of quantized layers, unless a container can do so."""
        return None

    def lost_entries(self) -> list[str]:
        """List what would be lost if a file of its tensors took its place."""
        return self.other_entries

    def arrangement(self, name: str) -> Arrangement | None:
        """Return None: tensors are in C order, unless a container can have others."""
        del name
        return None

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Close the file if its headers, which the block reads, cannot be read."""
        try:
            yield
        except BaseException:
            self._file.close()
            raise

    def _pieces_at(self, name: str, begin: int, length: int, nbytes: int) -> Iterator[bytes]:
        """Read the bytes of a tensor that lie in the file as they are, `nbytes` at a time."""
        for bytes_done in range(0, length, nbytes):
            size = min(nbytes, length - bytes_done)
            piece = self._file.read(begin + bytes_done, size)
            if len(piece) != size:
                raise self._truncation(name)
            yield piece

    def _read_at(self, name: str, begin: int, data: memoryview) -> None:
        """Fill `data` with bytes of a tensor that stand in the file from `begin` on."""
        if self._file.read_into(data, begin) != len(data):
            raise self._truncation(name)

    def _truncation(self, name: str) -> CheckpointError:
        return damage(f"{self.path}: truncated while it was read; tensor {name!r}")

    def __enter__(self) -> Self:
        self._file.reopen()
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


class PlacedReader(FileReader[_File]):
    """A file in which the bytes of every tensor lie as they are, from `_begins` on."""

    _begins: dict[str, int]

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return the file and the offset of a tensor's bytes; None for an object of a store."""
        return self._file.place(self._begins[name])

    def expect(self, names: Iterable[str]) -> None:
        """Begin to fetch the tensors that will be read by pieces, if they are on a store."""
        begins = ((name, self._begins[name]) for name in names)
        self._file.expect((begin, begin + self._length(name)) for name, begin in begins)

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Read a tensor's bytes as they lie in the file, `nbytes` at a time."""
        return self._pieces_at(name, self._begins[name], self._length(name), nbytes)

    def read_into(self, name: str, begin: int, data: memoryview) -> None:
        """Fill `data` with the bytes of a tensor from its byte `begin` on."""
        self._read_at(name, self._begins[name] + begin, data)

    def read_stack(self, names: Sequence[str], rows: NDArray[np.uint8]) -> None:
        """Fill a row with the bytes of each tensor, neighbors in the file at once."""
        size, data = rows.shape[1], rows.reshape(-1).data
        for first, last in runs([self._begins[name] for name in names], size):
            part = data[first * size : last * size]
            if (count := self._file.read_into(part, self._begins[names[first]])) != len(part):
                raise self._truncation(names[first + count // size])

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        raw = np.empty(self._length(name), np.uint8)
        self.read_into(name, 0, raw.data)
        return raw

    def _length(self, name: str) -> int:
        """Return the bytes that a tensor takes in the file."""
        return self.tensors[name].nbytes


class ChunkedReader(Reader):
    """A file of whose tensors any part can be read, also if they are cut into packed chunks."""

    @abstractmethod
    def chunks(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of the chunks of a tensor; None if it is not cut into any."""

    @abstractmethod
    def order(self, name: str) -> Literal["<", ">"]:
        """Return the byte order of a tensor."""

    @abstractmethod
    def read_into(self, name: str, begin: int, data: memoryview) -> None:
        """Fill `data` with the bytes, from `begin` on, of a tensor that has a place."""

    @abstractmethod
    def box(self, name: str, ranges: Sequence[tuple[int, int]]) -> NDArray[Any]:
        """Read what of a tensor without a place is within ranges, one for each axis."""


class Writer(Protocol):
    """A checkpoint being written: every name of `order` once, in that order."""

    planned: dict[str, Planned]
    order: list[str]
    """The names, in the order in which they must come."""

    def keeps(self, name: str) -> bool:
        """Return True if a tensor is to stay, byte for byte, what it is in the source."""

    def elements(self, name: str) -> Elements:
        """Return how a tensor that is not kept must stand in the file."""

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return the file and the offset of a tensor's bytes; None if they pass through here."""

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a tensor from bytes that stand as they must in the file."""

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Write an array of the planned format and shape."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Complete the container unless there was an error; some are complete as they are."""
        del kind, error, trace


class PlacedWriter(Writer):
    """A file in which the bytes of every tensor stand as they are, from `_begins` on.

    What stands before them is written when it is made.
    """

    _begins: dict[str, int]
    _source: Reader | None = None
    """The source, if it is a file of the same container, whose bytes can stay as they are."""

    def __init__(
        self,
        file: BinaryIO,
        plans: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
    ) -> None:
        self._file = file
        self.planned = {plan.info.name: plan for plan in plans}
        self.order = list(self.planned)
        self._write_start(metadata, source)

    @abstractmethod
    def _write_start(self, metadata: Mapping[str, str], source: Reader | None) -> None:
        """Write what stands before the tensors, and note where each begins."""

    def keeps(self, name: str) -> bool:
        """Return True if the source's bytes are wanted as they are."""
        return self._source is not None and self.planned[name].target is None

    def elements(self, name: str) -> Elements:
        """Return how a tensor that is not kept must stand in the file."""
        format_name = self.planned[name].format
        assert format_name is not None, "a writer refuses others when it is made"  # noqa: S101
        return Elements(format_name)

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return the file and the offset of a tensor's bytes; None for an object of a store."""
        return None if isinstance(self._file, Upload) else (self._file, self._begins[name])

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a tensor from bytes that stand as they must in the file."""
        self._go_to(name)
        for piece in pieces:
            self._file.write(piece)

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Write an array of the planned format and shape."""
        self._go_to(name)
        self._file.write(to_bytes(array).data)

    def _go_to(self, name: str) -> None:
        """Go to the begin of a tensor; an upload goes from end to end, so that gaps are written."""
        gap = self._begins[name] - self._file.tell()
        if isinstance(self._file, Upload):
            self._file.write(bytes(gap))
        elif gap:
            self._file.seek(self._begins[name])


def runs(begins: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Find the neighbors among pieces of one size: the index of the first, and after the last."""
    first = 0
    for index in range(1, len(begins) + 1):
        if index == len(begins) or begins[index] != begins[index - 1] + size:
            yield first, index
            first = index


@lru_cache
def _bits(name: str) -> tuple[int, int]:
    """Return the bits that an element of a format takes in a file, and those if it is packed."""
    info = format_info(name)
    return BYTE_BITS * info.itemsize, info.bits
