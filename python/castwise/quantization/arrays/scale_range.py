"""Scales that their format does not hold: what a recipe loses of a weight that its scheme keeps."""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from castwise._core import CastReport, block_amax, compare, finfo, in_default_environment
from castwise.quantization.arrays.arrays import QuantizedArray, dequantize
from castwise.quantization.arrays.views import Array, Views, format_of_bytes, views_of
from castwise.quantization.producers.block_types import type_of_scheme
from castwise.quantization.producers.layouts import E8M0
from castwise.quantization.producers.registry import written_layout
from castwise.quantization.producers.schemes import (
    Scheme,
    has_global_scale,
    scheme_of_files,
    schemes,
)

# Quantizes an array in the same way, given the exponent of the power of two that multiplies it.
Encode = Callable[[Array, int], QuantizedArray]

_MOST_LOST_DB = 0.75
# Below it MLX' steps of at least 1e-7, and Keras' addition of it, may say more than a block.
_LEAST_AMAX = 1e-4
# Numbers below two to this power are within float32.
_MOST_EXPONENT = 127
# K-quants: scales of 6 or 7 bits, with their sign, under one of float16. One of 32 units of the
# last place is rounded by 1.6 % at most.
_SUPER_BLOCK, _SCALE_CODES, _LEAST_UNITS = 256, 128, 32


def amax_bounds(
    views: Views, scale_dtype: np.dtype[Any], weight_dtype: np.dtype[Any], *, is_affine: bool
) -> tuple[float, float] | None:
    """Return the largest magnitudes between which scales lose nothing that the scheme keeps."""
    # None if there are no such bounds: powers of two and scales under a global one reach magnitudes
    # of float32 from 2^-120 on, and so does float32 where no step has a limit; float64 has others.
    # Scales that are multiplied in the weight's dtype are numbers of that, however stored.
    layout, row, storage = views.layout, views.scheme, views.storage
    is_relative = row.global_scale and has_global_scale(layout)
    is_wide = weight_dtype.itemsize > np.dtype(np.float32).itemsize
    reaches_all = E8M0 in {row.scale, scale_dtype.name} or (is_relative and not storage.inner)
    if reaches_all and not is_wide:
        return None
    scale_format = finfo(
        "float32" if reaches_all else format_of_bytes(scale_dtype, row) or scale_dtype
    )
    if storage.inner:
        scale_format = finfo(
            min(weight_dtype, np.dtype(np.float32), key=lambda dtype: dtype.itemsize)
        )
    normal, single = (
        max(float(dtype.smallest_normal) for dtype in dtypes)
        for dtypes in ((scale_format, finfo(weight_dtype)), (finfo("float32"),))
    )
    if normal <= single and not (is_affine or storage.divides or is_wide):
        return None
    is_float = row.element.startswith("float")
    largest = float(finfo(row.element).max) if is_float else 2.0 ** (row.bits - 1)
    if is_relative and reaches_all:
        largest *= float(finfo(row.scale).max)
    low, high = normal * largest, float(scale_format.max) * largest
    if is_affine:  # its range is twice as large
        low, high = max(low, _LEAST_AMAX), min(high, float(scale_format.max) / 2)
    if storage.divides:
        low, high = max(2 * largest / float(scale_format.max), _LEAST_AMAX), math.inf
    if is_wide:  # peers decode to float32
        high = min(high, float(finfo("float32").max))
    return low, high


def lost_to_scales(
    x: Array, q: QuantizedArray, encode: Encode, threads: int | None = None
) -> float:
    """Return how many decibels less a quantized array keeps than its like at magnitude 1."""
    # 0 if its largest magnitude is within the bounds, as that of nearly all weights is.

    def decibels_near_one(near_one: Array, exponent: int) -> float:
        return _decibels(near_one, encode(near_one, exponent))

    bounds = _bounds_of(q, x.dtype)
    return _lost(x, bounds, lambda: _decibels(x, q), decibels_near_one, threads)


def lost_to_block_type(
    x: Array, scheme: str, sqnr_db: float, measure: Callable[[Array], float]
) -> float:
    """Return as `lost_to_scales` what blocks of a type of llama.cpp lose, given their ratio."""
    # `measure` returns the ratio in decibels of another array.
    bounds = _bounds_of_block_type(scheme)
    return _lost(x, bounds, lambda: sqnr_db, lambda near_one, _: measure(near_one), threads=1)


def amax_near_one(amax: float | None, exponent: int) -> float | None:
    """Return a largest magnitude times a power of two; None, the array's, if float32 lacks it."""
    if amax is None or math.frexp(amax)[1] + exponent > _MOST_EXPONENT:
        return None
    return math.ldexp(amax, exponent)


def exceeds_float32(dtype: str, largest: float) -> bool:
    """Return True if weights of a dtype have a largest magnitude that float32 does not hold."""
    single = finfo("float32")
    is_held = float(single.smallest_normal) <= largest <= float(single.max)
    return not is_held and finfo(dtype).bits > single.bits


def _lost(
    x: Array,
    bounds: tuple[float, float] | None,
    decibels_of_array: Callable[[], float],
    decibels_near_one: Callable[[Array, int], float],
    threads: int | None,
) -> float:
    if bounds is None:
        return 0.0
    largest = block_amax(x if x.ndim > 1 else x[None], threads=threads)
    if not math.isfinite(largest) or _is_within(bounds, largest):
        return 0.0
    # A power of two, by which all roundings but those of scales stay as they are.
    exponent = -math.frexp(largest)[1]
    near_one = in_default_environment(np.ldexp, x.astype(np.float64), exponent).astype(x.dtype)
    decibels = decibels_of_array()
    if decibels == math.inf:
        return 0.0
    return decibels_near_one(near_one, exponent) - decibels


def keep_all(reports: Iterable[CastReport], q: QuantizedArray, dtype: np.dtype[Any]) -> bool:
    """Return True if scales lose nothing of the weights, all finite, that reports are of."""
    # `q` is made of all of them, of that dtype.
    bounds = _bounds_of(q, dtype)
    return all(
        not (report.nan_in or report.inf_in) and (bounds is None or _is_within(bounds, report.amax))
        for report in reports
    )


def _bounds_of(q: QuantizedArray, dtype: np.dtype[Any]) -> tuple[float, float] | None:
    if type_of_scheme(q.scheme) is not None:
        return _bounds_of_block_type(q.scheme)
    is_affine = q.zero_point is not None or "bias" in q.extras
    return amax_bounds(views_of(q), q.scale.dtype, dtype, is_affine=is_affine)


def _bounds_of_block_type(scheme: str) -> tuple[float, float]:
    """Return the bounds of a type of llama.cpp; what float16 overflows is refused before."""
    row = scheme_of_files(scheme)
    # Other codes are of the scale before it is rounded, which costs less than a bit more.
    units, steps = 2.0 ** (row.bits + 2), 2.0 ** (row.bits - 1)
    if row.block[1] == _SUPER_BLOCK:
        units, steps = _LEAST_UNITS, steps * _SCALE_CODES
    return float(finfo("float16").smallest_subnormal) * units * steps, math.inf


def _is_within(bounds: tuple[float, float], largest: float) -> bool:
    return largest == 0 or bounds[0] <= largest < bounds[1]


def exceeds_scales(lost_db: float) -> bool:
    """Return True if that many decibels are a finding."""
    return lost_db > _MOST_LOST_DB


def warn_of_scales(x: Array, q: QuantizedArray, encode: Encode, threads: int | None = None) -> None:
    """Warn if the scales of an array are beyond the range of their format."""
    lost_db = lost_to_scales(x, q, encode, threads)
    if not exceeds_scales(lost_db):
        return
    cost = f"costs {lost_db:.1f} dB" if math.isfinite(lost_db) else "makes values infinite or NaN"
    largest = block_amax(x if x.ndim > 1 else x[None], threads=threads)
    if exceeds_float32(x.dtype.name, largest):
        warnings.warn(
            f"x has magnitudes that float32 does not hold, and {q.scheme} is decoded to float32: "
            f"this {cost}; divide x by a number.",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    replacement = keeping_scheme(q.scheme, q.recipe)
    advice = (
        ""
        if replacement is None
        else f"; scheme={replacement[0]!r}, recipe={replacement[1]!r} keeps them"
    )
    scale_format = finfo(format_of_bytes(q.scale.dtype, views_of(q).scheme) or q.scale.dtype)
    use = f"recipe={q.recipe!r} stores in {scale_format.name}"
    if type_of_scheme(q.scheme) is not None:
        use = "llama.cpp stores in float16"
    elif views_of(q).storage.inner:
        use = f"recipe={q.recipe!r} multiplies in {x.dtype.name}"
    warnings.warn(
        f"x has scales of {q.scheme} beyond what {use}, which {cost}{advice}.",
        RuntimeWarning,
        stacklevel=3,
    )


def keeping_scheme(
    scheme: str, recipe: str | None, among: tuple[str, ...] | None = None
) -> tuple[str, str] | None:
    """Name the scheme nearest to one whose scales reach all magnitudes, and its recipe."""
    # The scheme is of the same producer, among schemes of these names if there are any; else, where
    # all schemes are allowed, of the first producer that has one.
    bits = {row.name: row.bits for row in schemes()}.get(scheme, 8)
    rows = [row for row in schemes() if among is None or row.name in among]

    def nearest(name: str | None) -> tuple[str, str] | None:
        pairs = [
            (row, own)
            for row in rows
            for own in row.recipes
            if name in {None, own} and _reaches_all(row, own)
        ]
        # Not narrower than the scheme, then of the nearest width.
        best = min(
            pairs, key=lambda pair: (pair[0].bits < bits, abs(pair[0].bits - bits)), default=None
        )
        return None if best is None else (best[0].name, best[1])

    return nearest(recipe) or (nearest(None) if among is None else None)


def _reaches_all(row: Scheme, recipe: str) -> bool:
    """Return True if scales are powers of two, or relative to one of the whole array."""
    is_float = row.element.startswith("float")
    layout = written_layout(recipe, row, symmetric=True)
    is_inner = layout.storage is not None and layout.storage.inner
    is_relative = row.global_scale and has_global_scale(layout) and not is_inner
    return is_float and (row.scale == E8M0 or is_relative)


def _decibels(x: Array, q: QuantizedArray) -> float:
    """Return the ratio of signal and noise of what is stored, and of what its producer decodes."""
    dtypes = {np.dtype(np.float64 if x.dtype == np.float64 else np.float32)}
    if views_of(q).storage.inner:
        dtypes.add(x.dtype)
    reports = [compare(x, dequantize(q, dtype), measure=True).report for dtype in dtypes]
    return min(
        report.sqnr_db if report.max_abs_error else math.inf
        for report in reports
        if report is not None  # all are measured
    )
