"""Plain values for JSON, of the fields of results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from castwise.text.wording import plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Metadata of a field that is of castwise alone.
LEFT_OUT: Mapping[str, bool] = {"left out": True}


def plain_fields(instance: DataclassInstance, **properties: str) -> dict[str, Any]:
    """Return the fields for JSON, and properties after the fields that they name.

    A number that is not finite is text.
    """
    names = [field.name for field in dataclasses.fields(instance) if not field.metadata]
    for name, before in properties.items():
        names.insert(names.index(before) + 1, name)
    return {name: _plain(getattr(instance, name)) for name in names}


def plain_dict(instance: DataclassInstance) -> dict[str, Any]:
    """Return plain values for JSON."""
    return plain_fields(instance)


def _plain(value: Any) -> Any:  # noqa: ANN401  (of any field)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        return [*map(_plain, value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, str):
        return plain(value)
    return plain_number(value) if isinstance(value, float) else value


def plain_number(value: float | None) -> float | str | None:
    """Return a number for JSON; text if it is not finite."""
    return value if value is None or math.isfinite(value) else str(value)
