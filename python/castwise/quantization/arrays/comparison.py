"""Compare a plain matrix with a quantized one, without decoding it first."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from castwise._core import CastReport, Comparison, UnfitError, compare_stored, report_stored
from castwise._options import Arithmetic
from castwise.quantization.arrays.decode import core_decoding, is_at_once
from castwise.quantization.arrays.quantize import core_encoding, lie_alike, quantize_slab
from castwise.quantization.arrays.views import Array, StoredArray, views_of


class RowComparison(NamedTuple):
    """How the rows of a quantized matrix differ from plain ones."""

    # Of the plain rows and the decoded ones.
    comparison: Comparison
    # Whether a recipe makes the codes and scales of the plain rows. False without a recipe.
    is_made: bool
    # The decoded elements where these differ most, by their flat index.
    values: Mapping[int, float]


def compare_rows(
    # A matrix in C order, of a dtype that weights are decoded to.
    x: Array,
    # What it is compared with, of the same shape.
    q: StoredArray,
    # As in `dequantize`.
    arithmetic: Arithmetic,
    # Those of `quantize_slab` that may have made one of the other; None to ask for no more.
    options: Mapping[str, Any] | None = None,
    amax: float | None = None,
    *,
    # Whether x is encoded with the global scale that is stored, in the place of that of `amax`.
    keeps_level: bool = False,
    # Whether what is lost is found, too.
    measure: bool = True,
) -> RowComparison | None:
    """Compare a matrix with a quantized one, decoded to its dtype, in one pass of the core."""
    # Returns None where the core sees the matrix otherwise than in C order, or decodes it in steps.
    if not (_is_in_order(x.shape, q) and is_at_once(q) and x.size):
        return None
    data, scale, decoding = core_decoding(q, views_of(q), x.dtype, arithmetic)
    encoding: dict[str, Any] | bool = False
    if options is not None:
        with suppress(UnfitError):
            encoding = core_encoding(x, q, options, amax, keeps_level=keeps_level)
    both = decoding, encoding if isinstance(encoding, dict) else None
    differences = compare_stored(x, data, scale, x.dtype, both, measure=measure)
    comparison, is_made, values = differences
    return RowComparison(comparison, is_made or encoding is True, values)


def report_rows(x: Array, q: StoredArray, dtype: DTypeLike) -> CastReport | None:
    """Return what a quantized matrix, decoded to a dtype by its peer's arithmetic, lost of `x`."""
    # Returns None as `compare_rows`.
    if not (_is_in_order(x.shape, q) and is_at_once(q) and x.size):
        return None
    to = np.dtype(dtype)
    # A report does not tell -0 from 0.
    data, scale, decoding = core_decoding(q, views_of(q), to, "peer", drops_signs=False)
    return report_stored(x, data, scale, to, decoding)


def can_keep_level(q: StoredArray, dtype: np.dtype[Any], options: Mapping[str, Any]) -> bool:
    """Return True if `compare_rows` encodes a matrix like a stored one with its global scale."""
    *rows, columns = views_of(q).core_shape
    shape = math.prod(rows), columns
    if options["scales"] != "amax" or not (_is_in_order(shape, q) and is_at_once(q)):
        return False
    nothing = np.empty(shape, dtype)  # of which the core sees the shape alone
    with suppress(UnfitError):
        return isinstance(core_encoding(nothing, q, options, None, keeps_level=True), dict)
    return False


def _is_in_order(shape: Sequence[int], q: StoredArray) -> bool:
    """Return True if the core sees an array as a plain one of a shape in C order."""
    views, axes = views_of(q), len(shape)
    is_last = views.axis % axes == axes - 1  # of a square matrix shapes do not tell
    return views.core_shape == shape and is_last and not views.is_transposed


def are_made(
    # Matrices of finite numbers, of a dtype that weights are decoded to.
    x: Array,
    # What they are compared with, a stack of the same shape.
    q: StoredArray,
    # Those of `quantize_slab` that may have made one of the other.
    options: Mapping[str, Any],
    # The largest magnitude that the global scale of each is for; None without global scales.
    amaxes: Sequence[float] | None,
) -> NDArray[np.bool_]:
    """Tell of each matrix of a stack whether a recipe makes its codes and scales."""
    none = np.zeros(len(x), np.bool_)
    try:
        made = quantize_slab(x, **options, amax=amaxes, threads=1)
    except UnfitError:
        return none
    if made.extras or not lie_alike(views_of(made), views_of(q)):
        return none
    are_same = ~none
    for key in ("data", "scale", "global_scale", "zero_point"):
        one, other = getattr(made, key), getattr(q, key)
        if one is None and other is None:
            continue
        if one is None or other is None or (one.dtype, one.size) != (other.dtype, other.size):
            return none
        first, second = (
            np.ascontiguousarray(part).reshape(len(x), -1).view(np.uint8) for part in (one, other)
        )
        are_same &= (first == second).all(axis=1)
    return are_same
