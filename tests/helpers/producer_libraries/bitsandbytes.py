# ruff: noqa: PLC0415 - each library is imported by what needs it
"""bitsandbytes: what it writes for a weight, decodes from it, and saves of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scheme_oracle import Array

from ._arrays import Parts, Producer, array, arrays, tensor
from ._llama import by_transformers


def bitsandbytes_4bit(x: Array, kind: str) -> tuple[Parts, Array | None]:
    import bitsandbytes.functional as bnb

    codes, state = bnb.quantize_4bit(tensor(x), quant_type=kind)
    decoded = bnb.dequantize_4bit(codes, state)
    parts = {"weight": codes, "weight.absmax": state.absmax, "weight.quant_map": state.code}
    return arrays(parts), array(decoded)


def bitsandbytes_nested(x: Array, kind: str) -> tuple[Parts, Array]:
    """With statistics that are quantized themselves, as files hold them."""
    import bitsandbytes.functional as bnb

    codes, state = bnb.quantize_4bit(tensor(x), quant_type=kind, compress_statistics=True)
    decoded = bnb.dequantize_4bit(codes, state)
    stored = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    return arrays({"weight": codes, **stored}), array(decoded)


def bitsandbytes_int8(x: Array) -> tuple[Parts, Array | None]:
    import bitsandbytes.functional as bnb

    codes, stats, _ = bnb.int8_vectorwise_quant(tensor(x))
    decoded = bnb.int8_vectorwise_dequant(codes, stats)
    return arrays({"weight": codes, "SCB": stats}), array(decoded)


SCHEMES = {
    **{
        kind: Producer(
            f"bnb_{kind}",
            "",
            partial(bitsandbytes_4bit, kind=kind),
            dtypes=("float32", "bfloat16", "float16"),
        )
        for kind in ("nf4", "fp4")
    },
    "int8": Producer("int8_channel", "", bitsandbytes_int8, dtypes=("float16",)),
}


def bits_and_bytes(**options: Any) -> Callable[[], Any]:
    def make() -> Any:
        from transformers import BitsAndBytesConfig

        return BitsAndBytesConfig(**options)

    return make


WRITERS = {
    "bitsandbytes nf4": by_transformers(
        bits_and_bytes(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    ),
    "bitsandbytes fp4": by_transformers(bits_and_bytes(load_in_4bit=True)),
    "bitsandbytes int8": by_transformers(bits_and_bytes(load_in_8bit=True)),
}
