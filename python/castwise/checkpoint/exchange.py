"""Swap two folders in one step, where the system can."""

import ctypes
import os
from pathlib import Path

_CURRENT_FOLDER = -100  # AT_FDCWD of <fcntl.h>; paths are absolute anyhow
_RENAME_EXCHANGE = 2  # of <linux/fs.h>
_RENAME_SWAP = 2  # of macOS' <sys/stdio.h>


def exchange(left: Path, right: Path) -> bool:
    """Give two existing paths each other's contents; False, and nothing done, if that cannot be."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # TypeError: Windows
        return False
    first, second = os.fsencode(left), os.fsencode(right)
    if hasattr(library, "renameat2"):
        done = library.renameat2(
            _CURRENT_FOLDER, first, _CURRENT_FOLDER, second, ctypes.c_uint(_RENAME_EXCHANGE)
        )
    elif hasattr(library, "renamex_np"):
        done = library.renamex_np(first, second, ctypes.c_uint(_RENAME_SWAP))
    else:
        return False
    return bool(done == 0)
