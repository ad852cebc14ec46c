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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from numpy.typing import NDArray

from castwise.checkpoint._filesystem import SourceFile
from castwise.checkpoint._tensors import Planned, TensorInfo


@dataclass(frozen=True, slots=True)
class Elements:
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


class Reader(Protocol):
    """An open checkpoint file whose headers have been read and checked."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]

    def check_unchanged(self) -> None:
        """CheckpointError if the file was changed since its headers were read."""

    def elements(self, name: str) -> Elements | None:
        """Return how a tensor stands in the file; None if castwise cannot read its elements."""

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return file and offset of a tensor's bytes; None if they pass through `pieces`."""

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Read a tensor's bytes, `nbytes` at a time."""

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor as an array of its format; CheckpointError if that cannot be had."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class FileReader:
    """The file of a reader: closed at the end of a block, and opened again at the begin of another.

    Opened again, it must be as it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = SourceFile(path)

    def check_unchanged(self) -> None:
        """CheckpointError if the file was changed since it was first opened."""
        self._file.check_unchanged()

    def __enter__(self) -> Self:
        self._file.reopen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


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

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
