"""Scales of blocks by their squared error: beside every stored scale, tried in float64 by numpy."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scheme_oracle as oracle
from castwise import checkpoint
from castwise.quantization import dequantize, quantize, schemes
from castwise.quantization.producers.schemes import check_scales, find_scheme
from castwise.text.wording import for_command
from scheme_oracle import Array
from support import LEVELS, at_level

NVFP4 = next(row for row in schemes() if row.name == "nvfp4")
MX = [row for row in schemes() if row.rule is not None]
SEARCHED = [NVFP4, *MX]
E4M3_CODES = np.arange(1, 127, dtype=np.uint8)

# Weights of 10,000 blocks of 16.
WEIGHTS: Mapping[str, Array] = {
    "normal": np.random.default_rng(0).standard_normal((200, 800)) * 0.02,
    "Laplace": np.random.default_rng(1).laplace(size=(200, 800)) * 0.02,
    "t5": np.random.default_rng(2).standard_t(5, (200, 800)) * 0.02,
    "outliers": np.random.default_rng(3).standard_normal((200, 800))
    * np.where(np.random.default_rng(4).random((200, 800)) < 0.01, 20, 1),
}


def values_of(element: str) -> Array:
    """Return the magnitudes that codes of a format have, in order."""
    if element == "int8":
        return np.arange(128) / 64
    info = ml_dtypes.finfo(element)
    codes = np.arange(1 << (info.bits - 1), dtype=np.uint8)
    values = codes.view(info.dtype).astype(np.float64)
    return values[np.isfinite(values)]


def errors(blocks: Array, scales: Array, element: str, weights: Array | float = 1.0) -> Array:
    """Return the squared error of each block under its scale, with the nearest codes."""
    values = values_of(element)
    middles = (values[1:] + values[:-1]) / 2
    magnitudes = np.abs(blocks)
    nearest = values[np.searchsorted(middles, magnitudes / scales[..., None])]
    return (weights * (magnitudes - nearest * scales[..., None]) ** 2).sum(-1)


def of_blocks(x: Array, q: Any, width: int) -> Array:
    off = dequantize(q, np.float64) - x.astype(np.float64)
    return (off.reshape(-1, width) ** 2).sum(-1)


def decibels(ratio: float) -> float:
    return float(10 * np.log10(ratio))


@pytest.mark.parametrize("recipe", NVFP4.recipes)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_no_stored_scale_of_nvfp4_is_better(kind: str, recipe: str) -> None:
    x = WEIGHTS[kind].astype(np.float32)
    amax, best = (quantize(x, "nvfp4", recipe=recipe, scales=scales) for scales in ("amax", "best"))
    np.testing.assert_array_equal(amax.global_scale, best.global_scale)
    level = np.float32(1 if amax.global_scale is None else amax.global_scale.item())
    stored = oracle.E4M3.decode(E4M3_CODES).astype(np.float32)
    scales = stored / level if recipe == "compressed-tensors" else stored * level
    least = 8 if recipe == "torchao" else 1  # no smaller one is stored
    blocks = x.reshape(-1, 16).astype(np.float64)
    of_amax, of_best = of_blocks(x, amax, 16), of_blocks(x, best, 16)
    least_errors = of_amax
    for scale in scales[least - 1 :].astype(np.float64):
        of_scale = errors(blocks, np.full(len(blocks), scale), "float4_e2m1fn")
        least_errors = np.minimum(least_errors, of_scale)
    assert (of_best <= of_amax * (1 + 1e-9)).all()
    assert decibels(of_best.sum() / least_errors.sum()) < 0.001
    assert decibels(of_amax.sum() / of_best.sum()) > 0.3 or recipe == "mlx"


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("scheme", [row.name for row in MX])
def test_no_power_of_two_is_better(scheme: str, kind: str) -> None:
    row = next(row for row in MX if row.name == scheme)
    x = WEIGHTS[kind].astype(np.float32)
    blocks = x.reshape(-1, 32).astype(np.float64)
    powers = 2.0 ** np.arange(-20, 1)
    tried = [errors(blocks, np.full(len(blocks), power), row.element) for power in powers]
    for recipe in row.recipes:
        amax, best = (
            quantize(x, scheme, recipe=recipe, scales=scales) for scales in ("amax", "best")
        )
        of_amax, of_best = of_blocks(x, amax, 32), of_blocks(x, best, 32)
        assert (of_best <= of_amax * (1 + 1e-9)).all()
        assert decibels(of_best.sum() / np.minimum(of_amax, np.min(tried, 0)).sum()) < 0.001


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("scheme", [row.name for row in SEARCHED])
def test_bits_do_not_depend_on_levels_threads_and_neighbors(scheme: str, dtype: str) -> None:
    x = WEIGHTS["outliers"][:40, :320].astype(np.dtype(dtype))
    first = quantize(x, scheme, scales="best")
    for level in LEVELS:
        with at_level(level):
            for threads in (1, 2):
                other = quantize(x, scheme, scales="best", threads=threads)
                assert other.data.tobytes() == first.data.tobytes(), (level, threads)
                assert other.scale.tobytes() == first.scale.tobytes(), (level, threads)
    row = next(row for row in SEARCHED if row.name == scheme)
    largest = {"amax": float(np.abs(x).max())} if row.global_scale else {}
    for rows in (1, 3, 40):
        for columns in (32, 96, 320):
            part = np.ascontiguousarray(x[:rows, :columns])
            other = quantize(part, scheme, scales="best", **largest)
            width = row.block[1]
            expected = first.scale.reshape(40, -1)[:rows, : columns // width]
            assert other.scale.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("scheme", [row.name for row in SEARCHED])
def test_bits_of_large_arrays_are_those_of_their_rows(scheme: str) -> None:
    """Few rows, which are searched without a table, have the values that they have among others."""
    row = next(row for row in SEARCHED if row.name == scheme)
    random = np.random.default_rng(9)
    x = random.standard_t(3, (48, 1600)) * np.exp(3 * random.standard_normal((48, 1)))
    x[:, ::7] *= random.choice([0, 1, 1e-3, 1e-8], (48, 229))
    x[5], x[6, 3], x[7] = 0, 1e-38, 1e-39
    x[8] = random.integers(-6, 7, 1600) * 0.25
    x[9], x[10], x[11] = x[9] * 1e30, x[10] * 1e-30, 1
    # Codes and the middles between them, magnitudes near each other, and uniform ones.
    x[12] = random.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 7], 1600)
    x[13], x[14] = 4 + 0.3 * random.standard_normal(1600), random.uniform(-1, 1, 1600)
    x[15], x[16] = random.normal(0, 6e37, 1600), random.normal(0, 1e-37, 1600)
    x = x.clip(-3e38, 3e38).astype(ml_dtypes.bfloat16)
    choices: list[tuple[Any, Any]] = [("best", None)]
    if row.global_scale:
        choices += [("four_over_six", None), ("best", (16, 16))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scales beyond their format
        for recipe, (scales, block) in itertools.product(row.recipes, choices):
            if block and recipe != row.recipes[0]:
                continue
            options: dict[str, Any] = {"recipe": recipe, "scales": scales, "block": block}
            height = 16 if block else 4
            is_alone = row.global_scale and recipe != "mlx"
            largest = {"amax": float(np.abs(x).max())} if is_alone else {}
            for level in LEVELS:
                with at_level(level):
                    whole = quantize(x, scheme, **options, **largest)
                decoded = dequantize(whole, np.float32)
                for start in range(0, 48, height):
                    part = quantize(x[start : start + height], scheme, **options, **largest)
                    expected = dequantize(part, np.float32)
                    np.testing.assert_array_equal(decoded[start : start + height], expected)


@pytest.mark.parametrize("scheme", [row.name for row in SEARCHED])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_unusual_blocks_are_not_worse(scheme: str, dtype: str) -> None:
    """Zeros, constants, one outlier, the limits of a dtype, and blocks that are not full."""
    info = ml_dtypes.finfo(np.dtype(dtype))
    width = next(row for row in SEARCHED if row.name == scheme).block[1]
    x = np.zeros((12, 3 * width - 5), np.dtype(dtype))
    x[1], x[2], x[3, 0], x[4, 7] = 1, -0.37, 1, info.max
    x[5], x[6] = info.smallest_subnormal, info.tiny
    x[7, ::2], x[8] = -0.0, np.linspace(-1, 1, x.shape[1])
    x[9, : width // 2], x[10] = 3, np.linspace(0, 1, x.shape[1]) * float(info.max)
    for rows in (slice(None), slice(1, 4), slice(5, 7), slice(7, 10)):
        part = np.ascontiguousarray(x[rows])
        recipes = next(row for row in SEARCHED if row.name == scheme).recipes
        for recipe in recipes:
            if part.shape[-1] % width and recipe in ("mlx", "gguf", "comfy", "gpt-oss"):
                part = np.ascontiguousarray(x[rows, : 2 * width])
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # of scales beyond their format
                amax, best = (
                    dequantize(quantize(part, scheme, recipe=recipe, scales=scales), np.float64)
                    for scales in ("amax", "best")
                )
                for start in range(0, part.shape[1], width):
                    block = part[:, start : start + width].astype(np.float64)
                    # Of the limits of float64, squares are infinite.
                    unit = max(np.abs(block).max(), 1e-300)
                    of_amax, of_best = (
                        ((decoded[:, start : start + width] / unit - block / unit) ** 2).sum(-1)
                        for decoded in (amax, best)
                    )
                    assert (~(of_best > of_amax * (1 + 1e-9))).all(), (recipe, start)


def test_a_block_of_nan_keeps_its_scale() -> None:
    x = WEIGHTS["normal"][:4, :64].astype(np.float32)
    x[1, 3], x[2, 40] = np.nan, np.inf
    for scheme in ("nvfp4", "mxfp4"):
        amax, best = (
            quantize(x, scheme, nonfinite="nan", scales=scales) for scales in ("amax", "best")
        )
        is_nan = np.isnan(dequantize(amax, np.float32))
        np.testing.assert_array_equal(np.isnan(dequantize(best, np.float32)), is_nan)
        with pytest.raises(ValueError, match=r"x has NaN at index \[1, 3\]"):
            quantize(x, scheme, scales="best")


def test_square_blocks_are_searched_whole() -> None:
    x = WEIGHTS["normal"][:50, :160].astype(np.float32)
    amax, best = (
        quantize(x, "nvfp4", block=(16, 16), scales=scales) for scales in ("amax", "best")
    )
    stored = best.scale.view(np.uint8)
    for start in range(0, 50, 16):
        assert (stored[start : start + 16] == stored[start]).all()
    of_amax, of_best = (
        np.add.reduceat(
            ((dequantize(q, np.float64) - x) ** 2).reshape(50, 10, 16).sum(-1), range(0, 50, 16)
        )
        for q in (amax, best)
    )
    assert (of_best <= of_amax * (1 + 1e-9)).all()
    assert of_best.sum() < of_amax.sum()


# Numbers for 800 channels, such as mean squares of inputs.
IMPORTANCE: Mapping[str, Array] = {
    "log-normal": np.exp(2 * np.random.default_rng(5).standard_normal(800)),
    "outliers": np.where(np.random.default_rng(6).random(800) < 0.02, 1e4, 1),
    "zeros": np.random.default_rng(7).random(800)
    * (np.random.default_rng(8).random(800) < 0.5)
    * (np.arange(800) // 32 % 5 > 0),
}


@pytest.mark.parametrize("weights", IMPORTANCE)
@pytest.mark.parametrize(
    ("scheme", "recipe"),
    [("nvfp4", "torchao")] + [(row.name, row.recipes[0]) for row in SEARCHED],
)
def test_no_stored_scale_is_better_by_weighted_errors(
    scheme: str, recipe: str, weights: str
) -> None:
    row = next(row for row in SEARCHED if row.name == scheme)
    importance, width = IMPORTANCE[weights].astype(np.float32), row.block[1]
    x = WEIGHTS["outliers"].astype(np.float32)
    blocks = x.reshape(-1, width).astype(np.float64)
    by_block = np.broadcast_to(importance.astype(np.float64), x.shape).reshape(-1, width)
    by_block = np.where(by_block.any(-1, keepdims=True), by_block, 1)
    amax, best = (
        quantize(x, scheme, recipe=recipe, scales="amax"),
        quantize(x, scheme, recipe=recipe, scales="best", importance=importance),
    )
    if scheme == "nvfp4":
        level = np.float32(1 if amax.global_scale is None else amax.global_scale.item())
        stored = oracle.E4M3.decode(E4M3_CODES[7 if recipe == "torchao" else 0 :])
        stored = stored.astype(np.float32)
        scales = (stored / level if recipe == "compressed-tensors" else stored * level).tolist()
    else:
        scales = (2.0 ** np.arange(-24, 8)).tolist()
    of_amax, of_best = (
        (by_block * (dequantize(q, np.float64).reshape(-1, width) - blocks) ** 2).sum(-1)
        for q in (amax, best)
    )
    least_errors = of_amax
    for scale in scales:
        tried = errors(blocks, np.full(len(blocks), scale), row.element, by_block)
        least_errors = np.minimum(least_errors, tried)
    assert (of_best <= of_amax * (1 + 1e-9)).all()
    assert decibels(of_best.sum() / least_errors.sum()) < 0.001
    # The recipe's own scale stays where it may be the best one but for roundings.
    assert (of_best <= least_errors * (1 + 3e-3)).all()


@pytest.mark.parametrize("scheme", [row.name for row in SEARCHED])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_equal_importance_and_none_are_the_same(scheme: str, dtype: str) -> None:
    x = WEIGHTS["outliers"][:40, :313].astype(np.dtype(dtype))
    plain = quantize(x, scheme, scales="best")
    for value in (1, 0.37, 3e38, 1e-44):
        importance = np.full(313, value, np.float32)
        other = quantize(x, scheme, scales="best", importance=importance)
        assert other.data.tobytes() == plain.data.tobytes(), value
        assert other.scale.tobytes() == plain.scale.tobytes(), value


@pytest.mark.parametrize("scheme", [row.name for row in SEARCHED])
def test_blocks_of_zero_importance_are_searched_without_it(scheme: str) -> None:
    x = WEIGHTS["t5"][:24, :320].astype(np.float32)
    importance = IMPORTANCE["log-normal"][:320].copy()
    importance[64:160] = 0
    plain = quantize(x, scheme, scales="best")
    other = quantize(x, scheme, scales="best", importance=importance)
    width = next(row for row in SEARCHED if row.name == scheme).block[1]
    is_zero = np.repeat(importance.reshape(-1, width).any(-1)[None] == 0, 24, 0).reshape(-1)
    scales = [q.scale.reshape(-1).view(np.uint8) for q in (plain, other)]
    np.testing.assert_array_equal(scales[0][is_zero], scales[1][is_zero])
    assert scheme != "nvfp4" or (scales[0] != scales[1]).any()


@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
def test_bits_of_weighted_searches_do_not_depend_on_levels_threads_and_layout(scheme: str) -> None:
    x = WEIGHTS["outliers"][:40, :320].astype(np.float32)
    importance = IMPORTANCE["log-normal"][:320].astype(np.float32)
    first = quantize(x, scheme, scales="best", importance=importance)
    expected = first.data.tobytes(), first.scale.tobytes()
    for level in LEVELS:
        with at_level(level):
            for threads in (1, 2):
                other = quantize(x, scheme, scales="best", importance=importance, threads=threads)
                assert (other.data.tobytes(), other.scale.tobytes()) == expected, (level, threads)
    padded = np.full((640,), -1, np.float32)
    padded[::2] = importance
    for array, numbers in ((np.asfortranarray(x), importance), (x, padded[::2])):
        other = quantize(array, scheme, scales="best", importance=numbers)
        assert (other.data.tobytes(), other.scale.tobytes()) == expected
    lengthwise = quantize(x.T, scheme, axis=0, scales="best", importance=importance)
    np.testing.assert_array_equal(
        dequantize(lengthwise, np.float32).T, dequantize(first, np.float32)
    )
    stack = np.stack([x, x[::-1], x])
    three = np.stack([importance, np.ones(320, np.float32), 0 * importance])
    largest = {"amax": float(np.abs(x).max())} if scheme == "nvfp4" else {}
    stacked = quantize(stack, scheme, scales="best", importance=three, **largest)
    for index, matrix in enumerate(dequantize(stacked, np.float32)):
        weights = three[index] if three[index].any() else None
        alone = quantize(stack[index], scheme, scales="best", importance=weights, **largest)
        np.testing.assert_array_equal(matrix, dequantize(alone, np.float32))


def test_importance_of_transposed_and_square_blocks() -> None:
    x = WEIGHTS["t5"][:64, :320].astype(np.float32)
    importance = IMPORTANCE["log-normal"][:320]
    by_rows = quantize(x, "mxfp4", scales="best", importance=importance)
    transposed = quantize(
        x.T, "mxfp4", recipe="gpt-oss", axis=0, scales="best", importance=importance
    )
    np.testing.assert_array_equal(
        dequantize(transposed, np.float32).T, dequantize(by_rows, np.float32)
    )
    amax, plain, best = (
        quantize(x, "nvfp4", block=(16, 16), scales="amax"),
        quantize(x, "nvfp4", block=(16, 16), scales="best"),
        quantize(x, "nvfp4", block=(16, 16), scales="best", importance=importance),
    )
    of_amax, of_plain, of_best = (
        (((dequantize(q, np.float64) - x) ** 2 * importance).reshape(4, 16, 20, 16)).sum((1, 3))
        for q in (amax, plain, best)
    )
    assert (of_best <= np.minimum(of_amax, of_plain * (1 + 1e-3)) * (1 + 1e-9)).all()
    assert of_best.sum() < of_plain.sum()


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        (
            np.ones(127),
            r"importance has shape \(127,\); .* along axis -1 of x, of shape \(128,\)\.",
        ),
        (np.ones((4, 128)), r"importance has shape \(4, 128\)"),
        (np.float32(1), r"importance has no axes"),
        (np.zeros(128), "importance has only zeros"),
        (np.eye(1, 128, 3)[0] * -1, r"importance\[3\] is -1, .* not negative"),
        (np.eye(1, 128, 3)[0] * 1e300, r"importance\[3\] is inf"),
        (np.where(np.arange(128) == 7, np.nan, 1), r"importance\[7\] is NaN"),
    ],
)
def test_bad_importance_is_refused(importance: Any, message: str) -> None:
    x = WEIGHTS["normal"][:4, :128].astype(np.float32)
    with pytest.raises(ValueError, match=message):
        quantize(x, "nvfp4", scales="best", importance=importance)
    with pytest.raises(ValueError, match=message.replace("axis -1", "axis 0")):
        quantize(x.T, "nvfp4", axis=0, scales="best", importance=importance)


def test_importance_of_another_kind_is_refused() -> None:
    x = WEIGHTS["normal"][:4, :128].astype(np.float32)
    with pytest.raises(TypeError, match=r"importance has dtype int64; .* real float"):
        quantize(x, "nvfp4", scales="best", importance=np.ones(128, np.int64))
    with pytest.raises(ValueError, match='importance is not valid with scales="amax"'):
        quantize(x, "nvfp4", importance=np.ones(128))
    with pytest.raises(ValueError, match=r"of shape \(128,\), or \(2, 128\)"):
        quantize(np.stack([x, x]), "nvfp4", scales="best", importance=np.ones((3, 128)))


@pytest.mark.parametrize(("scheme", "columns"), [("mxfp4", 32), ("nvfp4", 16), ("mxfp8_e4m3", 32)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_shorter_than_a_block_are_searched(scheme: Any, columns: int, dtype: str) -> None:
    """Also the last elements of a row of several bands."""
    draw = np.random.default_rng(0)
    for width in (*range(1, columns), 32768 + columns // 2 + 3):
        x = draw.standard_normal((2, width)).astype(dtype)
        wide = np.zeros((2, -(-width // columns) * columns), dtype)
        wide[:, :width] = x
        q, padded = (quantize(array, scheme, scales="best") for array in (x, wide))
        assert np.array_equal(dequantize(q, "float32"), dequantize(padded, "float32")[:, :width])
        usual = np.square(decoded(quantize(x, scheme)) - x.astype(float)).sum()
        assert np.square(decoded(q) - x.astype(float)).sum() <= usual


def decoded(q: Any) -> Array:
    return np.asarray(dequantize(q, "float32"), float)


def test_four_over_six_takes_the_smaller_error() -> None:
    """Each block decodes as if its scale had been made for a largest code of 6, or of 4."""
    x = WEIGHTS["normal"][:16, :256].astype(np.float32)
    q = quantize(x, "nvfp4", recipe="modelopt", scales="four_over_six")
    assert q.global_scale is not None
    largest = np.abs(x.reshape(16, 16, 16)).max(-1)
    level = np.abs(x).max() / np.float32(6 * 256)
    assert q.global_scale == level
    tried = []
    for stretch in (1.0, 1.5):
        scale = oracle.E4M3.decode(oracle.E4M3.encode(largest / (np.float32(6) * level) * stretch))
        blocks, totals = x.reshape(-1, 16).astype(np.float64), (scale * level).reshape(-1)
        tried.append(errors(blocks, totals.astype(np.float64), "float4_e2m1fn"))
    np.testing.assert_allclose(of_blocks(x, q, 16), np.minimum(*tried), rtol=1e-4)
    assert (tried[0] != tried[1]).any()


def test_each_recipe_that_searches_is_named_once() -> None:
    for row in schemes():
        assert len({*row.searched_recipes}) == len(row.searched_recipes), row.name
        assert {*row.searched_recipes} <= {*row.recipes}, row.name


def test_a_recipe_without_the_search_is_named_as_the_option_is() -> None:
    row = find_scheme("int4_group")
    with pytest.raises(ValueError, match=r"as recipe='mlx' stores it; .* use recipe='com") as error:
        check_scales("best", row, "mlx")
    said = for_command(str(error.value))
    assert "as --recipe mlx stores it; leave it out, or use --recipe compressed-tensors" in said
    assert "recipe=" not in said


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("bnb_nf4", {"scales": "best"}, "scales='best' is not valid for bnb_nf4, .* nvfp4, int8"),
        ("fp8_channel", {"scales": "best"}, "scales='best' is not valid for fp8_channel"),
        ("mxfp4", {"scales": "four_over_six"}, "four_over_six' is not valid for mxfp4, .* nvfp4"),
        ("nvfp4", {"scales": "mse"}, "scales='mse' is not valid; use one of 'amax', 'best'"),
        ("nvfp4", {"scales": "best", "rounding": "stochastic"}, "is not valid with this rounding"),
    ],
)
def test_what_has_no_choice_of_scales_is_refused(
    scheme: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        quantize(WEIGHTS["normal"][:4, :128].astype(np.float32), scheme, **options)


@pytest.mark.parametrize(
    ("scheme", "recipe"),
    [
        ("nvfp4", "compressed-tensors"),
        ("nvfp4", "modelopt"),
        ("nvfp4", "comfy"),
        ("nvfp4", "mlx"),
        ("mxfp4", "compressed-tensors"),
        ("mxfp8_e4m3", "compressed-tensors"),
    ],
)
def test_files_have_the_scales_of_arrays(tmp_path: Path, scheme: str, recipe: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "nobody"}')
    weights = {
        "q_proj.weight": WEIGHTS["normal"][:64, :512].astype(ml_dtypes.bfloat16),
        "k_proj.weight": WEIGHTS["t5"][:64, :512].astype(ml_dtypes.bfloat16) * 3,
    }
    checkpoint.save(folder / "model.safetensors", weights)
    found: dict[str, dict[str, float]] = {}
    for scales in ("amax", "best"):
        target = tmp_path / scales
        summary = checkpoint.quantize_file(folder, target, scheme, recipe=recipe, scales=scales)
        found[scales] = {
            row.name.partition(".")[0]: row.report.sqnr_db for row in summary.rows if row.report
        }
        assert (target / "config.json").read_bytes() == (tmp_path / "amax/config.json").read_bytes()
    assert found["best"].keys() == {"q_proj", "k_proj"}
    for name, value in found["best"].items():
        assert value > found["amax"][name] or scheme == "mxfp8_e4m3"
    checkpoint.dequantize_file(tmp_path / "best", tmp_path / "decoded", "float32")
    for name, array in checkpoint.load(tmp_path / "decoded" / "model.safetensors").items():
        weight = weights[name].astype(np.float64)
        value = decibels(np.square(weight).sum() / np.square(weight - array).sum())
        assert value == pytest.approx(found["best"][name.partition(".")[0]])


def test_a_map_may_name_other_schemes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    arrays = {
        f"layers.0.{name}.weight": WEIGHTS["normal"][:64, :512].astype(np.float32)
        for name in ("up_proj", "o_proj")
    }
    checkpoint.save(folder / "model.safetensors", arrays)
    schemes_of_map = {"default": "nvfp4", r".*o_proj\.weight": "fp8_channel"}
    files = {}
    for scales in ("amax", "best"):
        checkpoint.quantize_file(folder, tmp_path / scales, dtype_map=schemes_of_map, scales=scales)
        files[scales] = checkpoint.load(tmp_path / scales / "model.safetensors")
    for name, array in files["amax"].items():
        is_same = np.array_equal(array.view(np.uint8), files["best"][name].view(np.uint8))
        assert is_same == (".o_proj." in name or name.endswith("global_scale")), name
    with pytest.raises(ValueError, match=r"scales='best' is not valid for fp8_channel, .* nvfp4"):
        checkpoint.quantize_file(folder, tmp_path / "no", "fp8_channel", scales="best")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("scheme", "recipe", "scales"),
    [
        ("nvfp4", "compressed-tensors", "best"),
        ("nvfp4", "modelopt", "best"),
        ("nvfp4", "modelopt", "four_over_six"),
        ("nvfp4", "comfy", "four_over_six"),
        ("mxfp4", "compressed-tensors", "best"),
    ],
)
def test_diff_names_the_choice_of_scales(
    tmp_path: Path, scheme: Any, recipe: Any, scales: Any
) -> None:
    plain, small = tmp_path / "plain.safetensors", tmp_path / "small.safetensors"
    weight = (WEIGHTS["t5"][:64, :512] * 3).astype(ml_dtypes.bfloat16)
    checkpoint.save(plain, {"layers.0.up_proj.weight": weight})
    checkpoint.quantize_file(plain, small, scheme, recipe=recipe, scales=scales)
    (tensor,) = checkpoint.diff(plain, small).tensors
    assert tensor.explanation is not None
    assert tensor.explanation.every_element
    assert tensor.explanation.options["scales"] == scales
