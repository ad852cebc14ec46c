"""bitsandbytes: codes by a table, and int8."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from ._decodable import BF16, Array, Decodable, Draw, stated
from ._headers import Layouts, Model, Recorded


def bitsandbytes(kind: str, *, nested: bool) -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw, shape, size = Draw(), (33, 70), 64
        count = shape[0] * shape[1]
        blocks = -(-count // size)
        table = np.sort(np.random.default_rng(2).uniform(-1, 1, 16)).astype(np.float32)
        codes = draw.codes(4, count)
        pairs = np.pad(codes, (0, count % 2)).reshape(-1, 2)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": size, "shape": list(shape)}
        tensors = {"a.weight": (pairs[:, 0] << 4 | pairs[:, 1]).reshape(-1, 1)}
        scale: Array = draw.scales(blocks)
        if nested:
            raw, outer = draw.codes(8, blocks), draw.scales(-(-blocks // 16))
            inner = np.random.default_rng(4).uniform(-1, 1, 256).astype(np.float32)
            state |= {"nested_blocksize": 16, "nested_offset": 0.25}
            scale = inner[raw] * np.repeat(outer, 16)[:blocks] + np.float32(0.25)
            tensors |= {"a.weight.absmax": raw, "a.weight.nested_absmax": outer}
            tensors["a.weight.nested_quant_map"] = inner
        else:
            tensors["a.weight.absmax"] = scale
        text = json.dumps(state).encode()
        tensors[f"a.weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(text, np.uint8)
        tensors["a.weight.quant_map"] = table
        values = table[codes] * np.repeat(scale, size)[:count]
        config = stated(quant_method="bitsandbytes", load_in_4bit=True)
        return Decodable(tensors, {"a.weight": values.astype(BF16).reshape(shape)}, config)

    return make


def bitsandbytes_int8() -> Decodable:
    draw = Draw()
    weight, scale = draw.codes(8, 12, 20).view(np.int8), draw.scales(12)
    product = weight.astype(np.float32) * scale[:, None]
    plain = (product * np.float32(7.874015718698502e-3)).astype(BF16)
    layout = np.zeros((), np.uint8)
    return Decodable(
        {"a.weight": weight, "a.SCB": scale, "a.weight_format": layout},
        {"a.weight": plain},
        stated(quant_method="bitsandbytes", load_in_8bit=True),
    )


MODELS: dict[str, Callable[[], Decodable]] = {
    "bitsandbytes, nf4": bitsandbytes("nf4", nested=False),
    "bitsandbytes, nf4, nested": bitsandbytes("nf4", nested=True),
    "bitsandbytes, fp4": bitsandbytes("fp4", nested=False),
    "bitsandbytes, int8": bitsandbytes_int8,
}


LAYOUTS: Layouts = {
    "bitsandbytes, in words of floats": (
        Model(
            {
                "a.weight": ("BF16", (64, 1)),
                "a.weight.absmax": ("F32", (4,)),
                "a.weight.quant_map": ("F32", (16,)),
                "a.weight.quant_state.bitsandbytes__nf4": ("U8", (80,)),
            },
            {},
            {},
        ),
        "bnb_nf4",
        None,
        "bitsandbytes",
    ),
}


RECORDED: Recorded = {
    "bitsandbytes nf4": (
        "bnb_nf4",
        None,
        "bitsandbytes",
        7,
        {"absmax", "bitsandbytes__nf4", "quant_map", "nested_absmax", "nested_quant_map"},
    ),
    "bitsandbytes fp4": (
        "bnb_fp4",
        None,
        "bitsandbytes",
        7,
        {"absmax", "bitsandbytes__fp4", "quant_map"},
    ),
    "bitsandbytes int8": ("int8_channel", None, "bitsandbytes", 7, {"SCB", "weight_format"}),
}
