"""Quantised models: recorded ones that producers wrote, and layouts that have no producer here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import castwise
from checkpoint_samples import safetensors_file

BITS = {"F4": 4, "F6_E2M3": 6, "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U32": 32, "I32": 32}
BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "BF16": 16, "F16": 16, "F32": 32, "I64": 64}
FLOATS = {"BF16", "F16", "F32"}
FORMATS = {castwise.finfo(name).safetensors: name for name in castwise.formats()}
Tensors = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Model:
    """Headers of a model, the configurations beside it, and what is expected of its weights."""

    tensors: Tensors
    configs: dict[str, Any]
    metadata: dict[str, str]


@cache
def record() -> dict[str, Any]:
    """What real producers wrote, and what models hold that none of them touched."""
    path = Path(__file__).parents[2] / "recorded" / "quantization" / "models.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def recorded(name: str) -> Model:
    """One model that a producer wrote."""
    one = record()["quantised"][name]
    return Model(as_tensors(one["tensors"]), one["configs"], one["metadata"])


def as_tensors(entries: dict[str, Any]) -> Tensors:
    return {name: (code, tuple(shape)) for name, (code, shape) in entries.items()}


def write(folder: Path, model: Model) -> Path:
    """A folder with the model; every element is zero."""
    folder.mkdir(exist_ok=True)
    header: dict[str, Any] = {"__metadata__": model.metadata} if model.metadata else {}
    end = 0
    for name, (code, shape) in model.tensors.items():
        count = BITS[code]
        for axis in shape:
            count *= axis
        begin, end = end, end + count // 8
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
    (folder / "model.safetensors").write_bytes(safetensors_file(header, bytes(end)))
    for name, config in model.configs.items():
        (folder / name).write_text(json.dumps(config), "utf-8")
    return folder


RECORDED = {
    "transformers fp8": ("fp8_block", (128, 128), "deepseek", 7, {"weight_scale_inv"}),
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
    "torchao int8": (
        "int8_channel",
        None,
        "torchao",
        7,
        {"_weight_scale", "_weight_zero_point"},
    ),
    "torchao float8": ("fp8_channel", None, "torchao", 7, {"_weight_scale"}),
    "torchao nvfp4": (
        "nvfp4",
        (1, 16),
        "torchao",
        7,
        {"_weight_scale", "_weight_per_tensor_scale"},
    ),
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
    "mlx affine": ("int4_group", (1, 64), "mlx", 2, {"scales", "biases"}),
    "mlx mxfp4": ("mxfp4", (1, 32), "mlx", 2, {"scales"}),
    "mlx nvfp4": ("nvfp4", (1, 16), "mlx", 2, {"scales"}),
    "comfy nvfp4, marker": (
        "nvfp4",
        (1, 16),
        "comfy",
        1,
        {"weight_scale", "weight_scale_2", "comfy_quant"},
    ),
    "comfy nvfp4, metadata": ("nvfp4", (1, 16), "comfy", 1, {"weight_scale", "weight_scale_2"}),
    "comfy mxfp8, marker": ("mxfp8_e4m3", (1, 32), "comfy", 1, {"weight_scale", "comfy_quant"}),
    "comfy float8_e4m3fn, metadata": ("fp8_tensor", None, "comfy", 1, {"weight_scale"}),
    "keras int8": ("int_channel", None, "keras", 2, {"1", "2"}),
    "keras int4": ("int_group", None, "keras", 2, {"1", "2", "3", "4"}),
}
"""For each recorded model its scheme, block, recipe, number of weights, and what is beside them."""


def stated(**section: Any) -> dict[str, Any]:
    """A config.json that states a method."""
    return {"config.json": {"quantization_config": section}}


FP8 = stated(quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic")
EXPERTS = "model.layers.0.mlp.experts"
LAYOUTS: dict[str, tuple[Model, str | None, tuple[int, ...] | None, str]] = {
    "deepseek, ragged": (
        Model(
            {"a.weight": ("F8_E4M3", (576, 256)), "a.weight_scale_inv": ("F32", (5, 2))}, FP8, {}
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
            FP8,
            {},
        ),
        "fp8_block",
        (128, 128),
        "deepseek",
    ),
    "deepseek, part of a model": (
        Model(
            {"a.weight": ("F8_E4M3", (256, 256)), "a.weight_scale_inv": ("BF16", (2, 2))},
            {"config.json": {"text_config": FP8["config.json"]}},
            {},
        ),
        "fp8_block",
        (128, 128),
        "deepseek",
    ),
    "mxfp8": (
        Model(
            {"a.weight": ("F8_E4M3", (64, 64)), "a.weight_scale_inv": ("U8", (64, 2))},
            stated(quant_method="mxfp8"),
            {},
        ),
        "mxfp8_e4m3",
        (1, 32),
        "deepseek",
    ),
    "deepseek-v4, dense": (
        Model({"a.weight": ("F8_E4M3", (256, 256)), "a.scale": ("F8_E8M0", (2, 2))}, FP8, {}),
        "fp8_block",
        (128, 128),
        "deepseek-v4",
    ),
    "deepseek-v4, experts": (
        Model({"w1.weight": ("I8", (64, 64)), "w1.scale": ("F8_E8M0", (64, 4))}, FP8, {}),
        "mxfp4",
        (1, 32),
        "deepseek-v4",
    ),
    "autofp8": (
        Model(
            {
                "a.weight": ("F8_E4M3", (8, 8)),
                "a.weight_scale": ("F32", ()),
                "a.input_scale": ("F32", ()),
            },
            stated(quant_method="fp8", activation_scheme="static"),
            {},
        ),
        "fp8_tensor",
        None,
        "autofp8",
    ),
    "mistral": (
        Model(
            {
                "a.weight": ("F8_E4M3", (8, 8)),
                "a.qscale_weight": ("F32", ()),
                "a.qscale_act": ("F32", ()),
            },
            {},
            {},
        ),
        "fp8_tensor",
        None,
        "mistral",
    ),
    "fbgemm": (
        Model(
            {"a.weight": ("F8_E4M3", (8, 16)), "a.weight_scale": ("F32", (8, 1))},
            stated(quant_method="fbgemm_fp8"),
            {},
        ),
        "fp8_channel",
        None,
        "fbgemm",
    ),
    "gpt-oss": (
        Model(
            {
                f"{EXPERTS}.down_proj_blocks": ("U8", (2, 64, 2, 16)),
                f"{EXPERTS}.down_proj_scales": ("U8", (2, 64, 2)),
                f"{EXPERTS}.down_proj_bias": ("BF16", (2, 64)),
            },
            stated(quant_method="mxfp4", modules_to_not_convert=["lm_head"]),
            {},
        ),
        "mxfp4",
        (1, 32),
        "gpt-oss",
    ),
    "gpt-oss, of OpenAI": (
        Model(
            {
                "block.0.mlp.mlp1_weight.blocks": ("U8", (2, 64, 2, 16)),
                "block.0.mlp.mlp1_weight.scales": ("U8", (2, 64, 2)),
            },
            {},
            {},
        ),
        "mxfp4",
        (1, 32),
        "gpt-oss",
    ),
    "awq": (
        Model(
            {
                "a.qweight": ("I32", (128, 8)),
                "a.qzeros": ("I32", (2, 8)),
                "a.scales": ("F16", (2, 64)),
            },
            stated(quant_method="awq", bits=4, group_size=64, zero_point=True, version="gemm"),
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
            stated(quant_method="gptq", bits=4, group_size=64),
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
    "compressed-tensors, of several groups": (
        Model(
            {
                "model.a.weight": ("I8", (8, 64)),
                "model.a.weight_scale": ("BF16", (8, 2)),
            },
            stated(
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
    "quark": (
        Model(
            {"a.weight": ("F8_E4M3", (8, 8)), "a.weight_scale": ("F32", ())},
            stated(
                quant_method="quark",
                global_quant_config={"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
            ),
            {},
        ),
        "fp8_tensor",
        None,
        "quark",
    ),
    "comfy, old": (
        Model(
            {
                "model.diffusion_model.scaled_fp8": ("F8_E4M3", (2,)),
                "model.diffusion_model.a.weight": ("F8_E4M3", (8, 8)),
                "model.diffusion_model.a.scale_weight": ("F32", ()),
                "model.diffusion_model.a.scale_input": ("F32", ()),
            },
            {},
            {},
        ),
        "fp8_tensor",
        None,
        "comfy",
    ),
    "keras, by name": (
        Model({"dense/kernel": ("I8", (8, 4)), "dense/kernel_scale": ("F32", (4,))}, {}, {}),
        "int_channel",
        None,
        "keras",
    ),
    "keras, gptq": (
        Model(
            {
                "layers/dense/vars/0": ("F32", (8,)),
                "layers/dense/vars/1": ("U8", (4, 16)),
                "layers/dense/vars/2": ("F32", (8, 2)),
                "layers/dense/vars/3": ("U8", (8, 2)),
                "layers/dense/vars/4": ("F32", (16,)),
            },
            {},
            {},
        ),
        "int_group",
        None,
        "keras",
    ),
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
    "transformer-engine": (
        Model({"a.weight": ("F8_E4M3", (8, 8)), "a._extra_state": ("U8", (100,))}, {}, {}),
        "fp8_tensor",
        None,
        "transformer-engine",
    ),
}
