"""The names of tensors: components between "." or "/", and what stands beside what."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

from castwise.quantization.producers.layouts import SCALE, Layout, Part


class Formatted(Protocol):
    """A tensor whose format is known by name, None if the table has none for it."""

    @property
    def format(self) -> str | None: ...


class Described(Formatted, Protocol):
    """A tensor as the headers of its container state it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@lru_cache(3 << 13)  # of one weight it is asked twenty times, in passes over all
def tail(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[2]


def name_part(part: str, weight: str) -> str:
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


# Which tensors beside a payload are the parts of a layout


T = TypeVar("T", bound=Formatted)


class Match(NamedTuple, Generic[T]):
    """A layout that a payload and the tensors beside it fit."""

    layout: Layout  # the row of the table
    weight: str  # the parameter's name
    payload: T  # the tensor with the codes
    # The tensors beside it, each with what it is; the names are those of the parts.
    parts: Mapping[str, tuple[Part, T]]
    # The first scale, or what holds it; None if blocks of the payload hold their scales.
    scale: T | None


def may_be_payload(layout: Layout, format_name: str | None, last: str) -> bool:
    """Return False if no tensor of a format, whose name ends so, is the payload of a layout."""
    if layout.formats and format_name not in layout.formats:
        return False
    if layout.payload[:1] in ("_", "."):
        return last.endswith(layout.payload.rpartition(".")[2])
    if layout.payload:
        return last == tail(layout.payload)
    return not layout.parameters or last in layout.parameters


def match_layout(
    layout: Layout,
    name: str,
    tensors: Mapping[str, T],
    rename: Callable[[str], str] = lambda name: name,
) -> Match[T] | None:
    payload = tensors[name]
    if layout.formats and payload.format not in layout.formats:
        return None
    weight = owner(layout.payload, name)
    if weight is None and rename(layout.payload) == name != layout.payload:
        weight = ""
    if weight is None or (layout.parameters and tail(weight) not in layout.parameters):
        return None
    parts: dict[str, tuple[Part, T]] = {}
    scale = None
    stem = weight[: len(weight) - len(tail(weight))]
    for part in layout.parts:
        is_suffix = part.name[:1] in ("_", ".")
        full = weight + part.name if is_suffix else stem + part.name.removeprefix("/")
        other = full if full in tensors else rename(full)
        tensor = tensors.get(other) if other != name else None
        if tensor is not None and (not part.formats or tensor.format in part.formats):
            parts[other] = part, tensor
            if scale is None and (part.role == SCALE or part is layout.parts[0]):
                scale = tensor
        elif part.is_required:
            return None
    if layout.parts and scale is None:
        return None
    return Match(layout, weight, payload, parts, scale)
