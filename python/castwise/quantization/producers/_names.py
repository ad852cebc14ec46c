"""The names of tensors: components between "." or "/", and what stands beside what."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, TypeVar

from castwise.quantization.producers._layouts import BYTES
from castwise.quantization.producers._recipes import RECIPES

_KERAS = re.compile(r"(.*)/vars/([0-9]{1,9})", re.DOTALL)
_MATRIX = 2

KERAS_FLOAT8 = tuple(
    f"keras_float8_{of}_{kind}"
    for of in ("inputs", "kernel", "outputs_grad")
    for kind in ("scale", "amax_history")
)
"""What Keras keeps of a layer that computes in float8, after its float32 weights, in its order
(`variable_serialization_spec` of Dense): each scale with the maxima that it follows from."""


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


Info = TypeVar("Info", bound=Described)


def tail(name: str) -> str:
    """Return the last component of a name."""
    return name[max(name.rfind("."), name.rfind("/")) + 1 :]


_PARTS = tuple(
    {tail(part.name) for recipe in RECIPES for layout in recipe.layouts for part in layout.parts}
    | {layout.payload for recipe in RECIPES for layout in recipe.layouts if layout.payload}
)
"""The ends of the names that parts may have."""


def beside(part: str, weight: str) -> str:
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
    return beside("weight", name) if tail(name) == part.removeprefix("/") else None


def lasts(names: Iterable[str]) -> set[str]:
    """Return the last components that may be those of parts."""
    return {tail(name) for name in names if name.endswith(_PARTS)}


def plain_names(tensors: Iterable[Info]) -> dict[str, Info]:
    """Map the names by which the recipes know tensors to them.

    They are their own, but for the variables of Keras layers, which its files number: where one is
    of bytes, or the last ones are those of float8, the order says which is the scale of what.
    """
    infos = list(tensors)
    layers: dict[str, dict[int, Info]] = {}
    for info in infos:
        if "/vars/" in info.name and (match := _KERAS.fullmatch(info.name)):
            layers.setdefault(match[1], {})[int(match[2])] = info
    renamed: dict[str, str] = {}
    for layer, variables in layers.items():
        ordered = [variables[number] for number in sorted(variables)]
        renamed.update((info.name, f"{layer}/{name}") for info, name in _roles(ordered))
    return {renamed.get(info.name, info.name): info for info in infos}


def numbered_kernel(name: str) -> str | None:
    """Return the name that a kernel has in a plain model, if variables are numbered; else None."""
    match = _KERAS.fullmatch(name) if "/vars/" in name else None
    return f"{match[1]}/vars/0" if match else None


def _roles(variables: list[Info]) -> list[tuple[Info, str]]:
    """Name the variables of one layer: kernel, scale, zero point, indices.

    A bias may stand before the scale, and only the last of two vectors after a kernel is one.
    """
    kernels = [info for info in variables if info.format in BYTES and len(info.shape) >= _MATRIX]
    if not kernels:
        state = variables[-len(KERAS_FLOAT8) :]
        return [*zip(state, KERAS_FLOAT8, strict=True)] if _is_float8_state(state) else []
    after = variables[variables.index(kernels[0]) + 1 :]
    zeros = [place for place, info in enumerate(after) if info.format in BYTES]
    end = zeros[0] if zeros else len(after)
    roles = [(kernels[0], "kernel")]
    if end > 0:
        roles.append((after[end - 1], "kernel_scale"))
    if zeros:
        roles.append((after[end], "kernel_zero"))
    rest = after[end + 1 :]
    names = ("awq_scales", "g_idx") if len(rest) > 1 else ("g_idx",)
    return [*roles, *zip(rest, names, strict=False)]


def _is_float8_state(variables: list[Info]) -> bool:
    """Return True for three scalars, each before a vector of the same length."""
    ranks = [len(info.shape) for info in variables]
    lengths = {info.shape for info in variables[1::2]}
    return ranks == [0, 1] * (len(KERAS_FLOAT8) // 2) and len(lengths) == 1
