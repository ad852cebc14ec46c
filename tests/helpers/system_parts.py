"""Parts of a system that tests need and not every system has."""

from __future__ import annotations

import os
import pkgutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

LINKS, PERMISSIONS = "symbolic links", "permissions of users and groups"


def need(*parts: str) -> None:
    """Skip the test that calls this where a part is missing.

    A part is a path, such as `/dev/full`, a name of Python's, such as `os.mkfifo`, or one of those
    above.
    """
    for part in parts:
        if not _has(part):
            pytest.skip(f"needs {part}")


def no_such_file(path: Path) -> str:
    """Return what the system says of a path where nothing is."""
    try:
        raise AssertionError(f"{path.stat()} is something")
    except FileNotFoundError as error:
        return error.strerror or ""


@cache
def _has(part: str) -> bool:
    if part == PERMISSIONS:
        return os.name == "posix"
    if part.startswith("/"):
        return os.path.exists(part)
    try:
        _make_link() if part == LINKS else pkgutil.resolve_name(part)
    except (AttributeError, ImportError, OSError):  # OSError: links of Windows need a privilege
        return False
    return True


def _make_link() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "link").symlink_to("target")
