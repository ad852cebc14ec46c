"""DeepSeek's float8 in blocks and what names its scales so: MXFP8, one inverse, DeepSeek V4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scheme_oracle import pack

from ._decodable import BF16, E2M1, E8M0, Decodable, Draw, decoded, fp8, powers_of, stated
from ._headers import EXPERTS, Layouts, Model, Recorded, in_config


def deepseek(dtype: Any) -> Callable[[], Decodable]:
    return lambda: fp8((576, 260), Draw().scales(5, 3, dtype=dtype), (128, 128))


def deepseek_powers() -> Decodable:
    return fp8((200, 100), Draw().powers(2, 1).view(E8M0), (128, 128))


def experts_of_float8() -> Decodable:
    names = {"weight": "mlp.experts.gate_up_proj", "beside": "mlp.experts.gate_up_proj_scale_inv"}
    return fp8((3, 200, 130), Draw().scales(3, 2, 2), (128, 128), **names)


def mxfp8() -> Decodable:
    made = fp8((8, 96), Draw().powers(8, 3), (1, 32))
    made.config = stated(quant_method="mxfp8")
    return made


def scalar_inverse() -> Decodable:
    made = fp8((8, 16), Draw().scales(), (0, 0))
    made.tensors["a.activation_scale"] = np.float32(2).reshape(())
    return made


def deepseek_v4() -> Decodable:
    draw = Draw()
    codes, scale = draw.codes(4, 40, 64), draw.powers(40, 2)
    made = fp8((200, 100), draw.powers(2, 1).view(E8M0), (128, 128), beside="a.scale")
    made.tensors |= {"w1.weight": pack(codes, 4).view(np.int8), "w1.scale": scale.view(E8M0)}
    values = codes.view(E2M1).astype(np.float32)
    made.plain["w1.weight"] = decoded(values, powers_of(scale), (1, 32))
    return made


def two_weights() -> Decodable:
    """Make the first model with a second weight."""
    model = deepseek(np.float32)()
    for tensors in (model.tensors, model.plain):
        tensors |= {f"b{name[1:]}": array for name, array in tensors.items()}
    return model


BLOCKS_OF_128 = in_config(
    quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic"
)


MODELS: dict[str, Callable[[], Decodable]] = {
    **{
        f"deepseek, scales of {np.dtype(d).name}": deepseek(d)
        for d in (np.float32, BF16, np.float16)
    },
    "deepseek, powers of two": deepseek_powers,
    "deepseek, experts": experts_of_float8,
    "mxfp8": mxfp8,
    "a scalar as inverse": scalar_inverse,
    "deepseek-v4": deepseek_v4,
}


LAYOUTS: Layouts = {
    "deepseek, ragged": (
        Model(
            {"a.weight": ("F8_E4M3", (576, 256)), "a.weight_scale_inv": ("F32", (5, 2))},
            BLOCKS_OF_128,
            {},
        ),
        "fp8_block",
        (128, 128),
        "deepseek",
    ),
    "deepseek, experts fused": (
        Model(
            {
                f"{EXPERTS}.gate_up_proj": ("F8_E4M3", (4, 256, 128)),
                f"{EXPERTS}.gate_up_proj_scale_inv": ("F32", (4, 2, 1)),
            },
            BLOCKS_OF_128,
            {},
        ),
        "fp8_block",
        (128, 128),
        "deepseek",
    ),
    "deepseek, part of a model": (
        Model(
            {"a.weight": ("F8_E4M3", (256, 256)), "a.weight_scale_inv": ("BF16", (2, 2))},
            {"config.json": {"text_config": BLOCKS_OF_128["config.json"]}},
            {},
        ),
        "fp8_block",
        (128, 128),
        "deepseek",
    ),
    "mxfp8": (
        Model(
            {"a.weight": ("F8_E4M3", (64, 64)), "a.weight_scale_inv": ("U8", (64, 2))},
            in_config(quant_method="mxfp8"),
            {},
        ),
        "mxfp8_e4m3",
        (1, 32),
        "deepseek",
    ),
    "deepseek-v4, dense": (
        Model(
            {"a.weight": ("F8_E4M3", (256, 256)), "a.scale": ("F8_E8M0", (2, 2))}, BLOCKS_OF_128, {}
        ),
        "fp8_block",
        (128, 128),
        "deepseek-v4",
    ),
    "deepseek-v4, experts": (
        Model({"w1.weight": ("I8", (64, 64)), "w1.scale": ("F8_E8M0", (64, 4))}, BLOCKS_OF_128, {}),
        "mxfp4",
        (1, 32),
        "deepseek-v4",
    ),
}


RECORDED: Recorded = {
    "transformers fp8": ("fp8_block", (128, 128), "deepseek", 7, {"weight_scale_inv"}),
}
