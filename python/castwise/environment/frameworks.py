"""Import what is not castwise's: frameworks, and what packages offer as entry points.

Where a framework is missing, the error says how to install it. The entry points are of adapters,
containers and architectures.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


import functools
import importlib
import re
from types import ModuleType

# The oldest and the newest release (major, minor) with which each adapter is tested.
_TESTED: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "jax": ((0, 8), (0, 12)),
    "keras": ((3, 4), (3, 15)),
    "tf_keras": ((2, 19), (2, 21)),
    "torch": ((2, 4), (2, 15)),
}


@functools.cache
def require(name: str) -> ModuleType:
    """Import a framework; warn once if its release is not one of those that are tested."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"castwise.adapters.{name} needs {name}, which cannot be imported ({error}); "
            f"pip install 'castwise[{name}]'.",
            name=name,
        ) from error
    version = str(module.__version__)
    release = _release(version)
    oldest, newest = _TESTED[name]
    if release and not oldest <= release <= newest:
        warnings.warn(
            f"castwise.adapters.{name} is tested with {name} {tested_releases(name)}, and "
            f"{version} is installed; if something fails, install one of those.",
            UserWarning,
            stacklevel=3,
        )
    return module


def tested_releases(name: str) -> str:
    return " to ".join(".".join(map(str, release)) for release in _TESTED[name])


def _release(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


@functools.cache
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
    return "a package without a name" if entry.dist is None else entry.dist.name
