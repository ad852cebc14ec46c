"""Axes, strides, ranks and options of `castwise.quantization`, other recipes, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
import scheme_oracle as oracle
from castwise import _core
from castwise._options import Scales
from castwise.checkpoint.planning.encode.encoded_weight import compare_decoded
from castwise.quantization import (
    QuantizedArray,
    dequantize,
    pack,
    quantize,
    schemes,
    swizzle_scales,
    unpack,
    unswizzle_scales,
)
from scheme_oracle import Array

NAMES = [row.name for row in schemes()]
PLAIN = ("fp8_block", "mxfp4", "mxfp6_e2m3", "nvfp4", "int4_group", "int3_channel", "mxint8")


@cache
def drawn(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(3).standard_normal(shape)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return drawn(shape).astype(dtype)


def same(one: QuantizedArray, other: QuantizedArray) -> None:
    np.testing.assert_array_equal(one.data.view(np.uint8), other.data.view(np.uint8))
    np.testing.assert_array_equal(one.scale.view(np.uint8), other.scale.view(np.uint8))
    np.testing.assert_array_equal(dequantize(one, np.float32), dequantize(other, np.float32))


@pytest.mark.parametrize("scheme", NAMES)
def test_every_scheme_comes_near_and_has_a_size(scheme: str) -> None:
    x = normal(4, 256)
    q = quantize(x, scheme)
    row = next(row for row in schemes() if row.name == scheme)
    bits = max(row.bits, 4)
    assert row.bits <= q.bits_per_weight <= bits + 4.5
    report = q.report(x)
    assert report.elements == x.size
    assert report.index is not None
    error = np.abs(x.astype(np.float64) - dequantize(q, np.float64))
    assert error[report.index] == report.max_abs_error == error.max()
    assert report.sqnr_db > 4


@pytest.mark.parametrize("scheme", NAMES)
def test_every_recipe_comes_near(scheme: str) -> None:
    """What a recipe divides or multiplies by is what its form is decoded with."""
    x = normal(4, 256)
    row = next(row for row in schemes() if row.name == scheme)
    # A step of the largest codes; floor loses up to a quarter of the top binade.
    most = np.abs(x).max() * (0.26 if row.bits >= 5 else 0.7)
    for recipe in row.recipes:
        assert np.abs(dequantize(quantize(x, scheme, recipe=recipe), "float32") - x).max() < most


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (2, 0, 32)])
def test_blocks_of_no_elements(shape: tuple[int, ...]) -> None:
    parts = quantize(np.zeros(shape, np.float32), "int8_group", recipe="gguf").parts()
    q = QuantizedArray.from_parts(parts, "gguf", shape, scheme="int8_group")
    assert dequantize(q).shape == shape


@pytest.mark.parametrize("bits", range(2, 9))
def test_integers_of_every_width_have_a_sign(bits: int) -> None:
    half = 1 << (bits - 1)
    codes = np.resize(np.arange(-half, half), (8, 32)).astype(np.int8)
    data = pack(codes, bits, dtype="int8" if bits == 8 else "uint8")
    scale = np.full((8, 1), 0.5, np.float32)
    for zero, shift in ((None, 0), (np.full((8, 1), 3, np.int8), 3)):
        for arithmetic in ("peer", "exact"):
            q = QuantizedArray(
                f"int{bits}_group", data, scale, zero_point=zero, shape=(8, 32), block=32
            )
            found = dequantize(q, "float32", arithmetic=arithmetic)
            np.testing.assert_array_equal(found, (codes.astype(int) - shift) * 0.5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", PLAIN)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_another_axis_is_the_array_turned(scheme: str, axis: int) -> None:
    x = normal(6, 10, 72)
    q = quantize(x, scheme, axis=axis)
    turned = quantize(np.ascontiguousarray(np.moveaxis(x, axis, -1)), scheme)
    np.testing.assert_array_equal(q.data.view(np.uint8), turned.data.view(np.uint8))
    expected = np.moveaxis(dequantize(turned), -1, axis)
    np.testing.assert_array_equal(dequantize(q), expected)


@pytest.mark.parametrize(
    "scheme", ["int8_channel", "int8_group", "int4_channel", "int4_group", "int3_channel"]
)
@pytest.mark.parametrize("recipe", ["mlx", "compressed-tensors"])
@pytest.mark.parametrize("columns", [3, 6, 32, 36])
def test_rows_that_do_not_fill_their_words(scheme: str, recipe: str, columns: int) -> None:
    x = normal(9, columns)
    q = quantize(x, scheme, recipe=recipe)
    for row, codes, values in zip(x, q.data, dequantize(q), strict=True):
        alone = quantize(row[None], scheme, recipe=recipe)
        assert alone.data.tobytes() == codes.tobytes()
        assert dequantize(alone).tobytes() == values.tobytes()


LARGE = ((300, 700), (65, 3000), (4100, 40), (17_000, 17), (40, 7, 1200))


@pytest.mark.thinned(11)
@pytest.mark.parametrize("scheme", NAMES)
@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64])
def test_large_arrays_along_the_first_axis(scheme: str, shape: tuple[int, ...], dtype: Any) -> None:
    """More elements than are moved together, and rows that are cut."""
    x = normal(*shape, dtype=dtype)
    turned = np.ascontiguousarray(np.moveaxis(x, 0, -1))
    one, other = quantize(x, scheme, axis=0), quantize(turned, scheme)
    assert one.data.tobytes() == other.data.tobytes()
    assert one.scale.tobytes() == other.scale.tobytes()
    x[-1, ..., 3] = turned[..., 3, -1] = np.nan
    with pytest.raises(ValueError, match=r"NaN at index \["):
        quantize(turned, scheme)
    index = [len(x) - 1, *[0] * (x.ndim - 2), 3]
    with pytest.raises(ValueError, match=re.escape(f"NaN at index {index}, ")):
        quantize(x, scheme, axis=0)


@pytest.mark.parametrize("shape", [(48, 33), (700, 300), (2, 96, 1200)])
@pytest.mark.parametrize("tall", [32, 0])
def test_blocks_in_columns_are_those_in_rows_of_the_transpose(
    shape: tuple[int, ...], tall: int
) -> None:
    x = normal(*shape)

    def encoded(x: Array, block: tuple[int, int], **options: Any) -> tuple[Array, Array]:
        high, wide = (size or n for size, n in zip(block, x.shape[-2:], strict=True))
        grid = -(-x.shape[-2] // high), -(-x.shape[-1] // wide)
        codes, scale = np.empty(x.shape, np.int8), np.empty((*x.shape[:-2], *grid), np.float32)
        _core.encode_blocks(
            x,
            codes,
            scale,
            scheme="int8_group",
            recipe="compressed-tensors",
            block=block,
            **options,
        )
        return codes, scale

    across = encoded(x.swapaxes(-1, -2), (1, tall))
    for found, wanted in zip(encoded(x, (tall, 1)), across, strict=True):
        np.testing.assert_array_equal(found, wanted.swapaxes(-1, -2))
    # Draws are for elements in the order of the array.
    drawn = {"rounding": "stochastic", "seed": 5}
    np.testing.assert_array_equal(
        encoded(x, (tall, 1), **drawn)[0], encoded(np.asfortranarray(x), (tall, 1), **drawn)[0]
    )
    x[..., 40, 7], x[..., 3, 9] = np.inf, np.nan
    with pytest.raises(ValueError, match=r"NaN at index \[(0, )?3, 9\]"):
        encoded(x, (tall, 1))


@pytest.mark.parametrize("scheme", PLAIN)
def test_strides_change_nothing(scheme: str) -> None:
    x = normal(20, 160)
    expected = quantize(x, scheme)
    wide = np.zeros((40, 480), np.float32)
    wide[::2, ::3] = x
    for view in (wide[::2, ::3], np.asfortranarray(x), np.ascontiguousarray(x[::-1])[::-1]):
        same(quantize(view, scheme), expected)
    out = np.full((40, 480), 7, np.float32)
    found = dequantize(expected, out=out[::2, ::3])
    np.testing.assert_array_equal(found, dequantize(expected, np.float32))
    assert (out[1::2] == 7).all()


@pytest.mark.parametrize("scheme", PLAIN)
def test_a_stack_is_quantized_matrix_by_matrix(scheme: str) -> None:
    x = normal(2, 3, 40, 96)
    q = quantize(x, scheme)
    assert dequantize(q).shape == x.shape
    level = {"amax": float(np.abs(x).max())} if scheme == "nvfp4" else {}
    for index in np.ndindex(2, 3):
        one = quantize(x[index], scheme, **level)
        np.testing.assert_array_equal(dequantize(one), dequantize(q)[index])


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("fp8_tensor", {}),
        ("int8_tensor", {}),
        ("int8_tensor", {"symmetric": False}),
        ("int8_tensor", {"recipe": "mlx"}),
    ],
)
def test_a_whole_stack_shares_the_scale_of_a_tensor(
    scheme: str, options: dict[str, Any], axis: int
) -> None:
    x = normal(3, 4, 32) * np.array([[[1]], [[5]], [[2]]], np.float32)
    q = quantize(x, scheme, axis=axis, **options)
    assert q.scale.size == 1
    whole = np.moveaxis(x, axis, -1)
    whole = whole.reshape(-1, whole.shape[-1])
    found = np.moveaxis(dequantize(q), axis, -1)
    expected = dequantize(quantize(whole, scheme, **options))
    np.testing.assert_array_equal(found.reshape(whole.shape), expected)


@pytest.mark.parametrize("scheme", PLAIN)
def test_a_vector_is_a_matrix_of_one_row(scheme: str) -> None:
    x = normal(200)
    np.testing.assert_array_equal(
        dequantize(quantize(x, scheme)), dequantize(quantize(x[None], scheme))[0]
    )


@pytest.mark.thinned(4)
@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (2, 0, 32)])
@pytest.mark.parametrize(
    ("scheme", "recipe"), [(one.name, recipe) for one in schemes() for recipe in one.recipes]
)
def test_empty_arrays_are_empty(scheme: str, recipe: str, shape: tuple[int, ...]) -> None:
    q = quantize(np.zeros(shape, np.float32), scheme, recipe=recipe)
    assert dequantize(q).shape == shape
    if q.block == (0, 0):
        like = quantize(np.zeros((1,) * len(shape), np.float32), scheme, recipe=recipe)
        np.testing.assert_array_equal(q.scale, like.scale)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 8), {"scheme": "fp8_channel", "axis": 0}),
        ((4, 8), {"scheme": "bnb_nf4"}),
        ((4, 8), {"scheme": "bnb_nf4", "axis": 0}),
        ((2, 3, 64), {"scheme": "mxfp4", "axis": 1}),
        ((2, 4, 8), {"scheme": "int8_tensor", "recipe": "mlx"}),
        ((8,), {"scheme": "fp8_channel"}),
    ],
)
def test_what_is_not_finite_is_named_by_its_own_index(
    shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    x = normal(*shape)
    index = tuple(length - 1 - (axis > 0) for axis, length in enumerate(shape))
    x[index] = -np.inf
    with pytest.raises(
        ValueError, match=re.escape(f"x has -inf at index {list(index)}, for which")
    ):
        quantize(x, **options)


@pytest.mark.parametrize("scheme", ["fp8_tensor", "nvfp4"])
def test_float64_has_the_exact_products_of_comfy(scheme: str) -> None:
    q = quantize(normal(32, 32), scheme, recipe="comfy")
    exact = dequantize(q, np.float64, arithmetic="exact")
    np.testing.assert_array_equal(dequantize(q, np.float64), exact)


@pytest.mark.parametrize("scheme", PLAIN)
def test_float64_is_not_rounded_twice(scheme: str) -> None:
    x = normal(8, 128).astype(np.float64)
    same(quantize(x, scheme, recipe=None), quantize(x.astype(np.float64), scheme))
    report = quantize(x, scheme).report(x)
    assert report.not_finite == 0


def test_float64_lies_on_the_right_side_of_a_tie() -> None:
    """6 and a little more than 0.25, a tie of E2M1 that float32 cannot tell from it."""
    x = np.zeros((1, 32))
    x[0, :2] = 6, 0.25 + 2.0**-40
    assert dequantize(quantize(x, "mxfp4"), np.float32)[0, 1] == 0.5
    assert dequantize(quantize(x.astype(np.float32), "mxfp4"), np.float32)[0, 1] == 0


@pytest.mark.parametrize("high", [16, 32, 50])
def test_square_blocks_of_nvfp4_repeat_their_scale(high: int) -> None:
    x = normal(high, 64)
    q = quantize(x, "nvfp4", block=(16, 16))
    scale = q.scale.view(np.uint8)
    assert scale.shape == (high, 4)
    for start in range(0, high, 16):
        assert (scale[start : start + 16] == scale[start]).all()
    largest = np.abs(x[:16, :16]).max()
    assert q.global_scale is not None
    top = oracle.E4M3.encode(np.array(largest / np.float32(6) / q.global_scale))
    assert abs(int(scale[0, 0]) - int(top)) <= 1


def test_amax_is_shared_by_several_arrays() -> None:
    x, y = normal(4, 64), normal(4, 64) * 3
    level = float(np.abs(y).max())
    q = quantize(x, "nvfp4", recipe="modelopt", amax=level)
    assert q.global_scale == quantize(y, "nvfp4", recipe="modelopt").global_scale
    assert quantize(x, "fp8_tensor", amax=448.0).scale == 1


def test_scales_that_are_powers_of_two() -> None:
    scale = quantize(normal(256, 256), "fp8_block", recipe="deepseek", scale_rule="rceil").scale
    assert scale.dtype == ml_dtypes.float8_e8m0fnu
    rules = {rule: quantize(normal(4, 64), "mxfp4", scale_rule=rule) for rule in ("floor", "ceil")}
    low, high = (rules[rule].scale.view(np.uint8).astype(int) for rule in ("floor", "ceil"))
    assert (high - low == 1).all()


@pytest.mark.filterwarnings("ignore:x has scales")  # mlx has no global scale
@pytest.mark.parametrize("recipe", next(row.recipes for row in schemes() if row.name == "nvfp4"))
@pytest.mark.parametrize("scales", ["amax", "best", "four_over_six"])
@pytest.mark.parametrize("magnitude", [1e-6, 1e6])
def test_a_nan_changes_no_other_block(recipe: str, scales: Scales, magnitude: float) -> None:
    x = normal(4, 256) * np.float32(magnitude)
    beside_nan = x.copy()
    beside_nan[0, 3] = np.nan
    options: dict[str, Any] = {"recipe": recipe, "scales": scales}
    for _ in range(2):  # the second call takes what the first one planned
        try:
            wanted = quantize(x, "nvfp4", **options)
        except ValueError as error:
            pytest.skip(str(error))
        q = quantize(beside_nan, "nvfp4", nonfinite="nan", **options)
        assert np.array_equal(q.global_scale, wanted.global_scale)
        assert np.array_equal(dequantize(q, np.float32)[1:], dequantize(wanted, np.float32)[1:])


@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp8_e4m3", "mxint8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(scheme: str, value: float) -> None:
    x = normal(4, 96)
    x[2, 40] = value
    with pytest.raises(ValueError, match=r"index \[2, 40\]"):
        quantize(x, scheme)
    q = quantize(x, scheme, nonfinite="nan")
    assert q.scale.view(np.uint8)[2, 1] == 255
    found = dequantize(q, np.float32)
    assert np.isnan(found[2, 32:64]).all()
    assert np.isfinite(np.delete(found.reshape(-1), np.s_[2 * 96 + 32 : 2 * 96 + 64])).all()
    report = q.report(x)  # 31 numbers became NaN
    assert (report.not_finite, report.index) == (32, (2, 32))
    assert (report.max_abs_error, report.rms_error) == (np.inf, np.inf)
    assert report.sqnr_db == -np.inf
    (lost,) = compare_decoded(x[None], q)
    assert (lost.overflowed, lost.nan_out, lost.count) == (31, 32, x.size)
    assert (lost.nan_in, lost.inf_in) == (int(np.isnan(value)), int(np.isinf(value)))
    assert (lost.max_abs_error, lost.max_rel_error, lost.sqnr_db) == (np.inf, np.inf, -np.inf)
    assert lost.amax == np.abs(x[np.isfinite(x)]).max()
    rest = np.arange(4) != 2
    kept = quantize(x[rest], scheme)
    (lost,) = compare_decoded(x[rest][None], kept)
    assert lost.sqnr_db == pytest.approx(kept.report(x[rest]).sqnr_db)


@pytest.mark.parametrize("rows", [1, 100, 128, 129, 200])
@pytest.mark.parametrize("columns", [128, 700, 5000])
def test_rows_of_high_blocks(rows: int, columns: int) -> None:
    codes = np.random.default_rng(rows).integers(0, 127, (rows, columns)).astype(np.uint8)
    codes = codes.view(ml_dtypes.float8_e4m3fn)
    grid = -(-rows // 128), -(-columns // 128)
    scale = np.exp2(np.random.default_rng(columns).uniform(-9, 9, grid)).astype(np.float32)
    q = QuantizedArray("fp8_block", codes, scale, shape=codes.shape)
    factors = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:rows, :columns]
    expected = (codes.astype(np.float32) * factors).astype(ml_dtypes.bfloat16)
    for threads in (1, 2):
        assert dequantize(q, "bfloat16", threads=threads).tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1.0, 1e200])
def test_a_report_of_numbers_whose_squares_are_beyond_float64(size: float) -> None:
    x = normal(4, 64).astype(np.float64)
    q = quantize(x, "mxfp8_e4m3")
    codes = np.zeros(x.shape, ml_dtypes.float8_e4m3fn)
    zeros = QuantizedArray("mxfp8_e4m3", codes, q.scale, shape=q.shape)
    report = zeros.report(x * size)
    assert report.sqnr_db == pytest.approx(0, abs=1e-9)
    assert report.rms_error == pytest.approx(np.sqrt(np.mean(x * x)) * size)
    assert zeros.report(np.zeros_like(x)).sqnr_db == np.inf
    assert q.report(np.zeros_like(x)).sqnr_db == -np.inf


@pytest.mark.parametrize("recipe", ["torchao", "compressed-tensors", "modelopt", "mlx", "gpt-oss"])
def test_blocks_that_are_zero_or_too_small(recipe: str) -> None:
    x = np.zeros((3, 64), np.float32)
    x[1] = 1e-40
    x[2, :32] = 3
    scale = quantize(x, "mxfp4", recipe=recipe).scale.view(np.uint8)
    zero = 127 if recipe == "mlx" else 0
    assert scale[0].tolist() == [zero, zero]
    assert scale[1].tolist() == [0, 0]
    assert scale[2, 1] == zero


def test_a_byte_of_e8m0_is_a_power_of_two_but_for_255() -> None:
    data = np.full((256, 16), 0x22, np.uint8)
    scale = np.arange(256, dtype=np.uint8)[:, None]
    for stored in (scale, scale.view(ml_dtypes.float8_e8m0fnu)):
        q = QuantizedArray("mxfp4", data, stored, shape=(256, 32))
        found = dequantize(q, np.float64)[:, 0]
        np.testing.assert_array_equal(found[:255], np.ldexp(1.0, np.arange(255) - 127))
        assert np.isnan(found[255])


SLABS = [
    ("fp8_block", "deepseek", {}),
    ("fp8_tensor", "comfy", {}),
    ("fp8_channel", "modelopt", {}),
    ("mxfp4", "mlx", {}),
    ("mxfp8_e4m3", "comfy", {}),
    ("nvfp4", "comfy", {}),
    ("nvfp4", "compressed-tensors", {}),
    ("int4_group", "compressed-tensors", {"symmetric": False}),
    ("int3_group", "compressed-tensors", {"symmetric": False, "block": 64}),
    ("int8_channel", "bitsandbytes", {}),
    ("int5_group", "mlx", {"block": 64}),
    ("int8_group", "gguf", {}),
    ("bnb_nf4", "bitsandbytes", {}),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("scheme", "recipe", "options"), SLABS)
def test_rows_are_decoded_apart(scheme: str, recipe: str, options: dict[str, Any]) -> None:
    x = normal(300, 256)
    q = quantize(x, scheme, recipe=recipe, **options)
    whole = dequantize(q)
    step = q._row_step
    for start in range(0, 300, step):
        stop = min(start + step, 300)
        np.testing.assert_array_equal(q._rows(start, stop), whole[start:stop])
    if step > 1:
        with pytest.raises(ValueError, match=f"whole blocks of {step}"):
            q._rows(1, 300)


@pytest.mark.parametrize("recipe", ["awq", "gptq"])
def test_rows_of_transposed_weights_are_decoded_apart(recipe: str) -> None:
    q = QuantizedArray.from_parts(
        four_bits(recipe, 128, 64, 32), recipe, block=32, scheme="int4_group"
    )
    whole = dequantize(q)
    for start in range(0, 64, q._row_step):
        found = q._rows(start, start + q._row_step)
        np.testing.assert_array_equal(found, whole[start : start + q._row_step])


def four_bits(recipe: str, inputs: int, outputs: int, group: int) -> dict[str, Array]:
    """Parts of a weight of random codes; g_idx is in order."""
    rng = np.random.default_rng(0)
    packed = (inputs, outputs // 8) if recipe == "awq" else (inputs // 8, outputs)
    words = {"qweight": packed, "qzeros": (inputs // group, outputs // 8)}
    parts: dict[str, Array] = {
        name: rng.integers(0, 1 << 32, shape, np.uint32).view(np.int32)
        for name, shape in words.items()
    }
    return parts | {"scales": rng.random((inputs // group, outputs)).astype(np.float16)}


def test_threads_change_nothing() -> None:
    x = normal(512, 512)
    for scheme in PLAIN:
        one, four = (quantize(x, scheme, threads=count) for count in (1, 4))
        same(one, four)


# Other producers' parts


def test_awq_is_read() -> None:
    rng = np.random.default_rng(0)
    codes, zeros = rng.integers(0, 16, (64, 32)), rng.integers(0, 16, (2, 32))
    scales = rng.random((2, 32)).astype(np.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    words = [
        np.bitwise_or.reduce(
            part.reshape(-1, 4, 8)[..., order].astype(np.uint32)
            << (4 * np.arange(8, dtype=np.uint32)),
            -1,
        ).view(np.int32)
        for part in (codes, zeros)
    ]
    parts = {"qweight": words[0], "qzeros": words[1], "scales": scales}
    q = QuantizedArray.from_parts(parts, "awq", block=32)
    wide = np.repeat(np.arange(2), 32)
    expected = ((codes - zeros[wide]) * scales.astype(np.float32)[wide]).T
    np.testing.assert_array_equal(dequantize(q, np.float32), expected.astype(np.float32))
    assert q.shape == (32, 64)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("variant", "stored_less"), [(None, 1), ("gptq_v2", 0)])
@pytest.mark.parametrize("ordered", [True, False])
def test_gptq_is_read(bits: int, variant: str | None, stored_less: int, ordered: bool) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (128, 32))
    zeros = rng.integers(1, 1 << bits, (4, 32))
    scales = rng.random((4, 32)).astype(np.float16)
    groups = np.repeat(np.arange(4), 32)
    groups = groups if ordered else rng.permutation(groups)
    parts = {
        "qweight": oracle.words(oracle.pack(codes.T, bits)).T,
        "qzeros": oracle.words(oracle.pack(zeros - stored_less, bits)),
        "scales": scales,
        "g_idx": groups.astype(np.int32),
    }
    q = QuantizedArray.from_parts(
        parts, "gptq", block=32, scheme=f"int{bits}_group", variant=variant
    )
    expected = ((codes - zeros[groups]) * scales.astype(np.float32)[groups]).T
    np.testing.assert_array_equal(dequantize(q, np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_old_words_of_compressed_tensors_are_read(bits: int) -> None:
    q = quantize(normal(8, 160), f"int{bits}_group", recipe="compressed-tensors", block=32)
    unsigned = oracle.unpack(q.data, bits, 160)
    parts = q.parts() | {"weight_packed": oracle.pack_padded(unsigned, bits)}
    old = QuantizedArray.from_parts(parts, "compressed-tensors", scheme=q.scheme, block=32)
    assert old.variant == "padded"
    np.testing.assert_array_equal(dequantize(old), dequantize(q))


def test_words_that_fit_two_packings_are_refused() -> None:
    q = quantize(normal(8, 10), "int3_group", recipe="compressed-tensors", block=10)
    with pytest.raises(ValueError, match=r"fit several.*padded.*variant="):
        QuantizedArray.from_parts(q.parts(), "compressed-tensors", scheme="int3_group", block=10)
    stated = QuantizedArray.from_parts(
        q.parts(), "compressed-tensors", scheme="int3_group", block=10, variant="dense"
    )
    np.testing.assert_array_equal(dequantize(stated), dequantize(q))


def test_keras_int4_is_read() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(-8, 8, (64, 6)).astype(np.int8)
    packed = oracle.pack(codes, 4).view(np.int8)
    scale = rng.random(6).astype(np.float32) + 1
    q = QuantizedArray.from_parts(
        {"kernel": packed, "kernel_scale": scale}, "keras", (64, 6), scheme="int4_channel"
    )
    np.testing.assert_array_equal(dequantize(q, np.float32), codes.astype(np.float32) / scale)


def test_names_of_a_checkpoint_are_parts() -> None:
    q = quantize(normal(2, 64, 64), "mxfp4", recipe="gpt-oss")
    named = {f"model.layers.0.mlp.experts.gate_up_proj_{name}": p for name, p in q.parts().items()}
    np.testing.assert_array_equal(
        dequantize(QuantizedArray.from_parts(named, "gpt-oss")), dequantize(q)
    )
    inputs = quantize(normal(32, 32), "fp8_tensor", recipe="modelopt").parts()
    inputs["input_scale"] = np.float32(2)
    assert QuantizedArray.from_parts(inputs, "modelopt").scheme == "fp8_tensor"


# Refusals


def nvfp4(recipe: str = "modelopt") -> dict[str, Array]:
    return quantize(normal(32, 64), "nvfp4", recipe=recipe).parts()


def without(parts: Mapping[str, Array], *names: str) -> dict[str, Array]:
    return {name: part for name, part in parts.items() if name not in names}


def marked(state: object) -> dict[str, Array]:
    """The parts of ComfyUI's MXFP8 beside another marker."""
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return quantize(normal(32, 64), "mxfp8_e4m3", recipe="comfy").parts() | {"comfy_quant": text}


def wrong_dtype(scheme: str, recipe: str, name: str, dtype: str) -> QuantizedArray:
    """Read a weight one of whose parts has been cast."""
    parts = quantize(normal(32, 64), scheme, recipe=recipe, block=BLOCKS.get(scheme)).parts()
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return QuantizedArray.from_parts(
        parts | {name: parts[name].astype(np.float32).astype(kind)}, recipe
    )


BLOCKS = {"int4_group": 32}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: quantize(normal(2, 32), "mxfp5"), "did you mean 'mxfp4'"),
    (lambda: quantize(normal(2, 32), "mxfp4", recipe="model-opt"), "did you mean 'modelopt'"),
    (lambda: quantize(normal(2, 32), "mxfp4", recipe="deepseek"), "use one of torchao"),
    (lambda: quantize(normal(2, 32), "mxfp4", block=16), r"block=\(1, 16\)"),
    (lambda: quantize(normal(2, 32), "nvfp4", block=(8, 8)), r"\(16, 16\)"),
    (lambda: quantize(normal(2, 32), "mxfp4", amax=1.0), "many scales"),
    (lambda: quantize(normal(2, 32), "mxfp4", axis=2), "axis"),
    (lambda: quantize(np.float32(1), "mxfp4"), "no axes"),
    (lambda: quantize(normal(2, 40), "int8_group", recipe="gguf"), "whole blocks of 32"),
    (lambda: quantize(normal(64), "mxfp8_e4m3", recipe="comfy"), r"x has shape \(64,\).*x\[None\]"),
    *(
        (partial(quantize, normal(2, 64), scheme, recipe=recipe), f"recipe='{recipe}' is not valid")
        for scheme, recipe in (
            ("int4_group", "gguf"),
            ("int8_group", "bitsandbytes"),
            ("int4_group", "keras"),
        )
    ),
    (lambda: quantize(normal(64), "int8_channel", recipe="keras"), r"shape \(64,\).*x\[None\]"),
    (lambda: quantize(normal(2, 40), "mxfp4", recipe="gpt-oss"), "whole blocks of 32"),
    (lambda: quantize(normal(4, 64), "fp8_block", recipe="comfy").parts(), "no names"),
    *(
        (partial(QuantizedArray.from_parts, marked(state), "comfy"), message)
        for state, message in (
            ({"format": "mxfp8", "convrot": True}, "cannot decode the format 'mxfp8'"),
            ({"format": "nvfp4"}, "'comfy_quant' names the format 'nvfp4'"),
            ({"format": ["mxfp8"]}, "cannot decode the format"),
            ([], "'comfy_quant' is not JSON of an object"),
        )
    ),
    *(
        (
            partial(wrong_dtype, scheme, recipe, name, dtype),
            f"{name}.*(together|not a part)|has dtype {dtype}",
        )
        for scheme, recipe, name, dtype in (
            ("mxfp4", "torchao", "weight_scale", "float8_e4m3fn"),
            ("mxfp4", "torchao", "weight_scale", "int8"),
            ("nvfp4", "torchao", "weight_per_tensor_scale", "int32"),
            ("fp8_tensor", "compressed-tensors", "weight_scale", "float64"),
            ("int8_channel", "bitsandbytes", "SCB", "int32"),
            ("int4_group", "mlx", "biases", "int8"),
            ("bnb_nf4", "bitsandbytes", "weight.quant_map", "uint8"),
            ("bnb_nf4", "bitsandbytes", "weight", "bool"),
        )
    ),
    (lambda: quantize(normal(2, 32), "mxfp4", scale_rule="up"), "rule"),
    (lambda: dequantize(quantize(normal(2, 32), "mxfp4"), arithmetic="fast"), "peer or exact"),
    (lambda: dequantize(quantize(normal(2, 32), "mxfp4"), arithmetic="narrow"), "peer or exact"),
    (lambda: dequantize(quantize(normal(2, 32), "mxfp4"), out=np.empty(3)), "out has shape"),
    (lambda: QuantizedArray.from_parts(without(nvfp4(), "weight_scale"), "modelopt"), "together"),
    (lambda: QuantizedArray.from_parts(without(nvfp4(), "weight"), "modelopt"), "together"),
    (
        lambda: QuantizedArray.from_parts(without(nvfp4(), "weight_scale_2"), "modelopt"),
        "together|needs",
    ),
    (
        lambda: QuantizedArray.from_parts(nvfp4() | {"weight_g_idx": np.zeros(4)}, "modelopt"),
        "g_idx",
    ),
    (lambda: QuantizedArray.from_parts({}, "modelopt"), "empty"),
    (lambda: QuantizedArray.from_parts(nvfp4(), "modelopt", (32, 80)), "needs"),
    (
        lambda: QuantizedArray.from_parts(
            nvfp4() | {"weight_scale": nvfp4()["weight_scale"].T.copy()}, "modelopt"
        ),
        "needs",
    ),
    (lambda: quantize(normal(2, 64), "mxfp4").parts("comfy"), "recipe='comfy'"),
    (lambda: quantize(normal(2, 64), "nvfp4", recipe="transformer-engine").parts(), "no names"),
    (lambda: QuantizedArray("mxfp4", np.zeros((2, 16), np.uint8), np.zeros((2, 1))), "shape=None"),
    (
        lambda: QuantizedArray(
            "mxfp4", np.zeros((2, 16), np.uint8), np.ones((2, 1)), shape=(2, 32)
        ),
        "bytes as they are stored",
    ),
    (lambda: pack(np.zeros((1, 4), np.uint8), 9), "bits=9"),
    (lambda: pack(np.zeros((1, 4), np.uint8), "4"), "bits='4' is not valid; use an int"),
    (lambda: pack(np.uint8(1), 4), "codes has no axes"),
    (lambda: unpack(np.uint8(1), 4), "packed has no axes"),
    (lambda: unpack(np.zeros((1, 4), np.uint8), 4, columns=9), "room for 8"),
    (lambda: unpack(np.zeros((1, 4), np.uint8), 4, columns=-1), "columns=-1 is not valid"),
    (
        lambda: QuantizedArray.from_parts(nvfp4(), "modelopt", 64),
        "shape=64 is not .* tuple of ints",
    ),
    (lambda: QuantizedArray.from_parts(nvfp4(), "modelopt", "4x64"), "shape='4x64' is not valid"),
    (lambda: QuantizedArray.from_parts(nvfp4(), "modelopt", (-1, 64)), "shape=-1 is not valid"),
    (lambda: QuantizedArray.from_parts(four_bits("awq", 128, 64, 32), "awq", ()), r"shape=\(\)"),
    (
        lambda: QuantizedArray.from_parts(nvfp4(), "modelopt", axis="x"),  # type: ignore[arg-type]
        "axis='?x'? is not valid",
    ),
    (
        lambda: QuantizedArray.from_parts(
            quantize(normal(64, 64), "int8_group", symmetric=False).parts()
            | {"weight_scale": np.float32(1)},
            "compressed-tensors",
        ),
        "scale",
    ),
    *(
        (partial(quantize, normal(2, 64), scheme, scale_rule="floor"), "scale_rule='floor' is not")
        for scheme in ("int8_channel", "nvfp4", "bnb_nf4")
    ),
    (lambda: swizzle_scales(np.zeros(4, np.uint8)), "rows and columns"),
    (lambda: unswizzle_scales(np.zeros((128, 4), np.uint8), 129, 4), "need"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


WRONG_OPTIONS: dict[str, tuple[Any, ...]] = {
    "amax": (-1, float("nan"), float("inf"), "1", True),
    "block": ("a", (1, 2, 3), 10**30, -1, 1.5, True, (1, -1)),
    "axis": ("a", 1.0, 2, -3, 10**30),
    "seed": (-1, "a", 1.5, 2**64, None),
    "symmetric": (False,),
    "scales": ("four_over_six", "mse", True, ["best"]),
    "rounding": (3, True, ["towards-zero"]),
    "scale_rule": (3, True, "up"),
    "nonfinite": (False, "zero"),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_a_wrong_option_is_named(name: str) -> None:
    scheme = "fp8_tensor" if name == "amax" else "mxfp4"
    for value in WRONG_OPTIONS[name]:
        with pytest.raises(ValueError, match=rf"^{name}=.* is not valid") as error:
            quantize(normal(2, 32), scheme, **{name: value})
        assert name != "amax" or repr(value) in str(error.value)


def test_wrong_types_are_refused() -> None:
    for wrong in (np.arange(32), np.zeros((2, 32), object), "abc"):
        with pytest.raises(TypeError, match=r"x has dtype .* real float"):
            quantize(wrong, "mxfp4")
    with pytest.raises(TypeError, match="mask would be lost"):
        quantize(np.ma.array(normal(2, 32), mask=True), "mxfp4")
    for call, message in (
        (
            lambda: QuantizedArray.from_parts(
                nvfp4() | {"weight_scale": np.zeros(3, object)}, "modelopt"
            ),
            "part 'weight_scale': dtype=object",
        ),
        (lambda: pack(normal(2, 4), 4), "codes has dtype float32; give int8 or uint8"),
        (lambda: unpack(np.zeros(4, np.int64), 4), "packed has dtype int64"),
        (lambda: swizzle_scales(normal(2, 4)), "scales has dtype float32"),
        (lambda: unswizzle_scales(normal(128, 4), 2, 4), "swizzled has dtype float32"),
        (lambda: QuantizedArray("mxfp4", [1], [2], shape=(2, 32)), "data must be an ndarray"),
        (
            lambda: dequantize(quantize(normal(2, 32), "mxfp4"), out=np.empty((2, 32), np.int8)),
            "out has dtype int8",
        ),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(TypeError, match="out must be an ndarray, not list"):
        dequantize(quantize(normal(2, 32), "mxfp4"), out=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="parts must map names"):
        QuantizedArray.from_parts(3, "modelopt")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="QuantizedArray"):
        dequantize(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="real float"):
        dequantize(quantize(normal(2, 32), "mxfp4"), np.int8)


def test_a_block_is_never_taken_from_shapes() -> None:
    """192 rows and two scales are 128 and 64 rows, not twice 96."""
    parts = quantize(normal(192, 128), "fp8_block", recipe="deepseek").parts()
    assert parts["weight_scale_inv"].shape == (2, 1)
    q = QuantizedArray.from_parts(parts, "deepseek", scheme="fp8_block")
    assert q.block == (128, 128)
    with pytest.raises(ValueError, match="64x64"):
        QuantizedArray.from_parts(parts, "deepseek", scheme="fp8_block", block=(64, 64))


# Packing


@pytest.mark.thinned(3)
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("columns", [1, 7, 8, 33, 160])
def test_codes_are_packed_as_a_bit_stream(bits: int, columns: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, columns)).astype(np.uint8)
    packed = pack(codes, bits)
    np.testing.assert_array_equal(packed, oracle.pack(codes, bits))
    np.testing.assert_array_equal(unpack(packed, bits, columns=columns), codes)
    signed = unpack(packed, bits, columns=columns, signed=True)
    np.testing.assert_array_equal(signed.view(np.uint8) & ((1 << bits) - 1), codes)
    if bits == 1:
        return
    padded = pack(codes, bits, layout="padded")
    np.testing.assert_array_equal(padded, oracle.pack_padded(codes, bits))
    found = unpack(padded, bits, layout="padded", columns=columns)
    np.testing.assert_array_equal(found, codes)


@pytest.mark.parametrize("layout", ["high-first", "awq", "halves-16", "halves-32"])
def test_other_layouts_of_nibbles(layout: str) -> None:
    codes = np.random.default_rng(0).integers(0, 16, (5, 64)).astype(np.uint8)
    packed = pack(codes, 4, layout=layout)
    np.testing.assert_array_equal(unpack(packed, 4, layout=layout), codes)
    low, high = packed.view(np.uint8) & 15, packed.view(np.uint8) >> 4
    if layout == "high-first":
        np.testing.assert_array_equal(high, codes[:, ::2])
    elif layout == "awq":
        np.testing.assert_array_equal(
            low[:, :4], codes[:, [0, 4, 1, 5]][:, [0, 2, 1, 3]][:, [0, 2, 1, 3]]
        )
    else:
        half = int(layout[-2:]) // 2
        np.testing.assert_array_equal(low[:, :half], codes[:, :half])
        np.testing.assert_array_equal(high[:, :half], codes[:, half : 2 * half])


@pytest.mark.parametrize("columns", [1, 15, 16, 31, 32, 33, 64, 70, 257])
@pytest.mark.parametrize("block", [16, 32])
def test_halves_of_rows_that_are_not_whole_blocks(block: int, columns: int) -> None:
    codes = np.random.default_rng(1).integers(0, 16, (5, columns)).astype(np.uint8)
    whole = np.zeros((5, -(-columns // block), block), np.uint8)
    whole.reshape(5, -1)[:, :columns] = codes
    expected = (whole[..., : block // 2] | whole[..., block // 2 :] << 4).reshape(5, -1)
    packed, found = np.full_like(expected, 255), np.full_like(codes, 255)
    _core.pack_codes(codes | 0xF0, packed, bits=4, layout=f"halves-{block}")
    np.testing.assert_array_equal(packed, expected)
    _core.unpack_codes(packed, found, bits=4, layout=f"halves-{block}")
    np.testing.assert_array_equal(found, codes)


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 9), (300, 5)])
def test_scales_are_reordered_in_tiles(shape: tuple[int, int]) -> None:
    scales = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    tiles = swizzle_scales(scales)
    np.testing.assert_array_equal(tiles, oracle.swizzle(scales))
    np.testing.assert_array_equal(unswizzle_scales(tiles, *shape), scales)
    stack = np.stack([scales, scales[::-1]])
    np.testing.assert_array_equal(unswizzle_scales(swizzle_scales(stack), *shape), stack)


def test_castwise_names_the_package() -> None:
    assert castwise.quantization.quantize is quantize


@pytest.mark.parametrize("scheme", [one.name for one in schemes()])
def test_zero_points_are_stored_or_refused(scheme: str) -> None:
    """Also of an array without elements, of which the core sees nothing."""
    row = next(one for one in schemes() if one.name == scheme)
    for recipe in row.recipes:
        for shape in ((4, 128), (0, 128)):
            x = np.ones(shape, np.float32)
            if row.zero_point and recipe in {"compressed-tensors", "mlx"}:
                q = quantize(x, scheme, recipe=recipe, symmetric=False)
                assert (q.zero_point is None) == (recipe == "mlx") == ("bias" in q.extras)
                continue
            remedy = "or use recipe='compressed-tensors' or 'mlx'" if row.zero_point else "leave it"
            with pytest.raises(ValueError, match=f"symmetric=False is not valid .*{remedy}"):
                quantize(x, scheme, recipe=recipe, symmetric=False)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_stated_shape_without_rows_and_columns(count: int) -> None:
    parts = quantize(normal(64, 64), "int4_group", recipe="compressed-tensors").parts()
    parts["weight_shape"] = np.ones(count, np.int64)
    with pytest.raises(ValueError, match=f"'weight_shape' has {count} numbers.*fetch"):
        QuantizedArray.from_parts(parts, "compressed-tensors")


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("w4a16", "'int4_group'"),
        ("FP8_DYNAMIC", "'fp8_channel'"),
        ("W4A16_ASYM", "'int4_group', symmetric=False"),
    ],
)
def test_presets_name_their_schemes(preset: Any, options: str) -> None:
    with pytest.raises(ValueError, match=f"here its weights are scheme={options}$"):
        quantize(normal(2, 32), preset)
