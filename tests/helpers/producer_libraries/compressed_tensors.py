# ruff: noqa: PLC0415 - each library is imported by what needs it
"""compressed-tensors: what it writes for a weight, decodes from it, and saves of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scheme_oracle import Array

from ._arrays import Parts, Producer, array, arrays, tensor
from ._llama import llama


def compressed_tensors(x: Array, form: str, **arguments: Any) -> tuple[Parts, Array | None]:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = tensor(x)
    state = {"weight": weight}
    if args.strategy in ("group", "tensor_group"):
        groups = weight.unflatten(-1, (-1, args.group_size))
        low, high = groups.amin(-1), groups.amax(-1)
    elif args.strategy == "block":
        rows, columns = args.block_structure
        padded = torch.nn.functional.pad(weight, (0, -x.shape[1] % columns, 0, -x.shape[0] % rows))
        tiles = padded.unflatten(-1, (-1, columns)).unflatten(0, (-1, rows))
        low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
    elif args.strategy == "channel":
        low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    else:
        low, high = weight.amin(), weight.amax()
    level = None
    if args.strategy == "tensor_group":
        level = generate_gparam(weight.amin(), weight.amax())
        state["weight_global_scale"] = level
    scale, zero = calculate_qparams(low, high, args, global_scale=level)
    state |= (
        {"weight_scale": scale}
        if args.symmetric
        else {
            "weight_scale": scale,
            "weight_zero_point": zero,
        }
    )
    compressor = BaseCompressor.get_value_from_registry(form)
    packed = compressor.compress(dict(state), scheme)
    decoded = compressor.decompress(dict(packed), scheme)["weight"]
    return arrays(packed), array(decoded)


_FP8 = {"num_bits": 8, "type": "float"}
_MX = {
    "type": "float",
    "strategy": "group",
    "group_size": 32,
    "scale_dtype": torch.uint8,
    "zp_dtype": torch.uint8,
}


_NV = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_NV |= {"scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}


def _ct(form: str, **arguments: Any) -> Callable[[Array], tuple[Parts, Array | None]]:
    return partial(compressed_tensors, form=form, **arguments)


def _int(bits: int, **arguments: Any) -> Callable[[Array], tuple[Parts, Array | None]]:
    form = arguments.pop("form", "pack-quantized")
    return _ct(form, num_bits=bits, type="int", **arguments)


SCHEMES = {
    "fp8 tensor": Producer("fp8_tensor", "", _ct("float-quantized", strategy="tensor", **_FP8)),
    "fp8 channel": Producer("fp8_channel", "", _ct("float-quantized", strategy="channel", **_FP8)),
    "fp8 block": Producer(
        "fp8_block",
        "",
        _ct("float-quantized", strategy="block", block_structure=[128, 128], **_FP8),
        columns=128,
        rows=128,
    ),
    "mxfp4": Producer("mxfp4", "", _ct("mxfp4-pack-quantized", num_bits=4, **_MX)),
    "mxfp6": Producer("mxfp6_e2m3", "", _ct("mxfp6-pack-quantized", num_bits=6, **_MX)),
    "mxfp8": Producer("mxfp8_e4m3", "", _ct("mxfp8-quantized", num_bits=8, **_MX)),
    "nvfp4": Producer("nvfp4", "", _ct("nvfp4-pack-quantized", **_NV), columns=16),
    "int8 tensor": Producer("int8_tensor", "", _int(8, strategy="tensor", form="int-quantized")),
    "int8 channel": Producer("int8_channel", "", _int(8, strategy="channel", form="int-quantized")),
    "int8 channel asymmetric": Producer(
        "int8_channel",
        "",
        _int(8, strategy="channel", form="int-quantized", symmetric=False),
        options={"symmetric": False},
    ),
    **{
        f"int{bits} group": Producer(
            f"int{bits}_group",
            "",
            _int(bits, strategy="group", group_size=32),
            options={"block": 32},
        )
        for bits in (2, 3, 4, 5, 6, 8)
    },
    **{
        f"int{bits} channel": Producer(f"int{bits}_channel", "", _int(bits, strategy="channel"))
        for bits in (2, 3, 4)
    },
    **{
        f"int{bits} group asymmetric": Producer(
            f"int{bits}_group",
            "",
            _int(bits, strategy="group", group_size=32, symmetric=False),
            options={"block": 32, "symmetric": False},
            rows=16,
        )
        for bits in (3, 4, 8)
    },
}


def written(preset: str) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import (
            QuantizationConfig,
            QuantizationStatus,
            apply_quantization_config,
            preset_name_to_scheme,
        )

        model = llama(plain)
        groups = {"group_0": preset_name_to_scheme(preset, ["Linear"])}
        apply_quantization_config(
            model, QuantizationConfig(config_groups=groups, ignore=["lm_head"])
        )
        for module in model.modules():
            if getattr(module, "quantization_scheme", None) is not None:
                for name, parameter in module.named_parameters(recurse=False):
                    if name.endswith(("scale", "zero_point")):
                        parameter.data.fill_(name.endswith("scale"))
                module.quantization_status = QuantizationStatus.FROZEN
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(out)
        compressor.update_config(out)

    return make


WRITERS = {
    f"compressed-tensors {preset}": written(preset)
    for preset in (
        "W4A16_ASYM", "W8A8", "W4AFP8", "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4", "MXFP4",
        "MXFP6A16", "MXFP8", "W3A16", "W8A16",
    )
}  # fmt: skip
