"""The listed exceptions: where `ndarray.astype` is not what a single exact rounding gives.

Everywhere else the defaults of `castwise.cast` are bit-equal to astype, for every pair it supports.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import oracle
from oracle import FORMATS, Array, Format

KEEPS_PAYLOADS = ("float16", "bfloat16", "float32", "float64")


def supported(source: Format, target: Format) -> bool:
    """Tell whether astype casts this pair (complex to real it does, losing a part: we refuse)."""
    if source.part and not target.part:
        return False
    try:
        np.zeros(1, source.dtype).astype(target.dtype)
    except TypeError:
        return False
    return True


def default_rounding(target: Format) -> str:
    return "towards-zero" if target.kind in ("int", "uint") else "nearest-even"


def rounded_twice(source: Format, target: Format, codes: Array) -> Array:
    """ml_dtypes takes a float64 or a wide integer through float32: it must be exact there."""
    from_ml_dtypes = target.kind in ("float", "complex") and hasattr(ml_dtypes, target.name)
    inexact = oracle.cast(codes, source, FORMATS["float32"]).place != oracle.EXACT
    return inexact & (from_ml_dtypes and source is not target)


def undefined(source: Format, target: Format, codes: Array) -> Array:
    """C leaves NaN, and a float beyond an integer's range, undefined; so does numpy."""
    if target.kind not in ("int", "uint") or source.kind != "float":
        return np.zeros(codes.shape, bool)
    cast = oracle.cast(codes, source, target)
    return cast.expected("towards-zero", "ieee").overflows | cast.value.nan


def payload_kept(source: Format, target: Format, codes: Array) -> Array:
    """Between these four a NaN keeps its payload, even signalling; ours becomes the quiet NaN."""
    parts = {oracle.component(source).name, oracle.component(target).name}
    return oracle.cast(codes, source, target).value.nan & parts.issubset(KEEPS_PAYLOADS)


def misrounded(source: Format, target: Format, codes: Array) -> Array:
    """ml_dtypes takes a subnormal between 2**-127 and 1.5 * 2**-127 up to 2**-126."""
    if target.name != "float8_e8m0fnu":
        return np.zeros(codes.shape, bool)
    cast = oracle.cast(codes, source, target)
    return (cast.scale == -127) & (cast.place == oracle.BELOW) & ~cast.value.negative


def through_bool(source: Format, target: Format, codes: Array) -> Array:
    """ml_dtypes has no cast between its two complex formats; numpy finds one through bool."""
    return np.full(codes.shape, {source.name, target.name} == {"complex32", "bcomplex32"})


EXCEPTIONS = (rounded_twice, undefined, misrounded, through_bool)


def same_nan(one: Array, other: Array, target: Format) -> Array:
    """Find where both codes are NaN of one sign."""
    if oracle.component(target).kind != "float":
        return np.zeros(one.shape, bool)
    first, second = (oracle.decode(codes, oracle.component(target)) for codes in (one, other))
    return first.nan & second.nan & (first.negative == second.negative)


def disagree(ours: Array, theirs: Array, source: Format, target: Format, codes: Array) -> Array:
    """Find where our codes (of parts, if complex) differ from astype's and no exception says so."""
    excepted = np.logical_or.reduce([rule(source, target, codes) for rule in EXCEPTIONS])
    excepted |= payload_kept(source, target, codes) & same_nan(ours, theirs, target)
    return (ours != theirs) & ~excepted
