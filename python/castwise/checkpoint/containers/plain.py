"""Containers of a header and tensors as they are: only the header is left to derived classes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError, damage, name_file
from castwise.checkpoint._tensors import (
    TensorInfo,
    check_shape,
    check_texts,
    format_named,
    numpy_dtype,
)
from castwise.checkpoint.containers.array_bytes import from_bytes
from castwise.checkpoint.containers.interface import Elements, PlacedReader, PlacedWriter, Reader
from castwise.checkpoint.files.remote import RemoteSource
from castwise.checkpoint.files.source_files import SourceFile, source_file


class HeaderTensor(NamedTuple):
    """A tensor as a header states it.

    Attributes
    ----------
    name : str
        Its name.
    format : str
        One of `castwise.formats()`.
    shape : tuple of int
        Its elements along each axis.
    begin : int
        Where its bytes begin, counted from the end of the header.

    """

    name: str
    format: str
    shape: tuple[int, ...]
    begin: int


class Header(NamedTuple):
    """What stands before the tensors of a file.

    Attributes
    ----------
    tensors : sequence of HeaderTensor
        The tensors.
    metadata : mapping of str to str
        What else is stated.
    nbytes : int
        The bytes of the header.

    """

    tensors: Sequence[HeaderTensor]
    metadata: Mapping[str, str]
    nbytes: int


class PlainReader(PlacedReader[SourceFile | RemoteSource], ABC):
    """A file whose tensors follow its header: little-endian, in C order, an element in whole bytes.

    Derived classes have `read_header`; all else is here.

    Raises
    ------
    CheckpointError
        `read_header` fails, or what it returns cannot be.

    """

    def __init__(self, path: Path) -> None:
        super().__init__(source_file(path))
        self.tensors = {}
        self._begins = {}
        with self._opening(), name_file(f"{path}: it is damaged, or another file"):
            try:
                header = self.read_header(self._file)
                check_texts((tensor.name for tensor in header.tensors), header.metadata)
                for tensor in header.tensors:
                    self._add(tensor, header.nbytes)
            except (CheckpointError, OSError):
                raise
            except Exception as error:  # of whatever parses a header that is not one
                raise damage(repr(error)) from error
        self.metadata = dict(header.metadata)

    @abstractmethod
    def read_header(self, file: SourceFile | RemoteSource) -> Header:
        """Read the header, by `file.read(begin, count)` and `file.size`.

        Any error that parsing raises means that this is not such a file. Names, formats, shapes and
        places are checked afterwards.
        """

    def _add(self, tensor: HeaderTensor, start: int) -> None:
        """Add a tensor to those of the file; refuse what a header cannot state."""
        name, begin = tensor.name, tensor.begin
        row = format_named(tensor.format)
        if row is None:
            raise damage(f"tensor {name!r} is {tensor.format!r}, which is not a format")
        if name in self.tensors:
            raise damage(f"two tensors are named {name!r}")
        counts = (*tensor.shape, begin)
        if not all(type(count) is int and count >= 0 for count in counts):
            raise damage(f"tensor {name!r} has the shape {tensor.shape} from byte {begin}")
        shape = check_shape(name, tensor.shape)
        nbytes = math.prod(shape) * row.itemsize
        # Of a tensor without bytes nothing is missing, even if its place is behind the file's end.
        place = start + begin if nbytes else 0
        if place + nbytes > self._file.size:
            raise damage(f"tensor {name!r} is truncated, or stated to be too long")
        self.tensors[name] = TensorInfo(name, row.name, row.kind, tensor.format, shape, nbytes)
        self._begins[name] = place

    def elements(self, name: str) -> Elements:
        """Return how a tensor stands in the file."""
        return Elements(self.tensors[name].format or "")

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor as an array of its format."""
        info = self.tensors[name]
        return from_bytes(self._bytes(name), numpy_dtype(info.format or ""), info.shape)


class PlainWriter(PlacedWriter):
    """Writes a file that a `PlainReader` reads: the header at once, and the tensors after it.

    Derived classes have `header_bytes`; all else is here.

    Raises
    ------
    CheckpointError
        A tensor is of no format of castwise.

    """

    alignment = 1
    """Tensors begin at multiples of so many bytes, counted from the end of the header."""

    def _write_start(self, metadata: Mapping[str, str], source: Reader | None) -> None:
        del source
        tensors: list[HeaderTensor] = []
        end = 0
        for name, plan in self.planned.items():
            begin = -(-end // self.alignment) * self.alignment
            tensors.append(HeaderTensor(name, self.elements(name).format, plan.info.shape, begin))
            end = begin + self.elements(name).nbytes(math.prod(plan.info.shape))
        header = self.header_bytes(tensors, metadata)
        self._file.write(header)
        self._begins = {tensor.name: len(header) + tensor.begin for tensor in tensors}

    @abstractmethod
    def header_bytes(self, tensors: Sequence[HeaderTensor], metadata: Mapping[str, str]) -> bytes:
        """Return the header of a file with these tensors; CheckpointError if it has no place."""

    def elements(self, name: str) -> Elements:
        """Return how a tensor stands in the file."""
        plan = self.planned[name]
        if plan.format is None:
            raise CheckpointError(
                f"tensor {name!r} is stored as {plan.info.stored}, which is not a format of "
                "castwise, so that only the container that it is from can hold it"
            )
        return Elements(plan.format)
