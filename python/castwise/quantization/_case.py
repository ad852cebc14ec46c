"""One quantised weight: its stored tensors, and what is stated of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from castwise.quantization._found import QuantizedWeight
from castwise.quantization._recipes import ACTIVATION, E8M0, GLOBAL, U8, ZERO
from castwise.quantization._schemes import find_scheme
from castwise.quantization._slabs import (
    Arrays,
    Decoding,
    Part,
)

E2M1 = find_scheme("mxfp4").element
WORD_BITS = 32
BYTE_BITS = 8
MATRIX = 2
_MAX_STATE_BYTES = 10_000

Read = Callable[..., NDArray[Any]]
"""Reads a tensor, given its name; or of it what is within ranges, one for each axis."""


class Tensor(Protocol):
    """A stored tensor."""

    @property
    def format(self) -> str | None:
        """The name of its format, None if the table has none for it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its elements along each axis."""


class Undecodable(ValueError):  # noqa: N818  (it says what is wrong)
    """A weight cannot be decoded; the message says why."""


_DECODED_OTHERS = (
    "_shape",
    "_g_idx",
    "g_idx",
    "biases",
    "comfy_quant",
    "weight_format",
    "input_scale_ub",
    ".quant_map",
    ".nested_absmax",
    ".nested_quant_map",
    ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4",
)
"""How the names end of parts, neither scales nor zero points, that decoding takes account of."""


class Case:
    """One weight, its stored tensors, and what is stated of them."""

    def __init__(
        self,
        weight: QuantizedWeight,
        tensors: Mapping[str, Tensor],
        read: Read,
        section: Mapping[str, Any],
        arithmetic: str,
    ) -> None:
        self.weight = weight
        self.tensors = tensors
        self.read = read
        self.section = section
        self.arithmetic = arithmetic
        self.payload = weight.payload
        self.scheme = weight.scheme or ""

    def check_parts(self) -> None:
        for name, role in self.weight.parts.items():
            known = role in (ACTIVATION, GLOBAL, ZERO, "scale") or name.endswith(_DECODED_OTHERS)
            if not known:
                raise Undecodable(
                    f"{name!r} is part of it, and castwise cannot decode a weight with that yet"
                )

    def unknown(self) -> Undecodable:
        made = " or ".join(self.weight.recipes)
        return Undecodable(f"castwise cannot decode {self.scheme or 'its scheme'} of {made} yet")

    @property
    def format(self) -> str:
        return self.tensors[self.payload].format or ""

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def matrix(self) -> tuple[int, int]:
        """Return rows and columns of the payload."""
        shape = self.shape(self.payload)
        if len(shape) != MATRIX:
            raise Undecodable(f"{self.payload!r} has the shape {shape}, which is not a matrix")
        return shape[0], shape[1]

    def part(self, *roles: str, ending: str = "") -> str | None:
        """Name the first part of one of these roles, whose name ends so."""
        for name, role in self.weight.parts.items():
            if (not roles or role in roles) and name.endswith(ending):
                return name
        return None

    def scale(self) -> str:
        found = self.weight.scale
        if found is None:
            raise Undecodable("it has no scale")
        return found

    def named(self, ending: str) -> str:
        """Name a part that must be there."""
        found = self.part(ending=ending)
        if found is None:
            raise Undecodable(
                f"it has no {ending.lstrip('._')}, without which its codes mean nothing"
            )
        return found

    def block(self) -> tuple[int, int]:
        """Return the block, 0 for a whole axis."""
        if self.scheme.endswith("_tensor"):
            return 0, 0
        if self.scheme.endswith("_channel"):
            return 1, 0
        block = self.weight.block
        if block is None and math.prod(self.shape(self.scale())) == 1:
            return 0, 0
        if block is None:
            raise Undecodable("nothing states how many elements share a scale")
        return block[0], block[1]

    def wrong(self, name: str, expected: object) -> Undecodable:
        return Undecodable(
            f"{name!r} has the shape {self.shape(name)}, and {expected} is what {self.payload!r} "
            f"of shape {self.shape(self.payload)} needs"
        )

    def scale_format(self, name: str) -> str | None:
        return E8M0 if self.tensors[name].format in (U8, E8M0) else None

    def made(
        self,
        shape: tuple[int, ...],
        parts: Sequence[Part],
        decode: Callable[[Arrays, NDArray[Any]], None],
        *,
        stack: int = 0,
        unit: int = 1,
    ) -> Decoding:
        shapes = {part.name: self.shape(part.name) for part in parts}
        return Decoding(shape, stack, unit, parts, shapes, decode)

    def check_grid(self, name: str, grid: tuple[int, ...]) -> None:
        """Refuse a part that has not this shape, but for axes of one element."""
        if self.shape(name) == grid:
            return
        if math.prod(grid) == 1 == math.prod(self.shape(name)):
            return
        raise self.wrong(name, grid)

    def check_whole_groups(self, columns: int, group: int) -> None:
        """Refuse groups along a row that do not end with it, which no producer writes.

        In blocks of more than one row the last may be shorter.
        """
        is_square = self.scheme.endswith("_block")
        if group and columns > group and columns % group and not is_square:
            raise Undecodable(f"rows of {columns:,} elements do not end with a group of {group}")

    def options(self, **others: Any) -> dict[str, Any]:
        return {"arithmetic": self.arithmetic, "threads": 1, **others}


def grid_of(rows: int, columns: int, block: tuple[int, int]) -> tuple[int, int]:
    """Count the blocks of a matrix; the last ones may be shorter."""
    return (
        -(-rows // block[0]) if block[0] else 1,
        -(-columns // block[1]) if block[1] else 1,
    )


def as_rows(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return an array as a matrix of so many rows."""
    return array.reshape(rows, -1)


def json_of(case: Case, name: str) -> dict[str, Any]:
    """Parse the bytes of a tensor as JSON of an object."""
    if math.prod(case.shape(name)) > _MAX_STATE_BYTES:
        raise Undecodable(f"{name!r} has more than {_MAX_STATE_BYTES:,} bytes")
    try:
        state = json.loads(case.read(name).tobytes())
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise Undecodable(f"{name!r} is not JSON of an object")
    return state
