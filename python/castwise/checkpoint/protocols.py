"""What every container can do.

A reader is made from headers alone; data is read one tensor at a time. A writer is told first what
will come, because some containers state everything in their first bytes, and then takes the
tensors one by one in the order that it asks for. So neither ever holds more than one tensor.
Both are context managers: a reader closes its file, a writer completes the container unless there
was an error (the file it writes into is its caller's).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from castwise.checkpoint.tensor_info import TensorInfo


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
