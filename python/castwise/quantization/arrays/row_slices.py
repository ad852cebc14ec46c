"""Cut quantized arrays by rows: what of each part belongs to rows of one matrix."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from castwise.quantization.arrays.views import Array, StoredArray, Views, views_of
from castwise.quantization.producers.layouts import MATRIX, TILE, ceil_div, codes_of_container

Rows = TypeVar("Rows", bound=StoredArray)


class _RowAxis(NamedTuple):
    """How a part lies along the rows of the plain matrix."""

    shape: Sequence[int]  # the shape that the part has, or may be given
    # The axis after those of the stack along which the rows lie; None if any row needs all of it
    axis: int | None
    rows: Fraction = Fraction(1)  # the rows for one of its elements along that axis
    multiple: int = 1  # what is cut ends at a multiple of so many rows, or at the end


def row_step(q: StoredArray) -> int:
    """Return the rows of which slabs of a matrix are multiples: whole blocks, words and tiles."""
    return _step(views_of(q), int(q.extras.get("nested block", 1)))


def step_of(views: Views) -> int:
    """Return the row step of a geometry without nested scales."""
    return _step(views, 1)


@lru_cache(1 << 10)
def _step(views: Views, nested_block: int) -> int:
    row_parts = [part for part in _row_axes(views, nested_block).values() if part.axis is not None]
    # As many rows of the weight as fill whole rows of each part, and end its blocks and tiles.
    return math.lcm(
        *(part.rows.numerator for part in row_parts), *(part.multiple for part in row_parts)
    )


def rows_of(
    q: Rows,  # A quantized array; what is needed of lazy parts is read
    start: int,  # the rows; `start` is a multiple of `row_step`, and `stop` is one or the end
    stop: int,
    place: Sequence[int] = (),  # where the matrix is in its stack
) -> Rows:
    """Return rows of a matrix as a quantized array that shares memory."""
    views = views_of(q)
    shape = views.shape
    if len(shape) != MATRIX + len(place) or views.axis % len(shape) < len(place):
        raise ValueError(f"rows of shape {shape} along axis {q.axis} cannot be decoded apart.")
    nested_block = int(q.extras.get("nested block", 1))
    axes, rows = _row_axes(views, nested_block), shape[-2]
    step = _step(views, nested_block)
    if not 0 <= start <= stop <= rows or start % step or (stop % step and stop != rows):
        raise ValueError(f"rows {start} to {stop} of {rows} are not whole blocks of {step}.")

    matrix_index: tuple[Any, ...] = (*place, ...)

    def cut_part(name: str, part: Array | None) -> Array | None:
        if part is None or (not place and stop - start == rows):
            return part if part is None else part[...]
        row_axis = axes.get(name)
        if row_axis is None:
            # Each matrix may have a scale of its own.
            is_per_matrix = name.endswith("scale") and part.size == math.prod(shape[:-2]) > 1
            return part.reshape(shape[:-2])[matrix_index] if is_per_matrix else part[...]
        lead = len(place) + (0 if row_axis.axis is None else row_axis.axis + 1)
        if part.shape[:lead] != tuple(row_axis.shape[:lead]):
            part = part.reshape(row_axis.shape)
        where = matrix_index
        if row_axis.axis is not None and stop - start < rows:
            end = ceil_div(stop, row_axis.multiple) * row_axis.multiple
            span = slice(math.floor(start / row_axis.rows), math.ceil(end / row_axis.rows))
            where = (*place, *[slice(None)] * row_axis.axis, span, ...)
        rows_of_part: Array = part[where]
        return rows_of_part

    # They fit, as the whole parts do.
    return q._with(
        data=cut_part("data", q.data),
        scale=cut_part("scale", q.scale),
        global_scale=cut_part("global scale", q.global_scale),
        zero_point=cut_part("zero point", q.zero_point),
        shape=(stop - start, shape[-1]),
        axis=views.axis if views.axis < 0 else views.axis - len(place),
        extras=MappingProxyType({name: cut_part(name, part) for name, part in q.extras.items()}),
    )


@lru_cache(1 << 10)
def _row_axes(views: Views, nested_block: int) -> dict[str, _RowAxis]:
    storage, data, scale = views.storage, views.data_shape, views.scale_shape
    bits = views.scheme.bits - views.high_bits
    per_container = codes_of_container(bits, views.container.itemsize, views.packing)
    if storage.flat:
        columns = max(views.shape[-1], 1)
        blocks = Fraction(views.block[1], columns)
        nested_rows = blocks * nested_block
        return {
            "data": _RowAxis(data, 0, per_container / columns),
            "scale": _RowAxis(scale, 0, blocks),
            "nested scale": _RowAxis((ceil_div(scale[0], nested_block),), 0, nested_rows),
        }
    # Rows of the plain matrix are columns of the core's where codes are packed along them.
    across = views.is_transposed != (views.axis % len(views.shape) == len(views.shape) - 2)
    axis = int(across != (storage.orientation in ("parts", "pairs")))
    whole = views.block[1] if storage.split else per_container
    parts = {
        "data": _RowAxis(data, axis, Fraction(whole if across else 1), (storage.tile or (1,))[0]),
        "high": _RowAxis(data, axis),
    }
    size, count = views.core_block[across], views.grid[across - 2]
    if views.block == (0, 0):
        return parts
    if count == 1:
        parts["scale"] = parts["zero point"] = parts["bias"] = _RowAxis(scale, None)
    else:
        tile = TILE[0] if storage.tile is not None else 1
        of_block = 0 if len(scale) < len(views.shape) else axis * (len(scale) // len(views.shape))
        parts["scale"] = parts["bias"] = _RowAxis(scale, of_block, Fraction(size), tile)
        codes = 1 if storage.zeros == "plain" else per_container
        parts["zero point"] = _RowAxis(views.zero_shape, of_block, Fraction(size) * codes)
    return parts
