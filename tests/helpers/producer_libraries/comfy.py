# ruff: noqa: PLC0415 - each library is imported by what needs it
"""ComfyUI's kernels: what it writes for a weight, decodes from it, and saves of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from scheme_oracle import Array

from ._arrays import Parts, Producer, array, arrays, tensor


def comfy(x: Array, scheme: str) -> tuple[Parts, Array | None]:
    import comfy_kitchen as ck

    weight = tensor(x)
    with ck.registry.use_backend("eager"):
        if scheme == "fp8_tensor":
            from comfy_kitchen.tensor.fp8 import TensorCoreFP8Layout

            data, params = TensorCoreFP8Layout.quantize(weight)
            decoded = TensorCoreFP8Layout.dequantize(data, params)
            return arrays({"weight": data, "weight_scale": params.scale}), array(decoded)
        if scheme == "nvfp4":
            second = weight.abs().amax().float() / 2688.0
            data, scale = ck.quantize_nvfp4(weight, second, pad_16x=True)
            decoded = ck.dequantize_nvfp4(data, second, scale, weight.dtype)
            parts = {"weight": data, "weight_scale": scale, "weight_scale_2": second}
        else:
            data, scale = ck.quantize_mxfp8(weight, pad_32x=True)
            decoded = ck.dequantize_mxfp8(data, scale, weight.dtype)
            parts = {"weight": data, "weight_scale": scale.view(torch.uint8)}
    return arrays(parts), array(decoded[: x.shape[0], : x.shape[1]])


SCHEMES = {
    "fp8 tensor": Producer("fp8_tensor", "", partial(comfy, scheme="fp8_tensor")),
    "nvfp4": Producer("nvfp4", "", partial(comfy, scheme="nvfp4"), columns=1),
    "mxfp8": Producer("mxfp8_e4m3", "", partial(comfy, scheme="mxfp8"), columns=1),
}


def written(form: str, where: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        del plain
        import comfy_kitchen as ck
        import torch
        from safetensors.torch import save_file

        weight = torch.randn(100, 64, dtype=torch.bfloat16)
        scale = (weight.abs().max() / 448).float()
        with ck.registry.use_backend("eager"):
            if form == "nvfp4":
                second = (weight.abs().max() / 2688).float()
                codes, scales = ck.quantize_nvfp4(weight, second, pad_16x=True)
                parts = {"weight_scale": scales, "weight_scale_2": second}
            elif form == "mxfp8":
                codes, scales = ck.quantize_mxfp8(weight, pad_32x=True)
                parts = {"weight_scale": scales}
            else:
                codes, parts = ck.quantize_per_tensor_fp8(weight, scale), {"weight_scale": scale}
        layer = "model.diffusion_model.blocks.0.q"
        tensors = {f"{layer}.{name}": tensor for name, tensor in parts.items()}
        tensors |= {f"{layer}.weight": codes, f"{layer}.bias": weight[0].clone()}
        metadata = {}
        if where == "marker":
            text = json.dumps({"format": form}).encode()
            tensors[f"{layer}.comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
        else:
            layers = {"format_version": "1.0", "layers": {layer: {"format": form}}}
            metadata["_quantization_metadata"] = json.dumps(layers)
        out.mkdir()
        plain_view = {
            name: tensor.view(torch.uint8) if tensor.dtype == torch.float8_e8m0fnu else tensor
            for name, tensor in tensors.items()
        }
        save_file(plain_view, out / "model.safetensors", metadata)

    return make


WRITERS = {
    "comfy nvfp4, marker": written("nvfp4", "marker"),
    "comfy nvfp4, metadata": written("nvfp4", "metadata"),
    "comfy mxfp8, marker": written("mxfp8", "marker"),
    "comfy float8_e4m3fn, metadata": written("float8_e4m3fn", "metadata"),
}
