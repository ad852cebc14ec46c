"""Check the entries of folders, stores, indexes and archives, whose names others chose."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from castwise.checkpoint._errors import CheckpointError
from castwise.text.wording import parenthesis

# What stays in its folder on every system: Windows has drives, and drops dots and spaces. No system
# has halves of surrogate pairs; the others of them are bytes of names that are not UTF-8.
_PART = r"(?![A-Za-z]:)(?![. ]*(?:/|\Z))[^/\\\0\ud800-\udc7f\udd00-\udfff]+"

# Several with "/" between them, and one after a folder.
_PATH = f"{_PART}(?:/{_PART})*/?"


def check_name(name: str, where: str, *, is_path: bool = False) -> None:
    """Refuse a name that, joined to a folder, is not that of an entry in it."""
    if not re.fullmatch(_PATH if is_path else _PART, name):
        raise CheckpointError(
            f"{where} {name!r}, which is not the name of a file in its folder and could lead out "
            "of it; rename it there, or remove it"
        )


_has_argument: ContextVar[bool] = ContextVar("has_argument", default=True)


def exclusion() -> str:
    """Say how a file is left out: by the argument, if the function or command has it."""
    return parenthesis("exclude") if _has_argument.get() else "(move it elsewhere)"


@contextmanager
def excluded_by(*, has_argument: bool) -> Iterator[None]:
    """Word the errors of a block for a function that has the argument, or has not."""
    token = _has_argument.set(has_argument)
    try:
        yield
    finally:
        _has_argument.reset(token)


def check_link(entry: Path) -> None:
    """Refuse a link that leads nowhere: what it stands for would be lost unsaid."""
    if entry.is_symlink() and not entry.exists():
        raise CheckpointError(
            f"{entry} is a link to {entry.readlink()}, where nothing is; mend it, or leave it out "
            + exclusion()
        )
