"""Public names of an original class that castwise's stand-in must have, refuse or list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def missing(original: type | object, ours: object, listed: Mapping[str, str]) -> set[str]:
    """Give the names that `ours` neither has, nor refuses by name, nor lists with a reason.

    A name is refused where reading it raises an exception that names it, in words other than those
    of Python's own AttributeError.

    Parameters
    ----------
    original : class or object
        What is stood in for; of an object, the attributes that it has too.
    ours : class or object
        castwise's stand-in.
    listed : mapping of str to str
        The names that are left out on purpose, and why.

    """
    names = {name for name in dir(original) if not name.startswith("_")}
    return {name for name in names - set(listed) if not _is_met(ours, name)}


def unneeded(original: type | object, ours: object, listed: Mapping[str, str]) -> set[str]:
    """Give the listed names that the original has not, or that `ours` has or refuses by itself."""
    return {name for name in listed if name not in dir(original) or _is_met(ours, name)}


def _is_met(ours: Any, name: str) -> bool:
    try:
        getattr(ours, name)
    except AttributeError as error:
        return name in str(error) and f"has no attribute {name!r}" not in str(error)
    except Exception as error:
        return name in str(error)
    return True
