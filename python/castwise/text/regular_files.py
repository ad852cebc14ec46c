"""Open files to read: regular ones only, and no more of them than the caller knows they may hold.

A name in a folder of somebody else may lead to a device without an end, or to a pipe that blocks.
"""

import os
import stat
from io import BufferedReader
from pathlib import Path

# A pipe is opened without waiting for its writer; what it is is then asked of the open file.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# A file that states no size, as those of /proc, is read no further than its limit.
_PIECE_BYTES = 1 << 16


class NotRegularError(ValueError):
    """A path leads to a folder, pipe, socket or device, or to more bytes than may be read."""


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file to read its bytes; links are followed.

    NotRegularError: It is a folder, pipe, socket or device. OSError: There is no such file, or it
    may not be read.
    """
    _check(os.stat(path).st_mode, path)  # opening a device can already do something
    descriptor = os.open(path, _FLAGS)
    try:
        _check(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the bytes of a regular file, of which there may be at most `most`.

    NotRegularError: It is not a regular file, or has more bytes. OSError: It cannot be read.
    """
    data = bytearray()  # in pieces, as a file is asked for all takes the memory of all it may have
    with open_regular(path) as file:
        while len(data) <= most and (piece := file.read(_PIECE_BYTES)):
            data += piece
    return checked_size(bytes(data), path, most)


def checked_size(data: bytes, path: str | os.PathLike[str], most: int) -> bytes:
    """Return bytes that were read of a file, of which there may be at most `most`."""
    if len(data) > most:
        raise NotRegularError(f"{path} has more than {most:,} bytes, the most that is read of it")
    return data


def _check(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        raise NotRegularError(f"{Path(path)} is not a regular file; give one")
