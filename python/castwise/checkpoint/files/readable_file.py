"""What files of this machine and objects of stores have in common."""

from collections.abc import Iterable
from typing import BinaryIO


class ReadableFile:
    """What a container is read from: a file, several as one, or an object of a store."""

    def place(self, begin: int) -> tuple[BinaryIO, int] | None:
        """Return a file and an offset in it; None if only this object can read that."""
        del begin
        return None

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        """Begin to fetch spans that will be read in this order, where the system does not."""
