"""Arrays large enough to be transposed block by block give what their contiguous copies give."""

from __future__ import annotations

import itertools
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest

LAYOUTS = [
    ((64, 64), (1, 0)),
    ((100, 33), (1, 0)),
    ((2, 513), (1, 0)),
    ((5000, 3), (1, 0)),
    ((3, 5000), (1, 0)),
    ((7, 9, 100), (1, 0, 2)),
    ((31, 40, 3), (2, 0, 1)),
    ((3, 31, 40), (1, 2, 0)),
    ((4, 6, 5, 17, 2), (4, 2, 0, 3, 1)),
]
PAIRS = [
    ("float32", "bfloat16"),
    ("float64", "float8_e4m3fn"),
    ("float8_e5m2", "float32"),
    ("float16", "float16"),
    ("int64", "uint8"),
    ("complex64", "complex128"),
    ("float32", "complex64"),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"report": True, "overflow": "saturate"},
    {"rounding": "stochastic", "seed": 3},
    {"scale": 0.75},
    {"threads": 2},
]


def values(source: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    random = np.random.default_rng(5)
    plain = random.standard_normal(shape) * 100
    if source.startswith("complex"):
        plain = plain + 1j * random.standard_normal(shape)
    return castwise.cast(plain, source)


@pytest.mark.parametrize(("shape", "axes"), LAYOUTS)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_transposed(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    source: str,
    target: str,
) -> None:
    x = values(source, shape).transpose(axes)
    plain = np.ascontiguousarray(x)
    steps = [1, -1] if x.ndim == 2 else [1]
    for step, options in itertools.product(steps, OPTIONS):
        turned, straight = x[::step], np.ascontiguousarray(plain[::step])
        dtype = castwise.finfo(target).dtype
        got = castwise.cast(turned, dtype, order="C", **options)
        want = castwise.cast(straight, dtype, order="C", **options)
        if options.get("report"):
            assert got[1].to_dict() == want[1].to_dict()
            got, want = got[0], want[0]
        assert got.flags.c_contiguous
        assert got.tobytes() == want.tobytes()


def test_the_first_offender_is_the_first_in_c_order() -> None:
    x = np.zeros((100, 70), np.float32)
    x[99, 3] = x[2, 60] = x[50, 50] = 1e9
    out = np.full((70, 100), 7, ml_dtypes.float8_e4m3fn)
    with pytest.raises(OverflowError, match=f"flat index {3 * 100 + 99} "):
        castwise.cast(x.T, out=out, overflow="raise")
    assert (out == 7).all()


@pytest.mark.thinned(7)
@pytest.mark.parametrize("channels", [2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize(
    "chosen",
    [slice(None), slice(None, None, -1), slice(1, None), slice(None, -1), slice(-2, None, -1)],
)
@pytest.mark.parametrize("pixels", [(0, 4), (1, 1), (3, 5), (40, 31)])
def test_channels_become_planes(channels: int, chosen: slice, pixels: tuple[int, int]) -> None:
    """Red, green, blue and what else pixels have; all of it, part of it, in either order."""
    random = np.random.default_rng(channels)
    for source, target in [
        ("uint8", "float32"),
        ("int8", "int8"),
        ("uint16", "bfloat16"),
        ("float32", "float32"),
        ("float64", "float16"),
    ]:
        image = random.integers(0, 100, (*pixels, channels)).astype(source)
        planes = image.transpose(2, 0, 1)[chosen]
        dtype = castwise.finfo(target).dtype if target != "int8" else np.dtype("int8")
        got = castwise.cast(planes, dtype, order="C")
        assert got.tobytes() == castwise.cast(np.ascontiguousarray(planes), dtype).tobytes()
        assert got.tobytes() == planes.astype(dtype).tobytes()
