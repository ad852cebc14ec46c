"""ModelOpt: float8, NVFP4, MXFP4, integers with scaled inputs, banks of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scheme_oracle import pack

from ._decodable import (
    BF16,
    E2M1,
    E4M3,
    Decodable,
    Draw,
    codes_of_nvfp4,
    decoded,
    fp8,
    microscaled,
    powers_of,
    stated,
)
from ._headers import Layouts, Model, Recorded


def modelopt_int4(*, scaled: bool) -> Callable[[], Decodable]:
    """Two rows in a byte, the even one low; inputs may be multiplied by a factor each."""

    def make() -> Decodable:
        draw = Draw()
        codes, scale = draw.codes(4, 26, 96), draw.scales(26, 3)
        plain = decoded((codes.astype(np.int8) ^ 8) - 8, scale, (1, 32), np.float32)
        tensors = {"a.weight": codes[::2] | codes[1::2] << 4, "a.weight_scale": scale}
        if scaled:
            tensors["a.pre_quant_scale"] = draw.scales(96, dtype=BF16)
            plain = plain * tensors["a.pre_quant_scale"].astype(np.float32)
        section = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 32}
        return Decodable(tensors, {"a.weight": plain.astype(BF16)}, stated(**section))

    return make


def modelopt_w4a8(*, scaled: bool) -> Callable[[], Decodable]:
    """Integers times scales become bfloat16, then float8 times a scale, then bfloat16 again."""

    def make() -> Decodable:
        made, level = modelopt_int4(scaled=scaled)(), np.float32(0.0003)
        factor = made.tensors.get("a.pre_quant_scale", np.ones(96, BF16)).astype(np.float32)
        draw = Draw()
        codes, scale = draw.codes(4, 26, 96), draw.scales(26, 3)
        plain = decoded((codes.astype(np.int8) ^ 8) - 8, scale, (1, 32)).astype(np.float32)
        # As torch divides a number by a tensor: with a reciprocal.
        up = np.float32(1) / (np.float32(448) * level) * np.float32(448)
        rounded = np.clip(plain * up, -448, 448).astype(E4M3).astype(np.float32)
        twice = (rounded * (np.float32(1) / up)).astype(BF16).astype(np.float32)
        assert (twice != plain).any()
        assert (np.abs(plain * up) > 448).any()
        made.tensors["a.weight_scale_2"] = level.reshape(())
        made.tensors["a.input_scale"] = level.reshape(())
        made.plain = {"a.weight": (twice * factor).astype(BF16)}
        made.config["quantization_config"]["quant_algo"] = "W4A8_AWQ"
        return made

    return make


def modelopt_int8() -> Decodable:
    """Inputs are multiplied by a factor each, and so are the columns of the plain weight."""
    draw = Draw()
    weight, scale, factor = draw.codes(8, 12, 64).view(np.int8), draw.scales(12), draw.scales(64)
    plain = decoded(weight, scale[:, None], (1, 0), np.float32) * factor
    return Decodable(
        {"a.weight": weight, "a.weight_scale": scale, "a.pre_quant_scale": factor},
        {"a.weight": plain.astype(BF16)},
        stated(quant_method="modelopt", quant_algo="W8A8_SQ_PER_CHANNEL"),
    )


def modelopt_blocks() -> Decodable:
    """Scales have the axes inside of blocks; only a user states how many elements those are."""
    made = fp8((192, 320), Draw().scales(2, 3), (128, 128), beside="a.weight_scale")
    made.tensors["a.weight_scale"] = made.tensors["a.weight_scale"][:, None, :, None]
    section = {"quant_algo": "fp8_pb_wo", "weight_block_size": [128, 128]}
    made.config = stated(quant_method="modelopt", **section)
    return made


def nvfp4(size: int = 16) -> Callable[[], Decodable]:
    def make() -> Decodable:
        codes, scale, second = codes_of_nvfp4(size)
        second = (1 / second).reshape(())
        values = codes.view(E2M1).astype(np.float32) + np.float32(0)  # no -0 among ModelOpt's
        tensors = {"a.weight": pack(codes, 4), "a.weight_scale": scale, "a.weight_scale_2": second}
        tensors["a.input_scale"] = second
        # That of 32 is for engines that multiply in float8.
        section = {"quant_algo": {16: "NVFP4", 32: "W4A8_NVFP4_FP8"}[size], "group_size": size}
        plain = decoded(values, scale.astype(np.float32) * second, (1, size))
        return Decodable(
            tensors,
            {"a.weight": plain},
            stated(quant_method="modelopt", **section),
            {"hf_quant_config.json": {"quantization": section}},
        )

    return make


def mxfp4() -> Decodable:
    packed, scale, plain = microscaled(4)
    return Decodable(
        {"a.weight": packed, "a.weight_scale": scale},
        {"a.weight": plain},
        stated(quant_method="modelopt", quant_algo="W4A8_MXFP4_FP8", group_size=32),
    )


def modelopt_experts(scheme: str, *, megatron: bool = False) -> Callable[[], Decodable]:
    """Experts of Llama 4 and gpt-oss, (experts, in, out): NVFP4 alone lies along the inputs."""

    def make() -> Decodable:
        draw, shape, name = Draw(), (3, 64, 96), "mlp.experts.gate_up_proj"
        second, more = np.float32(0.01).reshape(()), {}
        algorithm, values = "FP8", draw.float8(*shape)
        raw = scale = draw.scales() if scheme == "tensor" else draw.scales(3)
        stored, block = values, (0, 0)
        if scheme == "nvfp4":
            turn = (0, 1, 2) if megatron else (0, 2, 1)
            codes, raw = draw.codes(4, 3, 96, 64), np.abs(draw.float8(3, 96, 4).view(np.int8))
            scale = raw.view(E4M3).astype(np.float32) * second
            algorithm, raw = "NVFP4", np.ascontiguousarray(raw.view(E4M3).transpose(turn))
            stored = np.ascontiguousarray(pack(codes, 4).transpose(turn))
            values, block = codes.view(E2M1).astype(np.float32) + np.float32(0), (1, 16)
            more[f"{name}_weight_scale_2"] = second
        elif scheme in ("mxfp4", "mxfp8"):
            raw, block = draw.powers(3, 64, 3), (1, 32)
            algorithm, scale = {"mxfp4": "W4A8_MXFP4_FP8", "mxfp8": "MXFP8"}[scheme], powers_of(raw)
            if scheme == "mxfp4":
                codes = draw.codes(4, *shape)
                stored, values = pack(codes, 4), codes.view(E2M1)
        each = np.broadcast_to(scale.reshape(-1, 1, 1), (3, 1, 1)) if block == (0, 0) else scale
        plain = decoded(values.astype(np.float32), each, block)
        if scheme == "nvfp4" and not megatron:
            plain = np.ascontiguousarray(plain.swapaxes(1, 2))
        tensors = {name: stored, f"{name}_weight_scale": raw, f"{name}_input_scale": second, **more}
        section: dict[str, Any] = {"quant_algo": algorithm}
        if all(block):
            section["group_size"] = block[1]
        if scheme == "each":
            section["quant_algo"] = "FP8_PER_CHANNEL_PER_TOKEN"
        return Decodable(
            tensors,
            {name: plain},
            stated(quant_method="modelopt", **section),
            {"hf_quant_config.json": {"quantization": section}},
        )

    return make


MODELS: dict[str, Callable[[], Decodable]] = {
    "modelopt, nvfp4": nvfp4(),
    "modelopt, nvfp4 in blocks of 32": nvfp4(32),
    "modelopt, int4": modelopt_int4(scaled=False),
    "modelopt, int4, scaled inputs": modelopt_int4(scaled=True),
    "modelopt, w4a8, scaled inputs": modelopt_w4a8(scaled=True),
    "modelopt, int8, scaled inputs": modelopt_int8,
    "modelopt, blocks": modelopt_blocks,
    "modelopt, mxfp4": mxfp4,
    **{f"modelopt, experts of {one}": modelopt_experts(one) for one in ("nvfp4", "each")},
}


MORE: dict[str, Callable[[], Decodable]] = {
    **{
        f"modelopt, experts of {one}": modelopt_experts(one) for one in ("mxfp4", "mxfp8", "tensor")
    },
    "modelopt, experts of nvfp4, (out, in)": modelopt_experts("nvfp4", megatron=True),
    "modelopt, w4a8": modelopt_w4a8(scaled=False),
}


LAYOUTS: Layouts = {
    "modelopt, mixed": (
        Model(
            {
                "a.weight": ("U8", (16, 32)),
                "a.weight_scale": ("F8_E4M3", (16, 4)),
                "a.weight_scale_2": ("F32", ()),
            },
            {
                "hf_quant_config.json": {
                    "quantization": {
                        "quant_algo": "MIXED_PRECISION",
                        "quantized_layers": {"a": {"quant_algo": "NVFP4", "group_size": 16}},
                    }
                }
            },
            {},
        ),
        "nvfp4",
        (1, 16),
        "modelopt",
    ),
    "modelopt, for ComfyUI": (
        Model(
            {
                "a.weight": ("U8", (32, 32)),
                "a.weight_scale": ("F8_E4M3", (128, 4)),
                "a.weight_scale_2": ("F32", ()),
            },
            {},
            {
                "quantization_config": '{"quant_method": "modelopt", "quant_algo": "NVFP4"}',
                "_quantization_metadata": '{"layers": {"a": {"format": "nvfp4"}}}',
            },
        ),
        "nvfp4",
        None,
        "modelopt comfy",
    ),
}


RECORDED: Recorded = {
    **{
        f"modelopt {algorithm}": (scheme, block, "modelopt", 7, parts)
        for algorithm, scheme, block, parts in (
            ("FP8_DEFAULT", "fp8_tensor", None, {"weight_scale", "input_scale"}),
            ("FP8_PER_CHANNEL_PER_TOKEN", "fp8_channel", None, {"weight_scale"}),
            ("FP8_2D_BLOCKWISE_WEIGHT_ONLY", "fp8_block", None, {"weight_scale"}),
            (
                "NVFP4_DEFAULT",
                "nvfp4",
                (1, 16),
                {"weight_scale", "weight_scale_2", "input_scale"},
            ),
            (
                "W4A8_NVFP4_FP8",
                "nvfp4",
                (1, 32),
                {"weight_scale", "weight_scale_2", "input_scale"},
            ),
            ("MXFP8_DEFAULT", "mxfp8_e4m3", (1, 32), {"weight_scale"}),
            ("INT4_AWQ", "int4_group", (1, 128), {"weight_scale", "pre_quant_scale"}),
            (
                "W4A8_AWQ_BETA",
                "int4_group",
                (1, 128),
                {"weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale"},
            ),
            (
                "INT8_SMOOTHQUANT",
                "int8_channel",
                None,
                {"weight_scale", "input_scale", "pre_quant_scale"},
            ),
            ("W4A8_MXFP4_FP8", "mxfp4", (1, 32), {"weight_scale"}),
        )
    },
}
