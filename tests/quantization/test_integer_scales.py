"""Scales of integers by their squared error: beside every scale, tried in float64 by numpy."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import _core, checkpoint
from castwise.quantization import dequantize, quantize, schemes
from scheme_oracle import Array
from support import LEVELS, at_level

INTEGERS = {row.name: row for row in schemes() if row.element == "int8" and row.rule is None}
SEARCHED = [(name, recipe) for name, row in INTEGERS.items() for recipe in row.searched_recipes]
DTYPES = ["bfloat16", "float16", "float32", "float64"]


def weights(kind: str, shape: tuple[int, int], seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if kind == "normal":
        return rng.standard_normal(shape) * 0.02
    if kind == "t5":
        return rng.standard_t(5, shape) * 0.02
    return rng.standard_normal(shape) * np.where(rng.random(shape) < 0.01, 20, 1)


def limits_of(scheme: str) -> tuple[int, int]:
    """Return the integers that codes of compressed-tensors may be."""
    half = 1 << (INTEGERS[scheme].bits - 1)
    return -half, half - 1


def of_blocks(x: Array, q: Any, width: int, importance: Array | None = None) -> Array:
    """Return the squared error of each block, which decodes to float64."""
    squares = (dequantize(q, np.float64) - x.astype(np.float64)) ** 2
    if importance is not None:
        squares = squares * importance
    return squares.reshape(-1, width).sum(-1)


def errors(blocks: Array, scales: Array, low: int, high: int) -> Array:
    codes = np.clip(np.rint(blocks / scales), low, high)
    squares: Array = (blocks - codes * scales) ** 2
    return squares.sum(-1)


def least_of_reals(blocks: Array, low: int, high: int, importance: Array | None = None) -> Array:
    """Return the least errors under any positive scales.

    Codes change where elements are in the middle of two products. Between two such scales the
    error is a parabola; its lowest point is an error of these codes, and that of the nearest
    codes is not larger. So the least error is that of the lowest of all of these points.
    """
    weight = (
        np.ones_like(blocks) if importance is None else np.broadcast_to(importance, blocks.shape)
    )
    steps = np.arange(max(-low, high))
    limits = np.where(blocks > 0, high, -low)[..., None]
    middles = np.where(steps < limits, np.abs(blocks)[..., None] / (steps + 0.5), 0.0)
    order = np.argsort(-middles.reshape(len(blocks), -1), -1)
    exists = (steps < limits) & (middles > 0)

    def running(values: Array) -> Array:
        flat = np.where(exists, values, 0.0).reshape(len(blocks), -1)
        return np.take_along_axis(flat, order, -1).cumsum(-1)

    products = running(np.broadcast_to((weight * np.abs(blocks))[..., None], middles.shape))
    squares = running((2 * steps + 1) * weight[..., None])
    gains = np.where(squares > 0, products**2 / np.maximum(squares, 1e-300), 0.0)
    return (weight * blocks**2).sum(-1) - gains.max(-1)


def least_of_stored(blocks: Array, own: Array, dtype: str, limits: tuple[int, int]) -> Array:
    """Return the least errors under all positive scales of a dtype, from a fifth of some on."""
    scales = np.abs(own).max() * 3
    least = np.full(len(blocks), np.inf)
    scale = np.array(scales, np.dtype(dtype))
    while scale > np.abs(own).min() * 0.2:
        near = (float(scale) < np.abs(own) * 2.5) & (float(scale) > np.abs(own) * 0.2)
        tried = errors(blocks[near], np.full((near.sum(), 1), float(scale)), *limits)
        least[near] = np.minimum(least[near], tried)
        scale = np.nextafter(scale, scale.dtype.type(0))
    return least


def decibels(ratio: float) -> float:
    return float(10 * np.log10(ratio))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", ["normal", "t5"])
@pytest.mark.parametrize(
    ("scheme", "width"), [("int4_group", 32), ("int3_group", 16), ("int2_group", 16)]
)
def test_no_stored_scale_is_better(scheme: str, width: int, kind: str, dtype: str) -> None:
    """10,000 blocks, of scales of both signs."""
    count = 10_000 if dtype == "float32" else 2_000
    x = weights(kind, (count // 40, 40 * width)).astype(np.dtype(dtype))
    blocks = x.reshape(-1, width).astype(np.float64)
    amax, best = (quantize(x, scheme, block=width, scales=scales) for scales in ("amax", "best"))
    low, high = limits_of(scheme)
    own = amax.scale.reshape(-1).astype(np.float64)
    if dtype == "float32":
        tried = [least_of_reals(sign * blocks, low, high) for sign in (1, -1)]
    else:
        tried = [least_of_stored(sign * blocks, own, dtype, (low, high)) for sign in (1, -1)]
    of_amax, of_best = of_blocks(x, amax, width), of_blocks(x, best, width)
    assert (of_best <= of_amax * (1 + 1e-9)).all()
    assert decibels(of_best.sum() / np.minimum(*tried).sum()) < 0.001
    assert decibels(of_amax.sum() / of_best.sum()) > 1
    assert 0.3 < (best.scale < 0).mean() < 0.7


@pytest.mark.parametrize("kind", ["normal", "t5"])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize(
    ("scheme", "width", "count"),
    [
        ("int4_group", 128, 4_000),
        ("int8_group", 128, 60),
        ("int4_channel", 2048, 20),
        ("int8_channel", 2048, 6),
    ],
)
def test_no_scale_of_large_blocks_is_better(
    scheme: str, width: int, count: int, is_weighted: bool, kind: str
) -> None:
    x = weights(kind, (count, width)).astype(np.float32)
    importance = (
        np.random.default_rng(9).lognormal(0, 1, width).astype(np.float32) if is_weighted else None
    )
    options: dict[str, Any] = {} if importance is None else {"importance": importance}
    amax, best = quantize(x, scheme), quantize(x, scheme, scales="best", **options)
    low, high = limits_of(scheme)
    tried = [
        np.concatenate(
            [
                least_of_reals(sign * part, low, high, importance)
                for part in np.split(x.astype(float), count)
            ]
        )
        for sign in (1, -1)
    ]
    of_amax, of_best = (of_blocks(x, q, width, importance) for q in (amax, best))
    assert (of_best <= of_amax * (1 + 1e-6)).all()
    assert decibels(of_best.sum() / np.minimum(*tried).sum()) < 0.001


@pytest.mark.parametrize("scheme", ["int2_group", "int3_group", "int4_group", "int8_group"])
def test_no_scale_of_weighted_blocks_is_better(scheme: str) -> None:
    """10,000 blocks, of scales of both signs."""
    x = weights("t5", (250, 40 * 16)).astype(np.float32)
    importance = np.random.default_rng(9).lognormal(0, 1, x.shape[1]).astype(np.float32)
    amax = quantize(x, scheme, block=16)
    best = quantize(x, scheme, block=16, scales="best", importance=importance)
    low, high = limits_of(scheme)
    blocks = x.reshape(250, 40, 16).astype(np.float64)
    each = importance.reshape(40, 16).astype(np.float64)
    tried = [
        np.concatenate([least_of_reals(sign * row, low, high, each) for row in blocks])
        for sign in (1, -1)
    ]
    of_amax, of_best = (of_blocks(x, q, 16, importance) for q in (amax, best))
    assert (of_best <= of_amax * (1 + 1e-6)).all()
    assert decibels(of_best.sum() / np.minimum(*tried).sum()) < 0.001


@pytest.mark.parametrize("kind", ["normal", "t5"])
@pytest.mark.parametrize(
    ("scheme", "width", "count"),
    [("int4_group", 32, 400), ("int3_group", 64, 300), ("int2_group", 16, 1000)],
)
def test_no_zero_point_is_better(scheme: str, width: int, count: int, kind: str) -> None:
    x = weights(kind, (count, width)).astype(np.float32)
    amax, best = (
        quantize(x, scheme, block=width, symmetric=False, scales=scales)
        for scales in ("amax", "best")
    )
    low, high = limits_of(scheme)
    blocks = x.astype(np.float64)
    tried = [least_of_reals(blocks, low - zero, high - zero) for zero in range(low, high + 1)]
    of_amax, of_best = of_blocks(x, amax, width), of_blocks(x, best, width)
    assert (of_best <= of_amax * (1 + 1e-9)).all()
    assert decibels(of_best.sum() / np.min(tried, 0).sum()) < 0.001
    assert (best.scale > 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "recipe"), SEARCHED)
def test_bits_do_not_depend_on_levels_threads_and_strides(
    scheme: str, recipe: str, dtype: str
) -> None:
    x = weights("outliers", (40, 384)).astype(np.dtype(dtype))
    both = INTEGERS[scheme].zero_point and recipe == "compressed-tensors"
    for symmetric in (True, False) if both else (True,):
        options: dict[str, Any] = {"recipe": recipe, "symmetric": symmetric, "scales": "best"}
        first = quantize(x, scheme, **options)
        apart = np.empty((40, 800), x.dtype)[:, ::2][:, :384]
        apart[...] = x
        for level, threads in itertools.product(LEVELS, (1, 2)):
            with at_level(level):
                for array in (x, np.asfortranarray(x), apart):
                    other = quantize(array, scheme, threads=threads, **options)
                    for name, part in first.parts().items():
                        assert other.parts()[name].tobytes() == part.tobytes(), (
                            name,
                            level,
                            threads,
                        )
        few = quantize(x[3:4], scheme, **options)
        assert (
            few.scale.tobytes() == np.ascontiguousarray(first.scale.reshape(40, -1)[3:4]).tobytes()
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "recipe"), SEARCHED)
def test_unusual_blocks_are_not_worse(scheme: str, recipe: str, dtype: str) -> None:
    """Zeros, constants, one outlier, the limits of a dtype, whole steps, one column, odd groups."""
    info = ml_dtypes.finfo(np.dtype(dtype))
    x = np.zeros((14, 3 * 128 - (0 if recipe in ("gguf", "modelopt") else 5)), np.dtype(dtype))
    x[1], x[2], x[3, 0], x[4, 7] = 1, -0.37, 1, info.max
    x[5], x[6] = info.smallest_subnormal, info.tiny
    x[7, ::2], x[8] = -0.0, np.linspace(-1, 1, x.shape[1])
    x[9, :64], x[10] = 3, np.linspace(0, 1, x.shape[1]) * float(info.max)
    x[11], x[12] = np.arange(x.shape[1]) % 15 - 7, np.arange(x.shape[1]) % 2 - 0.5
    x[13] = weights("normal", (1, x.shape[1]), 5)[0] * float(info.tiny) * 8
    both = recipe == "compressed-tensors"
    columns = [x.shape[1], *([1] if both else [])]
    for symmetric, count in itertools.product((True, False) if both else (True,), columns):
        part = np.ascontiguousarray(x[:, :count])
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of scales beyond their format
            amax, best = (
                quantize(part, scheme, recipe=recipe, symmetric=symmetric, scales=scales)
                for scales in ("amax", "best")
            )
            width = best.block[1] or count
            decoded = [dequantize(q, np.float64) for q in (amax, best)]
            for start in range(0, count, width):
                block = part[:, start : start + width].astype(np.float64)
                # Of the limits of float64, squares are infinite.
                unit = np.maximum(np.abs(block).max(-1, keepdims=True), 1e-300)
                of_amax, of_best = (
                    ((array[:, start : start + width] / unit - block / unit) ** 2).sum(-1)
                    for array in decoded
                )
                worse = of_best > of_amax * (1 + 1e-9)
                assert not worse.any(), (
                    symmetric,
                    start,
                    np.flatnonzero(worse),
                    of_amax[worse],
                    of_best[worse],
                )


def test_a_block_of_nan_keeps_its_scale() -> None:
    x = weights("normal", (4, 256)).astype(np.float32)
    x[1, 3], x[2, 140] = np.nan, np.inf
    amax, best = (
        quantize(x, "int4_group", nonfinite="nan", scales=scales) for scales in ("amax", "best")
    )
    is_nan = np.isnan(dequantize(amax, np.float32))
    np.testing.assert_array_equal(np.isnan(dequantize(best, np.float32)), is_nan)
    with pytest.raises(ValueError, match=r"x has NaN at index \[1, 3\]"):
        quantize(x, "int4_group", scales="best")


def test_blocks_of_several_rows_are_searched_whole() -> None:
    x = weights("t5", (48, 320)).astype(np.float32)
    whole = quantize(
        x.reshape(48, -1, 64).swapaxes(0, 1).reshape(5, -1), "int8_channel", scales="best"
    )
    by_column = quantize(x, "int4_group", block=16, axis=0, scales="best")
    same = quantize(np.ascontiguousarray(x.T), "int4_group", block=16, scales="best")
    np.testing.assert_array_equal(dequantize(by_column, np.float32), dequantize(same, np.float32).T)
    assert whole.scale.shape == (5, 1)


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        (
            "int4_group",
            {"recipe": "mlx"},
            "not valid for int4_group as recipe='mlx' stores it; .* recipe='comp",
        ),
        ("int8_channel", {"recipe": "bitsandbytes"}, "as recipe='bitsandbytes' stores it"),
        ("int8_tensor", {}, "scales='best' is not valid for int8_tensor, .* int4_group"),
        ("int4_group", {"rounding": "stochastic"}, "is not valid with this rounding"),
    ],
)
def test_what_has_no_search_is_refused(scheme: Any, options: dict[str, Any], message: str) -> None:
    x = weights("normal", (4, 256)).astype(np.float32)
    with pytest.raises(ValueError, match=message):
        quantize(x, scheme, scales="best", **options)


@pytest.mark.parametrize(
    ("scheme", "recipe"),
    [
        ("int4_group", "compressed-tensors"),
        ("int8_channel", "compressed-tensors"),
        ("int4_group", "modelopt"),
    ],
)
def test_files_have_the_scales_of_arrays_and_diff_names_them(
    tmp_path: Path, scheme: Any, recipe: Any
) -> None:
    plain = tmp_path / "plain.safetensors"
    weight = (weights("t5", (64, 512)) * 3).astype(ml_dtypes.bfloat16)
    checkpoint.save(plain, {"layers.0.up_proj.weight": weight})
    for scales in ("amax", "best"):
        target = tmp_path / f"{scales}.safetensors"
        checkpoint.quantize_file(plain, target, scheme, recipe=recipe, scales=scales)
        stored = checkpoint.load(target)
        (scale,) = (array for name, array in stored.items() if name.endswith("weight_scale"))
        q = quantize(weight, scheme, recipe=recipe, scales=scales)
        assert np.ascontiguousarray(scale).tobytes() == np.ascontiguousarray(q.scale).tobytes()
        (tensor,) = checkpoint.diff(plain, target).tensors
        assert tensor.explanation is not None
        assert tensor.explanation.every_element
        assert tensor.explanation.options["scales"] == scales
    with pytest.raises(
        ValueError, match="scales='best' is not valid for int4_group as recipe='mlx'"
    ):
        checkpoint.quantize_file(plain, tmp_path / "no", "int4_group", recipe="mlx", scales="best")


def test_weights_of_one_call_do_not_remain() -> None:
    x = weights("t5", (8, 256)).astype(np.float32)
    importance = np.random.default_rng(9).lognormal(0, 2, 256).astype(np.float32)
    first = quantize(x, "int4_group", scales="best", threads=1)
    weighted = quantize(x, "int4_group", scales="best", importance=importance, threads=1)
    again = quantize(x, "int4_group", scales="best", threads=1)
    assert again.scale.tobytes() == first.scale.tobytes() != weighted.scale.tobytes()


def test_searched_scales_decode_to_finite_numbers() -> None:
    """A scale that is rounded up to its dtype may be more than the weight's dtype has room for."""
    x = np.full((1, 32), 61920, np.float16)
    x[0, -1] = 65440
    q = quantize(x, "int8_group", block=(1, 32), recipe="gguf", scales="best")
    assert np.isfinite(dequantize(q, "float16")).all()


@pytest.mark.parametrize("scheme", ["int3_group", "int4_group", "int4_channel", "int8_group"])
def test_a_power_of_two_changes_no_code(scheme: str) -> None:
    """Also of blocks above 2^127, which no normal power brings below 2."""
    x = weights("normal", (16, 256)).astype(np.float32)
    x *= np.float32(1.5 / abs(x).max())
    codes = [
        quantize(np.ldexp(x, exponent), scheme, scales="best").data
        for exponent in (0, -90, 126, 127)
    ]
    for others in codes[1:]:
        np.testing.assert_array_equal(others, codes[0])


def test_codes_stay_where_a_scale_is_stored_as_zero() -> None:
    x = np.full((2, 32), 1e-8, np.float32)
    x[1] = np.linspace(-1, 1, 32)
    usual, searched = (
        quantize(x, "int8_group", block=(1, 32), recipe="gguf", scales=choice)
        for choice in ("amax", "best")
    )
    assert np.array_equal(np.asarray(usual.data)[0], np.asarray(searched.data)[0])


def test_importance_of_fewer_axes_is_broadcast() -> None:
    """As through the function, for what calls the core itself."""
    draw = np.random.default_rng(1)
    x = draw.standard_normal((256, 4)).astype(np.float32)
    arrays = [(np.empty((256, 4), np.uint8), np.empty((2, 4), np.float32)) for _ in range(2)]
    row = draw.random(4).astype(np.float32)
    for (data, scale), importance in zip(arrays, (row, np.broadcast_to(row, x.shape)), strict=True):
        _core.encode_blocks(
            x,
            data,
            scale,
            scheme="int8_group",
            recipe="compressed-tensors",
            block=(128, 1),
            offset=128,
            scales="best",
            importance=importance,
        )
    assert all(map(np.array_equal, *arrays))
