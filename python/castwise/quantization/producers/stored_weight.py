"""One quantised weight of a checkpoint: its stored tensors, and what is stated of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import EllipsisType
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from castwise.quantization.producers.found import QuantizedWeight
from castwise.quantization.producers.geometry import MATRIX
from castwise.quantization.producers.names import Described


class Undecodable(ValueError):  # noqa: N818  (it says what is wrong)
    """A weight cannot be decoded; the message says why."""


class WeightForm(NamedTuple):
    """What is known of a weight beside its parts: arguments of `QuantizedArray.from_parts`.

    `plain` is its shape in an unquantised model, if that is another one with the same elements;
    `names` are those of its parts, where the checkpoint has others, and leave out what is not
    needed.
    `groups` is the tensor that says which scale and zero point each row has, if not in order;
    `has_tiles` says that scales are in tiles, and codes are not padded to them; `loose` of how many
    bits codes are that stand one in a byte, where others are packed; `is_centred` says that zero
    points are stated to be half of the range.
    """

    scheme: str
    block: tuple[int, int] | None = None
    shape: tuple[int, ...] | None = None
    axis: int = -1
    variant: str | None = None
    plain: tuple[int, ...] | None = None
    names: Mapping[str, str] | None = None
    groups: str | None = None
    has_tiles: bool = False
    loose: int | None = None
    is_centred: bool = False


class Indexed(Protocol):
    """A stored tensor of which what is indexed is read."""

    def __getitem__(self, index: EllipsisType | tuple[slice | int, ...]) -> NDArray[Any]:
        """Read the indexed elements."""


class StoredWeight(ABC):
    """One weight, its stored tensors, and what is stated of them."""

    def __init__(
        self,
        weight: QuantizedWeight,
        tensors: Mapping[str, Described],
        section: Mapping[str, Any],
    ) -> None:
        self.weight = weight  # the payload, the parts with their roles, the block that is stated
        self.tensors = tensors  # all of the checkpoint by name, as headers describe them
        self.section = section  # what states the method, as its producer writes it, or nothing
        self.payload = weight.payload  # the name of the tensor with the codes
        self.scheme = weight.scheme or ""  # what names, formats and statements tell is stored

    def unknown(self) -> Undecodable:
        """Say that its scheme is not one that its producer is known to store so."""
        producers = " or ".join(self.weight.recipes)
        return Undecodable(
            f"castwise cannot decode {self.scheme or 'its scheme'} of {producers} yet"
        )

    @property
    def format(self) -> str:
        """The format of the payload."""
        return self.tensors[self.payload].format or ""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a stored tensor."""
        return self.tensors[name].shape

    def matrix(self) -> tuple[int, int]:
        """Return rows and columns of the payload."""
        shape = self.shape(self.payload)
        if len(shape) != MATRIX:
            raise Undecodable(f"{self.payload!r} has the shape {shape}, which is not a matrix")
        return shape[0], shape[1]

    def length(self, axis: int) -> int:
        """Return the length of an axis of the payload, counted from the last one, -1."""
        shape = self.shape(self.payload)
        if len(shape) < -axis:
            raise Undecodable(f"{self.payload!r} has the shape {shape}, which is not a matrix")
        return shape[axis]

    def part(self, ending: str) -> str | None:
        """Name the first part whose name ends so."""
        return next((name for name in self.weight.parts if name.endswith(ending)), None)

    def require_part(self, ending: str) -> str:
        """Name a part that must be there."""
        name = self.part(ending)
        if name is None:
            raise Undecodable(
                f"it has no {ending.lstrip('._')}, without which its codes mean nothing"
            )
        return name

    def scale(self) -> str:
        """Name the scale, which must be there."""
        scale = self.weight.scale
        if scale is None:
            raise Undecodable("it has no scale")
        return scale

    def block(self) -> tuple[int, int]:
        """Return the block, 0 for a whole axis."""
        if self.scheme.endswith("_tensor"):
            return 0, 0
        if self.scheme.endswith("_channel"):
            return 1, 0
        block, scale = self.weight.block, self.weight.scale
        if block is None and scale is not None and math.prod(self.shape(scale)) == 1:
            return 0, 0
        if block is None:
            raise Undecodable("nothing states how many elements share a scale")
        return block[0], block[1]

    def group(self, inputs: int) -> tuple[int, int]:
        """Return the block of a scheme of groups; channels are groups of all inputs."""
        block = self.block()
        return (1, block[1] or inputs)

    def bits(self) -> int:
        """Return the bits of integers."""
        number = self.scheme.removeprefix("int").partition("_")[0]
        if not self.scheme.startswith("int") or not number.isdigit():
            raise Undecodable("nothing states of how many bits its codes are")
        if not 1 <= int(number) <= 8:  # noqa: PLR2004
            raise Undecodable(f"castwise cannot decode codes of {number} bits")
        return int(number)

    def wrong(self, name: str, needed_shape: object) -> Undecodable:
        """Say that a part has another shape than its payload needs."""
        return Undecodable(
            f"{name!r} has the shape {self.shape(name)}, and {needed_shape} is what "
            f"{self.payload!r} of shape {self.shape(self.payload)} needs"
        )

    def whole(self, bits: int, words: int, width: int = 32) -> int:
        """Return how many codes fill words."""
        if words * width % bits:
            raise Undecodable(
                f"{self.payload!r} has the shape {self.shape(self.payload)}, and {words} words do "
                f"not end with a code of {bits} bits"
            )
        return words * width // bits

    @abstractmethod
    def lazy(self, name: str) -> Indexed:
        """Return a tensor that is read where it is indexed."""

    @abstractmethod
    def json(self, name: str) -> dict[str, Any]:
        """Parse a tensor of JSON."""
