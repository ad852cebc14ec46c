"""Where the codes, scales and zero points of a quantized array lie, as the core reads them.

The core sees a stack of matrices whose codes are packed along the last axis. `Views` turns stored
arrays into that form, by views where they are large, and back.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from castwise._core import BlockDecoder, pack_codes, swizzle_scales, unpack_codes, unswizzle_scales
from castwise._numbers import BYTE_BITS
from castwise._options import StoredRecipe, StoredScheme, Variant
from castwise.quantization.arrays._arguments import block_pair
from castwise.quantization.producers.layouts import (
    E4M3,
    E8M0,
    MATRIX,
    TILE,
    Layout,
    Storage,
    block_grid,
    ceil_div,
    codes_of_block,
    container_count,
    dtype_of,
    padded_shape,
)
from castwise.quantization.producers.producer import Producer
from castwise.quantization.producers.registry import known_recipe
from castwise.quantization.producers.schemes import Scheme, scheme_of_files

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Views:
    """The geometry of one quantized array."""

    scheme: Scheme  # rows of the tables
    recipe: Producer | None
    layout: Layout
    shape: tuple[int, ...]  # of the array that was quantized
    axis: int  # along which codes share a scale
    # (rows, columns) that share a scale, 0 for the whole axis; the axis is that of the columns
    block: tuple[int, int]
    packing: str  # the variant of the layout

    @cached_property
    def storage(self) -> Storage:
        """How the arrays of the layout are stored."""
        return self.layout.storage or Storage()

    @cached_property
    def is_transposed(self) -> bool:
        """True if the rows of the stored matrix are the axis along which scales are shared."""
        return self.storage.orientation in ("weight", "pairs")

    @cached_property
    def core_block(self) -> tuple[int, int]:
        return self.block[::-1] if self.is_transposed else self.block

    @cached_property
    def core_shape(self) -> tuple[int, ...]:
        """(*stack, rows, columns) as the core sees them."""
        axis = self.axis % len(self.shape)
        shape = (*self.shape[:axis], *self.shape[axis + 1 :], self.shape[axis])
        if self.storage.flat:
            return 1, math.prod(shape)
        if len(shape) == 1:
            shape = (1, *shape)
        return (*shape[:-2], shape[-1], shape[-2]) if self.is_transposed else shape

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """The blocks along each axis, as the core sees them."""
        return block_grid(self.core_shape, self.core_block)

    def of_weight(self, array: Array) -> Array:
        """View an array of `shape` as the core sees it; it must be contiguous if stored flat."""
        last = self.axis in (-1, array.ndim - 1)
        view = array if last else np.moveaxis(array, self.axis, -1)
        if self.storage.flat:
            return view.reshape(self.core_shape)
        if view.ndim == 1:
            view = view[None]
        return view.swapaxes(-1, -2) if self.is_transposed else view

    # The payload

    @cached_property
    def container(self) -> np.dtype[Any]:
        if self.storage.container is not None:
            return np.dtype(self.storage.container)
        element = self.scheme.element
        return np.dtype(np.uint8) if self.scheme.bits < BYTE_BITS else dtype_of(element)

    @cached_property
    def high_bits(self) -> int:
        """The bits of a code that stand apart from the others."""
        return int("high" in dict(self.storage.fields))

    def _containers(self, columns: int) -> int:
        bits = self.scheme.bits - self.high_bits
        return container_count(columns, bits, self.container.itemsize, self.packing)

    @cached_property
    def data_shape(self) -> tuple[int, ...]:
        *stack, rows, columns = self.core_shape
        if self.storage.tile is not None:
            rows, columns = padded_shape((rows, columns), self.storage.tile)
        count = self._containers(columns)
        if self.storage.flat:
            return (count, 1) if self.recipe is not None else (count,)
        if self.storage.orientation in ("parts", "pairs"):
            return *stack, count, rows
        if self.storage.block_type:
            size = dict(self.storage.fields)["data"]
            shape = *stack, rows, ceil_div(columns, self.block[1]), size
            return shape if len(self.shape) > 1 else shape[1:]
        if self.storage.split or self.storage.fields:
            blocks = ceil_div(columns, self.bytes_of_codes)
            block_containers = self._containers(self.bytes_of_codes)
            return *stack, rows, blocks, count // blocks if blocks else block_containers
        return (*stack, rows, count) if len(self.shape) > 1 else (count,)

    @cached_property
    def bytes_of_codes(self) -> int:
        fields = dict(self.storage.fields)
        has_parts = fields and not self.storage.block_type
        return codes_of_block(fields, self.scheme.bits) if has_parts else self.block[1]

    def of_data(self, data: Array) -> Array:
        """View the payload as the core sees it."""
        *_, rows, columns = self.core_shape
        if self.storage.flat:
            return data.reshape(1, -1)
        if self.storage.orientation in ("parts", "pairs"):
            return data.swapaxes(-1, -2)
        if self.storage.tile is not None:
            return data[..., :rows, : self._containers(columns)]
        return data[None] if len(self.shape) == 1 else data

    # Scales, and what is shaped as they are

    @cached_property
    def scale_shape(self) -> tuple[int, ...]:
        *stack, rows, columns = self.grid
        whole = self.block == (0, 0)
        if whole:
            return self.recipe.scalar if self.recipe else ()
        if self.storage.tile is not None and 0 not in self.block:
            matrix = padded_shape(self.core_shape[-2:], self.storage.tile)
            rows, columns = padded_shape(block_grid(matrix, self.block), TILE)
        if self.storage.flat:
            return (columns,)
        if self.block == (1, 0) and self.recipe is not None and self.recipe.channels == 1:
            return *stack, rows * columns
        if self.storage.orientation in ("parts", "pairs"):
            rows, columns = columns, rows
        is_split = min(self.block) > 1 and self.recipe is not None and self.recipe.blocks > MATRIX
        if is_split and len(self.shape) == MATRIX:
            return rows, 1, columns, 1
        return (*stack, rows, columns) if len(self.shape) > 1 else (columns,)

    def to_core(self, scales: Array) -> Array:
        """Return stored scales as (*stack, row blocks, column blocks)."""
        if math.prod(scales.shape) == 1 and self.block == (0, 0):
            return np.broadcast_to(scales.reshape(()), self.grid)
        if self.block == (0, 0):  # one for each matrix of a stack
            return scales.reshape(self.grid)
        if self.storage.tile is not None and 0 not in self.block:
            out = np.empty(self.grid, scales.dtype)
            unswizzle_scales(scales.view(np.uint8), out.view(np.uint8))
            return out
        scales = scales.reshape(self.scale_shape)
        if self.storage.orientation in ("parts", "pairs") and scales.ndim > 1:
            scales = scales.swapaxes(-1, -2)
        return scales.reshape(self.grid)

    def to_stored(self, scale: Array, out: Array) -> None:
        """Write scales of the core's form as they are stored."""
        if self.block == (0, 0):
            out[...] = scale.reshape(-1)[:1].reshape(out.shape)
        elif self.storage.tile is not None and 0 not in self.block:
            swizzle_scales(scale.view(np.uint8), out.view(np.uint8))
        elif self.storage.orientation in ("parts", "pairs"):
            out[...] = scale.swapaxes(-1, -2).reshape(out.shape)
        else:
            out[...] = scale.reshape(out.shape)

    # Zero points

    @cached_property
    def zero_shape(self) -> tuple[int, ...]:
        if self.storage.zeros == "plain":
            return self.scale_shape
        shape = list(self.scale_shape)
        if len(shape) < MATRIX:
            raise ValueError(
                f"scale has shape {self.scale_shape}; packed zero points need one of rows and "
                "columns."
            )
        axis = -2 if self.storage.zeros == "rows" else -1
        shape[axis] = self._containers(shape[axis])
        return tuple(shape)

    def zeros_to_core(self, zeros: Array, add: int) -> Array:
        """Return stored zero points as unsigned or plain numbers, in the core's form."""
        if self.storage.zeros == "plain":
            if self.storage.excess:  # which codes have, and these do not
                half = 1 << (self.scheme.bits - 1)
                zeros = (zeros.astype(np.int16) + half).astype(np.uint8)
            return self.to_core(zeros)
        zeros, shape = zeros.reshape(self.zero_shape), self.scale_shape
        if self.storage.zeros == "rows":
            zeros, shape = zeros.swapaxes(-1, -2), (*shape[:-2], shape[-1], shape[-2])
        out = np.empty(shape, np.uint8)
        unpack_codes(zeros, out, bits=self.scheme.bits, layout=self.packing, add=add)
        return self.to_core(out.swapaxes(-1, -2) if self.storage.zeros == "rows" else out)

    def zeros_to_stored(self, zeros: Array, out: Array, offset: int) -> None:
        """Write zero points of the core's form as they are stored."""
        if self.storage.zeros == "plain":
            self.to_stored(zeros, out)
            return
        plain = np.empty(self.scale_shape, zeros.dtype)
        self.to_stored(zeros, plain)
        if self.storage.zeros == "rows":
            plain, out = plain.swapaxes(-1, -2), out.swapaxes(-1, -2)
        pack_codes(plain, out, bits=self.scheme.bits, layout=self.packing, offset=offset)


def fields_of(views: Views, blocks: Array) -> dict[str, Array]:
    fields: dict[str, Array] = {}
    begin = 0
    for name, size in views.storage.fields:
        part = blocks[..., begin : begin + size]
        begin += size
        if name == "data":
            part = part.view(views.container)
        elif name != "high":
            half = size == np.dtype(np.float16).itemsize
            part = part.view(np.float16)[..., 0] if half else part
            part = part[..., 0] if size == 1 else part
        fields[name] = part
    if views.storage.block_type:
        halves = blocks.view(np.float16)
        fields["scale"] = halves[..., views.storage.scale_place // halves.itemsize]
    return fields


@dataclass(frozen=True, eq=False, repr=False)
class StoredArray:
    """The geometry and the parts of a quantized array, which is all that its decoding needs."""

    scheme: StoredScheme
    data: Array
    scale: Array
    global_scale: Array | None = None
    zero_point: Array | None = None
    shape: tuple[int, ...] | None = None
    recipe: StoredRecipe | None = field(default=None, kw_only=True)
    block: int | Sequence[int] | None = field(default=None, kw_only=True)
    # By default the producer's, once the array is made
    axis: int = field(default=None, kw_only=True)  # type: ignore[assignment]
    extras: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    variant: Variant | None = field(default=None, kw_only=True)
    layout: Layout | None = field(default=None, kw_only=True)  # a row of the table of layouts
    # What decodes the parts, by arithmetic, once they were decoded
    _ready: dict[str, BlockDecoder] = field(default_factory=dict, init=False)

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        """Make an array that owns a dict of all fields in their final form, whose parts fit."""
        instance = object.__new__(cls)
        # At once: a call for each field would take longer than a small array.
        object.__setattr__(instance, "__dict__", fields)
        return instance

    def _with(self, **fields: object) -> Self:
        """Make an array of cuts of parts that fit each other."""
        return self._of_fields(self.__dict__ | {"_ready": {}} | fields)


def views_of(q: StoredArray) -> Views:
    if q.layout is None or q.shape is None or q.block is None:
        raise ValueError("the quantized array has no geometry yet.")
    return geometry(
        q.scheme,
        q.recipe,
        q.layout,
        shape=q.shape,
        axis=q.axis,
        block=block_pair(q.block),
        variant=q.variant,
    )


@lru_cache(1 << 10)
def geometry(
    scheme: str,
    recipe: str | None,
    layout: Layout,
    *,
    shape: tuple[int, ...],
    axis: int,
    block: tuple[int, int],
    variant: str | None = None,
) -> Views:
    """Return the geometry of arrays of a layout; variants that are no packing change nothing."""
    if not shape:
        raise ValueError("shape=() is not valid; a weight has one axis or more.")
    packings = (layout.storage or Storage()).packing
    packing = variant if variant in packings else packings[0]
    return Views(scheme_of_files(scheme), known_recipe(recipe), layout, shape, axis, block, packing)


def scale_dtype(views: Views, weight: DTypeLike, *, powers: bool) -> np.dtype[Any]:
    """Return the dtype in which a producer stores scales."""
    # `powers` says that the scales of a scheme of float32 scales are powers of two.
    formats = views.layout.parts[0].formats if views.layout.parts else ()
    name = E8M0 if powers else views.scheme.scale
    if name in (E8M0, E4M3):
        fields = bool(views.storage.fields)
        stored_as_bytes = fields or (bool(formats) and name not in formats[:1])
        return np.dtype(np.uint8) if stored_as_bytes and not powers else dtype_of(name)
    kind = views.recipe.scales if views.recipe is not None else name
    is_weight_dtype = (
        kind == "weight" and np.dtype(weight).itemsize <= np.dtype(np.float32).itemsize
    )
    return np.dtype(
        weight if is_weight_dtype else np.float32 if kind == "weight" else dtype_of(kind)
    )


def format_of_bytes(dtype: np.dtype[Any], scheme: Scheme) -> str | None:
    """Name the format of scales whose dtype is plain bytes."""
    if dtype != np.uint8:
        return None
    return E4M3 if scheme.scale == E4M3 else E8M0
