"""Plain values for JSON, of the fields of results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LEFT_OUT: Mapping[str, bool] = {"left out": True}
"""Metadata of a field that is of castwise alone."""


def plain_fields(instance: DataclassInstance) -> dict[str, Any]:
    """Return plain values for JSON; a number that is not finite is text."""
    return {
        field.name: _plain(getattr(instance, field.name))
        for field in dataclasses.fields(instance)
        if not field.metadata
    }


def _plain(value: Any) -> Any:  # noqa: ANN401  (of any field)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    return plain_number(value) if isinstance(value, float) else value


def plain_number(value: float | None) -> float | str | None:
    """Return a number for JSON; text if it is not finite."""
    return value if value is None or math.isfinite(value) else str(value)
