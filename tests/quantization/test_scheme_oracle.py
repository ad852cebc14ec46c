"""The oracle gives, byte for byte, what the producers' libraries wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scheme_oracle as oracle
from golden import GOLDEN
from scheme_oracle import ELEMENTS, F32, Array, Encoded, spread, w

BF16 = ml_dtypes.bfloat16
Parts = dict[str, Array]


def digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def described(array: Array) -> str:
    return f"{array.dtype} {array.shape}"


def elements(found: Encoded, kind: str) -> Array:
    return ELEMENTS[kind].decode(found.codes)


def decoded(values: Array, scale: Array, found: Encoded, dtype: Any = BF16, **more: Any) -> Array:
    return oracle.decode_peer(values, spread(scale, values.shape, found.block), dtype, **more)


def tensors_nvfp4(recipe: str) -> Parts:
    """compressed-tensors."""
    found = oracle.nvfp4(w(16, 128), recipe)
    total = oracle.E4M3.decode(found.scale).astype(F32) / found.global_scale
    return {
        "weight_packed": oracle.pack(found.codes, 4),
        "weight_scale": found.scale.view(ml_dtypes.float8_e4m3fn),
        "weight_global_scale": found.global_scale,
        "decoded": decoded(elements(found, "e2m1"), total, found),
    }


def tensors_mx(element: str) -> Parts:
    found = oracle.mx(w(16, 128), element, "ct")
    scale = oracle.power(found.scale.astype(int) - 127)
    bits = ELEMENTS[element].bits
    packed = {"weight_packed": oracle.pack(found.codes, bits)}
    return (packed if bits < 8 else {"weight": found.codes.view(ml_dtypes.float8_e4m3fn)}) | {
        "weight_scale": found.scale,
        "decoded": decoded(elements(found, element), scale, found),
    }


def tensors_fp8(block: tuple[int, int], shape: tuple[int, int]) -> Parts:
    found = oracle.fp8(w(*shape), block, "compressed-tensors")
    scale = found.scale.reshape(1) if block == (0, 0) else found.scale
    return {
        "weight": found.codes.view(ml_dtypes.float8_e4m3fn),
        "weight_scale": scale,
        "decoded": decoded(elements(found, "e4m3"), found.scale, found, scale_dtype=BF16),
    }


def tensors_int(bits: int, block: tuple[int, int], *, symmetric: bool = True) -> Parts:
    found = oracle.integers(w(16, 128), block, bits, symmetric=symmetric)
    packed = oracle.pack(found.codes.astype(int) + (1 << (bits - 1)), bits).view(np.int32)
    zero = 0 if found.zero is None else spread(found.zero, found.codes.shape, found.block)
    parts = {
        "weight_scale": found.scale,
        "decoded": decoded(found.codes, found.scale, found, zero=zero, scale_dtype=BF16),
    }
    if found.zero is not None:
        lifted = (found.zero + 8).astype(np.uint8)
        parts["weight_zero_point"] = oracle.pack(lifted.T, 4).view(np.int32).T
    if block == (1, 0):
        return parts | {"weight": found.codes}
    return parts | {"weight_packed": packed, "weight_shape": np.array([16, 128])}


def modelopt_nvfp4(dtype: Any) -> Parts:
    found = oracle.nvfp4(w(16, 128, dtype), "modelopt")
    total = oracle.E4M3.decode(found.scale).astype(F32) * found.global_scale
    values = elements(found, "e2m1") + 0.0
    return {
        "weight": oracle.pack(found.codes, 4),
        "weight_scale": found.scale.view(ml_dtypes.float8_e4m3fn),
        "weight_scale_2": found.global_scale,
        "decoded": decoded(values, total, found),
    }


def modelopt_mxfp8() -> Parts:
    found = oracle.mx(w(16, 128), "e4m3", "rceil")
    return {"weight": found.codes.view(ml_dtypes.float8_e4m3fn), "weight_scale": found.scale}


def modelopt_blocks() -> Parts:
    found = oracle.fp8(w(256, 320), (128, 128), "modelopt")
    scale = found.scale[:, None, :, None]
    return {"weight": found.codes.view(ml_dtypes.float8_e4m3fn), "weight_scale": scale}


def modelopt_integers(bits: int, block: tuple[int, int]) -> Parts:
    found = oracle.integers(w(16, 128), block, bits, recipe="modelopt")
    if bits < 8:
        packed = np.ascontiguousarray(oracle.pack(np.ascontiguousarray(found.codes.T), bits).T)
        return {"weight": packed, "weight_scale": found.scale}
    return {"weight": found.codes, "weight_scale": found.scale[:, 0]}


def torchao(rule: str, element: str) -> Parts:
    found = oracle.mx(w(16, 128), {"fp4": "e2m1"}.get(element, element), rule)
    packed = oracle.pack(found.codes, 4) if element == "fp4" else found.codes
    return {"scale": found.scale, "data": packed}


def torchao_nvfp4() -> Parts:
    found = oracle.nvfp4(w(16, 128), "torchao")
    return {
        "data": oracle.pack(found.codes, 4),
        "scale": found.scale,
        "per_tensor_scale": found.global_scale,
    }


def gguf(kind: str) -> Parts:
    x = w(2, 256, F32)
    found = oracle.gguf(x, kind)
    values: Array
    if kind == "mxfp4":
        scale = oracle.power(found.scale.astype(int) - 127)
        values = elements(found, "e2m1") + 0.0
    else:
        scale, values = found.scale.astype(F32), found.codes.astype(F32)
    more: dict[str, Any] = {}
    if found.zero is not None:
        more["zero"] = spread(found.zero, x.shape, found.block)
    if found.bias is not None:
        more["bias"] = spread(found.bias, x.shape, found.block)
    result = decoded(values, scale, found, F32, **more)
    return {"blocks": oracle.gguf_blocks(found, kind), "decoded": result}


def bitsandbytes(kind: str) -> Parts:
    found = oracle.mapped(w(16, 128), f"bnb_{kind}")
    pairs = found.codes.reshape(-1, 2)
    values = oracle.MAPS[f"bnb_{kind}"][found.codes].reshape(1, -1)
    result = decoded(values, found.scale[None], found).reshape(16, 128)
    return {
        "weight": (pairs[:, :1] << 4) | pairs[:, 1:],
        "absmax": found.scale,
        "decoded": result,
    }


def comfy_nvfp4() -> Parts:
    found = oracle.nvfp4(w(16, 128), "modelopt")
    pairs = found.codes.reshape(16, -1, 2)
    return {
        "weight": (pairs[..., 0] << 4) | pairs[..., 1],
        "weight_scale": oracle.swizzle(found.scale),
        "scale_2": found.global_scale,
    }


def comfy_mxfp8() -> Parts:
    found = oracle.mx(w(32, 128), "e4m3", "rceil")
    return {"weight": found.codes, "weight_scale": oracle.swizzle(found.scale)}


def transformers(recipe: str) -> Parts:
    found = oracle.fp8(w(256, 256), (128, 128), recipe)
    scale = found.scale
    return {
        "weight": found.codes.view(ml_dtypes.float8_e4m3fn),
        "weight_scale_inv": scale.view(ml_dtypes.float8_e8m0fnu)
        if scale.dtype == np.uint8
        else scale,
    }


def mlx_affine(bits: int) -> Parts:
    found = oracle.affine(w(16, 128, F32), 64, bits)
    parts = {
        "weight": oracle.words(oracle.pack(found.codes, bits), np.uint32),
        "scales": found.scale,
        "biases": found.bias,
    }
    return {name: parts[name] for name in GOLDEN[f"mlx affine {bits}"]}


def mlx(kind: str) -> Parts:
    x = w(16, 128, F32)
    if kind == "nvfp4":
        found = oracle.nvfp4(x, "mlx")
    elif kind == "mxfp4":
        found = oracle.mx(x, "e2m1", "rceil", ties="zero", zero_byte=127)
    else:
        found = oracle.mx(x, "e4m3", "rceil", zero_byte=127)
    packed = oracle.words(oracle.pack(found.codes, 8 if kind == "mxfp8" else 4), np.uint32)
    return {"weight": packed} | ({"scales": found.scale} if kind == "nvfp4" else {})


CASES: dict[str, Callable[[], Parts]] = {
    "compressed-tensors nvfp4": lambda: tensors_nvfp4("compressed-tensors"),
    "compressed-tensors mxfp4": lambda: tensors_mx("e2m1"),
    "compressed-tensors mxfp6": lambda: tensors_mx("e2m3"),
    "compressed-tensors mxfp8": lambda: tensors_mx("e4m3"),
    "compressed-tensors fp8 block": lambda: tensors_fp8((128, 128), (256, 256)),
    "compressed-tensors fp8 channel": lambda: tensors_fp8((1, 0), (16, 128)),
    "compressed-tensors fp8 tensor": lambda: tensors_fp8((0, 0), (16, 128)),
    "compressed-tensors int8 channel": lambda: tensors_int(8, (1, 0)),
    **{
        f"compressed-tensors pack int{bits} sym g32": lambda bits=bits: tensors_int(bits, (1, 32))
        for bits in (2, 3, 4, 8)
    },
    "compressed-tensors pack int4 asym g32": lambda: tensors_int(4, (1, 32), symmetric=False),
    "modelopt nvfp4 bf16": lambda: modelopt_nvfp4(BF16),
    "modelopt nvfp4 f32": lambda: modelopt_nvfp4(F32),
    "modelopt mxfp8": modelopt_mxfp8,
    "modelopt fp8 block": modelopt_blocks,
    "modelopt int8": lambda: modelopt_integers(8, (1, 0)),
    "modelopt int4 g32": lambda: modelopt_integers(4, (1, 32)),
    **{
        f"torchao {rule} {element}": lambda rule=rule, element=element: torchao(rule, element)
        for rule in ("floor", "rceil", "ceil")
        for element in ("fp4", "e4m3", "e5m2")
    },
    "torchao nvfp4": torchao_nvfp4,
    **{
        f"gguf {kind}": lambda kind=kind: gguf(kind.lower())
        for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "mxfp4")
    },
    "bitsandbytes nf4": lambda: bitsandbytes("nf4"),
    "bitsandbytes fp4": lambda: bitsandbytes("fp4"),
    "comfy nvfp4": comfy_nvfp4,
    "comfy mxfp8": comfy_mxfp8,
    "transformers fp8 block": lambda: transformers("transformers"),
    "transformers fp8 block ue8m0": lambda: transformers("transformers ue8m0"),
    **{f"mlx affine {bits}": lambda bits=bits: mlx_affine(bits) for bits in (3, 4, 5, 6, 8)},
    **{f"mlx {kind}": lambda kind=kind: mlx(kind) for kind in ("mxfp4", "mxfp8", "nvfp4")},
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_golden_bytes(case: str) -> None:
    parts = {name: (described(part), digest(part)) for name, part in CASES[case]().items()}
    assert parts == GOLDEN[case]


def test_every_golden_row_is_compared() -> None:
    """Nested statistics and bitsandbytes' int8 are compared with the package alone."""
    assert set(GOLDEN) - set(CASES) == {"bitsandbytes nf4 nested", "bitsandbytes int8"}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("e5m2", ml_dtypes.float8_e5m2),
        ("e3m2", ml_dtypes.float6_e3m2fn),
        ("e2m3", ml_dtypes.float6_e2m3fn),
        ("e2m1", ml_dtypes.float4_e2m1fn),
    ],
)
def test_elements_are_those_of_ml_dtypes(name: str, dtype: Any) -> None:
    element = ELEMENTS[name]
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    expected = codes.view(dtype).astype(np.float64)
    np.testing.assert_array_equal(element.decode(codes), expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(element.encode(expected[finite]), codes[finite])
    x = np.random.default_rng(0).standard_normal(4096) * element.largest / 2
    inside = x[np.abs(x) <= element.largest]
    np.testing.assert_array_equal(element.encode(inside), inside.astype(dtype).view(np.uint8))


def test_exact_decoding_rounds_once() -> None:
    scale = Fraction(float(F32(0.1)))
    values = np.array([3.0, 0.5, 1.5])
    found = oracle.decode_exact(values, [scale] * 3, BF16)
    assert [float(v) for v in found] == [0.30078125, 0.0500488281250, 0.150390625]
