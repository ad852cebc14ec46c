"""One quantised weight of a checkpoint, as an array whose parts are read when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise import _core
from castwise.quantization.arrays.arrays import QuantizedArray
from castwise.quantization.arrays.from_parts import recognized_parts
from castwise.quantization.arrays.lazy import LazyArray, Range
from castwise.quantization.arrays.views import dtype_of
from castwise.quantization.producers.found import QuantizedWeight
from castwise.quantization.producers.geometry import (
    MATRIX,
    TILE,
    ceil_div,
    grid_of_scales,
    padded_shape,
)
from castwise.quantization.producers.layouts import ACTIVATION, SCALE, ZERO
from castwise.quantization.producers.names import Described
from castwise.quantization.producers.stated import json_of
from castwise.quantization.producers.stored_weight import StoredWeight, Undecodable, WeightForm

Read = Callable[[str, Sequence[Range]], NDArray[Any]]
"""Reads of a tensor, given its name, what is within ranges, one for each axis."""


class LazyWeight(StoredWeight):
    """One weight whose stored tensors are read."""

    def __init__(
        self,
        weight: QuantizedWeight,
        tensors: Mapping[str, Described],
        read: Read,
        section: Mapping[str, Any],
    ) -> None:
        super().__init__(weight, tensors, section)
        self._read = read

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

        dtype, box = dtype_of(tensor.format), partial(self._read, name)
        return LazyArray(name, tensor.shape, dtype, tensor.shape, box)

    def lazy_array(self, description: WeightForm, recipe: str) -> QuantizedArray:
        """Return the weight as a quantised array whose parts are read when they are needed."""
        scheme, block, shape, axis, variant, plain, names, groups, is_tiled, loose, _ = description
        if names is None:
            part_names = [name for name, role in self.weight.parts.items() if role != ACTIVATION]
            names = {name: name for name in (self.payload, *part_names)}
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
            per_group = [name for name, role in self.weight.parts.items() if role in (SCALE, ZERO)]
            parts |= {names[name]: self.lazy(name).take_last(index) for name in per_group}
        if loose is not None:
            parts[names[self.payload]] = _pack(payload, loose, recipe)
        if is_tiled and block is not None and shape is not None:
            *stack, rows, columns = shape
            grid = *stack, rows, columns // block[1]
            parts[names[self.scale()]] = _untile(self.lazy(self.scale()), grid)
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
            layouts=self.weight.layouts if description.names is None else (),
        )


def _untile(scales: LazyArray, grid: tuple[int, ...]) -> LazyArray:
    """See the scales of blocks of rows, which are stored in tiles, as they lie in the weight."""
    *_, rows, columns = grid
    high, (_, wide) = TILE[0], padded_shape((rows, columns), TILE)
    stored_rows = scales.shape[-2] // max(ceil_div(rows, high), 1)  # of a row of tiles

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        *places, (begin, end), (left_column, right_column) = ranges
        start, stop = begin // high, ceil_div(end, high)
        where = (*places, (start * stored_rows, stop * stored_rows))
        raw = np.ascontiguousarray(scales[tuple(slice(*bounds) for bounds in where)]).view(np.uint8)
        stack = raw.shape[:-MATRIX]
        out = np.empty((*stack, min(stop * high, rows) - start * high, columns), np.uint8)
        _core.unswizzle_scales(raw.reshape(*stack, (stop - start) * high, wide), out)
        box_scales = out[..., begin - start * high : end - start * high, left_column:right_column]
        return np.ascontiguousarray(box_scales).view(scales.dtype)

    return LazyArray(scales.name, grid, scales.dtype, grid, box)


def _pack(payload: LazyArray, bits: int, recipe: str) -> LazyArray:
    """See codes that stand one in a byte as a stream of bits."""
    shape = (*payload.shape[:-1], ceil_div(payload.shape[-1] * bits, 8))

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        *leading, (low, high) = ranges
        codes = payload[tuple(slice(*bounds) for bounds in leading)]
        if (codes >> bits).any():
            raise Undecodable(
                f"{payload.name!r} has codes of more than {bits} bits; save it with {recipe} again"
            )
        out = np.empty((*codes.shape[:-1], shape[-1]), np.uint8)
        _core.pack_codes(codes, out, bits=bits, layout="dense")
        return out[..., low:high]

    return LazyArray(payload.name, shape, payload.dtype, shape, box)


def _as_bytes(payload: LazyArray) -> LazyArray:
    """See a tensor as a column of bytes."""
    size = payload.dtype.itemsize
    shape = (payload.size * size, 1)

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        begin, end = ranges[0]
        items = payload.reshape((payload.size, 1))[begin // size : -(-end // size)]
        raw = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
        offset = begin - begin // size * size
        return raw[offset : offset + end - begin]

    return LazyArray(payload.name, shape, np.dtype(np.uint8), shape, box)
