"""Every bf16 under every scale gets the same code on each CPU level: tables find the codes there.

The portable level computes them element by element, as the oracle's tests show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise import _core
from support import at_level

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
INFINITY = 0x7F80
SIGN = 0x8000
ONE = 0x3F80
LEVELS = [level for level in castwise.cpu_levels() if level != "portable"]
NVFP4 = ("modelopt", "compressed-tensors", "torchao", "transformer-engine", "comfy")
MXFP4 = ("gpt-oss", "torchao", "compressed-tensors", "modelopt", "gguf", "mlx")
PARTS = 16
GLOBALS = (ONE, ONE + 0x5D, 0x0C31)
"""Largest magnitudes of arrays, as bf16: one whose scale is a power, others, a tiny one."""


def encode(x: Array, scheme: str, recipe: str, **options: Any) -> tuple[Array, Array]:
    """Return the bytes of codes and scales as the core writes them, rows of blocks."""
    row = next(row for row in castwise.quantization.schemes() if row.name == scheme)
    height, width = options.setdefault("block", row.block)
    rows, columns = x.shape
    grid = (-(-rows // (height or rows)), -(-columns // (width or columns)))
    kind: Any = {"float8_e8m0fnu": np.uint8, "float8_e4m3fn": np.uint8, "weight": BF16}.get(
        row.scale, row.scale
    )
    if kind is np.uint8:
        options.setdefault("scale_format", row.scale)
    scale = np.zeros(grid, options.pop("scale_dtype", kind))
    data = np.zeros((rows, -(-columns * row.bits // 8)), np.uint8)
    if scheme == "nvfp4":
        amax = _core.block_amax(x)
        if recipe != "mlx":
            level = _core.global_scale(amax, recipe=recipe, dtype=BF16)
            options = {"global_scale": np.array(level, np.float32), "amax": amax} | options
    _core.encode_blocks(x, data, scale, scheme=scheme, recipe=recipe, **options)
    return data, scale.view(np.uint8).reshape(*grid, -1)


def check(x: Array, scheme: str, recipe: str, **options: Any) -> None:
    """Compare the levels with the portable one."""
    with at_level("portable"):
        codes, scales = encode(x, scheme, recipe, **options)
    for level in LEVELS:
        with at_level(level):
            data, scale = encode(x, scheme, recipe, **options)
        assert (scale == scales).all(), (level, x.reshape(-1)[:2], options)
        wrong = np.flatnonzero((data != codes).any(axis=1))
        assert not len(wrong), (level, wrong[0], x[wrong[0]], data[wrong[0]], codes[wrong[0]])


def below(bits: int) -> Array:
    """Every bf16 of at most a magnitude, given its bits."""
    magnitudes = np.arange(bits + 1, dtype=np.uint16)
    return np.concatenate([magnitudes, magnitudes | SIGN])


def blocks_below(bits: int, width: int) -> Array:
    """Lay every bf16 of at most a magnitude in blocks that begin with it."""
    found = below(bits)
    count = -(-len(found) // (width - 1))
    blocks = np.full((count, width), bits, np.uint16)
    blocks[:, 1:] = np.resize(found, (count, width - 1))
    return blocks


def largest_of_scales(top: int, width: int, scheme: str, recipe: str) -> Iterator[int]:
    """Give the largest magnitude for each stored scale, in an array whose largest one is `top`."""
    heads = np.zeros((top + 1, width), np.uint16)
    heads[:, 0] = np.arange(top + 1)
    with at_level("portable"):
        scales = encode(heads.view(BF16), scheme, recipe)[1].reshape(-1)
    last = np.flatnonzero(np.diff(scales, append=255))
    return iter(last.tolist())


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("recipe", MXFP4)
@pytest.mark.thinned(PARTS + 1)
def test_every_bf16_under_every_scale_of_mxfp4(recipe: str, part: int) -> None:
    for bits in [*largest_of_scales(INFINITY - 1, 32, "mxfp4", recipe)][part::PARTS]:
        check(blocks_below(bits, 32).view(BF16), "mxfp4", recipe)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("top", GLOBALS)
@pytest.mark.parametrize("recipe", [*NVFP4, "mlx"])
@pytest.mark.thinned(PARTS + 1)
def test_every_bf16_under_every_scale_of_nvfp4(recipe: str, top: int, part: int) -> None:
    for bits in [*largest_of_scales(top, 16, "nvfp4", recipe)][part::PARTS]:
        x = blocks_below(bits, 16)
        x[-1] = top
        check(x.view(BF16), "nvfp4", recipe)


@pytest.mark.parametrize("exponent", [ONE, ONE + 0x0C80, ONE - 0x2580, 0])
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    ("scheme", "recipe"),
    [
        *(
            ("fp8_channel", recipe)
            for recipe in ("deepseek", "modelopt", "comfy", "transformers", "compressed-tensors")
        ),
        ("int4_channel", "compressed-tensors"),
        ("int8_channel", "compressed-tensors"),
        ("int8_channel", "bitsandbytes"),
        ("int4_channel", "keras"),
    ],
)
@pytest.mark.thinned(4 * PARTS + 5)
def test_every_bf16_under_every_mantissa(
    scheme: str, recipe: str, part: int, exponent: int
) -> None:
    for bits in range(exponent + part, exponent + 0x80, PARTS):
        check(below(bits)[None].view(BF16), scheme, recipe)


@pytest.mark.parametrize("offset", [0, 7, 8])
@pytest.mark.parametrize("mantissa", range(0, 0x80, 13))
def test_integers_of_groups(mantissa: int, offset: int) -> None:
    bits = ONE + mantissa
    rest = np.resize(below(bits)[0x2F00 : bits + 1], (128, 127))
    x = np.concatenate([np.full((128, 1), bits, np.uint16), rest], axis=1)
    x[:, 1::2] |= SIGN
    check(x.view(BF16), "int4_group", "compressed-tensors", offset=offset)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("scheme", ["fp8_channel", "int8_channel", "int4_channel"])
@pytest.mark.parametrize("bits", [INFINITY - 1, ONE + 0x500, ONE, ONE - 0x600, ONE - 0x700, 3])
def test_scales_that_saturate_or_underflow(scheme: str, bits: int, kind: Any) -> None:
    for recipe in ("compressed-tensors", "deepseek", "comfy")[: 1 if "int" in scheme else 3]:
        check(below(bits)[None].view(BF16), scheme, recipe, scale_dtype=kind)


@pytest.mark.parametrize("amax", [0.0, 1e-40, 0.1, 100.0])
@pytest.mark.parametrize(
    ("scheme", "recipe"),
    [
        *(("mxfp4", recipe) for recipe in MXFP4),
        *(("nvfp4", recipe) for recipe in NVFP4),
        ("fp8_block", "deepseek"),
        ("int4_group", "compressed-tensors"),
    ],
)
def test_a_largest_magnitude_that_is_given(scheme: str, recipe: str, amax: float) -> None:
    x = np.resize(below(ONE), (256, 128)).view(BF16)
    more = {"global_scale": np.array(1.0, np.float32)} if scheme == "nvfp4" else {}
    check(x, scheme, recipe, amax=amax, **more)


@pytest.mark.parametrize("level", [-1.0, 0.0, 1e-45, 1e-6, 1e-4, 1e4, 1e7, 3e38, np.inf, np.nan])
@pytest.mark.parametrize("recipe", NVFP4)
def test_global_scales_of_any_value(recipe: str, level: float) -> None:
    x = np.random.default_rng(0).standard_normal((512, 256)).astype(BF16)
    x[::3, :100] = 0
    check(x, "nvfp4", recipe, global_scale=np.array(level, np.float32))


@pytest.mark.parametrize("recipe", NVFP4)
def test_scales_that_are_limited_below_the_largest_of_their_format(recipe: str) -> None:
    """Elements may be any times as large as such a scale, and have the largest code then."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 256)) * np.exp2(rng.integers(-6, 12, (64, 256)))
    e5m2 = {"scale_format": None, "scale_dtype": ml_dtypes.float8_e5m2}
    for others in (e5m2, {"scale_format": "float8_e8m0fnu"}):
        more = {"global_scale": np.array(0.01, np.float32), "amax": 26.88, **others}
        check(x.astype(BF16), "nvfp4", recipe, **more)


@pytest.mark.parametrize("offset", [0, 8])
@pytest.mark.parametrize("columns", [1, 7, 15, 23, 33, 127])
def test_rows_whose_last_byte_has_one_code(columns: int, offset: int) -> None:
    """The nibble beside it is 0, also where the code of a zero is not."""
    x = np.random.default_rng(columns).standard_normal((33, columns)).astype(BF16)
    check(x, "int4_group", "compressed-tensors", offset=offset)


@pytest.mark.parametrize("columns", [32, 33, 63, 64, 79, 96, 128, 160, 288])
@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4", "fp8_block", "int4_group"])
def test_zeros_small_numbers_and_ragged_rows(scheme: str, columns: int) -> None:
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((300, columns)) * np.exp2(rng.integers(-140, 3, (300, 1)))
    x[rng.random((300, columns)) < 0.1] = -0.0
    x[::7] = 0
    x[1::7, : columns // 2] *= 2.0**-130
    recipes = {"mxfp4": MXFP4, "nvfp4": NVFP4, "fp8_block": ("deepseek", "comfy")}
    for recipe in recipes.get(scheme, ("compressed-tensors",)):
        check(x.astype(BF16), scheme, recipe)
        check(x[:, ::-1].astype(BF16)[::2], scheme, recipe)
        if scheme in {"mxfp4", "nvfp4"}:
            others = {"scale_format": None, "scale_dtype": ml_dtypes.float8_e5m2}
            check(x.astype(BF16), scheme, recipe, **others)
        if scheme == "nvfp4":
            check(x.astype(BF16), scheme, recipe, block=(16, 16))
