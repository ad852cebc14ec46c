"""Convert quantized arrays to the layout of another producer, with the same codes and scales.

Between two producers codes are unsigned numbers of so many bits, one per byte, in rows of the
weight, and scales and zero points those of the blocks of each row, whatever they are packed in.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from operator import itemgetter
from typing import Any

import numpy as np

from castwise._core import cast, finfo, unpack_codes
from castwise._core import pack_codes as pack_array
from castwise.quantization.arrays.arrays import QuantizedArray
from castwise.quantization.arrays.decode import added_to_zeros
from castwise.quantization.arrays.named_parts import named_parts
from castwise.quantization.arrays.views import Array, Views, geometry, scale_dtype, views_of
from castwise.quantization.producers.layouts import E4M3, E8M0, dtype_of

DATA, SCALES, ZEROS = "data", "scale", "zero point"
# Of float8_e8m0fnu in the microscaling specification of OCP: a byte less 127 is the exponent.
_BIAS, _NAN = 127, 255
# The exponents of the powers of two that are float8_e4m3fn.
_LOWEST, _HIGHEST = -9, 8

# The exponent of the smallest normal float32, whose reciprocal is finite too.
_SMALLEST = -126

_SPREAD = _HIGHEST - _LOWEST
# The largest number of E4M3.
_LARGEST = Fraction(448)
# No code of 4 bits times two to this is a float8_e4m3fn.
_FINE = -20


def of_rows(form: Views, rows: int) -> Views:
    """Return the geometry of so many rows of a matrix in a form."""
    return of_shape(form, (rows, form.shape[-1]))


def of_shape(form: Views, shape: tuple[int, ...]) -> Views:
    recipe = None if form.recipe is None else form.recipe.name
    return geometry(
        form.scheme.name, recipe, form.layout, shape=shape, axis=form.axis, block=form.block
    )


def same_parts(source: Views, target: Views) -> set[str]:
    """Name the parts whose bytes are the same in both forms."""
    names = set()
    if _payload_layout(source) == _payload_layout(target) and source.packing == target.packing:
        names.add(DATA)
    is_tiled = source.storage.tile is not None or target.storage.tile is not None
    is_same = source.scheme is target.scheme and source.block == target.block
    whole = source.block == (0, 0)
    if is_same and (
        whole
        or not (
            is_tiled or source.storage.fields or _is_transposed(source) or _is_transposed(target)
        )
    ):
        names.add(SCALES)
    return names


def _payload_layout(views: Views) -> tuple[Any, ...]:
    storage = views.storage
    return views.scheme.bits, storage.orientation, storage.tile, storage.fields, _is_unsigned(views)


def _is_unsigned(views: Views) -> bool:
    return views.storage.excess or views.storage.is_unsigned


def _is_transposed(views: Views) -> bool:
    return views.is_transposed or views.storage.orientation == "parts"


def codes_of(q: QuantizedArray) -> Array:
    """Return the codes of a matrix, one per byte, in its rows."""
    views = views_of(q)
    data = views.of_data(q.data)
    if views.storage.split or views.storage.fields:
        data = data.reshape(*data.shape[:-2], -1)
    if views.scheme.bits == finfo(q.data.dtype).bits:
        codes = data.view(np.uint8)
    else:
        codes = np.empty(views.core_shape, np.uint8)
        unpack_codes(data, codes, bits=views.scheme.bits, layout=views.packing)
    return codes.swapaxes(-1, -2) if views.is_transposed else codes


def converted_part(q: QuantizedArray, target: Views, key: str) -> Array:
    """Return the codes, scales or zero points of a matrix in another form of the same blocks."""
    return _CONVERTERS[key](q, target)


def _data(q: QuantizedArray, target: Views) -> Array:
    source, codes = views_of(q), codes_of(q)
    if _is_unsigned(source) != _is_unsigned(target) and target.scheme.name.startswith("int"):
        codes = codes ^ np.uint8(1 << (target.scheme.bits - 1))
    return pack_codes(codes, target, q.data.dtype)


def pack_codes(codes: Array, target: Views, dtype: np.dtype[Any]) -> Array:
    """Pack the codes of a matrix; `dtype` is that of codes of a whole byte."""
    out = np.zeros(target.data_shape, target.container)
    codes_view = target.of_data(out)
    if target.storage.split:
        codes_view = codes_view.reshape(*codes_view.shape[:-2], -1)
    if target.scheme.bits == finfo(target.container).bits:
        codes_view.view(np.uint8)[...] = codes
        return out.view(dtype) if finfo(dtype).kind == "float" else out
    pack_array(codes, codes_view, bits=target.scheme.bits, layout=target.packing)
    return out


def _scales(q: QuantizedArray, target: Views) -> Array:
    return stored_scales(_scales_of(q), target)


def _scales_of(q: QuantizedArray) -> Array:
    """Return the scales of the blocks of a matrix, in its rows."""
    views = views_of(q)
    core = views.to_core(q.scale)
    return core.swapaxes(-1, -2) if views.is_transposed else core


def stored_scales(core: Array, target: Views) -> Array:
    """Store the scales of the blocks of a matrix; those of a byte as the producer does."""
    dtype = core.dtype
    if target.scheme.scale in (E4M3, E8M0):
        dtype = scale_dtype(target, dtype, powers=False)
    out = np.zeros(target.scale_shape, dtype)
    target.to_stored(core if core.dtype == dtype else core.view(dtype), out)
    return out


def zeros_of(q: QuantizedArray) -> Array:
    """Return the zero points of the blocks of a matrix, as unsigned numbers."""
    views = views_of(q)
    assert q.zero_point is not None, "by the caller"  # noqa: S101
    zeros = views.zeros_to_core(np.asarray(q.zero_point), added_to_zeros(q))
    return zeros.swapaxes(-1, -2) if views.is_transposed else zeros


def _zeros(q: QuantizedArray, target: Views) -> Array:
    out = np.zeros(target.zero_shape, target.container)
    target.zeros_to_stored(zeros_of(q), out, 0)
    return out


_CONVERTERS = {DATA: _data, SCALES: _scales, ZEROS: _zeros}


def blocks_of(q: QuantizedArray, target: Views, rows: slice | Array) -> Array:
    """Return rows of a matrix as blocks of bytes with their scales, along the last axis."""
    # `target` is the form of those rows alone, which may be in another order.
    assert target.recipe is not None, "blocks are a producer's"  # noqa: S101
    parts = {
        "data": pack_codes(codes_of(q)[rows], target, q.data.dtype),
        "scale": stored_scales(_scales_of(q)[rows], target),
    }
    target_array = q._with(
        recipe=target.recipe.name, layout=target.layout, shape=target.shape, **parts
    )
    (blocks,) = named_parts(target_array, None).values()
    return blocks.reshape(*target.data_shape[:-1], -1)


# From powers of two to scales of scales


class PowerRange:
    """The exponents of the scales of blocks that have values, of one weight."""

    def __init__(self) -> None:
        self.lowest: tuple[int, tuple[int, ...]] | None = None
        self.highest: tuple[int, tuple[int, ...]] | None = None
        self.nan: tuple[int, ...] | None = None

    def add(self, q: QuantizedArray, place: tuple[int, ...], start: int) -> None:
        """Take in rows of a matrix that begin at a row of the matrix at a place of the stack."""
        size = views_of(q).block[1]
        powers = views_of(q).to_core(q.scale).view(np.uint8)
        codes = codes_of(q)
        lives = (codes.reshape(*powers.shape, size) & 7).any(axis=-1)
        corner = (start, 0) if views_of(q).axis == -1 else (0, start // size)

        def at(index: int) -> tuple[int, ...]:
            row, block = np.unravel_index(index, powers.shape)
            return *place, corner[0] + int(row), corner[1] + int(block)

        is_nan = powers == _NAN
        if self.nan is None and is_nan.any():
            self.nan = at(int(np.argmax(is_nan)))
        if not lives.any():
            return
        exponents = powers.astype(np.int16) - _BIAS
        low = int(np.argmin(np.where(lives, exponents, _NAN)))
        high = int(np.argmax(np.where(lives, exponents, -_NAN)))
        lowest, highest = ((int(exponents.flat[index]), at(index)) for index in (low, high))
        # Of equal ones the first counts.
        self.lowest = min(self.lowest or lowest, lowest, key=itemgetter(0))
        self.highest = max(self.highest or highest, highest, key=itemgetter(0))


def common_power(ranges: Mapping[str, PowerRange]) -> int:
    """Return the exponent of a global scale for weights that share one, by name."""
    # With it the scale of each block that has values is one of float8_e4m3fn.
    for name, power_range in ranges.items():
        if power_range.nan is not None:
            raise ValueError(f"tensor {name!r}: the scale of the block at {power_range.nan} is NaN")
    lows = [(*each.lowest, name) for name, each in ranges.items() if each.lowest]
    highs = [(*each.highest, name) for name, each in ranges.items() if each.highest]
    if not lows:
        return 0
    least, where, low = min(lows, key=itemgetter(0))
    most, other, high = max(highs, key=itemgetter(0))
    if most - least > _SPREAD:
        raise ValueError(
            f"tensor {low!r}: the block at {where} has the scale 2^{least}, and the one at {other} "
            f"of {high!r} 2^{most}; scales of float8 reach over a factor of 2^{_SPREAD}"
        )
    return max(most - _HIGHEST, _SMALLEST)


def relative_scales(q: QuantizedArray, target: Views, power: int) -> Array:
    """Return scales that are powers of two relative to one of the whole."""
    # Blocks are cut in parts with the same scale; a block of zeros may get any.
    exponents = views_of(q).to_core(q.scale).view(np.uint8).astype(np.int16) - _BIAS - power
    scales = np.ldexp(np.float32(1), np.clip(exponents, _LOWEST, _HIGHEST).astype(np.int32))
    core = np.repeat(cast(scales, E4M3), views_of(q).block[1] // target.block[1], axis=-1)
    return stored_scales(core, target)


# From 4 bits to 8


def widen_blocks(q: QuantizedArray, target: Views, start: int) -> dict[str, Array]:
    """Return codes of 4 bits in blocks of a row as the same float8 values in blocks of rows."""
    views = views_of(q)
    powers = views.to_core(q.scale).view(np.uint8)
    size, (high, wide) = views.block[1], target.block
    exponents = powers.astype(np.int32) - _BIAS
    values = codes_of(q).view(dtype_of(views.scheme.element)).astype(np.float32)
    largest = np.abs(values).reshape(*powers.shape, size).max(axis=-1)
    rows = np.arange(0, len(values), high)
    blocks = np.arange(0, powers.shape[-1], wide // size)
    # In float64, as the largest products are not float32.
    products = np.ldexp(largest.astype(np.float64), exponents)
    amax = np.maximum.reduceat(np.maximum.reduceat(products, rows, axis=0), blocks, axis=1)
    fraction, power = np.frexp(amax)
    room, top = math.frexp(float(_LARGEST))
    power = np.where(amax > 0, power - top + (fraction > room), 0)
    power = np.maximum(power, -_BIAS)
    block_power = np.repeat(np.repeat(power, high, axis=0)[: len(values)], wide // size, axis=1)
    shifts = np.maximum(exponents - block_power[:, : powers.shape[-1]], _FINE)
    quotients = np.ldexp(values, np.repeat(shifts, size, axis=1).astype(np.int32))
    codes = cast(quotients, E4M3)
    wrong = (codes.astype(np.float32) != quotients) | np.repeat(powers == _NAN, size, axis=1)
    if wrong.any():
        row, column = (int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        raise ValueError(
            f"the {high}x{wide} block at {((start + row) // high, column // wide)} has values that "
            f"no scale makes float8 ({float(values[row, column])} times "
            f"2^{int(exponents[row, column // size])} is one), so that it would be rounded"
        )
    scales = (power + _BIAS).astype(np.uint8).view(dtype_of(E8M0))
    return {DATA: codes, SCALES: stored_scales(scales, target)}
