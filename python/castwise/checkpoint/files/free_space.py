"""Compare the bytes that a result takes with what its file system has free."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.remote import is_remote


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that a result needs at least and that are free, None if nobody can tell.

    `left_out` are the files that are not copied, with their bytes.
    """

    bytes_needed: int
    free: int | None
    left_out: Sequence[tuple[str, int]]


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
