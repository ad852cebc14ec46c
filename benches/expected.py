"""The right answer for every cast that is timed, found without castwise.

astype itself is the answer wherever it rounds once. Where ml_dtypes rounds twice (float64 and wide
integers go through float32) the nearest code is looked up among all codes of the target, which has
16 bits or fewer: midpoints of neighbors are exact in float64, so comparing with them is exact too.
"""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
from cases import PERIOD, component_dtype
from numpy.typing import NDArray


def expected(x: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
    """`x` cast to `target` with one rounding, C-contiguous; None where we cannot tell exactly."""
    x = np.ascontiguousarray(x)
    if x.ndim == 1 and x.size > PERIOD:  # it repeats itself, see cases.py
        first = expected(x[:PERIOD], target)
        return None if first is None else np.resize(first, x.shape)
    to_complex = castwise.finfo(target).kind == "complex"
    if not to_complex:
        return expected_real(x, target)
    # By components: ml_dtypes 0.6 drops the imaginary part between its two complex dtypes.
    real = expected_real(x.view(component_dtype(x.dtype)), component_dtype(target))
    if real is None or castwise.finfo(x.dtype).kind == "complex":
        return None if real is None else real.view(target)
    both = np.zeros((*x.shape, 2), real.dtype)
    both[..., 0] = real
    return both.view(target)[..., 0]


def expected_real(x: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any] | None:
    """As `expected`, for one component."""
    if not rounds_twice(x.dtype, target):
        return x.astype(target)
    if x.dtype.kind in "iu" and np.finfo(np.longdouble).nmant < 63:
        return None  # 64-bit integers cannot be compared exactly on this platform
    return nearest(x, target)


def rounds_twice(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether astype goes through float32 with values that float32 cannot hold."""
    through_float32 = target.isbuiltin != 1 and castwise.finfo(target).kind == "float"
    kind = castwise.finfo(source).kind
    wide = source == np.float64 or (kind in ("int", "uint") and source.itemsize >= 4)
    return through_float32 and wide


def nearest(x: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """Round to nearest, ties to the even code, by search among the magnitudes of the target.

    Without mantissa bits (e8m0) every significand is odd and ties go up, as in ml_dtypes. The
    inputs are finite and normal in both formats (see cases.py): no overflow, NaN or zero arises.
    """
    information = castwise.finfo(target)
    sign_bit = information.bits - 1 if information.signed else information.bits
    unsigned = np.dtype(f"u{target.itemsize}")
    codes = np.arange(1 << sign_bit, dtype=unsigned)
    decoded = codes.view(target).astype(np.longdouble)
    finite = decoded[np.isfinite(decoded)]  # positive codes ascend, so index is code
    middle = (finite[:-1] + finite[1:]) / 2
    magnitude = np.abs(x.astype(np.longdouble))
    code = np.searchsorted(middle, magnitude, side="left")  # a tie stays below
    tie = magnitude == middle[np.minimum(code, len(middle) - 1)]
    code += tie & ((code & 1 == 1) | (information.mantissa_bits == 0))
    signed = code | np.where(x < 0, 1 << sign_bit, 0)
    return signed.astype(unsigned).view(target)


def wrong(result: NDArray[Any], right: NDArray[Any]) -> int:
    """Elements whose bits differ; shape or dtype differing is every element."""
    if result.dtype != right.dtype or result.shape != right.shape:
        return max(right.size, 1)
    found, wanted = (
        np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8).reshape(-1, array.itemsize)
        for array in (result, right)
    )
    return int(np.count_nonzero((found != wanted).any(axis=1)))
