# ruff: noqa: PLC0415 - a library is imported by the tests that need it
"""Parts and decoded values are those of the producers' own libraries, bit for bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from castwise.quantization import QuantizedArray, dequantize, quantize
from producer_libraries import LIBRARIES, Producer, array, tensor
from producer_libraries.bitsandbytes import bitsandbytes_nested
from scheme_oracle import Array, w

KINDS = (
    *("ties", "random", "heavy-tailed", "small", "powers", "tiny", "huge", "zero rows"),
    *("thousandths", "constant", "negative", "signed zeros", "zeros", "subnormal", "largest"),
    *("rows of every magnitude", "blocks of every magnitude"),
)
CASES = [
    pytest.param(library, one, dtype, kind, id=f"{library} {name} {dtype}, {kind}")
    for library, rows in LIBRARIES.items()
    for name, one in rows.items()
    for dtype in one.dtypes
    for kind in KINDS
]


class Difference(NamedTuple):
    """Where castwise does not give a library's bytes: the words of the page, and the cases."""

    words: str
    library: str
    schemes: tuple[str, ...]
    dtypes: tuple[str, ...]
    kinds: tuple[str, ...]


HALF, WIDE, ALL = ("float16",), ("float32", "bfloat16"), ("float32", "bfloat16", "float16")
SMALL_BLOCKS = ("tiny", "subnormal", "rows of every magnitude", "blocks of every magnitude")
BELOW = "below about 2^-119"
MX = ("mxfp4", "mxfp6", "mxfp8")
DIFFERENCES = [
    *(
        Difference("all zero", library, schemes, ALL, ("zeros",))
        for library, schemes in (
            ("modelopt", ("fp8_tensor", "nvfp4")),
            ("comfy", ("fp8_tensor", "nvfp4")),
            ("torchao", ("nvfp4",)),
        )
    ),
    *(
        Difference(BELOW, library, schemes, dtypes, ("subnormal",))
        for library, schemes, dtypes in (
            ("torchao", MX, WIDE),
            ("torchao", ("nvfp4",), ("bfloat16",)),
            ("comfy", ("fp8_tensor",), ("bfloat16",)),
            ("comfy", ("mxfp8",), WIDE),
            ("mlx", ("mxfp8",), WIDE),
            ("gguf", ("mxfp4", "int8_group"), WIDE),
            ("transformers", ("fp8_block",), WIDE),
            ("compressed-tensors", ("nvfp4",), WIDE),
            ("bitsandbytes", ("bnb",), ("bfloat16",)),
        )
    ),
    Difference("range above the largest number", "mlx", ("int",), WIDE, ("largest",)),
    Difference(
        "range above the largest number",
        "compressed-tensors",
        ("int asymmetric",),
        ALL,
        ("largest",),
    ),
    Difference("above 2^127, float16 2^15", "compressed-tensors", MX, ALL, ("largest",)),
    Difference("above 2688", "mlx", ("nvfp4",), WIDE, ("huge", "largest")),
    Difference("above 8.3e6", "gguf", ("int8_group",), WIDE, ("huge", "largest")),
    Difference("float16, scales below 2^-24", "compressed-tensors", MX, HALF, SMALL_BLOCKS),
    Difference(
        "float16, below 0.041",
        "compressed-tensors",
        ("nvfp4",),
        HALF,
        ("tiny", "subnormal", "thousandths"),
    ),
    Difference(
        "float16, below 0.0068",
        "comfy",
        ("fp8_tensor",),
        HALF,
        ("tiny", "subnormal", "thousandths"),
    ),
    Difference(
        "float16, quotients below 2^-14",
        "mlx",
        ("mxfp4",),
        HALF,
        ("tiny", "subnormal", "rows of every magnitude"),
    ),
    Difference(
        "float16, quotients below 2^-14", "mlx", ("mxfp8",), HALF, (*SMALL_BLOCKS, "thousandths")
    ),
]
"""The table of the page, whose cells these words are, as cases."""

PAGE = Path(__file__).parents[3] / "python" / "castwise" / "quantization" / "quantized.md"
NEAR_DB = 0.5
"""What other roundings of scales make of the same values."""


def difference(library: str, one: Producer, dtype: str, kind: str) -> Difference | None:
    """Find the row of a case."""
    label = one.scheme
    if one.scheme.startswith("int") and library != "gguf":
        label = "int asymmetric" if one.options.get("symmetric") is False else "int"
    for row in DIFFERENCES:
        is_of = row.library == library and label.startswith(row.schemes)
        if is_of and dtype in row.dtypes and kind in row.kinds:
            return row
    return None


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
    largest = float(ml_dtypes.finfo(dtype).max)
    signs = np.where(normal > 0, 1, -1)
    by_block = np.repeat(rng.integers(-24, 14, (rows, columns // 16)), 16, 1)
    found |= {
        "zero rows": mixed,
        "thousandths": normal * 1e-3,
        "constant": np.full_like(normal, 0.3),
        "negative": -np.abs(normal),
        "signed zeros": np.where(normal > 1, normal, 0 * signs),
        "zeros": 0 * signs,
        "subnormal": normal * (2.0**-20 if dtype == "float16" else 2.0**-126),
        "largest": signs * rng.uniform(0.5, 0.99, normal.shape) * largest,
        "rows of every magnitude": normal * np.exp2(rng.integers(-24, 14, (rows, 1))),
        "blocks of every magnitude": normal * np.exp2(by_block),
    }
    return {name: np.asarray(x, np.float64).astype(dtype) for name, x in found.items()}


def bits(part: Array) -> Array:
    return np.ascontiguousarray(part).reshape(-1).view(f"u{part.dtype.itemsize}")


def decibels(x: Array, decoded: Array) -> float:
    """The ratio of the squares of weights and errors; NaN if a value is not finite."""
    wide, found = x.astype(np.float64), decoded.astype(np.float64)
    scale = np.abs(wide).max()
    if not np.isfinite(found).all() or not scale:
        return math.nan
    noise = np.square((wide - found) / scale).sum()
    return 10 * math.log10(np.square(wide / scale).sum() / noise) if noise else math.inf


@pytest.mark.filterwarnings("ignore:x has scales of")
@pytest.mark.parametrize(("library", "one", "dtype", "kind"), CASES)
def test_parts_are_the_librarys(library: str, one: Producer, dtype: str, kind: str) -> None:
    """To the bit, signs of zeros too; but for the rows of the page, where castwise keeps more."""
    if one.only_read:
        pytest.skip("its arrays are only read")
    x = inputs(one, dtype)[kind]
    expected, decoded = one.encode(x)
    q = quantize(x, one.scheme, recipe=library, **one.options)
    parts = {"scale": q.scale} if "codes" in expected else q.parts()
    pairs = [
        (parts[name], part)
        for name, part in expected.items()
        if name in parts and name != "weight.quant_map"
    ]
    assert len(pairs) >= max(len(expected) - 1, 1)
    same = all(np.array_equal(bits(own), bits(part)) for own, part in pairs)
    ours = None if decoded is None else dequantize(q, decoded.dtype)
    if ours is not None and decoded is not None:
        same &= np.array_equal(ours.astype(np.float64), decoded.astype(np.float64), equal_nan=True)
    row = difference(library, one, dtype, kind)
    assert same == (row is None), row
    if row is not None and ours is not None and decoded is not None:
        theirs, own = decibels(x, decoded), decibels(x, ours)
        is_beyond = math.isnan(own) and kind == "largest"  # codes above the largest number
        assert math.isnan(theirs) or is_beyond or own >= theirs - NEAR_DB


def test_differences_are_those_of_the_page() -> None:
    """Each row of the page has cases, and each case a row."""
    section = PAGE.read_text().partition("## Where bytes differ")[2].partition("\n## ")[0]
    cells = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    assert {(words, library) for library, _, words, *_ in cells} == {
        (row.words, row.library) for row in DIFFERENCES
    } | {("of 16 bits", "keras")}


@pytest.mark.parametrize(("library", "one", "dtype", "kind"), CASES)
def test_the_librarys_parts_decode_as_it_decodes_them(
    library: str, one: Producer, dtype: str, kind: str
) -> None:
    row = difference(library, one, dtype, kind)
    if row is not None and row.words == BELOW:
        pytest.skip("a row of the page: subnormal products or scales")
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


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("scheme", "form", "group"),
    [
        ("int2_group", "pack-quantized", 128),
        ("int3_group", "pack-quantized", 128),
        ("int4_group", "pack-quantized", 128),
        ("int4_channel", "pack-quantized", None),
        ("int8_channel", "int-quantized", None),
        ("int8_group", "pack-quantized", 128),
    ],
)
def test_compressed_tensors_decodes_scales_of_both_signs(
    scheme: Any, form: str, group: int | None, symmetric: bool
) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    x = np.random.default_rng(3).standard_t(5, (64, 512)).astype(ml_dtypes.bfloat16)
    q = quantize(x, scheme, symmetric=symmetric, scales="best")
    assert (q.scale < 0).any() == symmetric
    arguments = QuantizationArgs(
        num_bits=int(scheme[3]),
        type="int",
        symmetric=symmetric,
        strategy="channel" if group is None else "group",
        group_size=group,
    )
    row = QuantizationScheme(targets=["Linear"], weights=arguments)
    parts = {name: tensor(np.asarray(part)) for name, part in q.parts().items()}
    compressor = BaseCompressor.get_value_from_registry(form)
    decoded = array(compressor.decompress(parts, row)["weight"])
    np.testing.assert_array_equal(decoded, dequantize(q, ml_dtypes.bfloat16))
