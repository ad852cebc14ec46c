"""A file or folder that appears under its name only when it is complete.

It is written beside its destination, flushed to disk, and then renamed in one step. Whatever stops
the run before that, the destination is as it was. What a killed run leaves beside it is removed by
the next run for the same destination.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.exchange import exchange
from castwise.checkpoint.leftovers import locked, remove_leftovers, temporary_beside

_BUFFER_BYTES = 1 << 20


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
    remove_leftovers(path)
    temporary = temporary_beside(path)
    try:
        file = open(temporary, "x+b", buffering=_BUFFER_BYTES)  # noqa: SIM115  (closed below)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(destination)) from error
    try:
        # Until it is locked another run may take it for a leftover; then the rename fails.
        with locked(temporary):
            with file:
                if mode is not None:
                    os.chmod(temporary, mode)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(destination)) from error
        raise
    sync_folder(path.parent)


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
    remove_leftovers(path)
    temporary = temporary_beside(path)
    try:
        temporary.mkdir()
        with locked(temporary):
            yield temporary
            sync_folder(temporary)
            _put_in_place(temporary, path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and (
            error.filename is None or str(temporary) in str(error.filename)
        ):
            raise OSError(error.errno, error.strerror, str(destination)) from error
        raise
    sync_folder(path.parent)


def _put_in_place(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`, and remove what was there."""
    if not path.exists():
        new.rename(path)
        return
    shutil.copymode(path, new)
    if exchange(new, path):
        shutil.rmtree(new, ignore_errors=True)
        return
    # No single step is to be had. Between these two there is no folder of that name, and the old
    # one stands complete under the other.
    aside = temporary_beside(path).with_suffix(".castwise-old")
    try:
        path.rename(aside)
        new.rename(path)
    except BaseException:
        if not path.exists():
            aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


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
