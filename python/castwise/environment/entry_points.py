"""What packages offer castwise as entry points: adapters, containers and architectures.

A name is looked up here when castwise has none of its own, because `importlib.metadata` takes 30 ms
to import and to read what all packages offer.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def entry_points_of(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name; of several packages the first, with a warning."""
    from importlib.metadata import entry_points  # noqa: PLC0415 slow, seldom needed

    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=package_of):
        first = by_name.setdefault(entry.name, entry)
        if first.value != entry.value:
            warnings.warn(
                f"{package_of(first)} and {package_of(entry)} both offer {entry.name!r} as "
                f"{group}; {first.value} is used. Uninstall one of them.",
                UserWarning,
                stacklevel=2,
            )
    return by_name


def load_entry(entry: EntryPoint, subject: str) -> object:
    """Import what an entry point names; ImportError names its package, whatever fails."""
    try:
        return entry.load()
    except Exception as error:  # of the package, and so of any kind
        raise ImportError(
            f"{subject} cannot be imported ({type(error).__name__}: {error}); update or uninstall "
            "that package."
        ) from error


def package_of(entry: EntryPoint) -> str:
    """Name the package that offers it."""
    return "a package without a name" if entry.dist is None else entry.dist.name
