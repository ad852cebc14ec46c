"""Import optional frameworks; where one is missing, the error says how to install it."""

import functools
import importlib
import re
import warnings
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
    """Import a framework; warn once if its release is not one of those that are tested.

    ImportError: It cannot be imported; the message has the command that installs it.
    """
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
    """Return the range of tested releases as a text."""
    return " to ".join(".".join(map(str, release)) for release in _TESTED[name])


def _release(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None
