"""Who decodes and encodes quantized arrays beside castwise: `PEERS`, for each scheme and recipe.

A peer is a library, and what is run in its own arrays, from the producer's parts to values and
back, packing included: MLX, gguf and bitsandbytes themselves, and torch's operations in the order
in which compressed-tensors, ModelOpt and transformers run them, without what these do beside, as
they take longer on the CPU.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from castwise._options import Recipe, SchemeName
from frameworks import Torch
from numpy.typing import NDArray
from peers import Library

Array = NDArray[Any]
Parts = dict[str, Any]
Shape = tuple[int, ...]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
FP8_MOST, FP4_MOST = 448.0, 6.0
BIAS = 127
INT8, INT4 = (-128, 127), (-8, 7)
MLX_BITS = 4


class Mlx(Library):
    """MLX on the CPU, in one thread; each result is waited for."""

    name = "mlx"
    distributions = ("mlx",)

    def load(self, threads: int) -> None:
        """See Library."""
        del threads
        self.module: Any = importlib.import_module("mlx.core")
        self.module.set_default_device(self.module.cpu)

    def tensor(self, x: Array) -> Any:
        """The same elements in an array of MLX."""
        if x.dtype.name != "bfloat16":
            return self.module.array(x)
        return self.module.array(x.view(np.uint16)).view(self.module.bfloat16)

    def array(self, tensor: Any, target: np.dtype[Any]) -> Array:
        """The same elements in an array of numpy."""
        if tensor.dtype == self.module.bfloat16:
            tensor = tensor.view(self.module.uint16)
        return np.array(tensor).view(target)


class Gguf(Library):
    """gguf's own code in numpy, from and to float32."""

    name = "gguf"
    distributions = ("gguf",)

    def load(self, threads: int) -> None:
        """See Library."""
        del threads
        self.module: Any = importlib.import_module("gguf.quants")

    def tensor(self, x: Array) -> Any:
        """The array itself, if it is one of bytes, or one of float32 with its elements."""
        return x if x.dtype == np.uint8 else x.astype(np.float32)

    def array(self, tensor: Any, target: np.dtype[Any]) -> Array:
        """The array itself, or its elements rounded."""
        return np.asarray(tensor.astype(target, copy=False))


class Bitsandbytes(Torch):
    """The operations that bitsandbytes registers in torch: its own code for the CPU."""

    name = "bitsandbytes"
    distributions = ("torch", "bitsandbytes")

    def load(self, threads: int) -> None:
        """See Library."""
        super().load(threads)
        importlib.import_module("bitsandbytes")


@dataclass(frozen=True)
class Peer:
    """What a library runs, given its module: from parts and a shape to values, and back."""

    library: Mlx | Gguf | Torch
    decode: Callable[[Any, Parts, Shape], Any]
    encode: Callable[[Any, Any], Parts]


TORCH, MLX, GGUF, BITSANDBYTES = Torch(), Mlx(), Gguf(), Bitsandbytes()
LIBRARIES = (TORCH, BITSANDBYTES, MLX, GGUF)


# What torch is given of several schemes


def blocks(x: Any, size: int) -> Any:
    """View rows as blocks of so many elements."""
    return x.unflatten(-1, (-1, size))


def amax(x: Any, axes: Any = -1) -> Any:
    """Find the largest magnitudes, keeping the axes."""
    return x.abs().amax(axes, keepdim=True)


def nibbles(torch: Any, data: Any) -> Any:
    """Unpack codes of four bits, low ones first."""
    return torch.stack((data & 15, data >> 4), -1).flatten(-2)


def packed(codes: Any) -> Any:
    """Pack codes of four bits, low ones first."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def as_e4m3(torch: Any, scaled: Any) -> Any:
    """Round to E4M3, saturating."""
    return scaled.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)


def as_integers(torch: Any, scaled: Any, limits: tuple[int, int]) -> Any:
    """Round to integers, saturating."""
    return scaled.clamp(*limits).round().to(torch.int8)


def as_e2m1(torch: Any, scaled: Any) -> Any:
    """Count the bounds below each magnitude; ties go to the even code."""
    magnitudes, found = scaled.abs(), scaled.signbit().view(torch.uint8) << 3
    for place, bound in enumerate(BOUNDS):
        beyond = operator.ge if place % 2 else operator.gt
        found += beyond(magnitudes, bound).view(torch.uint8)
    return packed(found)


def of_e2m1(torch: Any, data: Any, factor: Any, size: int) -> Any:
    """Look up codes of E2M1 as float32, and multiply their blocks."""
    table = torch.tensor((*E2M1, *(-value for value in E2M1)))
    values = table.index_select(0, nibbles(torch, data).flatten().int())
    return (blocks(values, size) * factor.reshape(-1, 1)).flatten().to(torch.bfloat16)


def power(torch: Any, scale: Any) -> Any:
    """Decode scales of E8M0."""
    return torch.exp2(scale.float() - BIAS)


def rounded_up(torch: Any, ratio: Any) -> Any:
    """Encode ratios as E8M0, rounded up."""
    exponents = torch.ceil(torch.log2(ratio)).clamp(-BIAS, BIAS)
    return (exponents + BIAS).to(torch.uint8)


# As producers run it


def decode_fp8_block(torch: Any, parts: Parts, shape: Shape) -> Any:
    """As compressed-tensors decodes DeepSeek's files."""
    tiles = blocks(parts["weight"].to(torch.float32), 128).unflatten(0, (-1, 128))
    scale = parts["weight_scale_inv"][:, None, :, None]
    return (tiles * scale).reshape(shape).to(torch.bfloat16)


def encode_fp8_block(torch: Any, x: Any) -> Parts:
    """As DeepSeek's are made."""
    tiles = blocks(x.to(torch.float32), 128).unflatten(0, (-1, 128))
    scale = amax(tiles, (1, 3)) / FP8_MOST
    codes = as_e4m3(torch, tiles / scale).reshape(x.shape)
    return {"weight": codes, "weight_scale_inv": scale[:, 0, :, 0]}


def decode_channel(torch: Any, parts: Parts, shape: Shape) -> Any:
    """As compressed-tensors decodes codes of a byte."""
    del shape
    return parts["weight"].to(torch.bfloat16) * parts["weight_scale"]


def encode_fp8_channel(torch: Any, x: Any) -> Parts:
    """As compressed-tensors: in bfloat16."""
    scale = amax(x) / FP8_MOST
    return {"weight": as_e4m3(torch, x / scale), "weight_scale": scale}


def encode_int8_channel(torch: Any, x: Any) -> Parts:
    """As compressed-tensors: in bfloat16."""
    scale = amax(x) / 127.5
    return {"weight": as_integers(torch, x / scale, INT8), "weight_scale": scale}


def decode_mxfp8(torch: Any, parts: Parts, shape: Shape) -> Any:
    """As ModelOpt."""
    values = blocks(parts["weight"].to(torch.float32), 32)
    factor = power(torch, parts["weight_scale"]).unsqueeze(-1)
    return (values * factor).reshape(shape).to(torch.bfloat16)


def encode_mxfp8(torch: Any, x: Any) -> Parts:
    """As ModelOpt."""
    groups = blocks(x, 32)
    scale = rounded_up(torch, amax(groups).float() / FP8_MOST)
    scaled = groups * torch.exp2(BIAS - scale.float())
    return {"weight": as_e4m3(torch, scaled).flatten(1), "weight_scale": scale.squeeze(-1)}


def decode_gpt_oss(torch: Any, parts: Parts, shape: Shape) -> Any:
    """As transformers, which turns the result besides."""
    del shape
    return of_e2m1(torch, parts["blocks"], power(torch, parts["scales"]), 32)


def encode_gpt_oss(torch: Any, x: Any) -> Parts:
    """As gpt-oss' are made: scales rounded up."""
    groups = blocks(x, 32)
    scale = rounded_up(torch, amax(groups).float() / FP4_MOST)
    scaled = groups / power(torch, scale)
    return {"blocks": as_e2m1(torch, scaled), "scales": scale.squeeze(-1)}


def decode_modelopt_nvfp4(torch: Any, parts: Parts, shape: Shape) -> Any:
    """As ModelOpt, whose values have no -0."""
    del shape
    factor = parts["weight_scale"].to(torch.float32) * parts["weight_scale_2"]
    return of_e2m1(torch, parts["weight"], factor, 16) + 0.0


def encode_modelopt_nvfp4(torch: Any, x: Any) -> Parts:
    """As ModelOpt."""
    groups = blocks(x, 16)
    level = x.abs().amax().float() / (FP4_MOST * FP8_MOST)
    ratio = amax(groups).float() / (FP4_MOST * level)
    scale = ratio.clamp(2**-9, FP8_MOST).to(torch.float8_e4m3fn)
    # A tensor without axes would not make bfloat16 float32.
    codes = as_e2m1(torch, groups / (scale.to(torch.float32) * level)).flatten(1)
    return {"weight": codes, "weight_scale": scale.squeeze(-1), "weight_scale_2": level}


def decode_ct_nvfp4(torch: Any, parts: Parts, shape: Shape) -> Any:
    """As compressed-tensors."""
    del shape
    factor = parts["weight_scale"].to(torch.float32) / parts["weight_global_scale"]
    return of_e2m1(torch, parts["weight_packed"], factor, 16)


def encode_ct_nvfp4(torch: Any, x: Any) -> Parts:
    """As compressed-tensors: scales in bfloat16, then in float32."""
    groups = blocks(x, 16)
    level = (FP4_MOST * FP8_MOST / x.abs().amax()).float().reshape(1)
    ratio = amax(groups) / FP4_MOST * level
    scale = ratio.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)
    codes = as_e2m1(torch, groups / (scale.to(torch.float32) / level)).flatten(1)
    return {
        "weight_packed": codes,
        "weight_scale": scale.squeeze(-1),
        "weight_global_scale": level,
    }


def decode_ct_int4(torch: Any, parts: Parts, shape: Shape) -> Any:
    """As compressed-tensors."""
    del shape
    scale = parts["weight_scale"]
    codes = nibbles(torch, parts["weight_packed"].view(torch.uint8)).view(torch.int8) - 8
    return (
        codes.to(torch.bfloat16).unflatten(-1, (scale.shape[-1], -1)) * scale[..., None]
    ).flatten(1)


def encode_ct_int4(torch: Any, x: Any) -> Parts:
    """As compressed-tensors: in bfloat16."""
    groups = blocks(x, 128)
    scale = amax(groups) / 7.5
    codes = as_integers(torch, groups / scale, INT4).flatten(1) + 8
    words = packed(codes.view(torch.uint8)).view(torch.int32)
    return {"weight_packed": words, "weight_scale": scale.squeeze(-1)}


def decode_mlx(mx: Any, parts: Parts, shape: Shape) -> Any:
    """Call MLX's own."""
    group = shape[-1] // parts["scales"].shape[-1]
    found = mx.dequantize(*parts.values(), group_size=group, bits=MLX_BITS)
    mx.eval(found)
    return found


def encode_mlx(mx: Any, x: Any) -> Parts:
    """Call MLX's own."""
    found = mx.quantize(x, group_size=128, bits=MLX_BITS)
    mx.eval(*found)
    return dict(zip(("weight", "scales", "biases"), found, strict=True))


def gguf(kind: str) -> Peer:
    """Take gguf's own, of one kind of blocks."""

    def decode(module: Any, parts: Parts, shape: Shape) -> Any:
        return module.dequantize(parts["blocks"], module.GGMLQuantizationType[kind]).reshape(shape)

    def encode(module: Any, x: Any) -> Parts:
        return {"blocks": module.quantize(x, module.GGMLQuantizationType[kind])}

    return Peer(GGUF, decode, encode)


def decode_bnb(torch: Any, parts: Parts, shape: Shape) -> Any:
    """Call bitsandbytes' own."""
    run = torch.ops.bitsandbytes.dequantize_4bit
    return run(parts["weight"], parts["weight.absmax"], 64, "nf4", shape, torch.bfloat16)


def encode_bnb(torch: Any, x: Any) -> Parts:
    """Call bitsandbytes' own."""
    codes, scale = torch.ops.bitsandbytes.quantize_4bit(x, 64, "nf4", torch.uint8)
    return {"weight": codes, "weight.absmax": scale}


PEERS: Mapping[tuple[SchemeName, Recipe], Peer] = {
    ("fp8_block", "deepseek"): Peer(TORCH, decode_fp8_block, encode_fp8_block),
    ("fp8_channel", "compressed-tensors"): Peer(TORCH, decode_channel, encode_fp8_channel),
    ("mxfp8_e4m3", "modelopt"): Peer(TORCH, decode_mxfp8, encode_mxfp8),
    ("mxfp4", "gpt-oss"): Peer(TORCH, decode_gpt_oss, encode_gpt_oss),
    ("mxfp4", "gguf"): gguf("MXFP4"),
    ("nvfp4", "modelopt"): Peer(TORCH, decode_modelopt_nvfp4, encode_modelopt_nvfp4),
    ("nvfp4", "compressed-tensors"): Peer(TORCH, decode_ct_nvfp4, encode_ct_nvfp4),
    ("int4_group", "compressed-tensors"): Peer(TORCH, decode_ct_int4, encode_ct_int4),
    ("int4_group", "mlx"): Peer(MLX, decode_mlx, encode_mlx),
    ("int8_channel", "compressed-tensors"): Peer(TORCH, decode_channel, encode_int8_channel),
    ("int8_group", "gguf"): gguf("Q8_0"),
    ("bnb_nf4", "bitsandbytes"): Peer(BITSANDBYTES, decode_bnb, encode_bnb),
}
"""The schemes and recipes of the benchmark, each with its peer."""
