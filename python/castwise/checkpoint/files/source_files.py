"""Open the files that a checkpoint is read from: regular ones, or objects of a store."""

import ctypes
import os
import sys
from bisect import bisect_right
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.remote import ReadableFile, RemoteSource, is_remote
from castwise.text.parsed_files import NotRegularError, checked_size, open_regular, read_regular

if sys.platform == "win32":
    import msvcrt

_MOST_READ = 1 << 30  # bytes of one call: macOS reads no 2 GiB at once


class SourceFile(ReadableFile):
    """A regular file, open to read; a folder, pipe or device, which could block, is refused.

    It can be closed and opened again, and is then known to be the same and unchanged.

    CheckpointError: it is not a regular file, or was changed meanwhile.
    OSError: there is no such file, or it may not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream: BufferedReader = open_file(path)
        self._lock = Lock()
        self._opened_state = self._state()

    @property
    def size(self) -> int:
        """Its length in bytes, when it was first opened."""
        return self._opened_state[2]

    @property
    def state(self) -> list[int]:
        """Size and time of its last change."""
        return list(self._opened_state[2:])

    def reopen(self) -> None:
        """Open it again if it was closed."""
        if self.stream.closed:
            self.stream = open_file(self.path)
            if self._state() != self._opened_state:
                self.close()
                raise CheckpointError(
                    f"{self.path} was changed while the folder was read; run again"
                )

    def check_unchanged(self) -> None:
        """Refuse the open file if it is not as it was when it was first opened."""
        if self._state() != self._opened_state:
            raise CheckpointError(f"{self.path} was changed while it was read; run again")

    def close(self) -> None:
        """Close the file; `reopen` opens it again."""
        self.stream.close()

    def place(self, begin: int) -> tuple[BinaryIO, int]:
        return self.stream, begin

    def read(self, begin: int, count: int) -> bytes:
        """Return so many bytes; fewer where the file ends."""
        with self._lock:
            self.stream.seek(begin)
            return self.stream.read(count)

    def read_into(self, data: memoryview, begin: int) -> int:
        """Fill `data` from there on; returns how many bytes there were."""
        # Threads do that at the same time where the system lets them.
        if not hasattr(os, "preadv"):  # Windows
            with self._lock:
                self.stream.seek(begin)
                return self.stream.readinto(data)
        total = 0
        while total < len(data):
            part = data[total : total + _MOST_READ]
            count = os.preadv(self.stream.fileno(), [part], begin + total)
            if not count:
                break
            total += count
        return total

    def _state(self) -> tuple[int, int, int, int]:
        """Return which file it is, with its size and the time of its last change."""
        status = os.fstat(self.stream.fileno())
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# The first of the files gives their name.
class JoinedFiles(ReadableFile):
    """Files that are read as one, each from where the one before ends; as `SourceFile`."""

    def __init__(self, first: SourceFile) -> None:
        self.path = first.path
        self._files = [first]
        self._begins = [0, first.size]

    def append(self, file: SourceFile) -> int:
        """Add a file; returns where it begins."""
        self._files.append(file)
        self._begins.append(self.size + file.size)
        return self._begins[-2]

    @property
    def size(self) -> int:
        return self._begins[-1]

    @property
    def state(self) -> list[int]:
        return [number for file in self._files for number in file.state]

    def reopen(self) -> None:
        for file in self._files:
            file.reopen()

    def check_unchanged(self) -> None:
        for file in self._files:
            file.check_unchanged()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def read(self, begin: int, count: int) -> bytes:
        """Return so many bytes; fewer where the file that they begin in ends."""
        file, place = self._at(begin)
        return file.read(place, count)

    def read_into(self, data: memoryview, begin: int) -> int:
        """Fill `data` from there on, as far as one file goes; returns how many bytes there were."""
        file, place = self._at(begin)
        return file.read_into(data, place)

    def _at(self, begin: int) -> tuple[SourceFile, int]:
        """Return the file in which a byte is, and its place there."""
        index = min(bisect_right(self._begins, begin), len(self._files)) - 1
        return self._files[index], begin - self._begins[index]


def open_file(path: Path) -> BufferedReader:
    """Open a regular file of this machine to read."""
    try:
        return open_regular(path)
    except NotRegularError as error:
        raise CheckpointError(str(error)) from None


def read_file(path: Path, most: int) -> bytes:
    """Return the bytes of a file or an object of a store, of which there may be at most `most`."""
    try:
        if not is_remote(path):
            return read_regular(path, most)
        source = RemoteSource(path)
        count = min(source.size, most + 1)
        return checked_size(source.fetch(0, count) if count else b"", path, most)
    except NotRegularError as error:
        raise CheckpointError(str(error)) from None


def source_file(path: Path) -> SourceFile | RemoteSource:
    """Open a file, or an object of a store, to read."""
    return RemoteSource(path) if is_remote(path) else SourceFile(path)


def handle(file: BinaryIO) -> int:
    """Return what the system calls an open file by: a descriptor, on Windows a handle."""
    if sys.platform == "win32":
        return msvcrt.get_osfhandle(file.fileno())
    return file.fileno()


def system_error(number: int, filename: str | None = None) -> OSError:
    """Return the exception for an error that the system calls by this number."""
    if sys.platform == "win32":  # which has numbers beside those of `errno`
        return OSError(None, ctypes.FormatError(number).strip(), filename, number)
    names = () if filename is None else (filename,)
    return OSError(number, os.strerror(number), *names)
