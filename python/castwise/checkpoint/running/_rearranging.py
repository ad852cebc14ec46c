"""Bring the items of a tensor into another order, from file to file, in blocks.

A block is chosen so that its items stand in long runs in both files: for a matrix and its transpose
a square. So the memory is that of a few blocks, however large and of whatever shape the tensor is.
Its temporary files make a stream, too, for containers that take tensors one by one, without places.
"""

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from castwise._core import rearrange_items
from castwise.checkpoint._errors import damage
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.containers.array_bytes import to_bytes
from castwise.checkpoint.containers.interface import (
    Arrangement,
    Elements,
    PlacedWriter,
    Reader,
    Writer,
)
from castwise.checkpoint.files.source_files import handle
from castwise.checkpoint.planning.derived_reader import DerivedReader
from castwise.checkpoint.results.report import Report, add_report

# A block is read and written once: at 8 MiB its runs in a square of float32 have 5.8 kB.
_BLOCK_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20


class Rearranged:
    """One tensor of a reader, in C order: a reader of what stands in a temporary file."""

    def __init__(self, reader: Reader, name: str, file: BinaryIO) -> None:
        self.path = reader.path
        self.tensors = {name: reader.tensors[name]}
        elements = reader.elements(name)
        self._elements = None if elements is None else elements._replace(fortran=False)
        self._file = file

    def elements(self, _name: str) -> Elements | None:
        return self._elements

    def arrangement(self, _name: str) -> None:
        """Return None: its items are in C order."""

    def expect(self, _names: object) -> None:
        """Do nothing: nothing is fetched."""

    def place(self, _name: str) -> tuple[BinaryIO, int]:
        return self._file, 0

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        return pieces_of(self._file, 0, self.tensors[name].nbytes, nbytes)


class InCOrder(PlacedWriter):
    """A writer of one tensor into a temporary file, as another writer wants it but in C order."""

    def __init__(self, writer: Writer, name: str, file: BinaryIO) -> None:
        super().__init__(file, [writer.planned[name]], {}, None)
        self._elements = writer.elements(name)._replace(fortran=False)

    def _write_start(self, _metadata: Mapping[str, str], _source: Reader | None) -> None:
        self._begins = dict.fromkeys(self.order, 0)

    def elements(self, _name: str) -> Elements:
        return self._elements


@contextmanager
def in_c_order(reader: Reader, name: str, folder: Path | None) -> Iterator[Rearranged]:
    """Bring a tensor into C order in a temporary file of that folder, for a block."""
    arrangement = reader.arrangement(name)
    assert arrangement is not None, "a tensor in C order stays where it is"  # noqa: S101
    with temporary_file(folder) as result, temporary_file(folder) as copy:
        place = reader.place(name)
        if place is None:
            offset = 0
            for piece in reader.pieces(name, _PIECE_BYTES):
                write_at(copy, memoryview(piece), offset)
                offset += len(piece)
            place = copy, 0
        try:
            rearrange(arrangement, arrangement.in_c_order(), place, result)
        except EOFError as error:
            raise damage(f"{reader.path}: truncated while it was read; tensor {name!r}") from error
        copy.truncate(0)
        yield Rearranged(reader, name, result)


@contextmanager
def temporary_file(folder: Path | None) -> Iterator[BinaryIO]:
    """Open a file for a block that is removed at its end; without a folder in the system's."""
    with tempfile.TemporaryFile(buffering=0, dir=folder) as file:
        yield cast("BinaryIO", file)


def pieces_of(file: BinaryIO, begin: int, length: int, nbytes: int) -> Iterator[bytes]:
    for offset in range(0, length, nbytes):
        file.seek(begin + offset)
        yield file.read(min(nbytes, length - offset))


def rearrange(
    source_order: Arrangement,
    target_order: Arrangement,
    source: tuple[BinaryIO, int],
    target: BinaryIO,
) -> None:
    """Copy all items of a tensor from a place in a file to the begin of another one."""
    # `source_order` and `target_order` have the same shape and size of items; those of the target
    # do not overlap.
    file, begin = source
    rearrange_items(
        (handle(file), begin, source_order.strides),
        (handle(target), target_order.strides),
        (source_order.item, source_order.shape),
        _BLOCK_BYTES,
    )


def write_at(file: BinaryIO, data: memoryview, place: int) -> None:
    """Write all of `data` at a place in a file without a buffer."""
    while data:
        if hasattr(os, "pwrite"):
            count = os.pwrite(file.fileno(), data, place)
        else:
            file.seek(place)
            count = file.write(data)
        data, place = data[count:], place + count


class JobStream:
    """The tensors that jobs make, one by one."""

    def __init__(
        self,
        maker: DerivedReader,  # makes them
        names: Sequence[str],  # the tensors that will be wanted, in their order
        folder: Path | None,  # where the temporary file is made; None for the system's folder
        files: ExitStack,  # closes it
    ) -> None:
        # What was lost, by the payloads that were made.
        self.reports: dict[str, Report | None] = {}
        self._maker = maker
        self._names = set(names)
        self._folder = folder
        self._files = files
        self._file: BinaryIO | None = None
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Make a tensor, or read it where it waits, so many bytes at a time."""
        if (place := self._places.pop(name, None)) is not None and self._file is not None:
            yield from pieces_of(self._file, *place, nbytes)
            return
        payload, names = self._maker.job(name)
        smaller = [part for part in names if part in self._names and part not in {name, payload}]
        ends = {part: self._reserve(part) for part in smaller}
        for arrays, report in self._maker.make_tensors([name, *smaller]):
            for part, array in arrays.items():
                data = to_bytes(array).data
                if part == name:
                    yield cast("bytes", data)  # as good to write
                elif self._file is not None:
                    write_at(self._file, data, ends[part])
                    ends[part] += data.nbytes
            if report is not None:
                self.reports[payload] = add_report(self.reports.get(payload), report)
        self._names -= {name, *smaller}

    def _reserve(self, name: str) -> int:
        """Reserve room for a tensor that waits; returns where it begins."""
        tensor, begin = self._maker.find_derived(name), self._end
        assert tensor is not None, "of a job"  # noqa: S101
        if self._file is None:
            self._file = self._files.enter_context(temporary_file(self._folder))
        length = math.prod(tensor.info.shape) * numpy_dtype(tensor.format).itemsize
        self._places[name] = begin, length
        self._end += length
        return begin
