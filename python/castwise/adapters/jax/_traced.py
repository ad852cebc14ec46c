"""Cast traced arrays, with the bits that castwise's kernels give, on any device.

XLA's own conversions flush subnormals on the CPU, round integers twice on their way to bfloat16,
lose the signs of NaN, and drop pairs of conversions as excess precision. So floats are rounded here
by operations on their codes, which leave XLA nothing to interpret; it converts only where it has a
single right answer: to wider floats, between integers, and whole numbers within range.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import FormatInfo, cast, finfo
from castwise._numbers import BYTE_BITS
from castwise.environment.frameworks import require

jax: Any = require("jax")


class _Pivot(NamedTuple):
    """A float format whose codes represent every value that is to be rounded."""

    dtype: Any
    code_dtype: Any
    bits: int
    mantissa_bits: int
    bias: int

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        return (2 * self.bias + 1) << self.mantissa_bits


# By IEEE 754: the bits, those of the mantissa, and the bias of the exponent.
_SINGLE = _Pivot(np.float32, np.uint32, 32, 23, 127)
_DOUBLE = _Pivot(np.float64, np.uint64, 64, 52, 1023)


@functools.partial(jax.jit, static_argnums=(1, 2, 3), inline=True)
def convert(array: Any, target: np.dtype[Any], nearest: bool, saturate: bool) -> Any:
    inexact = jax.numpy.inexact
    if all(jax.numpy.issubdtype(dtype, inexact) for dtype in (array.dtype, target)):
        return _differentiable(target, saturate, array)
    return _convert(array, target, nearest, saturate)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _differentiable(target: np.dtype[Any], saturate: bool, array: Any) -> Any:
    return _convert(array, target, False, saturate)


@_differentiable.defjvp  # type: ignore[untyped-decorator]
def _tangent(target: np.dtype[Any], saturate: bool, primals: Any, tangents: Any) -> Any:
    """Cast the tangent as XLA does, whose cast it can transpose."""
    (array,), (tangent,) = primals, tangents
    if saturate:
        row = finfo(target)
        wide = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
        tangent = jax.numpy.where((wide >= row.min) & (wide <= row.max), tangent, 0)
    return _differentiable(target, saturate, array), tangent.astype(target)


def _convert(array: Any, target: np.dtype[Any], nearest: bool, saturate: bool) -> Any:
    source, row = finfo(array.dtype), finfo(target)
    if array.dtype == target and not saturate:
        return array
    if row.kind == "complex":
        return _complex(array, row)
    if source.kind == "complex":  # the other targets are refused
        return (array.real != 0) | (array.imag != 0)
    if source.kind != "float":
        return _of_whole(array, row)
    return _of_floats(array, row, nearest, saturate)


def _of_floats(array: Any, row: FormatInfo, nearest: bool, saturate: bool) -> Any:
    """Convert floats to anything but complex numbers."""
    pivot = _DOUBLE if np.float64 in (array.dtype, row.dtype) else _SINGLE
    if row.kind == "float":
        return _from_codes(_round(_codes(array, pivot), pivot, row, saturate), row)
    if row.kind == "bool":
        return _codes(array, pivot) & pivot.code_dtype(pivot.sign - 1) != 0
    return _integer(array.astype(pivot.dtype), row, nearest)


def _of_whole(array: Any, row: FormatInfo) -> Any:
    """Convert integers and booleans: by XLA where it rounds once, else by their codes."""
    if row.kind == "bool":
        return array != 0
    bits = finfo(array.dtype).bits
    rounded_once_by_xla = row.dtype == np.float64 or (
        row.dtype == np.float32 and bits <= _SINGLE.bits
    )
    if row.kind == "float" and not rounded_once_by_xla:
        pivot = _SINGLE if bits <= _SINGLE.bits else _DOUBLE
        return _from_codes(_round(_whole_codes(array, pivot), pivot, row, False), row)
    return array.astype(row.dtype)


def _complex(array: Any, row: FormatInfo) -> Any:
    part = np.dtype(np.float64 if row.dtype == np.complex128 else np.float32)
    if finfo(array.dtype).kind == "complex":
        return jax.lax.complex(
            _convert(array.real, part, False, False), _convert(array.imag, part, False, False)
        )
    real = _convert(array, part, False, False)
    return jax.lax.complex(real, jax.numpy.zeros_like(real))


def _codes(array: Any, pivot: _Pivot) -> Any:
    """Return the codes of floats in a pivot, which has all their values."""
    lax, where = jax.lax, jax.numpy.where
    if array.dtype == np.float64:
        return lax.bitcast_convert_type(array, np.uint64)
    single = array.astype(np.float32)
    codes = lax.bitcast_convert_type(single, np.uint32)
    magnitude = codes & np.uint32(_SINGLE.sign - 1)
    negative = codes & np.uint32(_SINGLE.sign)
    if finfo(array.dtype).specials == "fnuz":  # their NaN is the code of -0
        negative = where(magnitude > _SINGLE.infinity, np.uint32(_SINGLE.sign), negative)
    if pivot is _SINGLE:
        return magnitude | negative
    # XLA may flush subnormals of float32: those are counted in units of the least of them.
    subnormal = magnitude.astype(np.float64) * 2.0**-149
    wide = where(magnitude < np.uint32(2**23), subnormal, single.astype(np.float64))
    wide = lax.bitcast_convert_type(wide, np.uint64) & np.uint64(_DOUBLE.sign - 1)
    return wide | negative.astype(np.uint64) << np.uint64(32)


def _whole_codes(array: Any, pivot: _Pivot) -> Any:
    """Return integers as codes of a pivot that are rounded as the integers would be."""
    where = jax.numpy.where
    if finfo(array.dtype).bits < _SINGLE.bits:
        return _codes(array.astype(np.float32), pivot)
    whole = array.astype(pivot.code_dtype)
    magnitude = where(array < 0, 0 - whole, whole)
    # Beyond the pivot's precision the last bit says that something was dropped ("round to odd"),
    # and so what is left is rounded as the whole would be.
    drop = pivot.bits - pivot.mantissa_bits - 1
    has_low_bits = (magnitude & pivot.code_dtype((1 << drop) - 1)) != 0
    short = (magnitude >> pivot.code_dtype(drop)) | has_low_bits.astype(pivot.code_dtype)
    far = magnitude >> pivot.code_dtype(pivot.mantissa_bits + 1) != 0
    value = where(
        far,
        short.astype(pivot.dtype) * pivot.dtype(2.0**drop),
        where(far, 0, magnitude).astype(pivot.dtype),
    )
    sign = where(array < 0, pivot.code_dtype(pivot.sign), pivot.code_dtype(0))
    return _codes(value, pivot) | sign


def _round(codes: Any, pivot: _Pivot, row: FormatInfo, saturate: bool) -> Any:
    """Round codes of a pivot to the nearest codes of another float format, ties to even ones."""
    where, number = jax.numpy.where, pivot.code_dtype
    special = _special_codes(pivot, row, saturate)
    magnitude = codes & number(pivot.sign - 1)
    negative = codes >> number(pivot.bits - 1) != 0

    def by_sign(name: str) -> Any:
        positive, otherwise = (number(code) for code in special[name])
        return positive if positive == otherwise else where(negative, otherwise, positive)

    shift = pivot.mantissa_bits - row.mantissa_bits
    has_zero = row.specials != "exponent-only"
    magnitude_after = magnitude
    if shift:
        # Without mantissa bits the last bit is the implicit one, which is odd.
        odd = (magnitude >> number(shift)) & number(1) if row.mantissa_bits else number(1)
        magnitude_after = (magnitude + number((1 << (shift - 1)) - 1) + odd) >> number(shift)
    rebias = pivot.bias - row.bias
    code = magnitude_after - number(rebias << row.mantissa_bits)
    if not has_zero:  # halfway between its two least values, and below them
        least = np.asarray(1.5 * 2.0**-row.bias, pivot.dtype).view(number)
        code = where(magnitude < least, number(0), code)
    elif rebias:
        code = where(
            magnitude < number((rebias + 1) << pivot.mantissa_bits),
            _subnormal(magnitude, pivot, row),
            code,
        )
    largest = np.asarray(row.max).astype(row.dtype).view(f"u{row.itemsize}")[()]
    sign = 1 << (row.bits - 1)
    result = code | where(negative, number(sign), number(0)) if row.signed else code
    if not row.signed:  # below the range
        result = where(negative, number(special["infinity"][1]), result)
    if row.specials == "fnuz":  # its zero has no sign
        result = where(code == 0, number(0), result)
    if not has_zero:
        result = where(magnitude == 0, number(special["zero"][0]), result)
    result = where(code > number(largest), by_sign("infinity"), result)
    return where(magnitude > number(pivot.infinity), by_sign("nan"), result)


def _subnormal(magnitude: Any, pivot: _Pivot, row: FormatInfo) -> Any:
    """Round magnitudes below the smallest normal value of a format, ties to even codes."""
    number, unit = pivot.code_dtype, pivot.code_dtype(1)
    exponent = magnitude >> number(pivot.mantissa_bits)
    hidden_bit = number(1 << pivot.mantissa_bits)
    significand = (magnitude & (hidden_bit - unit)) | hidden_bit
    # What is below half of the least code becomes 0 at the largest distance, too.
    last = number(pivot.mantissa_bits - row.mantissa_bits + pivot.bias - row.bias + 1)
    distance = jax.numpy.minimum(last - jax.numpy.minimum(exponent, last), pivot.mantissa_bits + 3)
    odd = (significand >> distance) & unit
    return (significand + (unit << (distance - unit)) - unit + odd) >> distance


@functools.cache
def _special_codes(pivot: _Pivot, row: FormatInfo, saturate: bool) -> dict[str, tuple[int, int]]:
    """Return what the kernels make of infinities, NaN and zeros, by sign."""
    values = np.array([np.inf, np.nan, 0], pivot.dtype)
    values = np.stack([np.copysign(values, 1), np.copysign(values, -1)], axis=-1)
    codes: NDArray[Any] = cast(values, row.dtype, overflow="saturate" if saturate else "ieee").view(
        f"u{row.itemsize}"
    )
    names = ("infinity", "nan", "zero")
    return {name: (int(pair[0]), int(pair[1])) for name, pair in zip(names, codes, strict=True)}


def _from_codes(codes: Any, row: FormatInfo) -> Any:
    """Return the floats that codes of a format stand for."""
    if row.bits < BYTE_BITS:  # by its values: a bitcast would read several codes from a byte
        values = (
            np.arange(1 << row.bits, dtype=np.uint8).view(np.dtype(row.dtype)).astype(np.float32)
        )
        return jax.numpy.asarray(values)[codes].astype(row.dtype)
    return jax.lax.bitcast_convert_type(codes.astype(f"uint{row.bits}"), row.dtype)


def _integer(values: Any, row: FormatInfo, nearest: bool) -> Any:
    """Return floats as integers: clamped, but as the low bits of an int32 in less than 8 bits."""
    jnp = jax.numpy
    whole = jnp.rint(values) if nearest else jnp.trunc(values)
    wraps = row.bits < BYTE_BITS
    low, high = int(row.min), int(row.max)
    lowest, highest = (-(2**31), 2**31 - 1) if wraps else (low, high)
    # One beyond the last is a power of two, which floats have; NaN is neither.
    inside = (whole >= lowest) & (whole < 2.0 ** highest.bit_length())
    number = jnp.where(inside, whole, 0).astype(np.int32 if wraps else row.dtype)
    number = number.astype(row.dtype)
    limit = jnp.where(values > 0, np.asarray(high, number.dtype), np.asarray(low, number.dtype))
    limit = jnp.where(jnp.isnan(values), np.asarray(0, number.dtype), limit)
    return jnp.where(inside, number, limit)
