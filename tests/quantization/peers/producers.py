# ruff: noqa: PLC0415 - a library is imported by the cases that need it
"""What the producers' libraries write for a weight, and decode from it: numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from scheme_oracle import Array

Parts = dict[str, Array]
_TORCH = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
}
_SAME_SIZE = {1: torch.uint8, 2: torch.int16}


def tensor(x: Array) -> torch.Tensor:
    """A torch tensor with the same elements."""
    known = {np.dtype(ours): theirs for theirs, ours in _TORCH.items()}
    if x.dtype not in known:
        return torch.from_numpy(np.ascontiguousarray(x).copy())
    plain = np.uint8 if x.dtype.itemsize == 1 else np.int16
    return torch.from_numpy(np.ascontiguousarray(x).view(plain).copy()).view(known[x.dtype])


def array(t: Any) -> Array:
    """A numpy array with the same elements."""
    t = t.detach().contiguous()
    if t.dtype in _TORCH:
        found: Array = t.view(_SAME_SIZE[t.element_size()]).numpy().view(_TORCH[t.dtype])
        return found
    plain: Array = t.numpy()
    return plain


def arrays(parts: Mapping[str, Any]) -> Parts:
    return {name: array(part) for name, part in parts.items()}


@dataclass(frozen=True)
class Producer:
    """One scheme of one library."""

    scheme: str
    recipe: str
    encode: Callable[[Array], tuple[Parts, Array | None]]
    """The parts, and what the library decodes them to in its own dtype, if it can."""
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    columns: int = 32
    """Of which columns are a multiple."""
    rows: int = 1
    not_for: tuple[str, ...] = ()
    """Kinds of weights that the library gets wrong."""
    only_read: bool = False
    signed_zero: bool = True
    """False if the sign of codes of zero is of no meaning there."""


# compressed-tensors


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


CT_FLOATS = ("float32", "bfloat16", "float16")
CT = {
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


# ModelOpt


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


MODELOPT = {
    "nvfp4": Producer("nvfp4", "", modelopt_nvfp4, columns=16, signed_zero=False),
    "mxfp4": Producer("mxfp4", "", partial(modelopt_mx, scheme="mxfp4"), signed_zero=False),
    "mxfp8": Producer("mxfp8_e4m3", "", partial(modelopt_mx, scheme="mxfp8")),
    "fp8 tensor": Producer("fp8_tensor", "", partial(modelopt_fp8, strategy="FP8")),
    "fp8 channel": Producer(
        "fp8_channel",
        "",
        partial(modelopt_fp8, strategy="channel"),
        dtypes=CT_FLOATS,
    ),
    "fp8 block": Producer(
        "fp8_block",
        "",
        partial(modelopt_fp8, strategy="block"),
        dtypes=CT_FLOATS,
        columns=160,
        rows=100,
    ),
    "int8 channel": Producer("int8_channel", "", modelopt_int8, dtypes=CT_FLOATS),
    **{
        f"int4 g{block}": Producer(
            "int4_group",
            "",
            partial(modelopt_int4, block=block),
            options={"block": block},
            dtypes=CT_FLOATS,
            columns=block,
        )
        for block in (32, 128)
    },
}


# torchao


def torchao_mx(x: Array, element: Any, rule: str) -> tuple[Parts, Array | None]:
    from torchao.prototype.mx_formats import mx_tensor
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_dtype, to_mx

    mode = ScaleCalculationMode[rule.upper()]
    weight = tensor(x)
    scale, data = to_mx(weight, element, 32, mode)
    del mx_tensor
    decoded = to_dtype(data, scale, element, 32, weight.dtype)
    if isinstance(element, str):
        return {"scale": array(scale), "codes": array(data)}, array(decoded)
    return arrays({"weight_qdata": data, "weight_scale": scale}), array(decoded)


def torchao_nvfp4(x: Array) -> tuple[Parts, Array | None]:
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    weight = tensor(x)
    second = per_tensor_amax_to_scale(weight.abs().amax())
    scale, data = nvfp4_quantize(weight, 16, second)
    parts = {"weight_qdata": data, "weight_scale": scale, "weight_per_tensor_scale": second}
    return arrays(parts), None


_ELEMENTS = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
}
TORCHAO = {
    **{
        f"{scheme} {rule}": Producer(
            scheme,
            "",
            partial(torchao_mx, element=element, rule=rule),
            options={"scale_rule": rule},
        )
        for scheme, element in _ELEMENTS.items()
        for rule in ("floor", "rceil", "ceil", "even")
    },
    "nvfp4": Producer("nvfp4", "", torchao_nvfp4, columns=16),
}


# ComfyUI


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


COMFY = {
    "fp8 tensor": Producer("fp8_tensor", "", partial(comfy, scheme="fp8_tensor")),
    # Where the scale of a block underflows, codes of negative elements are 0 there, and -0 here.
    "nvfp4": Producer("nvfp4", "", partial(comfy, scheme="nvfp4"), columns=1, signed_zero=False),
    "mxfp8": Producer("mxfp8_e4m3", "", partial(comfy, scheme="mxfp8"), columns=1),
}


# transformers


@cache
def _quantizer(scale_fmt: str) -> Any:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = SimpleNamespace(weight_block_size=[128, 128], scale_fmt=scale_fmt)
    holder = SimpleNamespace(quantization_config=config)
    return Fp8Quantize(holder), Fp8Dequantize(holder)


def transformers_fp8(x: Array, scale_fmt: str) -> tuple[Parts, Array | None]:
    quantizer, _ = _quantizer(scale_fmt)
    return arrays(quantizer._quantize_one("weight", tensor(x))), None


TRANSFORMERS = {
    "fp8 block": Producer(
        "fp8_block", "", partial(transformers_fp8, scale_fmt="float"), columns=128, rows=128
    ),
    "fp8 block ue8m0": Producer(
        "fp8_block",
        "",
        partial(transformers_fp8, scale_fmt="ue8m0"),
        options={"scale_rule": "rceil"},
        columns=128,
        rows=128,
    ),
}


# mlx


def mlx(x: Array, mode: str, bits: int = 4, group: int = 32) -> tuple[Parts, Array | None]:
    import mlx.core as mx

    if x.dtype == np.float32:
        weight = mx.array(x)
    else:
        weight = mx.array(x.astype(np.float32)).astype(
            {"bfloat16": mx.bfloat16, "float16": mx.float16}[x.dtype.name]
        )
    found = mx.quantize(weight, group_size=group, bits=bits, mode=mode)
    decoded = mx.dequantize(*found, group_size=group, bits=bits, mode=mode, dtype=weight.dtype)
    names = ("weight", "scales", "biases")
    parts = {name: _from_mlx(part, x.dtype) for name, part in zip(names, found, strict=False)}
    return parts, _from_mlx(decoded, x.dtype)


def _from_mlx(part: Any, dtype: Any) -> Array:
    import mlx.core as mx

    if part.dtype == mx.bfloat16:
        return np.array(part.astype(mx.float32)).astype(dtype)
    return np.array(part)


MLX = {
    **{
        f"affine {bits} g{group}": Producer(
            f"int{bits}_group",
            "",
            partial(mlx, mode="affine", bits=bits, group=group),
            options={"block": group},
            columns=group,
            dtypes=("float32", "bfloat16", "float16"),
        )
        for bits in (2, 3, 4, 5, 6, 8)
        for group in (32, 64, 128)
    },
    "mxfp4": Producer("mxfp4", "", partial(mlx, mode="mxfp4")),
    "mxfp8": Producer("mxfp8_e4m3", "", partial(mlx, mode="mxfp8", bits=8)),
    "nvfp4": Producer(
        "nvfp4",
        "",
        partial(mlx, mode="nvfp4", group=16),
        columns=16,
        not_for=("huge",),  # codes 0 where the scale saturates
    ),
}


# gguf


def gguf(x: Array, kind: str) -> tuple[Parts, Array | None]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    wanted = GGMLQuantizationType[kind]
    blocks = quantize(x.astype(np.float32), wanted)
    return {"blocks": blocks}, dequantize(blocks, wanted)


GGUF = {
    kind: Producer(
        scheme,
        "",
        partial(gguf, kind=kind),
        options=options,
        dtypes=("float32",),
        not_for=("tiny", "huge"),  # float16 scales
        only_read=kind not in ("Q8_0", "MXFP4"),
        signed_zero=False,
    )
    for kind, scheme, options in (
        ("Q8_0", "int8_group", {}),
        ("Q4_0", "int4_group", {}),
        ("Q4_1", "int4_group", {"symmetric": False}),
        ("Q5_0", "int5_group", {}),
        ("Q5_1", "int5_group", {"symmetric": False}),
        ("MXFP4", "mxfp4", {}),
    )
}


# bitsandbytes


def bitsandbytes_4bit(x: Array, kind: str) -> tuple[Parts, Array | None]:
    import bitsandbytes.functional as bnb

    codes, state = bnb.quantize_4bit(tensor(x), quant_type=kind)
    decoded = bnb.dequantize_4bit(codes, state)
    parts = {"weight": codes, "weight.absmax": state.absmax, "weight.quant_map": state.code}
    return arrays(parts), array(decoded)


def bitsandbytes_nested(x: Array, kind: str) -> tuple[Parts, Array]:
    """With statistics that are quantised themselves, as files hold them."""
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


BITSANDBYTES = {
    **{
        kind: Producer(
            f"bnb_{kind}",
            "",
            partial(bitsandbytes_4bit, kind=kind),
            dtypes=("float32", "bfloat16", "float16"),
            signed_zero=False,
        )
        for kind in ("nf4", "fp4")
    },
    "int8": Producer("int8_channel", "", bitsandbytes_int8, dtypes=("float16",)),
}


# Keras


def keras_int8(x: Array) -> tuple[Parts, Array | None]:
    from keras import quantizers

    codes, scale = quantizers.abs_max_quantize(tensor(x), axis=0)
    return {"kernel": array(codes), "kernel_scale": array(scale).reshape(-1)}, None


KERAS = {
    "int8": Producer("int8_channel", "", keras_int8, options={"axis": 0}, dtypes=("float32",)),
}

LIBRARIES = {
    "compressed-tensors": CT,
    "modelopt": MODELOPT,
    "torchao": TORCHAO,
    "comfy": COMFY,
    "transformers": TRANSFORMERS,
    "mlx": MLX,
    "gguf": GGUF,
    "bitsandbytes": BITSANDBYTES,
    "keras": KERAS,
}
