"""Rows of a weight as blocks of bytes, which files of whole models hold."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, block_amax, report_losses
from castwise.checkpoint._errors import LEAVE, CheckpointError
from castwise.quantization.producers.block_types import (
    BLOCK_TYPES,
    BeyondFloat16Error,
    decode_type,
    encode_type,
    type_of_scheme,
)
from castwise.quantization.producers.producer import Encoding


def is_of_blocks(encoding: Encoding) -> bool:
    """Return True for what is stored in blocks of bytes."""
    return type_of_scheme(encoding.written.scheme) is not None


def blocks_of_row(encoding: Encoding, columns: int) -> tuple[int, int]:
    """Return how many blocks a row has, and the bytes of each."""
    _, elements, size = BLOCK_TYPES[encoding.written.scheme.upper()]
    return columns // elements, size


def encode_rows(
    array: NDArray[Any], name: str, first: int, encoding: Encoding
) -> tuple[NDArray[np.uint8], CastReport | None]:
    """Return the blocks of rows of a weight, from row `first` on, and what its values lost."""
    check_finite(array, name, threads=1)
    scheme = encoding.written.scheme
    try:
        blocks = encode_type(array, scheme.upper())
    except BeyondFloat16Error as error:
        raise CheckpointError(
            f"tensor {name!r} cannot be {scheme}: from row {first:,} on, {error}; " + LEAVE
        ) from error
    values = decode_type(blocks, scheme.upper()).reshape(array.shape)
    return blocks, report_losses(array, values)


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
