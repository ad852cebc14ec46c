"""The types of ggml, of llama.cpp: blocks of bytes that hold scales and codes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import UnfitError, block_types, cast, decode_block_type, encode_block_type
from castwise.quantization.producers.layouts import ACTIVATION, GLOBAL, OF_U8, Layout, Storage


def _row(scheme: str, size: int, storage: Storage) -> Layout:
    return Layout(scheme, "blocks", OF_U8, (), block=(1, size), storage=storage)


def _integers(bits: int, *, bias: bool) -> Layout:
    """Describe integers of 4 bits, with a minimum or half their range added; a fifth bit apart."""
    fields = [("scale", 2), ("bias", 2), ("high", 4), ("data", 16)]
    absent = {"" if bias else "bias", "" if bits > 4 else "high"}  # noqa: PLR2004
    storage = Storage(
        np.uint8,
        ("halves-32",),
        excess=not bias,
        is_unsigned=bias,
        read_only=True,
        fields=tuple(field for field in fields if field[0] not in absent),
    )
    return _row(f"int{bits}_group", 32, storage)


# The layout of each type whose scales and codes are parts of an array.
TYPES: Mapping[str, Layout] = {
    "Q8_0": _row("int8_group", 32, Storage(fields=(("scale", 2), ("data", 32)))),
    "Q4_0": _integers(4, bias=False),
    "Q4_1": _integers(4, bias=True),
    "Q5_0": _integers(5, bias=False),
    "Q5_1": _integers(5, bias=True),
    "MXFP4": _row(
        "mxfp4", 32, Storage(np.uint8, ("halves-32",), fields=(("scale", 1), ("data", 16)))
    ),
    "NVFP4": _row(
        "nvfp4",
        16,
        Storage(
            np.uint8,
            ("halves-16",),
            unsigned_scales=True,
            fields=(("scale", 4), ("data", 32)),
            read_only=True,
        ),
    ),
}

# The layout of each type that castwise writes, whose blocks are parts of an array.
WHOLE_BLOCKS: Mapping[str, Layout] = {
    name: _row(
        name.lower(),
        elements,
        Storage(np.uint8, block_type=name, scale_place=place, fields=(("data", size),)),
    )
    for name, elements, size, _, place in block_types()
}

# Types of blocks: the number that files have for one, and the elements and bytes of a block.
#
# Those without a layout are decoded by llama.cpp's own package; its `GGML_QUANT_SIZES` are the
# same.
BLOCK_TYPES: Mapping[str, tuple[int, int, int]] = {
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ2_XXS": (16, 256, 66),
    "IQ2_XS": (17, 256, 74),
    "IQ3_XXS": (18, 256, 98),
    "IQ1_S": (19, 256, 50),
    "IQ4_NL": (20, 32, 18),
    "IQ3_S": (21, 256, 110),
    "IQ2_S": (22, 256, 82),
    "IQ4_XS": (23, 256, 136),
    "IQ1_M": (29, 256, 56),
    "TQ1_0": (34, 256, 54),
    "TQ2_0": (35, 256, 66),
    "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36),
}

# What `general.file_type` states of a file whose weights are of a type: `llama_ftype`.
#
# A file of one K-quant states the small mix of that type (`MOSTLY_Q4_K_S`).
FILE_TYPES: Mapping[str, int] = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "MXFP4": 38,
}

# The mixes of types that llama.cpp knows by names: the usual type, and the type of the file.
MIXES: Mapping[str, tuple[str, int]] = {
    "q2_k_s": ("q2_k", 21),
    "q3_k_s": ("q3_k", 11),
    "q3_k_m": ("q3_k", 12),
    "q3_k_l": ("q3_k", 13),
    "q4_k_s": ("q4_k", 14),
    "q4_k_m": ("q4_k", 15),
    "q5_k_s": ("q5_k", 16),
    "q5_k_m": ("q5_k", 17),
}

# What llama.cpp takes for rows that are no whole blocks of 256 (`tensor_type_fallback`).
FALLBACKS: Mapping[str, str] = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

# The bits of a code of each type that castwise writes.
WRITTEN_TYPES: Mapping[str, int] = {name: bits for name, _, _, bits, _ in block_types()}


@cache
def type_of_scheme(scheme: str) -> str | None:
    """Return the type that a scheme is, None for the schemes of other files."""
    name = scheme.upper()
    return name if name in WRITTEN_TYPES and scheme == name.lower() else None


def decode_type(blocks: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    """Return the values of rows of blocks, of a type that castwise writes, as a matrix."""
    _, elements, size = BLOCK_TYPES[name]
    rows = blocks.shape[0]
    columns = blocks[0].size // size * elements if rows else 0
    values = np.empty((rows, columns), np.float32)
    decode_block_type(np.ascontiguousarray(blocks), values, name)
    return values


class BeyondFloat16Error(UnfitError):
    """A scale is beyond the range of float16."""


# llama.cpp makes the same blocks of it with an importance matrix.
_UNWEIGHTED = "Q8_0"


def has_importance(scheme: str, scales: str) -> bool:
    return scales == "best" or type_of_scheme(scheme) not in {None, _UNWEIGHTED}


def encode_type(
    array: NDArray[Any],
    name: str,
    threads: int | None = 1,
    *,
    importance: NDArray[np.float32] | None = None,
    scales: str = "amax",
) -> NDArray[np.uint8]:
    """Return the blocks of a matrix (rows, columns)."""
    # `importance` has a number for each column, or a row of them for each of several matrices that
    # are one below the other. `scales` are llama.cpp's, "amax", or those of least error, "best".
    _, elements, size = BLOCK_TYPES[name]
    rows, columns = array.shape
    values = np.ascontiguousarray(cast(array, np.float32, threads=threads))
    blocks = np.empty((rows, columns // elements, size), np.uint8)
    if not values.size:
        return blocks
    numbers = [None] if importance is None else np.atleast_2d(np.ascontiguousarray(importance))
    step = rows // len(numbers)
    assert step * len(numbers) == rows, "each matrix has as many rows"  # noqa: S101
    for index, numbers_of_matrix in enumerate(numbers):
        part, best = slice(index * step, (index + 1) * step), scales == "best"
        overflow = encode_block_type(values[part], blocks[part], name, numbers_of_matrix, best)
        if overflow is None:
            continue
        overflow += part.start * (columns // elements)
        row, block = divmod(overflow, columns // elements)
        peak = float(np.abs(array.reshape(-1, elements)[overflow].astype(np.float64)).max())
        raise BeyondFloat16Error(
            f"the scale of block {block} of row {row}, whose largest magnitude is {peak:.6g}, is "
            "beyond the range of float16"
        )
    return blocks


# What llama.cpp reads beside a weight of any type, one for each expert, in the place of ".weight":
# what its product is multiplied by, and the scale of its inputs.
ROLES: Mapping[str, str] = {".scale": GLOBAL, ".input_scale": ACTIVATION}


def names_beside(weight: str, ending: str, count: int) -> list[str]:
    """Name what is beside a weight, or what is beside each of those whose rows alternate in it."""
    name = weight.removesuffix(".weight") + ending
    return [name] if count == 1 else [f"{name}.{index}" for index in range(count)]


def block_layout(scheme: str, size: int) -> tuple[Layout, dict[str, int]]:
    """Return the layout of blocks of so many bytes, and the bytes of their fields."""
    fields = {
        layout: dict(layout.storage.fields)
        for layout in TYPES.values()
        if layout.storage is not None
    }
    return next(
        (layout, sizes)
        for layout, sizes in fields.items()
        if layout.scheme == scheme and sum(sizes.values()) == size
    )
