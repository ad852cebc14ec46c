"""The listed exceptions: where `ndarray.astype` is not what a single exact rounding gives.

Each says what astype gives instead, to the bit; where C leaves it undefined, anything.
Everywhere else the defaults of `castwise.cast` are bit-equal to astype, for every pair it supports.
"""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import NamedTuple

import ml_dtypes
import numpy as np
import oracle
from oracle import FORMATS, Array, Format

IS_X86 = platform.machine() in ("x86_64", "AMD64")
# From 0.7 on ml_dtypes rounds once and casts every pair.
IS_NEW = [*map(int, version("ml_dtypes").split(".")[:2])] >= [0, 7]
KEEPS_PAYLOADS = ("float16", "bfloat16", "float32", "float64")


def supported(source: Format, target: Format) -> bool:
    """Tell whether both cast this pair: only astype casts complex to real."""
    if source.part and not target.part:
        return False
    try:
        np.zeros(1, source.dtype).astype(target.dtype)
    except TypeError:
        return False
    return True


def default_rounding(target: Format) -> str:
    return "towards-zero" if target.kind in ("int", "uint") else "nearest-even"


class Case(NamedTuple):
    """What astype gave for codes (of parts, if complex), and what one exact rounding gives."""

    source: Format
    target: Format
    codes: Array
    theirs: Array

    @property
    def right(self) -> Array:
        cast = oracle.cast(self.codes, self.source, self.target)
        return cast.expected(default_rounding(self.target), "ieee").codes

    @property
    def makes_integers(self) -> bool:
        return self.source.kind == "float" and self.target.kind in ("int", "uint")

    @property
    def is_of_numpy(self) -> bool:
        return all(not hasattr(ml_dtypes, name) for name in (self.source.name, self.target.name))

    @property
    def by_way_of_float32(self) -> Case:
        """Give the cast that ml_dtypes makes: every value is rounded to float32 first."""
        wide, target = FORMATS["float32"], self.target
        if not hasattr(ml_dtypes, target.name) or target.kind not in ("float", "complex"):
            return self
        codes = oracle.cast(self.codes, self.source, wide).expected("nearest-even", "ieee").codes
        return Case(wide, target, codes, self.theirs)


def rounded_twice(case: Case) -> Array:
    """ml_dtypes rounds a float64 or a wide integer to float32 first."""
    return case.by_way_of_float32.right


def misrounded(case: Case) -> Array:
    """ml_dtypes takes a subnormal between 2**-127 and 1.5 * 2**-127 up to 2**-126."""
    if case.target.name != "float8_e8m0fnu":
        return case.right
    case = case.by_way_of_float32
    cast = oracle.cast(case.codes, case.source, case.target)
    between = (cast.scale == -127) & (cast.place == oracle.BELOW) & ~cast.value.negative
    return np.where(between, np.uint8(1), case.right)


def through_bool(case: Case) -> Array:
    """ml_dtypes has no cast between its two complex formats; numpy finds one through bool."""
    if {case.source.name, case.target.name} != {"complex32", "bcomplex32"}:
        return case.right
    part = oracle.component(case.target)
    zero = oracle.decode(case.codes, oracle.component(case.source)).zero.all(axis=-1)
    real = np.where(zero, 0, part.bias << part.mantissa_bits)  # 0 or 1
    return np.stack([real, np.zeros_like(real)], axis=-1).astype(part.codes)


def zero_beyond(case: Case) -> Array:
    """ml_dtypes from 0.7 on makes 0 of NaN and of a float beyond the range of the integer."""
    if not case.makes_integers or case.is_of_numpy:
        return case.right
    cast = oracle.cast(case.codes, case.source, case.target)
    expected = cast.expected("towards-zero", "ieee")
    return np.where(expected.overflows | cast.value.nan, np.uint8(0), case.right)


def undefined(case: Case) -> Array:
    """C leaves NaN, and a float beyond the range of the integer, undefined; so does numpy.

    ml_dtypes converts to int first, and keeps the low bits of those of fewer than 8; of more than
    2**31 - 1, which only a float64 is that becomes an int, it makes 0. To unsigned ones it converts
    as such, so what is below zero is undefined too, and low bits on x86-64 alone.
    """
    if not case.makes_integers or (IS_NEW and not case.is_of_numpy):
        return case.right
    cast = oracle.cast(case.codes, case.source, case.target)
    expected = cast.expected("towards-zero", "ieee")
    above = (cast.low == 2**31 - 1) & (cast.place != oracle.EXACT) & ~cast.value.negative
    below = cast.value.negative & (case.target.kind == "uint") & (not IS_X86)
    anything = (expected.overflows & ~(expected.wrapped & ~above & ~below)) | cast.value.nan
    return np.where(anything, case.theirs, case.right)


def payload_kept(case: Case) -> Array:
    """Between these four a NaN keeps its payload, even signaling; ours becomes the quiet NaN."""
    source, target = oracle.component(case.source), oracle.component(case.target)
    if not {source.name, target.name}.issubset(KEEPS_PAYLOADS):
        return case.right
    return np.where(same_nan(case.right, case.theirs, target), case.theirs, case.right)


EXCEPTIONS = (
    (zero_beyond, undefined, payload_kept)
    if IS_NEW
    else (rounded_twice, misrounded, through_bool, undefined, payload_kept)
)


def same_nan(one: Array, other: Array, row: Format) -> Array:
    """Find where both codes are NaN of one sign."""
    first, second = (oracle.decode(codes, row) for codes in (one, other))
    return first.nan & second.nan & (first.negative == second.negative)


def disagree(ours: Array, theirs: Array, source: Format, target: Format, codes: Array) -> Array:
    """Find where our codes (of parts, if complex) differ from astype's and no exception says so.

    Where one does, astype's must be what it says, and ours the right ones.
    """
    case = Case(source, target, codes, theirs)
    right = case.right
    said = right
    for rule in EXCEPTIONS:
        given = rule(case)
        said = np.where(given != right, given, said)
    good = np.where(said != right, (theirs == said) & (ours == right), ours == theirs)
    part = oracle.component(target)
    if oracle.component(source) is part and part.kind == "float":  # a copy: any NaN of the sign
        good |= (ours == theirs) | same_nan(ours, theirs, part)
    return ~good
