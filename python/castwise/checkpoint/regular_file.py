"""Open files to read, and nothing that only looks like one."""

import stat
from io import BufferedReader
from pathlib import Path

from castwise.checkpoint.errors import CheckpointError


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; CheckpointError for a folder, pipe or device, which could block.

    Raises
    ------
    OSError
        There is no such file, or it may not be read.

    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path} is not a regular file")
    return path.open("rb")
