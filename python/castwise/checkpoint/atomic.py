"""A file or folder that appears under its name only when it is complete.

A file is written without a name where the system offers that (Linux), and else, like a folder,
under a temporary name beside its destination; it is flushed to disk, and then named in one step.
Whatever stops the run before that, the destination is as it was.
"""

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.exchange import exchange
from castwise.checkpoint.leftovers import TemporaryName, aside, lock, locked, remove_leftovers

_BUFFER_BYTES = 1 << 20
_OPEN_FILES = "/proc/self/fd"  # Linux: a link to each open file, by its descriptor


@contextmanager
def replacing_file(destination: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `destination` when the block ends without an error.

    A link is followed: what it points to is replaced. An old file's permissions are kept.

    Raises
    ------
    CheckpointError
        `destination` is there and is no regular file.
    OSError
        The folder is missing or not writable, or the disk is full.

    """
    path = Path(os.path.realpath(destination))
    mode = _mode_of(path)
    with _replacing(path, destination) as temporary, _new_file(temporary) as file:
        # Until it is locked another run may take it for a leftover; then naming it fails.
        lock(file.fileno())
        if mode is not None:
            os.chmod(temporary if sys.platform == "win32" else file.fileno(), mode)
        yield file
        file.flush()
        os.fsync(file.fileno())
        if not temporary.exists():  # it has no name
            with suppress(OSError):
                _link(file, path)
                return
            _link(file, temporary)  # there is an old file, which a link cannot replace
        if sys.platform == "win32":
            file.close()  # an open file cannot be renamed
        os.replace(temporary, path)


@contextmanager
def replacing_folder(destination: Path) -> Iterator[Path]:
    """A new folder that takes the place of `destination` when the block ends without an error.

    The caller decides whether an old folder may be replaced: all that is in it goes.

    Raises
    ------
    OSError
        The parent folder is missing or not writable, or the disk is full.

    """
    path = Path(os.path.realpath(destination))
    with _replacing(path, destination) as temporary:
        temporary.mkdir()
        with locked(temporary):
            yield temporary
            sync_folder(temporary)
            _put_in_place(temporary, path)


@contextmanager
def _replacing(path: Path, destination: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; errors about it name `destination`."""
    remove_leftovers(path)
    try:
        with TemporaryName(path) as temporary:
            yield temporary
    except OSError as error:
        if error.filename is None or str(temporary) in f"{error.filename} {error.filename2}":
            raise OSError(error.errno, error.strerror, str(destination)) from error
        raise
    sync_folder(path.parent)


def _new_file(temporary: Path) -> BinaryIO:
    """Open a new file: without a name where that can be had and named later, else `temporary`."""

    def opener(name: str, flags: int) -> int:
        with suppress(AttributeError, OSError):
            descriptor = os.open(temporary.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
            if os.path.exists(f"{_OPEN_FILES}/{descriptor}"):
                return descriptor
            os.close(descriptor)
        return os.open(name, flags, 0o666)

    return open(temporary, "x+b", buffering=_BUFFER_BYTES, opener=opener)


def _link(file: BinaryIO, path: Path) -> None:
    """Name an open file that has no name."""
    # With src_dir_fd Python calls linkat, which follows the symbolic link; without it, link.
    number = file.fileno()
    os.link(f"{_OPEN_FILES}/{number}", path, src_dir_fd=number, follow_symlinks=True)


def _put_in_place(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`; what was there then stands under a temporary name."""
    if path.exists():
        shutil.copymode(path, new)
        if exchange(new, path):
            return
        # The system cannot swap them. Between these two steps `path` is missing, and the old folder
        # stands complete under the other name.
        path.rename(aside(new))
    new.rename(path)


def _mode_of(path: Path) -> int | None:
    """Permissions of the file to be replaced; None if there is none."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        what = "a folder; name a file in it" if stat.S_ISDIR(mode) else "not a regular file"
        raise CheckpointError(f"{path} is {what}")
    return stat.S_IMODE(mode)


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut, where the system has a way to ask for that."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
