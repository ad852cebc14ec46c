"""One quantised weight of a checkpoint: its stored tensors, and what is stated of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise import _core
from castwise.quantization.arrays._arrays import QuantizedArray
from castwise.quantization.arrays._from_parts import json_of, recognized_parts
from castwise.quantization.arrays._lazy import LazyArray, Range
from castwise.quantization.arrays._views import TILE, ceil_div, dtype_of, grid_of_scales
from castwise.quantization.producers._found import QuantizedWeight
from castwise.quantization.producers._layouts import ACTIVATION, SCALE, ZERO
from castwise.quantization.producers._names import Described

MATRIX = 2

Read = Callable[[str, Sequence[Range]], NDArray[Any]]
"""Reads of a tensor, given its name, what is within ranges, one for each axis."""


class Undecodable(ValueError):  # noqa: N818  (it says what is wrong)
    """A weight cannot be decoded; the message says why."""


class Given(NamedTuple):
    """What is known of a weight beside its parts: arguments of `QuantizedArray.from_parts`.

    `plain` is its shape in a plain model, if that is another one with the same elements; `names`
    are those of its parts, where the checkpoint has others, and leave out what is not needed.
    `groups` is the tensor that says which scale and zero point each row has, if not in order;
    `tiled` says that scales are in tiles, and codes are not padded to them; `loose` of how many
    bits codes are that stand one in a byte, where others are packed.
    """

    scheme: str
    block: tuple[int, int] | None = None
    shape: tuple[int, ...] | None = None
    axis: int = -1
    variant: str | None = None
    plain: tuple[int, ...] | None = None
    names: Mapping[str, str] | None = None
    groups: str | None = None
    tiled: bool = False
    loose: int | None = None


class Case:
    """One weight, its stored tensors, and what is stated of them."""

    def __init__(
        self,
        weight: QuantizedWeight,
        tensors: Mapping[str, Described],
        read: Read,
        section: Mapping[str, Any],
    ) -> None:
        self.weight = weight
        self.tensors = tensors
        self.section = section
        self.payload = weight.payload
        self.scheme = weight.scheme or ""
        self._read = read

    def unknown(self) -> Undecodable:
        producers = " or ".join(self.weight.recipes)
        return Undecodable(
            f"castwise cannot decode {self.scheme or 'its scheme'} of {producers} yet"
        )

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

    def length(self, axis: int) -> int:
        """Return the length of an axis of the payload, counted from the last one, -1."""
        shape = self.shape(self.payload)
        if len(shape) < -axis:
            raise Undecodable(f"{self.payload!r} has the shape {shape}, which is not a matrix")
        return shape[axis]

    def part(self, ending: str) -> str | None:
        """Name the first part whose name ends so."""
        return next((name for name in self.weight.parts if name.endswith(ending)), None)

    def named(self, ending: str) -> str:
        """Name a part that must be there."""
        name = self.part(ending)
        if name is None:
            raise Undecodable(
                f"it has no {ending.lstrip('._')}, without which its codes mean nothing"
            )
        return name

    def scale(self) -> str:
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

    def wrong(self, name: str, expected: object) -> Undecodable:
        return Undecodable(
            f"{name!r} has the shape {self.shape(name)}, and {expected} is what {self.payload!r} "
            f"of shape {self.shape(self.payload)} needs"
        )

    def whole(self, bits: int, words: int, width: int = 32) -> int:
        """Return how many codes fill words."""
        if words * width % bits:
            raise Undecodable(
                f"{self.payload!r} has the shape {self.shape(self.payload)}, and {words} words do "
                f"not end with a code of {bits} bits"
            )
        return words * width // bits

    def json(self, name: str) -> dict[str, Any]:
        try:
            return json_of(name, self.lazy(name))
        except ValueError as error:
            raise Undecodable(str(error).removesuffix(".")) from error

    def lazy(self, name: str) -> LazyArray:
        """Return a tensor that is read where it is indexed."""
        tensor = self.tensors[name]
        if tensor.format is None:
            raise Undecodable(f"{name!r} has a format that castwise cannot unpack")

        def box(ranges: Sequence[Range]) -> NDArray[Any]:
            return self._read(name, ranges)

        return LazyArray(name, tensor.shape, dtype_of(tensor.format), tensor.shape, box)

    def quantized(self, given: Given, recipe: str) -> QuantizedArray:
        """Return the weight as a quantised array whose parts are read when they are needed."""
        scheme, block, shape, axis, variant, plain, names, groups, tiled, loose = given
        if names is None:
            needed = [name for name, role in self.weight.parts.items() if role != ACTIVATION]
            names = {name: name for name in (self.payload, *needed)}
        parts: dict[str, Any] = {other: self.lazy(name) for name, other in names.items()}
        payload = parts[names[self.payload]]
        is_whole = shape is not None and payload.size == math.prod(shape)
        if plain is not None and shape is not None and is_whole and payload.ndim != MATRIX:
            rows, columns = shape
            parts[names[self.payload]] = payload.as_rows((rows, columns))
        if (scale := self.weight.scale) is not None:
            grid = grid_of_scales(self.shape(scale), self.shape(self.payload))
            parts[names[scale]] = parts[names[scale]].reshape(grid)
        if groups is not None:
            index = np.asarray(self.lazy(groups)[...]).astype(np.int64)
            shared = [name for name, role in self.weight.parts.items() if role in (SCALE, ZERO)]
            parts |= {names[name]: self.lazy(name).taken(index) for name in shared}
        if loose is not None:
            parts[names[self.payload]] = _packed(payload, loose)
        if tiled and block is not None and shape is not None:
            *stack, rows, columns = shape
            grid = *stack, rows, columns // block[1]
            parts[names[self.scale()]] = _untiled(self.lazy(self.scale()), grid)
        if scheme.startswith("bnb_"):
            parts[self.payload] = _as_bytes(parts[self.payload])
        return recognized_parts(
            QuantizedArray,
            parts,
            recipe,
            shape,
            scheme=scheme,
            block=block,
            axis=axis,
            variant=variant,
        )


def _untiled(stored: LazyArray, grid: tuple[int, ...]) -> LazyArray:
    """See the scales of blocks of rows, which are stored in tiles, as they lie in the weight."""
    *_, rows, columns = grid
    high, wide = TILE[0], ceil_div(columns, TILE[1]) * TILE[1]
    stored_rows = stored.shape[-2] // max(ceil_div(rows, high), 1)  # of a row of tiles

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        *places, (begin, end), (left, right) = ranges
        start, stop = begin // high, ceil_div(end, high)
        where = (*places, (start * stored_rows, stop * stored_rows))
        raw = np.ascontiguousarray(stored[tuple(slice(*bounds) for bounds in where)]).view(np.uint8)
        stack = raw.shape[:-MATRIX]
        out = np.empty((*stack, min(stop * high, rows) - start * high, columns), np.uint8)
        _core.unswizzle_scales(raw.reshape(*stack, (stop - start) * high, wide), out)
        scales = out[..., begin - start * high : end - start * high, left:right]
        return np.ascontiguousarray(scales).view(stored.dtype)

    return LazyArray(stored.name, grid, stored.dtype, grid, box)


def _packed(stored: LazyArray, bits: int) -> LazyArray:
    """See codes that stand one in a byte as a stream of bits."""
    shape = (*stored.shape[:-1], ceil_div(stored.shape[-1] * bits, 8))

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        *leading, (left, right) = ranges
        codes = stored[tuple(slice(*bounds) for bounds in leading)]
        if (codes >> bits).any():
            raise Undecodable(
                f"{stored.name!r} has codes of more than {bits} bits; save it with torchao again"
            )
        out = np.empty((*codes.shape[:-1], shape[-1]), np.uint8)
        _core.pack_codes(codes, out, bits=bits, layout="dense")
        return out[..., left:right]

    return LazyArray(stored.name, shape, stored.dtype, shape, box)


def _as_bytes(stored: LazyArray) -> LazyArray:
    """See a tensor as a column of bytes."""
    size = stored.dtype.itemsize
    shape = (stored.size * size, 1)

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        begin, end = ranges[0]
        items = stored.reshape((stored.size, 1))[begin // size : -(-end // size)]
        raw = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
        offset = begin - begin // size * size
        return raw[offset : offset + end - begin]

    return LazyArray(stored.name, shape, np.dtype(np.uint8), shape, box)
