# ruff: noqa: PLC0415 - each library is imported by what needs it
"""transformers' float8 in blocks: what it writes for a weight, and saves of a model."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from scheme_oracle import Array

from ._arrays import Parts, Producer, arrays, tensor
from ._llama import by_transformers


@cache
def _quantizer(scale_fmt: str) -> Any:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = SimpleNamespace(weight_block_size=[128, 128], scale_fmt=scale_fmt)
    holder = SimpleNamespace(quantization_config=config)
    return Fp8Quantize(holder), Fp8Dequantize(holder)


def transformers_fp8(x: Array, scale_fmt: str) -> tuple[Parts, Array | None]:
    quantizer, _ = _quantizer(scale_fmt)
    return arrays(quantizer._quantize_one("weight", tensor(x))), None


SCHEMES = {
    "fp8 block": Producer(
        "fp8_block", "", partial(transformers_fp8, scale_fmt="float"), columns=128, rows=128
    ),
    "fp8 block ue8m0": Producer(
        "fp8_block",
        "",
        partial(transformers_fp8, scale_fmt="ue8m0"),
        options={"scale_rule": "rceil"},
        columns=128,
        rows=128,
    ),
}


def fine_grained_fp8() -> Any:
    from transformers import FineGrainedFP8Config
    from transformers.quantizers import quantizer_finegrained_fp8 as module

    # It refuses a machine without a GPU; quantizing needs none.
    module.FineGrainedFP8HfQuantizer.validate_environment = lambda *_, **__: None
    return FineGrainedFP8Config()


WRITERS = {"transformers fp8": by_transformers(fine_grained_fp8)}
