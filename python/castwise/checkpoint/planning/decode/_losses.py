"""Add up what decoding the slabs of a weight lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise._options import Arithmetic
from castwise.checkpoint.report import DecodeReport
from castwise.quantization import QuantizedArray, dequantize
from castwise.quantization.arrays import Range, losses_of, may_lose, rows_of
from castwise.quantization.weights import Decoding

_FEW = 1 << 14
"""Elements whose codes are read in less time than their scales alone before."""
_WIDEST = np.dtype(np.float32)


class LossCounter:
    """Counts the losses of one weight, whose slabs several threads decode."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._report = DecodeReport()

    def begin(self) -> None:
        """Forget what was counted: the weight is decoded once more."""
        self._report = DecodeReport()

    def add(self, q: QuantizedArray, values: NDArray[Any], arithmetic: Arithmetic) -> None:
        """Count the losses of a slab."""
        infinite, nan, zeroed, zeros = losses_of(q, values, arithmetic)
        report = DecodeReport(values.size, infinite, zeroed, nan, zeros)
        with self._lock:
            self._report += report

    def add_rounded(self, exact: NDArray[Any], values: NDArray[Any]) -> None:
        """Count the losses of a slab whose values were rounded from those of another decoder."""
        wide = cast(values, np.float32, threads=1)
        report = DecodeReport(
            values.size,
            int(np.count_nonzero(np.isinf(wide))),
            int(np.count_nonzero((wide == 0) & (exact != 0))),
            int(np.count_nonzero(np.isnan(wide))),
            int(np.count_nonzero(exact == 0)),
        )
        with self._lock:
            self._report += report

    def skip(self, count: int) -> None:
        """Count so many values, of which none is lost."""
        with self._lock:
            self._report += DecodeReport(count)

    def report(self) -> DecodeReport:
        """Return what was counted so far."""
        return self._report


def stored_losses(plan: Decoding, elements: int) -> DecodeReport:
    """Count what a stored weight loses to whoever decodes it, in float32.

    Codes are read only where the scales of so many elements do not tell that nothing is lost.
    """
    losses = LossCounter()
    is_small = math.prod(plan.cut) <= _FEW
    scales = None if plan.whole is None or is_small else _without_codes(plan.whole)
    for cut in plan.slabs(elements):
        if scales is not None:
            q = rows_of(scales, cut.start, cut.stop, cut.place)
            if not may_lose(q, _WIDEST):
                losses.skip(math.prod(q.shape))
                continue
        q = plan.rows(cut)
        losses.add(q, dequantize(q, _WIDEST), "peer")
    return losses.report()


def _without_codes(q: Any) -> Any:  # noqa: ANN401  (its parts are lazy)
    """Return a quantised array of lazy parts whose codes are 0, and are not read."""

    def zeros(ranges: Sequence[Range]) -> NDArray[Any]:
        return np.zeros([end - begin for begin, end in ranges], q.data.dtype)

    return q._with(data=replace(q.data, box=zeros))
