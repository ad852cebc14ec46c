"""Count what decoding the slabs of a weight loses."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise._options import Arithmetic
from castwise.checkpoint.results.report import DecodeReport
from castwise.quantization import QuantizedArray, dequantize
from castwise.quantization.arrays.decode import losses_of, scales_tell
from castwise.quantization.arrays.row_slices import rows_of
from castwise.quantization.producers.stored_weight import Range
from castwise.quantization.weights.decoding import Decoding

# Elements whose codes are read in less time than their scales alone before.
_FEW = 1 << 14
_WIDEST = np.dtype(np.float32)


def slab_losses(
    q: QuantizedArray,
    values: NDArray[Any],
    arithmetic: Arithmetic,
    certainties: tuple[bool, bool] | None = None,  # what its scales tell, if that is known
) -> DecodeReport:
    infinite, nan, underflows, zeros = losses_of(q, values, arithmetic, certainties)
    return DecodeReport(values.size, infinite, underflows, nan, zeros)


def rounding_losses(exact: NDArray[Any], values: NDArray[Any]) -> DecodeReport:
    """Count what a slab lost whose values were rounded from those of another decoder."""
    wide = cast(values, np.float32, threads=1)
    return DecodeReport(
        values.size,
        int(np.count_nonzero(np.isinf(wide))),
        int(np.count_nonzero((wide == 0) & (exact != 0))),
        int(np.count_nonzero(np.isnan(wide))),
        int(np.count_nonzero(exact == 0)),
    )


def losses_of_codes(q: QuantizedArray) -> DecodeReport:
    """Count what a slab loses to whoever decodes it, in float32."""
    certainties = scales_tell(q, _WIDEST, reads_codes=True)
    if all(certainties):
        return DecodeReport(math.prod(q.shape or ()))
    return slab_losses(q, dequantize(q, _WIDEST, threads=1), "peer", certainties)


def stored_losses(plan: Decoding, elements: int) -> DecodeReport:
    """Count what a stored weight loses to whoever decodes it, in float32."""
    losses = DecodeReport()
    scales = None if math.prod(plan.matrix_shape) <= _FEW else without_codes(plan.whole)
    for slab in plan.slabs(elements):
        # Codes are read only where the scales of so many elements do not tell that nothing is lost.
        if scales is not None:
            q = rows_of(scales, slab.start, slab.stop, slab.place)
            if all(scales_tell(q, _WIDEST)):
                losses += DecodeReport(math.prod(q.shape))
                continue
        losses += losses_of_codes(plan.rows(slab))
    return losses


def without_codes(q: Any) -> Any:  # noqa: ANN401  (its parts are lazy)
    """Return a quantized array of lazy parts whose codes are 0, and are not read; None of None."""

    def zeros(ranges: Sequence[Range]) -> NDArray[Any]:
        return np.zeros([end - begin for begin, end in ranges], q.data.dtype)

    return None if q is None else q._with(data=replace(q.data, box=zeros))
