"""What every container can do, and which container a path names.

A reader is made from headers alone; data is read one tensor at a time. A writer is told first what
will come, because some containers state everything in their first bytes, and then takes the
tensors one by one in the order that it asks for. So neither ever holds more than one tensor.
Both are context managers: a reader closes its file, a writer completes the container unless there
was an error (the file it writes into is its caller's).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from numpy.typing import NDArray

from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.npy_file import NpyReader, NpyWriter
from castwise.checkpoint.npz_file import NpzReader, NpzWriter
from castwise.checkpoint.safetensors_file import SafetensorsReader, SafetensorsWriter
from castwise.checkpoint.tensor_info import Planned, TensorInfo


class Reader(Protocol):
    """An open checkpoint file whose headers have been read and checked."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]

    def read(self, name: str) -> NDArray[Any]:
        """The tensor as an array of its format; CheckpointError if that cannot be had."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Writer(Protocol):
    """A checkpoint being written: every name of `order` once, in that order."""

    order: list[str]
    """The names, in the order in which they must come."""

    def write(self, name: str, array: NDArray[Any]) -> int:
        """Write a tensor; returns its size in the container in bytes, uncompressed."""

    def keep(self, name: str) -> int:
        """Write a tensor as the source holds it, byte for byte if the container is the same."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


_SUFFIXES = (".safetensors", ".npz", ".npy")


def is_container(path: Path) -> bool:
    """True if the suffix of a name is that of a container file."""
    return path.suffix.lower() in _SUFFIXES


def container_of(path: Path) -> str:
    """The suffix that decides the container, or CheckpointError naming those there are."""
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        what = f"the suffix {suffix!r}" if suffix else "a name without suffix"
        raise CheckpointError(
            f"{path}: {what} names no container; use {', '.join(_SUFFIXES)}, "
            "or a folder of safetensors shards"
        )
    return suffix


def open_reader(path: Path, assume: str | Mapping[str, str] | None = None) -> Reader:
    """Open the checkpoint file at `path`; CheckpointError if it is not what its name says.

    `assume` says which format arrays have that numpy saved as raw bytes.
    """
    match container_of(path):
        case ".safetensors":
            return SafetensorsReader(path)
        case ".npz":
            return NpzReader(path, assume)
        case _:
            return NpyReader(path, assume)


def new_writer(
    path: Path,
    file: BinaryIO,
    planned: Sequence[Planned],
    metadata: Mapping[str, str],
    source: Reader | None = None,
    *,
    compressed: bool = False,
) -> Writer:
    """The writer into `file` for the container that `path` names; the file begins empty.

    `source` is what `Writer.keep` copies from. `compressed` matters to `.npz` only, where arrays
    that come from an `.npz` stay as they were.
    """
    match container_of(path):
        case ".safetensors":
            return SafetensorsWriter(file, planned, metadata, source)
        case ".npz":
            return NpzWriter(file, planned, metadata, source, compressed=compressed)
        case _:
            return NpyWriter(file, planned, metadata, source)
