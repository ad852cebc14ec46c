"""Rows of a weight as blocks of bytes, which files of whole models hold."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, block_amax, report_losses, restore_report
from castwise.checkpoint._errors import LEAVE, CheckpointError
from castwise.checkpoint.results.report import Report, WeightedReport
from castwise.quantization.arrays.scale_range import exceeds_scales, lost_to_block_type
from castwise.quantization.producers.block_types import (
    BLOCK_TYPES,
    BeyondFloat16Error,
    decode_type,
    encode_type,
    type_of_scheme,
)
from castwise.quantization.producers.producer import Encoding


def is_of_blocks(encoding: Encoding) -> bool:
    return type_of_scheme(encoding.written.scheme) is not None


def blocks_of_row(encoding: Encoding, columns: int) -> tuple[int, int]:
    _, elements, size = BLOCK_TYPES[encoding.written.scheme.upper()]
    return columns // elements, size


def encode_rows(
    array: NDArray[Any],
    name: str,
    first: int,
    encoding: Encoding,
    importance: NDArray[np.float32] | None = None,
    *,
    is_weighted: bool = False,
) -> tuple[NDArray[np.uint8], Report | None]:
    """Return the blocks of rows of a weight, from row `first` on, and what its values lost."""
    # Without importance, each channel of a weighted one counts 1, as in llama-quantize.
    check_finite(array, name, threads=1)
    scheme = encoding.written.scheme
    numbers = importance
    if is_weighted and numbers is None:
        numbers = np.ones(array.shape[-1], np.float32)
    try:
        blocks = encode_type(array, scheme.upper(), importance=numbers, scales=encoding.scales)
    except BeyondFloat16Error as error:
        raise CheckpointError(
            f"tensor {name!r} cannot be {scheme}: from row {first:,} on, {error}; " + LEAVE
        ) from error
    values = decode_type(blocks, scheme.upper()).reshape(array.shape)
    report = report_losses(array, values)

    def measure(near_one: NDArray[Any]) -> float:
        blocks = encode_type(near_one, scheme.upper(), importance=numbers, scales=encoding.scales)
        values = decode_type(blocks, scheme.upper())
        return report_losses(near_one, values.reshape(near_one.shape)).sqnr_db

    if exceeds_scales(lost_to_block_type(array, scheme, report.sqnr_db, measure)):
        report = add_saturated(report, report.count - report.zero_in)
    if is_weighted:
        return blocks, weighted_report(report, array, values, importance)
    return blocks, report


def add_saturated(report: CastReport, count: int) -> CastReport:
    counts, *sums = report.__reduce__()[1]
    names = ("count", "exact", "overflowed", "saturated")
    return restore_report([*counts[: len(names) - 1], count, *counts[len(names) :]], *sums)


def weighted_report(
    report: CastReport,
    array: NDArray[Any],
    values: NDArray[Any],
    importance: NDArray[Any] | None,
    axis: int = -1,
) -> WeightedReport:
    """Add the report of values that are multiplied by the roots of what their channels count."""
    dtype = measured_dtype(array.dtype)
    if importance is None:  # 1 is of another size than the numbers of the other experts
        pair = (np.empty(0, dtype),) * 2
    else:
        factors = np.sqrt(importance.astype(dtype)).reshape((-1, 1) if axis == -2 else (1, -1))  # noqa: PLR2004
        pair = array.astype(dtype) * factors, values.astype(dtype) * factors
    return WeightedReport(report, report_losses(*pair))


def measured_dtype(dtype: np.dtype[Any]) -> type[np.floating]:
    """Return in what elements of a dtype are decoded to measure what they lost."""
    return np.float64 if dtype == np.float64 else np.float32


def check_finite(array: NDArray[Any], name: str, threads: int) -> float:
    """Return the largest magnitude of a weight; refuse what is not finite."""
    largest = block_amax(array, threads=threads)
    if not math.isfinite(largest):
        description = "NaN" if math.isnan(largest) else "infinite"
        raise CheckpointError(
            f"tensor {name!r} cannot be quantized: it has an element that is "
            f"{description}, for which no scale is right; mend it, or " + LEAVE
        )
    return largest
