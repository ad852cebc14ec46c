"""Architectures that packages offer as entry points: each a file in the format of the table."""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from castwise.environment.entry_points import entry_points_of, load_entry, package_of
from castwise.models.architecture import Architecture, read_architecture

GROUP = "castwise.architectures"
"""The group of entry points, which are named by the class or the `model_type` of a model."""


def offered_architecture(config: Mapping[str, Any]) -> Architecture | None:
    """Return what a package says of a model by its configuration; None if none does.

    ValueError: what it offers is no path, or no file with an architecture.
    """
    classes = config.get("architectures")
    names = [*(classes if isinstance(classes, list) else ()), config.get("model_type")]
    architectures = (_read(name) for name in names if isinstance(name, str))
    return next((architecture for architecture in architectures if architecture is not None), None)


@cache
def _read(name: str) -> Architecture | None:
    entry = entry_points_of(GROUP).get(name)
    if entry is None:
        return None
    subject = f"the architecture {name!r} of {package_of(entry)}"
    try:
        path: Any = load_entry(entry, subject)
        return read_architecture(os.fspath(path))
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{subject}: {error}; update or uninstall that package") from error
