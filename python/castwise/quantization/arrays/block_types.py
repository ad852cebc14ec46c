"""Matrices as the blocks of bytes that llama.cpp stores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast, encode_block_type
from castwise.quantization.producers.block_types import BLOCK_TYPES


class BeyondFloat16Error(ValueError):
    """A scale is beyond the range of float16."""


def encode_type(array: NDArray[Any], name: str, threads: int | None = 1) -> NDArray[np.uint8]:
    """Return the blocks of a matrix (rows, columns).

    BeyondFloat16Error: no float16 holds the scale of a block.
    ValueError: rows are no whole blocks.
    """
    _, elements, size = BLOCK_TYPES[name]
    rows, columns = array.shape
    values = np.ascontiguousarray(cast(array, np.float32, threads=threads))
    blocks = np.empty((rows, columns // elements, size), np.uint8)
    overflow = encode_block_type(values, blocks, name)
    if overflow is not None:
        row, block = divmod(overflow, columns // elements)
        peak = float(np.abs(array.reshape(-1, elements)[overflow].astype(np.float64)).max())
        raise BeyondFloat16Error(
            f"the scale of block {block} of row {row}, whose largest magnitude is {peak:.6g}, is "
            "beyond the range of float16"
        )
    return blocks
