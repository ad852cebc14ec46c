"""AWQ and GPTQ: integers with zero points, transposed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scheme_oracle import pack, spread, words

from ._decodable import BF16, Array, Decodable, Draw, decoded, stated
from ._headers import Layouts, Model, in_config

AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def awq() -> Decodable:
    draw, inputs, outputs, group = Draw(), 128, 48, 64
    codes, zeros = draw.codes(4, inputs, outputs), draw.codes(4, inputs // group, outputs)
    scale = draw.scales(inputs // group, outputs, dtype=np.float16)

    def put(values: Array) -> Array:
        return words(pack(values.reshape(len(values), -1, 8)[..., AWQ].reshape(values.shape), 4))

    spread_zeros = spread(zeros.astype(np.float32), codes.shape, (group, 1))
    plain = decoded(codes, scale, (group, 1), zero=spread_zeros)
    return Decodable(
        {"a.qweight": put(codes), "a.qzeros": put(zeros), "a.scales": scale},
        {"a.weight": np.ascontiguousarray(plain.T)},
        stated(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm"),
    )


def gptq(
    bits: int,
    form: str | None = None,
    *,
    reordered: bool = False,
    centered: bool = False,
    group: int = 32,
) -> Callable[[], Decodable]:
    """Make integers with a zero point for each group of inputs; a group of 128 is a column."""

    def make() -> Decodable:
        draw, inputs, outputs = Draw(bits), 128, 64
        codes, zeros = draw.codes(bits, inputs, outputs), draw.codes(bits, inputs // group, outputs)
        if centered:
            zeros[...] = 1 << (bits - 1)
        scale = draw.scales(inputs // group, outputs, dtype=np.float16)
        index = np.arange(inputs, dtype=np.int32) // group
        if reordered:
            index = np.random.default_rng(3).permutation(index)
        kept = zeros if form == "gptq_v2" else (zeros - 1) & ((1 << bits) - 1)
        with np.errstate(all="raise"):
            difference = codes.astype(np.float32) - zeros.astype(np.float32)[index]
            plain = (difference * scale.astype(np.float32)[index]).astype(BF16)
        size = -1 if group == inputs else group
        section = {"bits": bits, "group_size": size, "desc_act": reordered}
        if form is not None:
            section["checkpoint_format"] = form
        return Decodable(
            {
                "a.qweight": np.ascontiguousarray(words(pack(codes.T, bits)).T),
                "a.qzeros": words(pack(kept, bits)),
                "a.scales": scale,
                "a.g_idx": index,
            },
            {"a.weight": np.ascontiguousarray(plain.T)},
            stated(quant_method="gptq", **section),
            {"quantize_config.json": section},
        )

    return make


MODELS: dict[str, Callable[[], Decodable]] = {
    "awq": awq,
    **{f"gptq, {b} bits": gptq(b) for b in (2, 3, 4, 8)},
    "gptq, v2": gptq(4, "gptq_v2"),
    "gptq, order of activations": gptq(4, reordered=True),
}


LAYOUTS: Layouts = {
    "awq": (
        Model(
            {
                "a.qweight": ("I32", (128, 8)),
                "a.qzeros": ("I32", (2, 8)),
                "a.scales": ("F16", (2, 64)),
            },
            in_config(quant_method="awq", bits=4, group_size=64, zero_point=True, version="gemm"),
            {},
        ),
        "int4_group",
        (1, 64),
        "awq",
    ),
    "awq, by shapes": (
        Model({"a.qweight": ("I32", (128, 8)), "a.scales": ("F16", (2, 64))}, {}, {}),
        "int4_group",
        None,
        "awq",
    ),
    "gptq": (
        Model(
            {
                "a.qweight": ("I32", (16, 64)),
                "a.qzeros": ("I32", (2, 8)),
                "a.scales": ("F16", (2, 64)),
                "a.g_idx": ("I32", (128,)),
            },
            in_config(quant_method="gptq", bits=4, group_size=64),
            {},
        ),
        "int4_group",
        (1, 64),
        "gptq",
    ),
    "gptq, whole columns, in a file of its own": (
        Model(
            {"a.qweight": ("I32", (32, 64)), "a.scales": ("F16", (1, 64))},
            {"quantize_config.json": {"bits": 8, "group_size": -1}},
            {},
        ),
        "int8_channel",
        None,
        "gptq",
    ),
    "gptq, by shapes": (
        Model({"a.qweight": ("I32", (16, 64)), "a.scales": ("F16", (2, 64))}, {}, {}),
        "int_group",
        None,
        "gptq",
    ),
}


TRANSCODABLE: dict[str, tuple[Callable[[], Decodable], int, int]] = {
    "awq": (awq, 4, 64),
    "gptq": (gptq(4), 4, 32),
    "gptq, 8 bits": (gptq(8), 8, 32),
    "gptq, v2": (gptq(4, "gptq_v2"), 4, 32),
    "gptq, 8 bits, v2": (gptq(8, "gptq_v2"), 8, 32),
    "gptq, symmetric": (gptq(4, centered=True), 4, 32),
    "gptq, 8 bits, symmetric, v2": (gptq(8, "gptq_v2", centered=True), 8, 32),
    "gptq, reordered": (gptq(4, reordered=True), 4, 32),
    "gptq, reordered, symmetric": (gptq(8, reordered=True, centered=True), 8, 32),
    "gptq, whole columns": (gptq(4, group=128), 4, 128),
    "gptq, whole columns, symmetric": (gptq(8, group=128, centered=True), 8, 128),
}
"""For each model its bits and the inputs of a group."""
