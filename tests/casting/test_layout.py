"""A layout changes nothing but where the elements are: of the input, of `out`, by `order`."""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import laid_out, swapped_bytes
from oracle import FORMATS, Array, Format
from sources import random_codes
from support import AVAILABLE, LEVELS, array_of, at_level, codes_of

formats = st.sampled_from(AVAILABLE)
levels = st.sampled_from(LEVELS)
orders = st.sampled_from(["K", "A", "C", "F"])


def targets_of(source: Format) -> st.SearchStrategy[Format]:
    return st.sampled_from([row for row in AVAILABLE if row.part or not source.part])


def same(one: Array, other: Array, row: Format) -> bool:
    native = one if one.dtype.isnative else swapped_bytes(one, row)
    native = native.view(row.dtype)
    return one.shape == other.shape and np.array_equal(codes_of(native, row), codes_of(other, row))


@given(st.data(), formats, orders, levels)
def test_any_input_layout(data: st.DataObject, source: Format, order: Any, level: str) -> None:
    """The elements are those of the C-ordered copy's cast; the strides those of numpy's `order`."""
    target = data.draw(targets_of(source))
    array, plain = data.draw(laid_out(source))
    with at_level(level):
        want = castwise.cast(plain, target.name)
        got = castwise.cast(array, target.name, order=order)
    assert same(got, want, target)
    assert got.dtype == target.dtype
    assert got.flags.writeable
    assert not np.shares_memory(got, array)
    assert got.strides == np.empty_like(array, target.dtype, order=order, subok=False).strides


@given(st.data(), formats, levels)
def test_any_output_layout(data: st.DataObject, source: Format, level: str) -> None:
    """`out` may lie anywhere it can be written, in either byte order, and is what comes back."""
    target = data.draw(targets_of(source))
    out = data.draw(laid_out(target).map(lambda laid: laid.array).filter(_one_place_each))
    size = out.size * (2 if source.part else 1)
    shape = (*out.shape, 2) if source.part else out.shape
    x = array_of(random_codes(source, size, 3).reshape(shape), source).reshape(out.shape)
    with at_level(level):
        want = castwise.cast(x, target.name)
        assert castwise.cast(x, out=out) is out
    assert same(out, want, target)


def _one_place_each(array: Array) -> bool:
    return array.flags.writeable and (0 not in array.strides or array.size <= 1)


@given(st.data(), formats, levels)
def test_out_may_overlap_the_input(data: st.DataObject, source: Format, level: str) -> None:
    """Overlapping arrays give what separate ones give, at any distance and strides."""
    target = data.draw(targets_of(source))
    count = data.draw(st.integers(1, 300))
    steps = [
        data.draw(st.sampled_from([1, 2, -1, -2])) * row.dtype.itemsize for row in (source, target)
    ]
    reach = [abs(step) * (count - 1) for step in steps]
    room = np.random.default_rng(1).integers(0, 256, max(reach) * 5 // 4 + 32).astype(np.uint8)
    views = []
    for row, step, length in zip((source, target), steps, reach, strict=True):
        first = data.draw(st.integers(0, room.size - length - row.dtype.itemsize))
        views.append(
            np.ndarray((count,), row.dtype, room, first + (length if step < 0 else 0), (step,))
        )
    x, out = views
    with at_level(level):
        want = castwise.cast(x.copy(), target.name)
        castwise.cast(x, out=out)
    assert np.array_equal(codes_of(out, target), codes_of(want, target))


@pytest.mark.parametrize(
    ("source", "target"), [("float32", "bfloat16"), ("int8", "float64"), ("float64", "float32")]
)
def test_in_place_over_many_tiles(source: str, target: str, level: str) -> None:
    """A large array over itself, shifted both ways, with threads."""
    wide = max(np.dtype(source).itemsize, FORMATS[target].dtype.itemsize)
    count = 300_000
    for shift in (0, 1, 7, 4096):
        for reverse in (False, True):
            room = np.random.default_rng(2).integers(0, 64, (count + 4096) * wide).astype(np.uint8)
            x = np.ndarray((count,), source, room, shift if reverse else 0)
            out = np.ndarray((count,), FORMATS[target].dtype, room, 0 if reverse else shift)
            want = castwise.cast(x.copy(), target)
            castwise.cast(x, out=out, threads=4)
            assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("row", AVAILABLE, ids=lambda row: row.name)
def test_zero_dimensions_and_no_elements(row: Format, level: str) -> None:
    zero = castwise.cast(np.float32(1.0), "complex64") if row.part else np.ones((), row.dtype)
    zero = zero if not row.part else castwise.cast(zero, row.name)
    assert zero.shape == ()
    back = castwise.cast(zero, row.name)
    assert isinstance(back, np.ndarray)
    assert back.shape == ()
    assert same(back, zero, row)
    for shape in ((0,), (3, 0), (0, 2, 5)):
        assert castwise.cast(np.zeros(shape, row.dtype), "complex128").shape == shape
        assert castwise.cast(np.zeros(shape, np.float32), row.name).dtype == row.dtype


@pytest.mark.parametrize(
    "swapped", [">f2", ">f4", ">f8", ">i2", ">i4", ">i8", ">u8", ">c8", ">c16"]
)
def test_swapped_targets(swapped: str, level: str) -> None:
    """A dtype in the other byte order is a target like any other, by string and by `out`."""
    x = np.random.default_rng(5).normal(size=1001) * 100
    dtype = np.dtype(swapped)
    got = castwise.cast(x, dtype)
    assert got.dtype == dtype
    assert not got.dtype.isnative
    native = castwise.cast(x, dtype.newbyteorder("="))
    assert got.byteswap().tobytes() == native.tobytes()
    assert castwise.cast(x, swapped).tobytes() == got.tobytes()
    back = castwise.cast(got, "complex128" if dtype.kind == "c" else "float64")
    assert np.array_equal(back, castwise.cast(native, back.dtype))


def test_python_numbers_and_lists(level: str) -> None:
    """Scalars and nested lists become arrays as numpy makes them."""
    assert castwise.cast(1.5, "bfloat16").shape == ()
    assert float(castwise.cast(1.5, "bfloat16")) == 1.5
    assert int(castwise.cast(300, "int8")) == 44
    assert int(castwise.cast(np.float64(300), "int8")) == 127
    assert bool(castwise.cast(True, "bool"))
    nested = castwise.cast([[1, 2.5], [-3, 4]], "float8_e4m3fn")
    assert nested.astype(np.float32).tolist() == [[1, 2.5], [-3, 4]]
    assert castwise.cast([], "int4").shape == (0,)
    assert castwise.cast((1 + 2j,), "complex64").tolist() == [1 + 2j]


def test_copy_false_returns_the_array_when_nothing_changes(level: str) -> None:
    for row in AVAILABLE:
        x = array_of(random_codes(row, 12).reshape(2, 3, 2), row)[..., :]
        assert castwise.cast(x, row.name, copy=False) is x
        assert castwise.cast(x, row.name) is not x
        assert not np.shares_memory(castwise.cast(x, row.name), x)


def test_copy_false_still_copies_when_something_changes(level: str) -> None:
    x = np.array([[1.0, 300.0, np.inf], [np.nan, -1.0, 0.0]], np.float32)
    assert castwise.cast(x, "float64", copy=False).dtype == np.float64
    fortran = castwise.cast(x, "float32", order="F", copy=False)
    assert fortran is not x
    assert fortran.flags.f_contiguous
    swapped = castwise.cast(x, ">f4", copy=False)
    assert swapped is not x
    assert swapped.dtype == np.dtype(">f4")
    saturated = castwise.cast(x, "float32", overflow="saturate", copy=False)
    assert saturated[0, 2] == np.finfo(np.float32).max
    assert x[0, 2] == np.inf
    assert castwise.cast(x, "float32", nan="zero", copy=False)[1, 0] == 0
    assert castwise.cast(x, "float32", scale=2.0, copy=False)[0, 0] == 2
    assert np.isnan(x[1, 0])


@pytest.mark.parametrize("size", [4, 400])
def test_copy_false_keeps_what_is_in_the_order_asked_for(size: int) -> None:
    x = np.ones((size, size), np.float32)
    views = {"C": x, "F": x.T, "gaps": x[:, ::2]}
    kept = {"K": {"C", "F", "gaps"}, "A": {"C", "F"}, "C": {"C"}, "F": {"F"}}
    for name, view in views.items():
        orders: list[Any] = list(kept)
        for order in orders:
            got = castwise.cast(view, "float32", order=order, copy=False)
            assert (got is view) == (name in kept[order]), (name, order)
            assert got.strides == view.astype(np.float32, order=order, copy=False).strides


def test_a_cast_leaves_its_input_alone(level: str) -> None:
    for source in AVAILABLE:
        x = array_of(random_codes(source, 4000).reshape(2000, 2), source)
        before = x.tobytes()
        for target in AVAILABLE:
            if target.part or not source.part:
                castwise.cast(x, target.name, threads=2)
        assert x.tobytes() == before, source.name
