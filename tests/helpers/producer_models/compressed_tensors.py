"""compressed-tensors: float8, integers, words of 2 to 8 bits, MX and NVFP4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scheme_oracle import pack, pack_padded, spread, words

from ._decodable import (
    BF16,
    E2M1,
    Array,
    Decodable,
    Draw,
    codes_of_nvfp4,
    decoded,
    fp8,
    microscaled,
    stated,
)
from ._headers import Layouts, Model, Recorded, in_config


def experts_of_one_scale(*axes: int) -> Callable[[], Decodable]:
    """Each expert has one scale."""

    def make() -> Decodable:
        made = fp8((3, 24, 20), Draw().scales(3, 1, 1), (0, 0), beside="a.weight_scale")
        made.tensors["a.weight_scale"] = made.tensors["a.weight_scale"].reshape(3, *axes)
        made.config = compressed("float", 8, "tensor")
        return made

    return make


def compressed(kind: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return stated(quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head"])


def compressed_float8(
    strategy: str, grid: tuple[int, ...], block: tuple[int, int], **more: Any
) -> Callable[[], Decodable]:
    def make() -> Decodable:
        scale = Draw().scales(*grid, dtype=BF16)
        made = fp8((136, 132), scale.reshape(-1, grid[-1]), block)
        weight, _ = made.tensors.values()
        made.tensors = {"a.weight": weight, "a.weight_scale": scale}
        made.config = compressed("float", 8, strategy, **more)
        return made

    return make


def compressed_int8() -> Decodable:
    draw = Draw()
    weight = draw.codes(8, 12, 64).view(np.int8)
    scale, zero = draw.scales(12, 2, dtype=BF16), draw.codes(8, 12, 2).view(np.int8)
    zeros = spread(zero.astype(np.float32), weight.shape, (1, 32))
    return Decodable(
        {"a.weight": weight, "a.weight_scale": scale, "a.weight_zero_point": zero},
        {"a.weight": decoded(weight, scale, (1, 32), zero=zeros)},
        compressed("int", 8, "group", group_size=32, symmetric=False),
    )


def packed_words(
    bits: int, *, rows: int = 40, zero: bool = False, old: bool = False, experts: int = 0
) -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw, columns, group = Draw(bits), 160, 32
        put = pack_padded if old else lambda codes, bits: words(pack(codes, bits))
        stack = (experts,) if experts else ()
        codes = draw.codes(bits, *stack, rows, columns)
        scale = draw.scales(*stack, rows, columns // group, dtype=BF16)
        values = codes.astype(np.int32) - (1 << (bits - 1))
        tensors = {
            "a.weight_packed": put(codes, bits),
            "a.weight_scale": scale,
            "a.weight_shape": np.array([*stack, rows, columns], np.int64),
        }
        more: dict[str, Any] = {}
        if zero:
            zeros = draw.codes(bits, rows, columns // group)
            tensors["a.weight_zero_point"] = np.ascontiguousarray(put(zeros.T, bits).T)
            unsigned = zeros.astype(np.float32) - (1 << (bits - 1))
            more["zero"] = spread(unsigned, values.shape, (1, group))
        config = compressed("int", bits, "group", group_size=group, symmetric=not zero)
        return Decodable(tensors, {"a.weight": decoded(values, scale, (1, group), **more)}, config)

    return make


def packed_in_order_of_activations() -> Decodable:
    made = packed_words(4)()
    codes = Draw(4).codes(4, 40, 160)
    index = np.random.default_rng(5).permutation(160).astype(np.int32) // 32
    made.tensors["a.weight_g_idx"] = index
    scale = made.tensors["a.weight_scale"].astype(np.float32)[:, index]
    values = codes.astype(np.float32) - 8
    made.plain = {"a.weight": (values * scale).astype(BF16)}
    made.config = compressed("int", 4, "group", group_size=32, actorder="group")
    return made


def nvfp4() -> Decodable:
    codes, scale, second = codes_of_nvfp4()
    tensors = {
        "a.weight_packed": pack(codes, 4),
        "a.weight_scale": scale,
        "a.weight_global_scale": second,
        "a.input_global_scale": second,
    }
    values, effective = codes.view(E2M1).astype(np.float32), scale.astype(np.float32) / second
    config = compressed("float", 4, "tensor_group", group_size=16)
    return Decodable(tensors, {"a.weight": decoded(values, effective, (1, 16))}, config)


def mx(bits: int) -> Callable[[], Decodable]:
    def make() -> Decodable:
        packed, scale, plain = microscaled(bits)
        return Decodable(
            {"a.weight_packed": packed, "a.weight_scale": scale},
            {"a.weight": plain},
            compressed("float", bits, "group", group_size=32, scale_dtype="torch.uint8"),
        )

    return make


def mxfp4(raw: Array, codes: Array | None = None, seed: int = 0) -> dict[str, Array]:
    """Make a weight of compressed-tensors with these powers of two."""
    if codes is None:
        codes = Draw(seed).codes(4, raw.shape[0], raw.shape[1] * 32)
    return {"weight_packed": pack(codes, 4), "weight_scale": raw}


def model_of_mxfp4(**weights: dict[str, Array]) -> Decodable:
    tensors = {f"{name}.{key}": one for name, some in weights.items() for key, one in some.items()}
    section = compressed("float", 4, "group", group_size=32, scale_dtype="torch.uint8")
    return Decodable(tensors, {}, section)


MODELS: dict[str, Callable[[], Decodable]] = {
    **{f"experts of one scale, {len(a)} more axes": experts_of_one_scale(*a) for a in ((), (1,))},
    "compressed-tensors, float8 tensor": compressed_float8("tensor", (1,), (0, 0)),
    "compressed-tensors, float8 channel": compressed_float8("channel", (136, 1), (1, 0)),
    "compressed-tensors, float8 block": compressed_float8(
        "block", (2, 2), (128, 128), block_structure=[128, 128]
    ),
    "compressed-tensors, float8 group": compressed_float8(
        "group", (136, 3), (1, 44), group_size=44
    ),
    "compressed-tensors, int8": compressed_int8,
    **{f"compressed-tensors, words of {b}": packed_words(b) for b in range(2, 9)},
    **{
        f"compressed-tensors, words of {b}, as of old": packed_words(b, old=True)
        for b in (3, 4, 5, 6, 7)
    },
    **{
        f"compressed-tensors, words of {b}, zero points": packed_words(b, zero=True)
        for b in (2, 3, 4, 8)
    },
    "compressed-tensors, words of 3, as of old, zero points": packed_words(3, zero=True, old=True),
    "compressed-tensors, words of 4, few rows": packed_words(4, rows=5, zero=True),
    "compressed-tensors, words of 4, experts": packed_words(4, experts=3),
    "compressed-tensors, order of activations": packed_in_order_of_activations,
    "compressed-tensors, nvfp4": nvfp4,
    "compressed-tensors, mxfp4": mx(4),
    "compressed-tensors, mxfp6": mx(6),
}


LAYOUTS: Layouts = {
    "compressed-tensors, of several groups": (
        Model(
            {
                "model.a.weight": ("I8", (8, 64)),
                "model.a.weight_scale": ("BF16", (8, 2)),
            },
            in_config(
                quant_method="compressed-tensors",
                format="mixed-precision",
                config_groups={
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                    },
                    "group_1": {
                        "targets": [r"re:.*\.a"],
                        "weights": {
                            "num_bits": 4,
                            "type": "int",
                            "strategy": "group",
                            "group_size": 32,
                        },
                    },
                },
            ),
            {},
        ),
        "int4_group",
        (1, 32),
        "compressed-tensors",
    ),
    "compressed-tensors, older key": (
        Model(
            {"a.weight": ("F8_E4M3", (8, 8)), "a.weight_scale": ("F32", (1,))},
            {"config.json": {"compression_config": {"format": "float-quantized"}}},
            {},
        ),
        "fp8_tensor",
        None,
        "compressed-tensors",
    ),
}


RECORDED: Recorded = {
    **{
        f"compressed-tensors {preset}": (scheme, block, "compressed-tensors", 7, parts)
        for preset, scheme, block, parts in (
            (
                "W4A16_ASYM",
                "int4_group",
                (1, 128),
                {"weight_scale", "weight_shape", "weight_zero_point"},
            ),
            ("W8A8", "int8_channel", None, {"weight_scale"}),
            ("W4AFP8", "int4_group", (1, 128), {"weight_scale"}),
            ("FP8", "fp8_tensor", None, {"weight_scale", "input_scale"}),
            ("FP8_DYNAMIC", "fp8_channel", None, {"weight_scale"}),
            ("FP8_BLOCK", "fp8_block", (128, 128), {"weight_scale"}),
            (
                "NVFP4",
                "nvfp4",
                (1, 16),
                {"weight_scale", "weight_global_scale", "input_global_scale"},
            ),
            ("MXFP4", "mxfp4", (1, 32), {"weight_scale"}),
            ("MXFP6A16", "mxfp6_e2m3", (1, 32), {"weight_scale"}),
            ("MXFP8", "mxfp8_e4m3", (1, 32), {"weight_scale"}),
            ("W3A16", "int3_group", (1, 128), {"weight_scale", "weight_shape"}),
            ("W8A16", "int8_group", (1, 128), {"weight_scale", "weight_shape"}),
        )
    },
}
