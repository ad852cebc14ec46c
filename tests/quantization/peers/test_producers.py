# ruff: noqa: PLC0415 - a library is imported by the tests that need it
"""Parts and decoded values are those of the producers' own libraries, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from castwise.quantization import QuantizedArray, dequantize, quantize
from producer_libraries import LIBRARIES, Producer, array, tensor
from producer_libraries.bitsandbytes import bitsandbytes_nested
from scheme_oracle import Array, w

KINDS = ("ties", "random", "heavy-tailed", "small", "powers", "tiny", "huge", "zero rows")
CASES = [
    pytest.param(library, one, dtype, kind, id=f"{library} {name} {dtype}, {kind}")
    for library, rows in LIBRARIES.items()
    for name, one in rows.items()
    for dtype in one.dtypes
    for kind in KINDS
    if kind not in one.not_for
]


def inputs(one: Producer, dtype: str) -> dict[str, Array]:
    """Weights of every kind that a producer takes: multiples of its block."""
    rng = np.random.default_rng(7)
    rows, columns = max(16, one.rows * 2), max(256, one.columns * 2)
    normal = rng.standard_normal((rows, columns))
    found = {
        "ties": w(rows, columns, np.float32),
        "random": normal,
        "heavy-tailed": rng.standard_t(2, (rows, columns)),
        "small": normal * 0.02,
        "powers": np.exp2(rng.integers(-8, 4, (rows, columns))) * np.sign(normal),
        "tiny": normal * (1e-6 if dtype == "float16" else 1e-30),
        "huge": normal * (5e3 if dtype == "float16" else 1e30),
    }
    mixed = normal * np.exp2(rng.integers(-12, 12, (rows, 1)))
    mixed[::5] = 0
    return {**{k: v.astype(dtype) for k, v in found.items()}, "zero rows": mixed.astype(dtype)}


def same_bits(found: Array, expected: Array) -> None:
    assert found.dtype.itemsize == expected.dtype.itemsize
    ours = np.ascontiguousarray(found).reshape(-1).view(f"u{found.dtype.itemsize}")
    theirs = np.ascontiguousarray(expected).reshape(-1).view(f"u{expected.dtype.itemsize}")
    np.testing.assert_array_equal(ours, theirs)


def without_sign_of_zero(part: Array, name: str) -> Array:
    """Bytes of two codes of E2M1, or of 4-bit maps, with 0 for -0."""
    if name != "weight":
        return part
    low, high = part & 15, part >> 4
    return np.where(low == 8, 0, low) | (np.where(high == 8, 0, high) << 4)


@pytest.mark.parametrize(("library", "one", "dtype", "kind"), CASES)
def test_parts_are_the_librarys(library: str, one: Producer, dtype: str, kind: str) -> None:
    if one.only_read:
        pytest.skip("its arrays are only read")
    x = inputs(one, dtype)[kind]
    expected, decoded = one.encode(x)
    q = quantize(x, one.scheme, recipe=library, **one.options)
    if "codes" in expected:
        same_bits(q.scale, expected["scale"])
        assert decoded is not None
        same_bits(dequantize(q, x.dtype), decoded)
        return
    parts = q.parts()
    for name, part in expected.items():
        if name == "weight.quant_map":
            np.testing.assert_array_equal(parts.get(name, part), part)
        elif one.signed_zero:
            same_bits(parts[name], part)
        else:
            same_bits(without_sign_of_zero(parts[name], name), without_sign_of_zero(part, name))
    if decoded is not None:
        ours = dequantize(q, decoded.dtype)
        np.testing.assert_array_equal(ours.astype(np.float64), decoded.astype(np.float64))


@pytest.mark.parametrize(("library", "one", "dtype", "kind"), CASES)
def test_the_librarys_parts_decode_as_it_decodes_them(
    library: str, one: Producer, dtype: str, kind: str
) -> None:
    x = inputs(one, dtype)[kind]
    expected, decoded = one.encode(x)
    if decoded is None or "codes" in expected:
        pytest.skip("the library does not decode it, or stores codes that are not packed")
    if library == "bitsandbytes" and "weight.absmax" in expected:
        expected = quantize(x, one.scheme, recipe=library).parts() | expected
    if library == "comfy":
        expected |= {"comfy_quant": quantize(x, one.scheme, recipe=library).parts()["comfy_quant"]}
    options = {k: v for k, v in one.options.items() if k in ("block", "axis")}
    q = QuantizedArray.from_parts(expected, library, x.shape, scheme=one.scheme, **options)
    found = dequantize(q, decoded.dtype)
    np.testing.assert_array_equal(found.astype(np.float64), decoded.astype(np.float64))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_nested_statistics_of_bitsandbytes(kind: str) -> None:
    x = w(64, 512) * ml_dtypes.bfloat16(0.1)
    parts, decoded = bitsandbytes_nested(x, kind)
    q = QuantizedArray.from_parts(parts, "bitsandbytes")
    assert q.shape == x.shape
    found = dequantize(q, decoded.dtype)
    np.testing.assert_array_equal(found.astype(np.float64), decoded.astype(np.float64))


def test_gpt_oss_decodes_as_transformers_decodes_it() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    x = np.random.default_rng(1).standard_normal((3, 64, 128)).astype(np.float32)
    parts = quantize(x, "mxfp4", recipe="gpt-oss").parts()
    blocks, scales = (tensor(parts[name]) for name in ("blocks", "scales"))
    expected = array(convert_moe_packed_tensors(blocks, scales))
    q = QuantizedArray.from_parts(parts, "gpt-oss")
    np.testing.assert_array_equal(dequantize(q).swapaxes(-1, -2), expected)


def test_deepseek_blocks_decode_as_compressed_tensors_decodes_them() -> None:
    from compressed_tensors.entrypoints.convert import FP8BlockDequantizer

    x = np.random.default_rng(2).standard_normal((200, 300)).astype(np.float32)
    parts = quantize(x, "fp8_block", recipe="deepseek").parts()
    tensors = {f"m.{name}": tensor(part) for name, part in parts.items()}
    found = FP8BlockDequantizer(targets=["m"]).process(tensors)
    q = QuantizedArray.from_parts(parts, "deepseek", block=(128, 128))
    np.testing.assert_array_equal(dequantize(q), array(found["m.weight"]))
