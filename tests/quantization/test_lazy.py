"""Tensors that are read where they are indexed, and rows of stacks of quantized arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from castwise.quantization import QuantizedArray, dequantize, quantize
from castwise.quantization.arrays.row_slices import row_step, rows_of
from castwise.quantization.producers.stored_weight import LazyArray

Array = Any


def lazy(array: Array, read: list[int]) -> LazyArray:
    def box(ranges: Sequence[tuple[int, int]]) -> Array:
        found = array[tuple(slice(*one) for one in ranges)]
        read.append(found.size)
        return found

    return LazyArray("x", array.shape, array.dtype, array.shape, box)


INDICES = (0, 2, slice(1, 3), slice(0, 9), slice(2, 2))


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        ((3, 4, 5), (3, 4, 5)),
        ((3, 1, 4), (3, 4)),
        ((3, 4), (1, 3, 4, 1)),
        ((3,), (3, 1)),
    ],
)
def test_what_is_indexed_is_read(stored: tuple[int, ...], seen: tuple[int, ...]) -> None:
    array, read = np.arange(np.prod(stored)).reshape(stored), list[int]()
    one = lazy(array, read).reshape(seen)
    for wanted in product(INDICES, repeat=2):
        index = tuple(0 if n == 1 else i for n, i in zip(seen, wanted, strict=False))
        found = one[*index, ...]
        np.testing.assert_array_equal(found, array.reshape(seen)[*index, ...])
        assert read.pop() == found.size
    np.testing.assert_array_equal(one[...], array.reshape(seen))
    np.testing.assert_array_equal(np.asarray(one), array.reshape(seen))


def test_axes_that_are_joined_are_read_whole() -> None:
    array = np.arange(60).reshape(3, 4, 5)
    one = lazy(array, []).reshape((3, 20))
    np.testing.assert_array_equal(one[1:], array.reshape(3, 20)[1:])
    with pytest.raises(AssertionError):
        one[:, 1:]


STACKS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("fp8_block", "deepseek", {"block": (32, 64)}),
    ("fp8_channel", "compressed-tensors", {}),
    ("fp8_channel", "modelopt", {}),
    ("mxfp4", "gpt-oss", {}),
    ("mxfp4", "gpt-oss", {"axis": -2}),
    ("mxfp4", "compressed-tensors", {"axis": -2}),
    ("mxfp8_e4m3", "torchao", {"axis": 1}),
    ("nvfp4", "modelopt", {}),
    ("int4_group", "compressed-tensors", {"symmetric": False}),
    ("int5_group", "mlx", {"block": 32}),
    ("mxfp4", "gguf", {}),
)


@pytest.mark.parametrize(("scheme", "recipe", "options"), STACKS)
def test_rows_of_a_stack(scheme: str, recipe: str, options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).normal(size=(3, 160, 128)).astype(np.float32)
    q = quantize(x, scheme, recipe=recipe, **options)
    whole, step = dequantize(q), row_step(q)
    assert step < 160
    for place in range(3):
        for start in range(0, 160, step):
            found: QuantizedArray = rows_of(q, start, min(start + step, 160), (place,))
            np.testing.assert_array_equal(dequantize(found), whole[place, start : start + step])
    with pytest.raises(ValueError, match="cannot be decoded apart"):
        rows_of(q, 0, step)
