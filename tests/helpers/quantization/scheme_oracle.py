"""What quantizing and dequantizing must give, sharing no code and no table with the package.

An element format is the list of the exact values of its codes, made from its exponent and mantissa
bits as fractions; encoding is a search in that list. The producers' arithmetic stands here step by
step, one numpy operation for each rounding: `_in(x, dtype)` rounds to the dtype of the weight where
a producer computes in it. Decoding is done twice: as producers do, in float32, and exactly, in
fractions. `test_scheme_oracle.py` compares all this with bytes that the producers' libraries wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F32 = np.float32
_EXPONENT = 0x7F800000


@dataclass(frozen=True)
class Element:
    """An element format of at most 8 bits: its digits, and what its highest codes mean."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str = ""

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def exponent_max(self) -> int:
        """The exponent of the largest value."""
        return math.frexp(self.largest)[1] - 1

    @property
    def largest(self) -> float:
        return float(max(abs(v) for v in self.values() if v is not None))

    @cache  # noqa: B019 - there are seven of them
    def values(self) -> tuple[Fraction | None, ...]:
        """The value of each code; None if it is infinite or NaN."""
        half = 1 << (self.bits - 1)
        found: list[Fraction | None] = []
        for code in range(1 << self.bits):
            exponent, mantissa = divmod(code % half, 1 << self.mantissa_bits)
            top = exponent == (1 << self.exponent_bits) - 1
            nan = self.specials == "nan" and code % half == half - 1
            if nan or (self.specials == "ieee" and top):
                found.append(None)
                continue
            power = max(exponent, 1) - self.bias - self.mantissa_bits
            digits = mantissa + ((exponent > 0) << self.mantissa_bits)
            value = Fraction(digits) * Fraction(2) ** power
            found.append(-value if code >= half else value)
        return tuple(found)

    def decode(self, codes: Array) -> Array:
        """Return the values, as float64; infinities and NaN as their format has them."""
        half, table = 1 << (self.bits - 1), []
        for code, value in enumerate(self.values()):
            sign = -1.0 if code >= half else 1.0
            if value is not None:
                table.append(math.copysign(float(value), sign))
            else:
                infinite = self.specials == "ieee" and not code % (1 << self.mantissa_bits)
                table.append(sign * math.inf if infinite else math.nan)
        return np.array(table)[codes]

    def encode(self, x: Array, ties: str = "even", *, signed_zero: bool = True) -> Array:
        """Return the codes of the nearest values, saturated, as uint8.

        `ties` is "even", "zero" (towards zero) or "away". Without `signed_zero`, what becomes zero
        has code 0 whatever its sign.
        """
        half = 1 << (self.bits - 1)
        magnitudes = np.array([float(v) for v in self.values()[:half] if v is not None])
        x = np.asarray(x, np.float64)
        size = np.minimum(np.abs(x), magnitudes[-1])
        low = np.clip(np.searchsorted(magnitudes, size, "right") - 1, 0, len(magnitudes) - 2)
        middle = (magnitudes[low] + magnitudes[low + 1]) / 2
        up = {"even": low % 2 == 1, "zero": np.zeros_like(low, bool), "away": low >= 0}[ties]
        code = low + ((size > middle) | ((size == middle) & up))
        negative = np.signbit(x) if signed_zero else (x < 0) & (code > 0)
        return (code + half * negative).astype(np.uint8)


ELEMENTS = {
    "e4m3": Element(4, 3, 7, "nan"),
    "e5m2": Element(5, 2, 15, "ieee"),
    "e3m2": Element(3, 2, 3),
    "e2m3": Element(2, 3, 1),
    "e2m1": Element(2, 1, 1),
}
E4M3, E2M1 = ELEMENTS["e4m3"], ELEMENTS["e2m1"]
NF4 = np.array(
    [
        *(0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D, 0xBE3D353F, 0xBDBA7871, 0),
        *(0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A, 0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3),
        0x3F800000,
    ],
    np.uint32,
).view(F32)
_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], F32) / F32(12)
FP4 = np.concatenate([_FP4, F32(0) - _FP4])
MAPS = {"bnb_nf4": NF4, "bnb_fp4": FP4}


@dataclass
class Encoded:
    """Codes, one per element and not packed, and what stands beside them.

    `scale` is as it is stored, one for each block; `zero` and `bias` are of its shape.
    """

    codes: Array
    scale: Array
    block: tuple[int, int]
    global_scale: Array | None = None
    zero: Array | None = None
    bias: Array | None = None
    extra: dict[str, Array] = field(default_factory=dict)


# Blocks


def grid(shape: Sequence[int], block: tuple[int, int]) -> tuple[int, ...]:
    """Count the blocks along each axis."""
    *stack, rows, columns = shape
    return (*stack, -(-rows // block[0]), -(-columns // block[1]))


def reduced(x: Array, block: tuple[int, int], function: Callable[..., Any]) -> Array:
    """Reduce each block; the last ones of a row or column may be smaller."""
    rows = np.arange(0, x.shape[-2], block[0])
    columns = np.arange(0, x.shape[-1], block[1])
    return function.reduceat(function.reduceat(x, rows, axis=-2), columns, axis=-1)  # type: ignore[attr-defined,no-any-return]


def spread(values: Array, shape: Sequence[int], block: tuple[int, int]) -> Array:
    """Give each element its block's value."""
    wide = np.repeat(np.repeat(values, block[0], axis=-2), block[1], axis=-1)
    return wide[..., : shape[-2], : shape[-1]]


def full(shape: Sequence[int], block: Sequence[int]) -> tuple[int, int]:
    """Replace a 0 of a block by the whole axis."""
    return block[0] or shape[-2], block[1] or shape[-1]


def _amax(x: Array, block: tuple[int, int]) -> Array:
    return reduced(np.abs(x), block, np.maximum)


def _in(x: Array, dtype: Any) -> Array:
    """Round a float32 result to the dtype in which the producer computes."""
    return x.astype(dtype).astype(F32)


def _in_normal(x: Array, dtype: Any) -> Array:
    """Round to that dtype what is a normal number of it; castwise leaves the rest of float16."""
    info = ml_dtypes.finfo(dtype)
    is_normal = (np.abs(x) >= F32(info.smallest_normal)) & (np.abs(x) <= F32(info.max))
    with np.errstate(over="ignore"):
        return np.where(is_normal | (dtype != np.float16), _in(x, dtype), x)


def power(exponent: Array) -> Array:
    """Return 2**(exponent), as float64."""
    return np.ldexp(np.ones(np.shape(exponent)), exponent)


# MX: exponents of scales


def mx_byte(amax: Array, element: Element | None, rule: str) -> Array:
    """Return the E8M0 byte of each amax (float32, finite): 2**(byte - 127) is the scale.

    Blocks that are zero or too small have byte 0.
    """
    top, digits, largest = 0, 6, 127 / 64
    if element is not None:
        top, digits, largest = element.exponent_max, element.mantissa_bits, element.largest
    found = np.zeros(amax.shape, np.int64)
    for place in np.ndindex(amax.shape):
        value = Fraction(float(amax[place]))
        if value == 0:
            continue
        if rule == "rceil":
            k = _ceil_log2(value / Fraction(largest))
        elif rule == "ceil":
            k = _ceil_log2(value) - top
        else:
            if rule in ("even", "ct"):
                six = element is not None and element.bits == 6
                kept = digits if rule == "even" else 3 if six else 1
                value += Fraction(2) ** (_floor_log2(value) - kept - 1)
            k = _floor_log2(value) - top
        found[place] = min(max(k + 127, 0), 254)
    return found.astype(np.uint8)


def _floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def _ceil_log2(value: Fraction) -> int:
    low = _floor_log2(value)
    return low if Fraction(2) ** low == value else low + 1


# The producers


def mx(x: Array, element: str, rule: str, *, ties: str = "even", zero_byte: int = 0) -> Encoded:
    """OCP MX: blocks of 32 along the last axis; every step is exact.

    The rule of compressed-tensors is for its codes, too: exact zeros of E2M1 are positive, since
    `cast_to_fp4` multiplies by a sign of 0, and float16 has no 2**-127, so zeros have the scale 1.
    """
    block = (1, 32)
    wide = x.astype(np.float64)
    amax = _amax(x.astype(F32), block)
    kind = ELEMENTS.get(element)
    byte = mx_byte(amax, kind, rule)
    ratio = wide / spread(power(byte.astype(int) - 127), x.shape, block)
    if kind is None:
        codes = np.clip(np.rint(ratio * 64), -127, 127).astype(np.int8)
    else:
        codes = kind.encode(ratio, ties, signed_zero=ties == "even")
    if rule == "ct":
        zero_byte = 127 if x.dtype == np.float16 else 0
        codes = np.where((x == 0) & (element == "e2m1"), 0, codes)
    return Encoded(codes, np.where(amax == 0, zero_byte, byte).astype(np.uint8), block)


def _of_normal(amax: Array, dtype: Any, largest: Any) -> Array:
    """Divide largest magnitudes that ModelOpt makes normal numbers of the weight's dtype."""
    least = F32(ml_dtypes.finfo(dtype).smallest_normal)
    return np.where(amax > 0, np.maximum(amax, least) / largest, F32(1))


def fp8(x: Array, block: Sequence[int], recipe: str, element: str = "e4m3") -> Encoded:
    """Scale float8 by amax/448 as each producer computes it."""
    size, kind = full(x.shape, block), ELEMENTS[element]
    largest, dtype = F32(kind.largest), x.dtype
    wide = x.astype(F32)
    amax = _amax(wide, size)
    safe = np.where(amax > 0, amax, F32(1))
    if recipe in ("transformers", "transformers ue8m0"):
        factor = np.where(amax > 0, F32(1) / safe * largest, F32(1))
        scale = F32(1) / factor
        if recipe.endswith("ue8m0"):
            exponent = np.vectorize(lambda s: _ceil_log2(Fraction(float(s))))(scale)
            scale = power(exponent).astype(F32)
            factor = F32(1) / scale
            stored = (exponent + 127).astype(np.uint8)
        else:
            stored = scale
        quotient = wide * spread(factor, x.shape, size)
    elif recipe == "compressed-tensors":
        scale = _in(amax / largest, dtype)
        scale = np.where(scale == 0, F32(ml_dtypes.finfo(dtype).eps), scale)
        stored = scale.astype(dtype)
        quotient = _in(wide / spread(scale, x.shape, size), dtype)
    elif recipe == "comfy":
        scale = np.where(amax > 0, _in_normal(safe / largest, dtype), F32(1))
        if dtype == np.float16:  # quant_ops.py of ComfyUI
            limited = F32(1) / np.minimum(F32(1) / scale, F32(65504))
            scale = np.where(scale < F32(2.0**-14), limited, scale)
        stored = scale
        inverse = _in(F32(1) / scale, dtype)
        quotient = _in(wide * spread(inverse, x.shape, size), dtype)
    else:
        scale = np.where(amax > 0, safe / largest, F32(1))
        if recipe == "modelopt" and tuple(block) != (0, 0):
            scale = _of_normal(amax, dtype, largest)
        stored = scale
        quotient = wide / spread(scale, x.shape, size)
        if recipe == "modelopt" and tuple(block) == (0, 0):
            quotient = _in(quotient, dtype)
    return Encoded(kind.encode(quotient), stored, size)


def nvfp4(x: Array, recipe: str) -> Encoded:
    """Two levels: an e4m3 for each 16, one float32 for all."""
    block = (1, 16)
    wide = x.astype(F32)
    blocks = _amax(wide, block)
    with np.errstate(all="ignore"):
        byte, level, divisor, factor = _LEVELS[recipe](blocks, F32(blocks.max(initial=0)), x.dtype)
        if factor is not None:
            quotient = wide * spread(factor, x.shape, block)
        else:
            quotient = wide / spread(divisor, x.shape, block)
            if recipe in ("comfy", "mlx"):
                quotient = np.where(spread(divisor, x.shape, block) == 0, F32(0), quotient)
    quotient = np.nan_to_num(quotient, nan=0.0, posinf=6.0, neginf=-6.0)
    toward_zero = recipe == "mlx"
    codes = E2M1.encode(quotient, "zero" if toward_zero else "even", signed_zero=not toward_zero)
    if recipe in ("compressed-tensors", "modelopt"):  # by torch.sign, and by x < 0
        codes[wide == 0] = 0
    elif recipe == "comfy":
        codes[spread(byte == 0, x.shape, block)] = 0
    return Encoded(codes, byte, block, None if level is None else np.array([level], F32))


Levels = tuple[Array, Any, Array | None, Array | None]
_WANTED, _SIX = F32(6 * 448), F32(6)


def _e4m3(scale: Array) -> tuple[Array, Array]:
    byte = E4M3.encode(np.nan_to_num(scale, nan=0.0))
    return byte, E4M3.decode(byte).astype(F32)


def _compressed_tensors(blocks: Array, amax: Any, dtype: Any) -> Levels:
    tiny = F32(ml_dtypes.finfo(dtype).smallest_normal)
    level = _in(_in(F32(1) / np.maximum(amax, tiny), dtype) * _WANTED, dtype)
    if not np.isfinite(level):  # it has 1, which loses all values but zeros
        level = np.minimum(_WANTED / amax, np.finfo(F32).max) if amax > 0 else F32(1)
    byte, _ = _e4m3(_in_normal(blocks / _SIX, dtype) * level)
    byte[byte == 0] = 0x20
    return byte, level, E4M3.decode(byte).astype(F32) / level, None


def _transformer_engine(blocks: Array, amax: Any, dtype: Any) -> Levels:
    del dtype
    largest = np.finfo(F32).max
    enc = F32(1) if amax == 0 else np.minimum(_WANTED / amax, largest)
    byte, scale = _e4m3(blocks * (enc * (F32(1) / _SIX)))
    level = F32(1) / enc
    return byte, level, None, np.minimum(F32(1) / (scale * level), largest)


def _mlx(blocks: Array, amax: Any, dtype: Any) -> Levels:
    del amax, dtype
    byte, scale = _e4m3(blocks / _SIX)
    return byte, None, scale, None


def _modelopt(blocks: Array, amax: Any, dtype: Any) -> Levels:
    del dtype
    level = amax / _WANTED
    rough = blocks / (_SIX * level)
    rough = np.where((rough == 0) | np.isnan(rough), F32(1), rough)
    byte, scale = _e4m3(np.clip(rough, 2.0**-9, 448))
    return byte, level, scale * level, None


def _torchao(blocks: Array, amax: Any, dtype: Any) -> Levels:
    del dtype
    level = amax / _WANTED
    byte, scale = _e4m3(np.clip(np.nan_to_num(blocks / _SIX / level, nan=0.0), 2.0**-6, 448))
    return byte, level, None, F32(1) / level / scale


def _comfy(blocks: Array, amax: Any, dtype: Any) -> Levels:
    del dtype
    level = amax / _WANTED
    byte, scale = _e4m3(blocks / _SIX / level)
    return byte, level, scale * level, None


_LEVELS: dict[str, Callable[[Array, Any, Any], Levels]] = {
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "torchao": _torchao,
    "transformer-engine": _transformer_engine,
    "comfy": _comfy,
    "mlx": _mlx,
}


def integers(
    x: Array, block: Sequence[int], bits: int, *, symmetric: bool = True, recipe: str = ""
) -> Encoded:
    """Signed integers as compressed-tensors computes them: every step in the weight's dtype."""
    size, dtype = full(x.shape, block), x.dtype
    wide = x.astype(F32)
    low, high = -F32(1 << (bits - 1)), F32((1 << (bits - 1)) - 1)
    if recipe == "modelopt":
        scale = _of_normal(_amax(wide, size), dtype, high)
        codes = np.rint(np.clip(wide / spread(scale, x.shape, size), low, high)).astype(np.int8)
        return Encoded(codes, scale, size)
    eps = F32(ml_dtypes.finfo(dtype).eps)
    if symmetric:
        scale = _in(_amax(wide, size) / F32(((1 << bits) - 1) / 2), dtype)
        scale = np.where(scale == 0, eps, scale)
        zero = None
        quotient = _in(wide / spread(scale, x.shape, size), dtype)
    else:
        least = np.minimum(reduced(wide, size, np.minimum), F32(0))
        most = np.maximum(reduced(wide, size, np.maximum), F32(0))
        scale = _in(_in_normal(most - least, dtype) / F32((1 << bits) - 1), dtype)
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = _in(low - _in(least / scale, dtype), dtype)
        zero = np.rint(np.clip(np.nan_to_num(zero, nan=0.0), low, high))
        scale = np.where(scale == 0, eps, scale)
        quotient = _in(wide / spread(scale, x.shape, size), dtype)
        quotient = _in(quotient + spread(zero, x.shape, size), dtype)
        zero = zero.astype(np.int8)
    codes = np.rint(np.clip(quotient, low, high)).astype(np.int8)
    return Encoded(codes, scale.astype(dtype), size, zero=zero)


def affine(x: Array, group: int, bits: int) -> Encoded:
    """MLX: unsigned codes, a scale that may be negative, and a bias."""
    block, dtype = (1, group), x.dtype
    wide = x.astype(F32)
    least, most = reduced(wide, block, np.minimum), reduced(wide, block, np.maximum)
    bins = F32((1 << bits) - 1)
    scale = np.maximum((most - least) / bins, F32(1e-7))
    by_least = np.abs(least) > np.abs(most)
    scale = np.where(by_least, scale, -scale)
    edge = np.where(by_least, least, most)
    steps = np.rint(edge / scale)
    some = steps != 0
    scale = np.where(some, edge / np.where(some, steps, F32(1)), scale)
    bias = np.where(some, edge, F32(0))
    quotient = (wide - spread(bias, x.shape, block)) / spread(scale, x.shape, block)
    codes = np.clip(np.rint(quotient), 0, bins).astype(np.uint8)
    return Encoded(codes, scale.astype(dtype), block, bias=bias.astype(dtype))


def mapped(x: Array, scheme: str, size: int = 64) -> Encoded:
    """bitsandbytes: the nearest of 16 values after division by the amax of 64 elements in a row."""
    values = MAPS[scheme]
    flat = x.astype(F32).reshape(1, -1)
    amax = _amax(flat, (1, size))
    order = np.argsort(values, kind="stable")
    middle = (values[order][:-1] + values[order][1:]) / F32(2)
    tail = flat.shape[1] % size
    inverse = F32(1) / np.maximum(amax, F32(1e-38))
    scaled = flat * spread(inverse, flat.shape, (1, size))
    if tail:
        last = np.maximum(amax[0, -1], F32(1e-38))
        amax[0, -1] = last
        scaled[:, -tail:] = flat[:, -tail:] / last
    codes = order[np.searchsorted(middle, np.clip(scaled, -1, 1), "left")]
    return Encoded(codes.astype(np.uint8).reshape(x.shape), amax[0], (1, size))


def gguf(x: Array, kind: str) -> Encoded:
    """GGUF's blocks of 32: a float16 scale, perhaps a float16 minimum."""
    block = (1, 32)
    wide = x.astype(F32)
    if kind == "mxfp4":
        byte = mx_byte(_amax(wide, block), E2M1, "floor")
        ratio = x.astype(np.float64) / spread(power(byte.astype(int) - 127), x.shape, block)
        return Encoded(E2M1.encode(ratio, "zero", signed_zero=False), byte, block)
    bits = int(kind[1])
    most, least = reduced(wide, block, np.maximum), reduced(wide, block, np.minimum)
    bias = None
    if kind == "q8_0":
        scale = _amax(wide, block) / F32(127)
    elif kind.endswith("_0"):
        # The first element of the largest magnitude.
        groups = wide.reshape(*x.shape[:-1], -1, 32)
        first = np.abs(groups).argmax(-1, keepdims=True)
        scale = np.take_along_axis(groups, first, -1)[..., 0] / F32(-(1 << (bits - 1)))
    else:
        scale, bias = (most - least) / F32((1 << bits) - 1), least
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(scale == 0, F32(0), F32(1) / scale)
    ratio = (wide if bias is None else wide - spread(bias, x.shape, block)) * spread(
        inverse, x.shape, block
    )
    if kind == "q8_0":
        size = np.abs(ratio)
        codes = np.sign(ratio) * (np.floor(size) + np.floor(2 * (size - np.floor(size))))
        return Encoded(codes.astype(np.int8), scale.astype(np.float16), block)
    shift = F32(0.5 + (0 if bias is not None else 1 << (bits - 1)))
    codes = np.clip(np.trunc(ratio + shift), 0, (1 << bits) - 1).astype(np.uint8)
    half = None if bias is None else bias.astype(np.float16)
    zero = None if bias is not None else np.full(scale.shape, 1 << (bits - 1), np.uint8)
    return Encoded(codes, scale.astype(np.float16), block, zero=zero, bias=half)


def gguf_blocks(found: Encoded, kind: str) -> Array:
    """Join codes and scales as GGUF stores them."""
    rows, columns = found.codes.shape
    codes = found.codes.view(np.uint8).reshape(rows, columns // 32, 32)
    scale = found.scale[..., None].view(np.uint8)
    if kind == "q8_0":
        return np.concatenate([scale, codes], -1).reshape(rows, -1)
    parts = [scale] if found.bias is None else [scale, found.bias[..., None].view(np.uint8)]
    if kind[1] == "5":
        parts.append(np.packbits(codes >> 4, axis=-1, bitorder="little"))
    parts.append((codes[..., :16] & 15) | (codes[..., 16:] << 4))
    return np.concatenate(parts, -1).reshape(rows, -1)


def keras_abs_max(x: Array, bits: int, axis: int) -> Encoded:
    """Keras: codes are x * (127 / (amax + 1e-7)), and are divided by that scale to decode."""
    wide = x.astype(F32)
    top = F32((1 << (bits - 1)) - 1)
    amax = np.max(np.abs(wide), axis=axis, keepdims=True)
    scale = top / (amax + F32(1e-7))
    codes = np.clip(np.rint(wide * scale), -top, top).astype(np.int8)
    return Encoded(codes, scale, (0, 0))


# Packing


def pack(codes: Array, bits: int) -> Array:
    """Write the codes of the last axis as a little-endian bit stream of bytes, low bits first."""
    low = (codes.astype(np.int64) & ((1 << bits) - 1)).astype(np.uint8)
    digits = (low[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(digits.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def unpack(data: Array, bits: int, count: int) -> Array:
    """Undo `pack`; the codes are unsigned."""
    digits = np.unpackbits(data.view(np.uint8), axis=-1, bitorder="little")[..., : count * bits]
    digits = digits.reshape(*data.shape[:-1], count, bits)
    return (digits << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)


def words(data: Array, dtype: Any = np.int32) -> Array:
    """See bytes as words, the last one filled up with zeros."""
    missing = -data.shape[-1] % 4
    padded = np.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, missing)])
    return np.ascontiguousarray(padded).view(dtype)


def pack_padded(codes: Array, bits: int) -> Array:
    """Write 32 // bits codes into each word, the first lowest, and leave its top bits empty."""
    each = 32 // bits
    filled = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    groups = filled.reshape(*codes.shape[:-1], -1, each).astype(np.uint32) & ((1 << bits) - 1)
    shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
    return np.bitwise_or.reduce(groups << shifts, axis=-1).astype(np.uint32).view(np.int32)


def swizzle(scale: Array) -> Array:
    """Reorder scales for tiles of 128 by 4, padded with zeros."""
    rows, columns = -(-scale.shape[-2] // 128) * 128, -(-scale.shape[-1] // 4) * 4
    out = np.zeros((rows, columns), scale.dtype).reshape(-1)
    for r, c in np.ndindex(*scale.shape):
        tile = (r // 128) * (columns // 4) + c // 4
        out[tile * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + c % 4] = scale[r, c]
    return out.reshape(rows, columns)


# Decoding


def decode_peer(
    values: Array,
    scale: Array,
    dtype: Any,
    *,
    zero: Array | int = 0,
    bias: Array | None = None,
    scale_dtype: Any = F32,
) -> Array:
    """Multiply in float32, add in float32, and round once to the target.

    `scale` and the others are spread over the elements. A scale of 16 bits makes producers compute
    in its dtype: the difference is rounded to it, and so is the product.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        difference = _in(values.astype(F32) - np.asarray(zero, F32), scale_dtype)
        product = _in(difference * scale.astype(F32), scale_dtype)
        if bias is not None:
            product = product + bias.astype(F32)
        return product.astype(dtype)


def decode_exact(values: Array, scales: Sequence[Fraction], dtype: Any) -> Array:
    """Round the real products once; both arguments are flat and finite."""
    exact = [Fraction(float(v)) * s for v, s in zip(values.ravel(), scales, strict=True)]
    return np.array([rounded(value, dtype) for value in exact], dtype)


def rounded(value: Fraction, dtype: Any) -> float:
    """Round to nearest even of the digits and exponents of a float dtype."""
    if value == 0:
        return 0.0
    info = ml_dtypes.finfo(dtype)
    exponent = max(_floor_log2(abs(value)), int(info.minexp)) - int(info.nmant)
    unit = Fraction(2) ** exponent
    rounded = round(value / unit) * unit
    return (
        float(rounded)
        if abs(rounded) <= Fraction(float(info.max))
        else math.copysign(math.inf, value)
    )


def w(rows: int, columns: int, dtype: Any = ml_dtypes.bfloat16) -> Array:
    """Make the weights of which the golden bytes are: exact in every float of 16 bits."""
    k = np.arange(rows * columns, dtype=np.int64)
    return (((37 * k + 11) % 97 - 48) / 64).astype(dtype).reshape(rows, columns)
