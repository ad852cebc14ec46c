"""What a cast must give, in exact integers, sharing no code and no table with the Rust core.

A finite number is ``significand * 2**exponent`` with a sign; no float is added or rounded here.
A cast is four steps, each a few array operations on 64-bit integers::

    decode(codes)      -> Exact        sign, significand, exponent, is it infinite, is it NaN
    Cast(exact)        -> low, place   the neighbor towards zero, counted in the target's units in
                                       the last place, and where the value lies beyond it:
                                       exactly there, below, at, or above the midpoint
    rounding           -> low or low + 1
    overflow and NaN   -> codes, and which elements overflow="raise" must refuse

`Exact.significand` may also hold Python integers (dtype object): scaled values need 117 bits.
`test_oracle.py` checks this file against ml_dtypes, numpy and the formats enumerated as fractions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

DETERMINISTIC = (
    "nearest-even",
    "nearest-away",
    "towards-zero",
    "towards-positive",
    "towards-negative",
)
ROUNDINGS = (*DETERMINISTIC, "stochastic")
OVERFLOWS = ("ieee", "saturate", "raise")
NO_FLOOR = -5000  # an exponent below every source's: the format has no subnormals


@dataclass(frozen=True)
class Format:
    """One format as its specification states it; a complex one names its component in `part`."""

    name: str
    kind: str
    bits: int
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0
    specials: str = ""
    signed: bool = True
    part: str = ""

    @property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def magnitude_mask(self) -> int:
        return (1 << self.bits) - 1 - self.sign_bit

    @property
    def unit(self) -> int:
        """The exponent of the smallest subnormal (of the smallest code but one for e8m0)."""
        return 1 - self.bias - self.mantissa_bits

    @property
    def floor(self) -> int:
        return NO_FLOOR if self.specials == "exponent-only" else self.unit

    @property
    def has_zero(self) -> bool:
        return self.specials != "exponent-only"

    @property
    def infinity(self) -> int | None:
        if self.specials != "ieee":
            return None
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def largest(self) -> int:
        """The code of the largest finite magnitude."""
        if self.infinity is not None:
            return self.infinity - 1
        return self.magnitude_mask - (self.specials in ("finite-nan", "exponent-only"))

    def nan(self, negative: bool) -> int:
        """Give the code that a NaN of this sign becomes."""
        sign = self.sign_bit if negative else 0
        if self.infinity is not None:
            return sign | self.infinity | 1 << (self.mantissa_bits - 1)
        if self.specials == "fnuz":
            return self.sign_bit
        if self.specials == "finite":  # no NaN: ml_dtypes gives the zero of the other sign
            return self.sign_bit - sign
        return sign | self.magnitude_mask

    @property
    def codes(self) -> np.dtype[Any]:
        """The unsigned integer that holds one code (one component's code if complex)."""
        return component(self).code_dtype if self.part else self.code_dtype

    @property
    def code_dtype(self) -> np.dtype[Any]:
        return np.dtype(f"u{max(1, self.bits // 8)}")

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The dtype in numpy, or None where the installed ml_dtypes does not have it (yet)."""
        scalar = getattr(ml_dtypes, self.name, None) or getattr(
            np, self.name.replace("bool", "bool_"), None
        )
        return None if scalar is None else np.dtype(scalar)


def _float(
    name: str, exponent: int, mantissa: int, bias: int, specials: str, *, signed: bool = True
) -> Format:
    bits = exponent + mantissa + signed
    return Format(name, "float", bits, exponent, mantissa, bias, specials, signed)


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("bool", "bool", 1, signed=False),
        *(Format(f"int{bits}", "int", bits) for bits in (1, 2, 4, 8, 16, 32, 64)),
        *(Format(f"uint{bits}", "uint", bits, signed=False) for bits in (1, 2, 4, 8, 16, 32, 64)),
        _float("float16", 5, 10, 15, "ieee"),
        _float("float32", 8, 23, 127, "ieee"),
        _float("float64", 11, 52, 1023, "ieee"),
        _float("bfloat16", 8, 7, 127, "ieee"),
        _float("float8_e3m4", 3, 4, 3, "ieee"),
        _float("float8_e4m3", 4, 3, 7, "ieee"),
        _float("float8_e4m3fn", 4, 3, 7, "finite-nan"),
        _float("float8_e4m3fnuz", 4, 3, 8, "fnuz"),
        _float("float8_e4m3b11fnuz", 4, 3, 11, "fnuz"),
        _float("float8_e5m2", 5, 2, 15, "ieee"),
        _float("float8_e5m2fnuz", 5, 2, 16, "fnuz"),
        _float("float8_e8m0fnu", 8, 0, 127, "exponent-only", signed=False),
        _float("float8_e5m3fnu", 5, 3, 15, "finite-nan", signed=False),
        _float("float6_e2m3fn", 2, 3, 1, "finite"),
        _float("float6_e3m2fn", 3, 2, 3, "finite"),
        _float("float4_e2m1fn", 2, 1, 1, "finite"),
        Format("complex32", "complex", 32, part="float16"),
        Format("bcomplex32", "complex", 32, part="bfloat16"),
        Format("complex64", "complex", 64, part="float32"),
        Format("complex128", "complex", 128, part="float64"),
    )
}


def component(row: Format) -> Format:
    """Find the format of one component: a complex one's part, else the format itself."""
    return FORMATS[row.part] if row.part else row


class Exact(NamedTuple):
    """Exact values, one per element; for infinities and NaN the significand is 0."""

    negative: Array
    significand: Array
    exponent: Array
    infinite: Array
    nan: Array

    @property
    def zero(self) -> Array:
        return (self.significand == 0) & ~self.infinite & ~self.nan

    @property
    def finite(self) -> Array:
        return ~(self.infinite | self.nan)


def decode(codes: Array, row: Format) -> Exact:
    """Read codes (unsigned integers) of a real format; bits above its width do not count."""
    code = codes.astype(np.uint64)
    never = np.zeros(code.shape, bool)
    still = np.zeros(code.shape, np.int64)
    if row.kind == "bool":
        return Exact(never, (code != 0).astype(np.uint64), still, never, never)
    code &= np.uint64((1 << row.bits) - 1)
    negative = (code & np.uint64(row.sign_bit)) != 0
    if row.kind in ("int", "uint"):
        mask = np.uint64((1 << row.bits) - 1)
        return Exact(
            negative, np.where(negative, (~code + np.uint64(1)) & mask, code), still, never, never
        )
    magnitude = code & np.uint64(row.magnitude_mask)
    infinite = never if row.infinity is None else magnitude == row.infinity
    if row.infinity is not None:
        nan = magnitude > row.infinity
    elif row.specials == "fnuz":
        nan = code == row.sign_bit
    else:
        nan = never if row.specials == "finite" else magnitude == row.magnitude_mask
    biased = (magnitude >> np.uint64(row.mantissa_bits)).astype(np.int64)
    fraction = magnitude & np.uint64((1 << row.mantissa_bits) - 1)
    if row.specials == "exponent-only":
        significand, exponent = np.ones_like(code), biased - row.bias
    else:
        significand = np.where(biased == 0, fraction, fraction | np.uint64(1 << row.mantissa_bits))
        exponent = np.maximum(biased - 1, 0) + row.unit
    significand = np.where(infinite | nan, np.uint64(0), significand)
    return Exact(negative, significand, exponent, infinite, nan)


def bit_length(values: Array) -> Array:
    """int.bit_length of each uint64: both halves are exact as float64, so frexp is too."""
    high = np.frexp((values >> np.uint64(32)).astype(np.float64))[1]
    low = np.frexp((values & np.uint64(0xFFFFFFFF)).astype(np.float64))[1]
    return np.where(high > 0, high + 32, low).astype(np.int64)


EXACT, BELOW, TIE, ABOVE = range(4)


def _split_words(significand: Array, shift: Array) -> tuple[Array, Array, Array]:
    """Shift right (left if negative): the result, the place of the rest, is it beyond 64 bits."""
    right = np.clip(shift, 0, 63).astype(np.uint64)
    left = np.clip(-shift, 0, 63).astype(np.uint64)
    excessive = (bit_length(significand) - shift > 64) & (significand != 0)
    low = np.where(shift >= 64, np.uint64(0), (significand << left) >> right)
    rest = np.where(
        shift >= 64, significand, significand & ((np.uint64(1) << right) - np.uint64(1))
    )
    half = np.uint64(1) << np.clip(shift - 1, 0, 63).astype(np.uint64)
    place = BELOW + (rest == half) + 2 * (rest > half)
    place = np.where(shift > 64, BELOW, place)
    return low, np.where((rest == 0) | (shift <= 0), EXACT, place), excessive


def _split_integers(significand: Array, shift: Array) -> tuple[Array, Array, Array]:
    """`_split_words` for Python integers of any size."""
    low, place, excessive = [], [], []
    for value, by in zip(significand.ravel().tolist(), shift.ravel().tolist(), strict=True):
        shifted = value >> by if by > 0 else value << min(-by, 64)
        rest = 2 * (value - (shifted << by)) if by > 0 else 0
        excessive.append(shifted.bit_length() > 64)
        low.append(shifted & 0xFFFF_FFFF_FFFF_FFFF)
        place.append(EXACT if rest == 0 else BELOW + (rest == 1 << by) + 2 * (rest > 1 << by))
    shape = significand.shape
    return (
        np.array(low, np.uint64).reshape(shape),
        np.array(place, np.int64).reshape(shape),
        np.array(excessive, bool).reshape(shape),
    )


class Expected(NamedTuple):
    """The codes, the elements that overflow="raise" refuses, and those that keep their low bits."""

    codes: Array
    overflows: Array
    wrapped: Array


class Cast:
    """Exact values against one real target: neighbors found once, then any rounding and rule."""

    def __init__(self, value: Exact, target: Format, *, integer_source: bool = False) -> None:
        self.value, self.target = value, target
        self.integer_source = integer_source
        if target.kind == "float":
            if value.significand.dtype == object:
                bits = np.vectorize(int.bit_length, otypes=[np.int64])(value.significand)
            else:
                bits = bit_length(value.significand)
            self.scale = np.maximum(bits + value.exponent - target.mantissa_bits - 1, target.floor)
        else:
            self.scale = np.zeros_like(value.exponent)
        split = _split_integers if value.significand.dtype == object else _split_words
        self.low, self.place, self.excessive = split(value.significand, self.scale - value.exponent)

    def moves(self, rounding: str) -> Array:
        """Which elements take the neighbor away from zero."""
        if rounding == "nearest-even":
            return (self.place == ABOVE) | ((self.place == TIE) & (self.low % np.uint64(2) == 1))
        if rounding == "nearest-away":
            return self.place >= TIE
        if rounding == "towards-zero":
            return np.zeros(self.place.shape, bool)
        downwards = rounding == "towards-negative"
        return (self.place != EXACT) & (self.value.negative == downwards)

    def expected(self, rounding: str, overflow: str, nan: str = "keep") -> Expected:
        """Give the one right result of a deterministic rounding."""
        return self._finish(self.moves(rounding), rounding, overflow, nan)

    def candidates(self, overflow: str, nan: str = "keep") -> tuple[Expected, Expected]:
        """Give the two results stochastic rounding may have: towards zero, and away from it."""
        still = self._finish(np.zeros(self.place.shape, bool), "stochastic", overflow, nan)
        return still, self._finish(self.place != EXACT, "stochastic", overflow, nan)

    def _finish(self, away: Array, rounding: str, overflow: str, nan: str) -> Expected:
        wrapped = overflows = np.zeros(self.value.zero.shape, bool)
        if self.target.kind == "float":
            codes, overflows = self._floats(away, rounding, overflow, nan)
        elif self.target.kind == "bool":
            codes = ~self.value.zero if nan == "keep" else ~self.value.zero & ~self.value.nan
        else:
            codes, overflows, wrapped = self._integers(away, overflow)
        return Expected(codes.astype(self.target.code_dtype), overflows, wrapped)

    def _integers(self, away: Array, overflow: str) -> tuple[Array, Array, Array]:
        value, bits = self.value, self.target.bits
        positive_limit = (1 << (bits - self.target.signed)) - 1
        limit = np.where(value.negative, np.uint64(self.target.sign_bit), np.uint64(positive_limit))
        magnitude = self.low + away.astype(np.uint64)
        beyond = (magnitude > limit) | self.excessive | value.infinite
        clamped = beyond if overflow == "saturate" else beyond & (not self.integer_source)
        if bits < 8:  # floats become an int32 first, if that holds them
            far = magnitude > np.uint64(2**31 - 1) + value.negative
            clamped = clamped & (far | self.excessive | value.infinite | (overflow == "saturate"))
        magnitude = np.where(clamped, limit, magnitude)
        signed = np.where(value.negative, ~magnitude + np.uint64(1), magnitude)
        codes = np.where(value.nan, np.uint64(0), signed & np.uint64((1 << bits) - 1))
        return codes, beyond, beyond & ~clamped

    def _floats(self, away: Array, rounding: str, overflow: str, nan: str) -> tuple[Array, Array]:
        value, row = self.value, self.target
        zero = value.zero | (value.nan & (nan == "zero"))
        negative = value.negative & ~(value.nan & (nan == "zero"))
        sign = np.where(negative, np.uint64(row.sign_bit), np.uint64(0))
        binade = np.minimum(self.scale - row.unit, (1 << row.exponent_bits) - 1)  # surely beyond
        magnitude = (binade << row.mantissa_bits) + self.low.astype(np.int64) + away
        below = zero | (self.scale < row.unit - 1)  # only e8m0 goes there: its smallest
        magnitude = np.where(below, 0, magnitude).astype(np.uint64)
        codes = magnitude | sign
        if row.specials == "fnuz":
            codes = np.where(codes == row.sign_bit, np.uint64(0), codes)

        beyond = value.finite & (magnitude > row.largest)
        limit = np.where(negative & (not row.signed), np.uint64(0), np.uint64(row.largest)) | sign
        inwards = np.where(negative, "towards-positive", "towards-negative") == rounding
        kept = inwards | (rounding == "towards-zero")  # these never round to infinity
        if row.specials == "exponent-only":
            absent = zero | (value.finite & negative)
            limit = np.where(absent, np.uint64(0), limit)
            kept &= ~absent
            beyond |= absent
        elif not row.signed:
            beyond |= value.finite & negative & ~zero

        invalid = np.where(negative, np.uint64(row.nan(True)), np.uint64(row.nan(False)))
        if row.infinity is not None:
            nowhere = sign | np.uint64(row.infinity)
        else:
            nowhere = limit if row.specials == "finite" else invalid
        if overflow == "saturate":
            codes = np.where(beyond | value.infinite, limit, codes)
        else:
            codes = np.where(beyond, np.where(kept, limit, nowhere), codes)
            codes = np.where(value.infinite, nowhere, codes)
        if nan == "keep":
            codes = np.where(value.nan, invalid, codes)
        return codes, beyond | (value.infinite & (row.infinity is None))


def cast(codes: Array, source: Format, target: Format) -> Cast:
    """Start the cast of real codes, or of the components of complex ones."""
    row = component(source)
    return Cast(decode(codes, row), component(target), integer_source=row.kind != "float")
