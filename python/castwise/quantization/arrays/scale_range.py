"""Scales that their format does not hold: what a recipe loses of a weight that its scheme keeps."""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from castwise._core import CastReport, block_amax, compare, finfo
from castwise.quantization.arrays.arrays import QuantizedArray, dequantize
from castwise.quantization.arrays.views import Array, Views, format_of_bytes, views_of
from castwise.quantization.producers.layouts import E8M0
from castwise.quantization.producers.registry import written_layout
from castwise.quantization.producers.schemes import Scheme, has_global_scale, schemes

# Quantizes an array in the same way, given by which factor it is that of before.
Encode = Callable[[Array, float], QuantizedArray]

_MOST_LOST_DB = 0.75
# Below it MLX' steps of at least 1e-7, and Keras' addition of it, may say more than a block.
_LEAST_AMAX = 1e-4


def amax_bounds(
    views: Views, scale_dtype: np.dtype[Any], weight_dtype: np.dtype[Any], *, is_affine: bool
) -> tuple[float, float] | None:
    """Return the largest magnitudes between which scales lose nothing that the scheme keeps.

    None if there are none: powers of two and scales under a global one reach all magnitudes, and so
    does float32 where no step has a limit. Scales that are multiplied in the weight's dtype are
    numbers of that, whatever they are stored in.
    """
    layout, row, storage = views.layout, views.scheme, views.storage
    is_relative = row.global_scale and has_global_scale(layout)
    if E8M0 in {row.scale, scale_dtype.name} or (is_relative and not storage.inner):
        return None
    scale_format = finfo(format_of_bytes(scale_dtype, row) or scale_dtype)
    if storage.inner:
        scale_format = finfo(
            min(weight_dtype, np.dtype(np.float32), key=lambda dtype: dtype.itemsize)
        )
    normal, single = (
        max(float(dtype.smallest_normal) for dtype in dtypes)
        for dtypes in ((scale_format, finfo(weight_dtype)), (finfo("float32"),))
    )
    if normal <= single and not (is_affine or storage.divides):
        return None
    is_float = row.element.startswith("float")
    largest = float(finfo(row.element).max) if is_float else 2.0 ** (row.bits - 1)
    low, high = normal * largest, float(scale_format.max) * largest
    if is_affine:  # its range is twice as large
        low, high = max(low, _LEAST_AMAX), min(high, float(scale_format.max) / 2)
    if storage.divides:
        low, high = max(2 * largest / float(scale_format.max), _LEAST_AMAX), math.inf
    return low, high


def lost_to_scales(x: Array, q: QuantizedArray, encode: Encode) -> float:
    """Return how many decibels less a quantized array keeps than that of the same at magnitude 1.

    0 if its largest magnitude is within the bounds, as that of nearly all weights is.
    """
    bounds = _bounds_of(q, x.dtype)
    largest = block_amax(x if x.ndim > 1 else x[None]) if bounds is not None else math.nan
    if bounds is None or not math.isfinite(largest) or _is_within(bounds, largest):
        return 0.0
    # A power of two, by which all roundings but those of scales stay as they are.
    factor = 2.0 ** -math.frexp(largest)[1]
    near_one = (x.astype(np.float64) * factor).astype(x.dtype)
    decibels, decibels_near_one = _decibels(x, q), _decibels(near_one, encode(near_one, factor))
    return 0.0 if decibels == math.inf else decibels_near_one - decibels


def keep_all(reports: Iterable[CastReport], q: QuantizedArray, dtype: np.dtype[Any]) -> bool:
    """Return True if scales lose nothing of the weights, all finite, that reports are of.

    `q` is made of all of them, of that dtype.
    """
    bounds = _bounds_of(q, dtype)
    return all(
        not (report.nan_in or report.inf_in) and (bounds is None or _is_within(bounds, report.amax))
        for report in reports
    )


def _bounds_of(q: QuantizedArray, dtype: np.dtype[Any]) -> tuple[float, float] | None:
    is_affine = q.zero_point is not None or "bias" in q.extras
    return amax_bounds(views_of(q), q.scale.dtype, dtype, is_affine=is_affine)


def _is_within(bounds: tuple[float, float], largest: float) -> bool:
    return largest == 0 or bounds[0] <= largest < bounds[1]


def exceeds_scales(lost_db: float) -> bool:
    """Return True if that many decibels are a finding."""
    return lost_db > _MOST_LOST_DB


def warn_of_scales(x: Array, q: QuantizedArray, encode: Encode) -> None:
    """Warn if the scales of an array are beyond the range of their format."""
    lost_db = lost_to_scales(x, q, encode)
    if not exceeds_scales(lost_db):
        return
    replacement = keeping_scheme(q.scheme, q.recipe)
    advice = (
        ""
        if replacement is None
        else f"; scheme={replacement[0]!r}, recipe={replacement[1]!r} keeps them"
    )
    amount = f"{lost_db:.1f} dB" if math.isfinite(lost_db) else "all values"
    use = f"stores in {q.scale.dtype.name}"
    if views_of(q).storage.inner:
        use = f"multiplies in {x.dtype.name}"
    warnings.warn(
        f"x has scales of {q.scheme} beyond what recipe={q.recipe!r} {use}, which costs "
        f"{amount}{advice}.",
        RuntimeWarning,
        stacklevel=3,
    )


def keeping_scheme(
    scheme: str, recipe: str | None, among: tuple[str, ...] | None = None
) -> tuple[str, str] | None:
    """Name the scheme nearest to one whose scales reach all magnitudes, and its recipe.

    It is of the same producer, among schemes of these names if any are given, or else, where all
    are, of the first that has one.
    """
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
