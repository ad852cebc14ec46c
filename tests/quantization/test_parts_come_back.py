"""Parts become the array again that had them, also of another byte order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from castwise.quantization import (
    QuantizedArray,
    Scheme,
    dequantize,
    quantize,
    schemes,
    unpack,
)
from castwise.quantization.arrays.named_parts import has_names
from scheme_oracle import Array


def normal(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


RECIPES = [(scheme, name) for scheme in schemes() for name in scheme.recipes]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("scheme", "recipe"), RECIPES, ids=[f"{scheme.name}-{name}" for scheme, name in RECIPES]
)
def test_parts_come_back(scheme: Scheme, recipe: str, symmetric: bool) -> None:
    """By default `from_parts` takes the axis that `quantize` does, also of square weights."""
    for shape in ((128, 128), (128, 256), (256, 128), (2, 128, 128)):
        try:
            q = quantize(normal(*shape), scheme.name, recipe=recipe, symmetric=symmetric)
        except ValueError:
            assert not symmetric
            return
        if not has_names(scheme, recipe, symmetric=symmetric):
            with pytest.raises(ValueError, match=r"no names .*; use q\.data, q\.scale"):
                q.parts()
            continue
        arguments = {"scheme": scheme.name, "block": q.block}
        read = QuantizedArray.from_parts(q.parts(), recipe, q.shape, **arguments)
        assert read.axis == q.axis
        expected = dequantize(q, "float32")
        assert np.array_equal(dequantize(read, "float32"), expected)
        parts = {"global_scale": q.global_scale, "zero_point": q.zero_point, "extras": q.extras}
        by_hand = QuantizedArray(
            scheme.name, q.data, q.scale, shape=q.shape, recipe=recipe, block=q.block, **parts
        )
        assert np.array_equal(dequantize(by_hand, "float32"), expected)


def test_kernels_of_keras_may_be_a_stack() -> None:
    stack = normal(2, 64, 32)
    q = quantize(stack, "int8_channel", recipe="keras")
    assert (q.axis, q.scale.size) == (1, 2 * 32)
    for one, decoded in zip(stack, dequantize(q, "float32"), strict=True):
        alone = quantize(one, "int8_channel", recipe="keras")
        assert np.array_equal(dequantize(alone, "float32"), decoded)


def test_an_error_of_shapes_names_the_axis() -> None:
    parts = quantize(normal(8, 64), "int8_channel", recipe="keras", axis=-1).parts()
    with pytest.raises(ValueError, match=r"along axis=0 needs \(8, 64\)"):
        QuantizedArray.from_parts(parts, "keras", shape=(8, 64), scheme="int8_channel")


@pytest.mark.parametrize(
    ("scheme", "recipe"), [("int4_group", "mlx"), ("nvfp4", None), ("int8_channel", None)]
)
def test_arrays_in_the_other_byte_order(scheme: str, recipe: str | None) -> None:
    """Weights, parts and results may be in it, as in casts."""

    def swapped(array: Any) -> Any:
        return array.astype(array.dtype.newbyteorder()) if array.dtype.kind in "fu" else array

    x = normal(4, 128)
    q = quantize(x, scheme, recipe=recipe)
    other = quantize(swapped(x), scheme, recipe=recipe)
    assert other.data.tobytes() == q.data.tobytes()
    assert other.scale.dtype == q.scale.dtype
    expected = dequantize(q, "float32")
    out = swapped(np.zeros_like(x))
    assert dequantize(q, out=out) is out
    assert np.array_equal(out, expected)
    parts = {name: swapped(part) for name, part in q.parts().items()}
    read = QuantizedArray.from_parts(parts, q.recipe, q.shape, scheme=scheme, block=q.block)
    assert np.array_equal(dequantize(read, "float32"), expected)
    fields = {name: getattr(q, name) for name in ("shape", "recipe", "block", "axis")}
    fields["extras"] = {name: swapped(part) for name, part in q.extras.items()}
    level = None if q.global_scale is None else swapped(q.global_scale)
    made = QuantizedArray(scheme, swapped(q.data), swapped(q.scale), level, **fields)
    assert np.array_equal(dequantize(made, "float32"), expected)


def test_a_block_type_and_words_in_the_other_byte_order() -> None:
    x = normal(2, 256)
    assert quantize(x.astype(">f4"), "q4_0").data.tobytes() == quantize(x, "q4_0").data.tobytes()
    words = np.arange(6, dtype=np.uint32).reshape(2, 3)
    assert np.array_equal(unpack(words.astype(">u4"), 4), unpack(words, 4))
