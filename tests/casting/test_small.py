"""Small strided arrays without options take a shorter route through the binding."""

from __future__ import annotations

import warnings
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest

X = np.array([[1.0, 2.5, -3.0], [1e4, np.nan, np.inf]], np.float32)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3), (3, 1, 2), (0,), (3, 0)])
@pytest.mark.parametrize(
    "target", [np.float64, np.float16, ml_dtypes.bfloat16, ">f8", np.complex64]
)
def test_it_gives_what_astype_gives(shape: tuple[int, ...], target: Any) -> None:
    x = np.resize(X, shape)
    expected = x.astype(target)
    fresh = castwise.cast(x, target)
    out = np.empty(shape, target)
    assert castwise.cast(x, out=out) is out
    for result in (fresh, out):
        assert (type(result), result.dtype, result.shape) == (np.ndarray, expected.dtype, shape)
        assert result.flags.c_contiguous
        assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("way", [np.asfortranarray, lambda x: x[::-1], lambda x: x[:, ::2]])
def test_layouts_are_kept_as_numpy_keeps_them(way: Any) -> None:
    x = way(X)
    expected = x.astype(np.float64)
    result = castwise.cast(x, np.float64)
    assert result.strides == expected.strides
    assert result.tobytes("A") == expected.tobytes("A")


# Views of a C-ordered array. Some have more axes than the short route takes.
VIEWS = {
    "transposed": lambda a: a.T,
    "every other column": lambda a: a[:, ::2],
    "every other of both": lambda a: a[::2, ::2],
    "every third": lambda a: a[:, 1::3],
    "backwards": lambda a: a[::-1, ::-1],
    "one column": lambda a: a[:, 0],
    "one row, every other": lambda a: a[0, ::2],
    "part": lambda a: a[1:, 2:-1],
    "transposed part": lambda a: a[:, ::2].T,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "three axes": lambda a: a[: a.shape[0] // 2 * 2].reshape(2, -1, a.shape[1]).transpose(2, 0, 1),
}
PAIRS = [
    ("int8", "float32"),
    ("float8_e4m3fn", "bfloat16"),
    ("float16", "float16"),
    ("float32", "uint8"),
    ("int64", "int32"),
    ("complex64", "complex128"),
    ("complex128", "complex128"),
    ("float32", "complex64"),
]


@pytest.mark.parametrize("shape", [(2, 4), (16, 16), (17, 33), (40, 70), (150, 200)])
@pytest.mark.parametrize("way", VIEWS)
def test_views_are_cast_as_their_contiguous_copies(way: str, shape: tuple[int, int]) -> None:
    numbers = np.random.default_rng(7).integers(0, 100, shape)
    for source, target in PAIRS:
        dtype = castwise.finfo(target).dtype
        x = VIEWS[way](castwise.cast(numbers, source))
        want = castwise.cast(np.array(x, order="C"), dtype).tobytes()
        kept = castwise.cast(x, dtype)
        assert (kept.tobytes(), kept.strides) == (want, x.astype(dtype).strides)
        for order in ("C", "F", "A", "K"):
            got = castwise.cast(x, dtype, order=order)
            assert (got.tobytes(), got.strides) == (want, x.astype(dtype, order=order).strides)
        room = np.full([2 * length for length in x.shape], 7, dtype)
        here = tuple(slice(None, None, 2) for _ in x.shape)
        for out in (np.empty(x.shape, dtype), np.empty(x.shape, dtype, order="F"), room[here]):
            assert castwise.cast(x, out=out) is out
            assert out.tobytes() == want
        room[here] = 7
        assert (room == 7).all()


@pytest.mark.parametrize("length", [3, 64, 300, 30_000])
def test_an_out_between_the_elements_of_x(length: int) -> None:
    memory = np.arange(2 * length, dtype=np.int32)
    x, out = memory[::2], memory.view(np.float32)[1::2]
    expected, kept = x.astype(np.float32), x.copy()
    castwise.cast(x, out=out)
    assert (out == expected).all()
    assert (x == kept).all()


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3, 4), (4, 4)),
        ((3, 4), (0, 4)),
        ((4,), (2,)),
        ((4,), (0,)),
        ((3, 4), (4, -4)),
        ((4, 3), (8, 12)),
        ((2, 3, 4), (20, 8, 12)),
        ((5,), (-3,)),
        ((4, 30_000), (40_000, 4)),
    ],
)
def test_an_out_whose_elements_share_memory_is_refused(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    memory = np.full(50_000, 7, np.float32)
    out = np.lib.stride_tricks.as_strided(memory[20:], shape, strides)
    x = np.arange(out.size, dtype=np.int32).reshape(shape)
    caster = castwise.caster("int32", "float32")
    for call in (lambda: castwise.cast(x, out=out), lambda: caster(x, out=out)):
        with pytest.raises(ValueError, match=r"out, of shape \(.*, has elements that share memory"):
            call()
    assert (memory == 7).all()


@pytest.mark.parametrize(
    ("shape", "strides"), [((3, 2), (8, 12)), ((2, 3), (12, 8)), ((2, 1, 3), (-12, 0, 8))]
)
def test_an_out_whose_elements_lie_between_each_other(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    memory = np.zeros(20, np.float32)
    out = np.lib.stride_tricks.as_strided(memory[10:], shape, strides)
    x = np.arange(1, 7, dtype=np.int32).reshape(shape)
    assert castwise.cast(x, out=out) is out
    assert (out == x).all()
    assert sorted(memory[memory != 0]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("order", ["X", "CF", "", 3, None])
def test_an_order_that_is_none_is_refused(order: Any) -> None:
    with pytest.raises(ValueError, match=r"order=.* is not valid"):
        castwise.cast(X, np.float64, order=order)


@pytest.mark.parametrize("shift", [-4, -2, -1, 0, 1, 2, 4, 5, 6])
def test_out_that_overlaps_x(shift: int) -> None:
    memory = np.arange(64, dtype=np.uint8)
    x = memory[16:32].view(np.float32)
    expected = x.astype(np.float16)
    out = memory[16 + shift : 24 + shift].view(np.float16)
    castwise.cast(x, out=out)
    assert out.tobytes() == expected.tobytes()


def reshape_in_place(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> None:
    """Give an array another shape, for which numpy 2.5 warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array.shape = shape


def test_a_dtype_that_gives_x_another_shape_while_it_is_read() -> None:
    x = np.ones((4, 2), np.float32)

    class Meddling:
        @property
        def dtype(self) -> np.dtype[Any]:
            reshape_in_place(x, (8,))
            return np.dtype(np.float16)

    result = castwise.cast(x, Meddling())
    assert result.shape == (8,)
    assert (result == 1).all()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros(3, np.float16), "shape"),
        (np.broadcast_to(np.float16(0), (2, 3)), "read-only"),
        ([0.0], "out is of type list"),
    ],
)
def test_an_out_that_cannot_be_written_is_refused(out: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        castwise.cast(X, out=out)


def test_subclasses_become_plain_arrays_as_ever() -> None:
    assert type(castwise.cast(X.view(np.matrix), np.float16)) is np.ndarray
    with pytest.raises(TypeError, match="masked"):
        castwise.cast(np.ma.masked_invalid(X), np.float16)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize("size", [3, 700])
def test_draws_go_by_places_in_c_order(dtype: str, size: int) -> None:
    """Whatever the order in memory, and the same as of a larger array that begins alike."""
    rng = np.random.default_rng(8)
    x = (rng.normal(size=(size, 5)) * 1e4).astype(dtype)
    target = "complex32" if dtype == "complex64" else "bfloat16"
    options: dict[str, Any] = {"rounding": "stochastic", "seed": 2**64 - 1}
    longer = castwise.cast(np.resize(x, (100_000, 5)), target, threads=1, **options)
    want = longer[:size].tobytes()
    for way in (np.ascontiguousarray, np.asfortranarray, lambda a: a[::-1][::-1]):
        assert castwise.cast(way(x), target, **options).tobytes() == want
        for order in "CF":
            out = np.zeros_like(longer, shape=x.shape, order=order)
            assert castwise.cast(way(x), out=out, **options).tobytes() == want
    seed = np.uint64(2**64 - 1)
    assert castwise.cast(x, target, rounding="stochastic", seed=seed).tobytes() == want


@pytest.mark.parametrize("target", ["complex64", "float64"])
def test_draws_that_nothing_needs_change_nothing(target: str) -> None:
    got = castwise.cast(X, target, rounding="stochastic", seed=3)
    assert got.tobytes() == X.astype(target).tobytes()
