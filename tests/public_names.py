"""Which public names of an original class castwise's counterpart leaves out."""

from __future__ import annotations

from collections.abc import Mapping


def missing(original: type, ours: object, listed: Mapping[str, str]) -> set[str]:
    """The public names of `original` that `ours` neither has nor refuses by name.

    Parameters
    ----------
    original : type
        The class that `ours` stands in for; names with a leading underscore are not public.
    ours : object
        An instance, whose attributes are read.
    listed : mapping of str to str
        Names that are left out on purpose, each with the reason.

    """
    public = {name for name in dir(original) if not name.startswith("_")}
    return {name for name in public - set(listed) if not _has_or_refuses(ours, name)}


def _has_or_refuses(ours: object, name: str) -> bool:
    """Whether reading the attribute gives a value, or an error of its own that names it."""
    try:
        getattr(ours, name)
    except Exception as error:
        return name in str(error) and "has no attribute" not in str(error)
    return True
