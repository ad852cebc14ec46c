"""Few elements without options take a shorter way through the binding, to the same results."""

from __future__ import annotations

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


@pytest.mark.parametrize("shift", [-4, -2, -1, 0, 1, 2, 4, 5, 6])
def test_out_that_overlaps_x(shift: int) -> None:
    memory = np.arange(64, dtype=np.uint8)
    x = memory[16:32].view(np.float32)
    expected = x.astype(np.float16)
    out = memory[16 + shift : 24 + shift].view(np.float16)
    castwise.cast(x, out=out)
    assert out.tobytes() == expected.tobytes()


def test_a_dtype_that_gives_x_another_shape_while_it_is_read() -> None:
    x = np.ones((4, 2), np.float32)

    class Meddling:
        @property
        def dtype(self) -> np.dtype[Any]:
            x.shape = (8,)
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
