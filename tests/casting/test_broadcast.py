"""Broadcast sources, whose elements are converted once and copied, give what their copies give."""

from __future__ import annotations

import itertools
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import swapped_bytes
from oracle import FORMATS, Array, Format
from sources import random_codes
from support import AVAILABLE, LEVELS, array_of, at_level, codes_of

PAIRS = [
    ("float32", "bfloat16"),
    ("float64", "float8_e4m3fn"),
    ("float8_e5m2", "float32"),
    ("float32", "float32"),
    ("int64", "uint8"),
    ("int8", "float64"),
    ("complex64", "complex128"),
    ("complex128", "complex64"),
    ("float32", "complex64"),
    ("float64", "complex128"),
]
LENGTHS = [1, 2, 3, 17, 70]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"report": True, "overflow": "saturate"},
    {"rounding": "stochastic", "seed": 3},
    {"scale": 0.75},
    {"threads": 2, "nan": "zero"},
]


def source_of(row: Format, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape)) * (2 if row.part else 1)
    codes = random_codes(row, count, 4)
    return array_of(codes.reshape(*shape, 2) if row.part else codes.reshape(shape), row).reshape(
        shape
    )


def same(got: Array, want: Array, target: str) -> bool:
    row = FORMATS[target]
    native = got if got.dtype.isnative else swapped_bytes(got, row).view(row.dtype)
    return np.array_equal(codes_of(np.ascontiguousarray(native), row), codes_of(want, row))


def check(x: Array, target: str, out: Array | None = None, **options: Any) -> None:
    """Compare with the cast of a copy in C order."""
    want = castwise.cast(np.array(x, order="C"), FORMATS[target].dtype, order="C", **options)
    for order in ("K", "C", "F") if out is None else ("K",):
        where: dict[str, Any] = {"dtype": FORMATS[target].dtype} if out is None else {"out": out}
        got = castwise.cast(x, order=order, **where, **options)
        if options.get("report"):
            assert repr(got[1].to_dict()) == repr(want[1].to_dict())
            assert same(got[0], want[0], target)
        else:
            assert same(got, want, target)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("repeated", list(itertools.product([False, True], repeat=3)))
def test_every_position_of_axes(
    source: str, target: str, repeated: tuple[bool, ...], level: str
) -> None:
    for lengths in itertools.product([1, 3, 40], repeat=3):
        kept = tuple(1 if once else length for once, length in zip(repeated, lengths, strict=True))
        x = np.broadcast_to(source_of(FORMATS[source], kept), lengths)
        check(x, target)
        check(x[:, ::-1], target)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("source", "target", "options"),
    [(*pair, {}) for pair in PAIRS] + [(*pair, some) for pair in PAIRS[:3] for some in OPTIONS[1:]],
    ids=str,
)
@pytest.mark.parametrize(
    ("kept", "whole", "axes"),
    [
        ((1, 700), (900, 700), (0, 1)),
        ((700, 1), (700, 900), (0, 1)),
        ((5, 1, 3000), (5, 40, 3000), (0, 1, 2)),
        ((1,), (300_000,), (0,)),
        ((90_000, 1), (90_000, 3), (0, 1)),
        ((60, 1, 70), (60, 50, 70), (2, 1, 0)),
        ((1, 50, 60), (33, 50, 60), (0, 2, 1)),
    ],
    ids=str,
)
def test_many_tiles(  # noqa: PLR0917
    kept: tuple[int, ...],
    whole: tuple[int, ...],
    axes: tuple[int, ...],
    source: str,
    target: str,
    options: dict[str, Any],
) -> None:
    x = castwise.cast(np.linspace(-50, 999, int(np.prod(kept))).reshape(kept), source)
    check(np.broadcast_to(x, whole).transpose(axes), target, **options)


def test_wherever_the_target_lies(level: str) -> None:
    """Steps, negative ones, gaps, Fortran order and the other byte order, by `out`."""
    for source, target in PAIRS:
        dtype = FORMATS[target].dtype
        for shape, kept in (((6, 50), (6, 1)), ((6, 50), (1, 50)), ((4, 5, 6), (4, 1, 6))):
            x = np.broadcast_to(source_of(FORMATS[source], kept), shape)
            room = np.zeros([3 * side for side in shape], dtype)
            for step in (1, 2, -1, -3):
                part = (slice(None, None, step),) * len(shape)
                inner = tuple(slice(0, abs(step) * side) for side in shape)
                out = room[inner][part]
                before = room.copy()
                check(x, target, out=out)
                untouched = np.ones(room.shape, bool)
                untouched[inner][part] = False
                assert room[untouched].tobytes() == before[untouched].tobytes()
            check(x, target, out=np.zeros(shape, dtype, order="F"))
            if not (dtype.itemsize == 1 or (FORMATS[target].part and dtype.itemsize == 4)):
                check(x, target, out=np.zeros(shape, dtype.newbyteorder()))
            if FORMATS[source].dtype.kind in "fiu" and FORMATS[source].dtype.itemsize > 1:
                plain = np.array(x[..., :1] if kept[-1] == 1 else x[:1])
                turned = swapped_bytes(plain, FORMATS[source]).view(plain.dtype.newbyteorder())
                check(np.broadcast_to(turned, shape), target)


@pytest.mark.parametrize("row", AVAILABLE, ids=lambda row: row.name)
def test_every_format(row: Format, level: str) -> None:
    x = source_of(row, (37, 1))
    for target in ("complex128", row.name):
        check(np.broadcast_to(x, (37, 21)), target)
        check(np.broadcast_to(x.reshape(37), (21, 37)), target)
        check(np.broadcast_to(x[0, 0], (40, 50)), target)
    if not row.part:
        floats = np.linspace(-3, 3, 37, dtype=np.float32)
        check(np.broadcast_to(floats, (21, 37)), row.name)
        check(np.broadcast_to(floats[:, None], (37, 21)), row.name)


@given(st.data(), st.sampled_from(PAIRS), st.sampled_from(LEVELS))
def test_any_shape(data: st.DataObject, pair: tuple[str, str], level: str) -> None:
    source, target = pair
    lengths = data.draw(st.lists(st.sampled_from([0, *LENGTHS]), min_size=1, max_size=4))
    lengths = lengths if np.prod(lengths) < 40_000 else lengths[:2]
    kept = tuple(data.draw(st.sampled_from([1, length])) for length in lengths)
    axes = data.draw(st.permutations(range(len(lengths))))
    steps = tuple(data.draw(st.sampled_from([slice(None), slice(None, None, -1)])) for _ in lengths)
    x = np.broadcast_to(source_of(FORMATS[source], kept), lengths)[steps].transpose(axes)
    with at_level(level):
        check(x, target, **data.draw(st.sampled_from(OPTIONS)))


def test_scales_that_vary_where_the_source_does_not() -> None:
    x = np.broadcast_to(np.linspace(-5, 5, 90, dtype=np.float32), (70, 90))
    for shape in ((70, 1), (1, 90), (70, 90), (1, 1)):
        scale = np.linspace(0.5, 2, int(np.prod(shape))).reshape(shape)
        check(x, "bfloat16", scale=scale)
        check(x.T, "bfloat16", scale=scale.T)


def test_the_first_offender_is_the_first_in_c_order() -> None:
    column = np.zeros((100, 1), np.float32)
    column[[7, 60]] = 1e9
    for x, index in (
        (np.broadcast_to(column, (100, 50)), 7 * 50),
        (np.broadcast_to(column.T, (50, 100)), 7),
        (np.broadcast_to(column, (100, 50))[::-1], 39 * 50),
        (np.broadcast_to(column, (3, 100, 50)).transpose(2, 0, 1), 7),
    ):
        out = np.full(x.shape, 7, ml_dtypes.float8_e4m3fn)
        for target in (out, out[..., ::-1]):
            with pytest.raises(OverflowError, match=f"flat index {index} "):
                castwise.cast(x, out=target, overflow="raise")
        assert (out == 7).all()
        with pytest.raises(OverflowError, match=f"flat index {index} "):
            castwise.cast(x, out.dtype, overflow="raise")


def test_more_than_caches_hold(level: str) -> None:
    """From 32 MiB on results are written past the caches, at whatever address."""
    side = 2100
    values = np.linspace(-9, 9, side, dtype=np.float32)
    room = np.empty(side * side + 3, np.float64)
    for x, threads in (
        (values[:, None], 1),
        (values, 2),
        (values[:1], 2),
        (values[: side // 3].repeat(3)[:, None], 2),
    ):
        want = np.broadcast_to(x.astype(np.float64), (side, side))
        for start in (0, 3):
            out = room[start : start + side * side].reshape(side, side)
            out[...] = np.nan
            castwise.cast(np.broadcast_to(x, (side, side)), out=out, threads=threads)
            assert np.array_equal(out, want)
