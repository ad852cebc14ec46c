"""Check the paths that callers give, compare them, and whether a result fits beside them."""

import os
import reprlib
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.remote import is_remote, is_url, remote_path
from castwise.text import wording


def checked_path(path: str | os.PathLike[str], argument: str = "path") -> Path:
    """Return `path`, unless it is empty: `Path` would make the current folder of that."""
    # A URL becomes a path of its store. A TypeError calls the path `argument`.
    if (remote := remote_path(path)) is not None:
        return remote
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{argument} must be a str or an os.PathLike, not {reprlib.repr(path)}")
    if not os.fspath(path):
        raise CheckpointError("the path is empty; name a file or a folder")
    return Path(path)


def refuse_url(argument: str, value: object) -> None:
    """Refuse a URL in an argument that may be the path of a small file."""
    # Whether such a file was changed between runs, its checksum tells, which remote ones have not.
    if is_url(value):
        raise CheckpointError(
            wording.argument(argument, str(value)) + " is a URL, and castwise reads it from files "
            "of this machine only; copy it here and give its path, or give what it holds"
        )


def real_path(path: Path) -> Path:
    """Return the path without links; an object of a store has one path."""
    return path if is_remote(path) else Path(os.path.realpath(path))


def is_same(path: Path, other: Path) -> bool:
    """Return True if two paths lead to one file or folder, by whatever names and links."""
    if is_remote(path) or is_remote(other):
        return real_path(path) == real_path(other)
    try:
        return os.path.samefile(path, other)
    except OSError:  # one is not there
        return real_path(path) == real_path(other)


class Room(NamedTuple):
    """The bytes that a result needs at least and that are free, None if nobody can tell."""

    bytes_needed: int
    free: int | None
    left_out: Sequence[tuple[str, int]]  # the files that are not copied, with their bytes


def check_room(destination: Path, bytes_needed: int, left_out: Sequence[tuple[str, int]]) -> Room:
    """Return the room there is; CheckpointError if fewer than `bytes_needed` are free."""
    free = None
    if not is_remote(destination):
        with suppress(OSError):
            usage = shutil.disk_usage(Path(os.path.realpath(destination)).parent)
            free = usage.free if usage.total else None  # 0: a file system that does not know
    # What is to be replaced counts as well: it stays until the result is complete.
    if free is not None and free < bytes_needed:
        raise CheckpointError(
            f"{destination} needs {bytes_needed:,} bytes, and its file system has only {free:,} "
            "free; make room, or write to another"
        )
    return Room(bytes_needed, free, left_out)
