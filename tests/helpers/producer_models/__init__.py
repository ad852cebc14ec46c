"""Small models as every producer writes them, a module for each producer.

The codes are random, so that no layout can be mistaken for another; what they mean is written here
once more, in plain numpy, apart from the package. Of some models there are only headers.
"""

from __future__ import annotations

from collections.abc import Callable

from . import (
    autofp8,
    awq_gptq,
    bitsandbytes,
    comfy,
    compressed_tensors,
    deepseek,
    fbgemm,
    gpt_oss,
    keras,
    mistral,
    mlx,
    modelopt,
    quark,
    torchao,
    unread,
)
from ._decodable import KEPT, Decodable, Draw, powers_of, stated, write, write_in_shards
from ._headers import (
    FLOATS,
    FORMATS,
    Layouts,
    Model,
    Recorded,
    Tensors,
    as_tensors,
    in_config,
    record,
    recorded,
    write_zeros,
)

__all__ = [
    "FLOATS",
    "FORMATS",
    "KEPT",
    "LAYOUTS",
    "MODELS",
    "MORE",
    "RECORDED",
    "Decodable",
    "Draw",
    "Model",
    "Tensors",
    "as_tensors",
    "in_config",
    "powers_of",
    "record",
    "recorded",
    "stated",
    "write",
    "write_in_shards",
    "write_zeros",
]

MODELS: dict[str, Callable[[], Decodable]] = {
    **deepseek.MODELS,
    **autofp8.MODELS,
    **mistral.MODELS,
    **fbgemm.MODELS,
    **compressed_tensors.MODELS,
    **modelopt.MODELS,
    **quark.MODELS,
    **gpt_oss.MODELS,
    **comfy.MODELS,
    **awq_gptq.MODELS,
    **bitsandbytes.MODELS,
    **mlx.MODELS,
}
"""Models with their elements, and what they must become."""

MORE = modelopt.MORE
"""Others that differ from one of these in little."""

LAYOUTS: Layouts = {
    **deepseek.LAYOUTS,
    **autofp8.LAYOUTS,
    **mistral.LAYOUTS,
    **fbgemm.LAYOUTS,
    **gpt_oss.LAYOUTS,
    **awq_gptq.LAYOUTS,
    **modelopt.LAYOUTS,
    **compressed_tensors.LAYOUTS,
    **quark.LAYOUTS,
    **comfy.LAYOUTS,
    **keras.LAYOUTS,
    **bitsandbytes.LAYOUTS,
    **unread.LAYOUTS,
}
"""Headers in layouts that no producer wrote for the record, each with scheme, block and recipe."""

RECORDED: Recorded = {
    **deepseek.RECORDED,
    **bitsandbytes.RECORDED,
    **torchao.RECORDED,
    **compressed_tensors.RECORDED,
    **modelopt.RECORDED,
    **mlx.RECORDED,
    **comfy.RECORDED,
    **keras.RECORDED,
}
"""For each recorded model its scheme, block, recipe, number of weights, and what is beside them."""
