# ruff: noqa: PLC0415 - each library is imported by what needs it
"""ModelOpt: what it writes for a weight, decodes from it, and saves of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scheme_oracle import Array

from ._arrays import FLOATS, Parts, Producer, array, arrays, tensor
from ._llama import llama


def modelopt_nvfp4(x: Array) -> tuple[Parts, Array | None]:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    weight = tensor(x)
    found, scale, second = NVFP4QTensor.quantize(weight, 16)
    decoded = found.dequantize(
        dtype=weight.dtype, scale=scale, double_scale=second, block_sizes={-1: 16}
    )
    parts = {"weight": found._quantized_data, "weight_scale": scale, "weight_scale_2": second}
    return arrays(parts), array(decoded)


def modelopt_mx(x: Array, scheme: str) -> tuple[Parts, Array | None]:
    from modelopt.torch.quantization.qtensor import MXFP8QTensor
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor

    weight = tensor(x)
    if scheme == "mxfp4":
        found, scale = MXFP4QTensor.quantize(weight, 32)
        scale = scale.reshape(*weight.shape[:-1], -1)
        decoded = found.dequantize(dtype=weight.dtype, scale=scale, block_sizes={-1: 32})
    else:
        found, scale = MXFP8QTensor.quantize(weight)
        decoded = found.dequantize(dtype=weight.dtype, scale=scale)
    return arrays({"weight": found._quantized_data, "weight_scale": scale}), array(decoded)


def modelopt_scale(weight: torch.Tensor, **config: Any) -> torch.Tensor:
    """The scale that is exported of a weight whose quantizer saw nothing else."""
    from modelopt.torch.export.quant_utils import get_scaling_factor
    from modelopt.torch.quantization.config import QuantizerAttributeConfig
    from modelopt.torch.quantization.nn import TensorQuantizer

    quantizer = TensorQuantizer(QuantizerAttributeConfig(**config))
    quantizer.disable_quant()
    quantizer.enable_calib()
    quantizer(weight)
    quantizer.load_calib_amax()
    return get_scaling_factor(quantizer)


def modelopt_fp8(x: Array, strategy: str) -> tuple[Parts, Array | None]:
    from modelopt.torch.export.quant_utils import to_quantized_weight

    weight = tensor(x)
    config = {"channel": {"axis": 0}, "block": {"block_sizes": {-1: 128, -2: 128}}}
    if strategy == "FP8":
        scale = weight.abs().amax().float() / 448.0
    else:
        scale = modelopt_scale(weight, num_bits=(4, 3), **config[strategy])
    name = {"FP8": "fp8", "channel": "fp8_pc_pt", "block": "fp8_pb_wo"}[strategy]
    codes = to_quantized_weight(weight, scale, name, block_size=128)
    wide = scale[:, None] if strategy == "channel" else scale
    if strategy == "block":
        wide = scale.repeat_interleave(128, 1).repeat_interleave(128, 3).flatten(2).flatten(0, 1)
        wide = wide[tuple(map(slice, weight.shape))]
    decoded = (codes.float() * wide).to(weight.dtype)
    return arrays({"weight": codes, "weight_scale": scale}), array(decoded)


def modelopt_int8(x: Array) -> tuple[Parts, Array | None]:
    from modelopt.torch.export.quant_utils import to_quantized_weight

    weight = tensor(x)
    scale = modelopt_scale(weight, num_bits=8, axis=0)
    codes = to_quantized_weight(weight, scale, "int8_wo")
    decoded = (codes.float() * scale[:, None]).to(weight.dtype)
    return arrays({"weight": codes, "weight_scale": scale}), array(decoded)


def modelopt_int4(x: Array, block: int) -> tuple[Parts, Array | None]:
    from modelopt.torch.export.quant_utils import to_quantized_weight

    weight = tensor(x)
    scale = modelopt_scale(weight, num_bits=4, block_sizes={-1: block})
    packed = to_quantized_weight(weight, scale, "int4_awq", block_size=block)
    codes = torch.stack([packed & 15, packed >> 4], 1).reshape(weight.shape)
    values = torch.where(codes > 7, codes.float() - 16, codes.float())
    decoded = (values * scale.repeat_interleave(block, 1)).to(weight.dtype)
    return arrays({"weight": packed, "weight_scale": scale}), array(decoded)


SCHEMES = {
    "nvfp4": Producer("nvfp4", "", modelopt_nvfp4, columns=16),
    "mxfp4": Producer("mxfp4", "", partial(modelopt_mx, scheme="mxfp4")),
    "mxfp8": Producer("mxfp8_e4m3", "", partial(modelopt_mx, scheme="mxfp8")),
    "fp8 tensor": Producer("fp8_tensor", "", partial(modelopt_fp8, strategy="FP8")),
    "fp8 channel": Producer(
        "fp8_channel",
        "",
        partial(modelopt_fp8, strategy="channel"),
        dtypes=FLOATS,
    ),
    "fp8 block": Producer(
        "fp8_block",
        "",
        partial(modelopt_fp8, strategy="block"),
        dtypes=FLOATS,
        columns=160,
        rows=100,
    ),
    "int8 channel": Producer("int8_channel", "", modelopt_int8, dtypes=FLOATS),
    **{
        f"int4 g{block}": Producer(
            "int4_group",
            "",
            partial(modelopt_int4, block=block),
            options={"block": block},
            dtypes=FLOATS,
            columns=block,
        )
        for block in (32, 128)
    },
}


def written(config: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        import modelopt.torch.quantization as mtq
        import torch
        from modelopt.torch.export import export_hf_checkpoint

        tokens = torch.arange(16).reshape(1, 16)
        model = mtq.quantize(llama(plain), getattr(mtq, config), lambda one: one(tokens))
        export_hf_checkpoint(model, export_dir=out)

    return make


WRITERS = {
    f"modelopt {name}": written(f"{name}_CFG")
    for name in (
        "FP8_DEFAULT", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_2D_BLOCKWISE_WEIGHT_ONLY",
        "NVFP4_DEFAULT", "W4A8_NVFP4_FP8", "MXFP8_DEFAULT", "INT4_AWQ", "W4A8_AWQ_BETA",
        "INT8_SMOOTHQUANT", "W4A8_MXFP4_FP8",
    )
}  # fmt: skip
