"""The types of ggml by their numbers: plain ones, and blocks of bytes."""

import math

from castwise.checkpoint._errors import CheckpointError, damage
from castwise.checkpoint._tensors import TensorInfo, format_info
from castwise.quantization.producers.block_types import BLOCK_TYPES

# The numbers of `enum ggml_type` in ggml.h, which files store.
PLAIN = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
COMPUTED = tuple(PLAIN[kind] for kind in (0, 1, 30))
"""The formats of plain weights that llama.cpp computes with."""

# Types that are not decoded, those of sums while llama.cpp computes.
_OTHERS = {9: "Q8_1", 15: "Q8_K"}

BLOCKS = {kind: (name, count, size) for name, (kind, count, size) in BLOCK_TYPES.items()}
"""Types of blocks that can be decoded: name, elements and bytes of a block."""


def tensor_info(name: str, shape: tuple[int, ...], kind: int) -> TensorInfo:
    if kind in PLAIN:
        row = format_info(PLAIN[kind])
        return TensorInfo(
            name, row.name, row.kind, row.name, shape, math.prod(shape) * row.itemsize
        )
    if kind not in BLOCKS:
        raise CheckpointError(
            f"tensor {name!r} is of the type {_OTHERS.get(kind, kind)}, which castwise cannot "
            "decode; llama-quantize of llama.cpp does: "
            "llama-quantize --allow-requantize MODEL.gguf OUT.gguf BF16"
        )
    code, elements, size = BLOCKS[kind]
    if not shape or shape[-1] % elements:
        raise damage(
            f"tensor {name!r} has the shape {shape}, whose rows are not blocks of {elements}"
        )
    shape = (*shape[:-1], shape[-1] // elements, size)
    return TensorInfo(name, "uint8", "uint", code, shape, math.prod(shape))


def check_computed(info: TensorInfo) -> None:
    """Refuse a plain tensor of a format that llama.cpp does not compute with."""
    if info.format not in COMPUTED:
        raise CheckpointError(
            f"tensor {info.name!r} is {info.format or info.stored}, and llama.cpp computes with "
            f"{', '.join(COMPUTED)}; castwise cast makes it one of them"
        )
