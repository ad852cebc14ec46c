"""The names of tensors: components between "." or "/", and what stands beside what."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol


class Described(Protocol):
    """A tensor as the headers of its container state it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def format(self) -> str | None:
        """The name of its format, None if the table has none for it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its elements along each axis."""


@lru_cache(1 << 16)  # of one weight it is asked twenty times, in passes over all
def tail(name: str) -> str:
    """Return the last component of a name."""
    return name.rpartition("/")[2].rpartition(".")[2]


def name_part(part: str, weight: str) -> str:
    """Name a part of a weight, as `Part.name` says."""
    if part[:1] in ("_", "."):
        return weight + part
    return weight[: len(weight) - len(tail(weight))] + part.removeprefix("/")


def owner(part: str, name: str) -> str | None:
    """Return the weight that a tensor is a part of, by its name; None if it is named otherwise."""
    if part == "":
        return name
    if part[0] in "_.":
        weight = name.removesuffix(part)
        return weight if weight not in (name, "") else None
    return name_part("weight", name) if tail(name) == part.removeprefix("/") else None
