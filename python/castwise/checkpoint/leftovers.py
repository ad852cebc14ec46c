"""Names for what is not complete yet, and the removal of what a killed run left behind.

Work in progress stands beside its destination under `.NAME.TOKEN.castwise-tmp`, and is locked for
as long as its process lives, whatever ends it. So what can be locked by another is a leftover.
Where files cannot be locked (Windows, some network file systems) leftovers stay.
"""

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_SUFFIX = ".castwise-tmp"
_NAME_CHARACTERS = 40  # of the destination's name, so that the temporary name is not too long


def temporary_beside(path: Path) -> Path:
    """A new name in the folder of `path`."""
    return path.with_name(f"{_prefix(path)}{secrets.token_hex(6)}{_SUFFIX}")


def is_temporary(name: str) -> bool:
    """True for the name of something not complete."""
    return name.startswith(".") and name.endswith(_SUFFIX)


def remove_leftovers(path: Path) -> None:
    """Remove what killed runs left beside `path`; never what another process still writes."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return
    for name in names:
        if name.startswith(_prefix(path)) and name.endswith(_SUFFIX):
            _remove_if_dead(path.with_name(name))


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a file or folder; False if another process has it or there are no locks."""
    if sys.platform == "win32":
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _prefix(path: Path) -> str:
    return f".{path.name[:_NAME_CHARACTERS]}."


def _remove_if_dead(path: Path) -> None:
    with suppress(OSError), locked(path) as dead:
        if not dead:
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
