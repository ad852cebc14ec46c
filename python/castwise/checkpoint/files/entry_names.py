"""Check names that others chose: of the entries of stores, indexes and archives."""

import re

from castwise.checkpoint._errors import CheckpointError

# What stays in its folder on every system: Windows has drives, and drops dots and spaces. No system
# has halves of surrogate pairs; the others of them are bytes of names that are not UTF-8.
_PART = r"(?![A-Za-z]:)(?![. ]*(?:/|\Z))[^/\\\0\ud800-\udc7f\udd00-\udfff]+"

_NAME = re.compile(_PART)
_PATH = re.compile(f"{_PART}(?:/{_PART})*/?")


def check_name(name: str, where: str, *, is_path: bool = False) -> None:
    """Refuse a name that, joined to a folder, is not that of an entry in it.

    CheckpointError: It is empty, `.`, `..` or absolute, or has a backslash, NUL, half of a
    surrogate pair, a drive or, unless `is_path`, a slash.
    """
    if not (_PATH if is_path else _NAME).fullmatch(name):
        raise CheckpointError(
            f"{where} {name!r}, which is not the name of a file in its folder and could lead out "
            "of it; rename it there, or remove it"
        )
