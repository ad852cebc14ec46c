"""Count what decoding loses: values that are not finite, and codes that are not 0 but become 0."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise import _core
from castwise._core import finfo
from castwise._options import Arithmetic
from castwise.quantization.arrays.decode import decode_array, decoded_codes, product_range
from castwise.quantization.arrays.views import StoredArray

_MARGIN = 4
"""Products are rounded a few times on their way, so they may go beyond their bounds a little."""


class DecodingLosses(NamedTuple):
    """What became of the codes of a slab."""

    # Values that are infinite, and that are NaN.
    infinite: int = 0
    nan: int = 0
    # Codes that are not 0, and whose product with their scale is.
    zeroed: int = 0
    # Codes that are 0, as far as they were counted: where nothing is lost they are not.
    zeros: int = 0


NOTHING = DecodingLosses()


def losses_of(
    q: StoredArray,
    values: NDArray[Any],
    arithmetic: Arithmetic,
    certainties: tuple[bool, bool] | None = None,
) -> DecodingLosses:
    """Count what decoding a quantised array into `values` lost.

    Most slabs lose nothing, which the scales tell in little time: `certainties`, if known.
    """
    if not values.size:
        return NOTHING
    keeps, is_finite = certainties or scales_tell(q, values.dtype)
    if keeps and (is_finite or _core.arrays_finite(lambda _: "values", [values], 1)):
        return NOTHING
    wide = _core.cast(values, np.float32)
    products = wide if "bias" not in q.extras else _products(q, values.dtype, arithmetic)
    codes = decoded_codes(q)
    return DecodingLosses(
        infinite=int(np.count_nonzero(np.isinf(wide))),
        nan=int(np.count_nonzero(np.isnan(wide))),
        zeroed=int(np.count_nonzero((products == 0) & (codes != 0))),
        zeros=int(np.count_nonzero(codes == 0)),
    )


def scales_tell(q: StoredArray, dtype: np.dtype[Any]) -> tuple[bool, bool]:
    """Return whether no product becomes 0 for certain, and whether all values are finite."""
    (least, most), row = product_range(q), finfo(dtype)
    is_finite = "bias" not in q.extras and most <= float(row.max) / _MARGIN
    return least >= row.smallest_subnormal * _MARGIN, is_finite


def _products(q: StoredArray, dtype: np.dtype[Any], arithmetic: Arithmetic) -> NDArray[Any]:
    """Decode without what is added to products."""
    extras = {name: part for name, part in q.extras.items() if name != "bias"}
    products = decode_array(q._with(extras=extras), dtype, arithmetic=arithmetic, threads=1)
    return _core.cast(products, np.float32)
