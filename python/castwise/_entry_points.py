"""What packages offer castwise as entry points: adapters, containers and producers."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUP = re.compile(rb"^\s*\[\s*(castwise\.[\w.]+)\s*\]", re.MULTILINE)
_METADATA = (".dist-info", ".egg-info")


def is_offered(group: str) -> bool:
    """Return False if no package on the path offers anything of a group.

    It takes a tenth of the time of `importlib.metadata`, which parses what all packages offer, and
    is imported for nothing else.
    """
    groups = _offered_groups()
    return groups is None or group in groups


@cache
def _offered_groups() -> frozenset[str] | None:
    """Return the groups of castwise that packages offer something of; None if nobody can tell."""
    finders = (finder for finder in sys.meta_path if finder is not PathFinder)
    if any(hasattr(finder, "find_distributions") for finder in finders):
        return None
    groups: set[str] = set()
    for folder in dict.fromkeys(sys.path):
        try:
            groups.update(_groups_in(folder or "."))
        except NotADirectoryError:  # an archive
            return None
        except OSError:  # it is not there, or may not be read
            continue
    return frozenset(groups)


def _groups_in(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        paths = [entry.path for entry in entries if entry.name.lower().endswith(_METADATA)]
    for path in paths:
        try:
            with open(os.path.join(path, "entry_points.txt"), "rb") as file:
                yield from map(bytes.decode, _GROUP.findall(file.read()))
        except OSError:  # most packages offer nothing
            continue


def offered(
    group: str, built_in: Mapping[str, str], *, kind: str, choice: str = ""
) -> dict[str, EntryPoint]:
    """Return the entry points by name; of several of one name the first, with a warning.

    castwise's own come first, then those of packages by name.

    Parameters
    ----------
    group
        The group of the entry points.
    built_in
        castwise's own, written as entry points.
    kind
        What they are, such as "an adapter for {}".
    choice
        What else than to uninstall a package decides, such as ", or choose with register".

    """
    from importlib.metadata import EntryPoint, entry_points  # noqa: PLC0415 slow, seldom needed

    entries = [EntryPoint(name, value, group) for name, value in built_in.items()]
    by_name: dict[str, EntryPoint] = {}
    for entry in (*entries, *sorted(entry_points(group=group), key=package_of)):
        preferred = by_name.setdefault(entry.name, entry)
        if preferred.value != entry.value:
            warnings.warn(
                f"{package_of(preferred)} and {package_of(entry)} both have "
                f"{kind.format(entry.name)}; {preferred.value} is used. "
                f"Uninstall one of them{choice}.",
                UserWarning,
                stacklevel=2,
            )
    return by_name


def loaded(entry: EntryPoint, subject: str) -> object:
    """Import what an entry point names.

    Raises
    ------
    ImportError
        That fails, in whatever way; the message says of what package it is.

    """
    try:
        return entry.load()
    except Exception as error:  # of the package, and so of any kind
        raise ImportError(
            f"{subject} cannot be imported ({type(error).__name__}: {error}); update or uninstall "
            "that package."
        ) from error


def package_of(entry: EntryPoint) -> str:
    """Name the package that offers it."""
    return entry.dist.name if entry.dist is not None else "castwise"
