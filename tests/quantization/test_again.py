"""What is decoded or encoded again runs from a plan, and gives what the first call would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import _core, cpu_level
from castwise.quantization import QuantizedArray, dequantize, quantize
from castwise.quantization.arrays import quantize as quantize_module

SCHEMES = (
    ("fp8_tensor", "compressed-tensors"),
    ("fp8_block", "deepseek"),
    ("mxfp8_e4m3", "modelopt"),
    ("mxfp4", "gpt-oss"),
    ("nvfp4", "modelopt"),
    ("nvfp4", "compressed-tensors"),
    ("nvfp4", "transformer-engine"),
    ("int4_group", "compressed-tensors"),
    ("int8_channel", "compressed-tensors"),
    ("int4_group", "mlx"),
    ("bnb_nf4", "bitsandbytes"),
)
SHAPES = ((128, 256), (2, 16, 384), (512,))
Array = np.ndarray[Any, Any]


def draw(seed: int, shape: tuple[int, ...], dtype: Any = ml_dtypes.bfloat16) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def raw(q: QuantizedArray) -> list[tuple[str, tuple[int, ...], str, bytes]]:
    parts = {"data": q.data, "scale": q.scale, "global": q.global_scale} | dict(q.extras)
    return [
        (name, part.shape, part.dtype.name, part.tobytes())
        for name, part in parts.items()
        if part is not None
    ]


@pytest.fixture(autouse=True)
def _without_plans() -> Iterator[None]:
    quantize_module._known_plan.cache_clear()
    level = cpu_level()
    yield
    _core.set_cpu_level(level)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("scheme", "recipe"), SCHEMES)
def test_another_array_is_encoded_as_if_it_were_the_first(
    scheme: str, recipe: str, shape: tuple[int, ...], axis: int
) -> None:
    x, y = draw(1, shape), 3 * draw(2, shape)
    first = quantize(y, scheme, recipe=recipe, axis=axis)
    wanted = raw(first)
    quantize_module._known_plan.cache_clear()
    before = quantize(x, scheme, recipe=recipe, axis=axis)
    kept = raw(before)
    found = quantize(y, scheme, recipe=recipe, axis=axis)
    assert raw(found) == wanted
    assert (found.block, found.axis, found.shape) == (first.block, first.axis, first.shape)
    assert raw(before) == kept
    for level in _core.cpu_levels():
        _core.set_cpu_level(level)
        assert raw(quantize(y, scheme, recipe=recipe, axis=axis)) == wanted
    assert raw(quantize(np.asfortranarray(y), scheme, recipe=recipe, axis=axis)) == wanted
    assert raw(quantize(y, scheme, recipe=recipe, axis=axis, threads=2)) == wanted


def test_plans_are_used() -> None:
    x = draw(1, (64, 64))
    quantize(x, "nvfp4")
    plan = quantize_module._known_plan(
        "nvfp4", None, None, None, x.shape, x.dtype, True, None, None, "raise", "amax", 0
    )
    assert plan.encoders[0].encode(x) is not None
    assert plan.encoders[0].encode(x[:32]) is None
    assert plan.encoders[0].encode(x.astype(np.float32)) is None
    assert plan.encoders[0].encode(x.T) is None
    q = quantize(x, "nvfp4")
    out = dequantize(q)
    assert q._ready["peer"].decode(out) is True
    assert q._ready["peer"].decode(out.T) is False
    assert q._ready["peer"].decode(out[:32]) is False
    assert q._ready["peer"].decode(out.astype(np.float16)) is False
    assert q._ready["peer"].decode(None) is False


def test_what_is_not_finite_is_refused_again() -> None:
    x = draw(1, (4, 64))
    quantize(x, "mxfp4")
    x[2, 5] = np.inf
    for _ in range(2):
        with pytest.raises(ValueError, match=r"inf at index \[2, 5\]"):
            quantize(x, "mxfp4")
    x[2, 5] = 0
    assert quantize(x, "mxfp4").scale.shape == (4, 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("scheme", "recipe"), SCHEMES)
def test_parts_are_read_again(scheme: str, recipe: str, shape: tuple[int, ...]) -> None:
    q = quantize(draw(1, shape), scheme, recipe=recipe)
    wanted = dequantize(q).tobytes()
    out = np.empty(shape, ml_dtypes.bfloat16)
    for level in _core.cpu_levels():
        _core.set_cpu_level(level)
        assert dequantize(q).tobytes() == wanted
        assert dequantize(q, out=out) is out
        assert out.tobytes() == wanted
    apart = np.empty((*shape, 2), ml_dtypes.bfloat16)[..., 0]
    assert dequantize(q, out=apart).tobytes() == wanted
    parts = [q.data, q.scale, q.global_scale, *q.extras.values()]
    for part in (part for part in parts if part is not None):
        held = part.copy()
        bits = part.reshape(-1).view(np.uint8)
        bits ^= 1
        assert dequantize(q).tobytes() == dequantize(replace(q)).tobytes() != wanted
        part[...] = held
    assert dequantize(q).tobytes() == wanted


def test_the_sign_of_a_zero_in_a_code_map_is_read_again() -> None:
    q = quantize(draw(1, (4, 64), np.float32), "bnb_nf4")
    dequantize(q, "float32")
    q.extras["code map"][7] = -0.0
    assert dequantize(q, "float32").tobytes() == dequantize(replace(q), "float32").tobytes()


def test_parts_that_move_are_read_where_they_are() -> None:
    q = quantize(draw(1, (64, 256)), "fp8_channel")
    assert dequantize(q).any()
    state = q.data.__reduce__()[2]
    q.data.__setstate__((*state[:-1], bytes(q.data.nbytes)))
    assert not dequantize(q).any()


def test_parts_that_are_resized_in_place_are_refused() -> None:
    q = quantize(draw(1, (64, 256)), "fp8_channel")
    dequantize(q)
    q.data.resize((1 << 20,), refcheck=False)
    with pytest.raises(ValueError, match=r"data has shape \[1048576\]"):
        dequantize(q)


def test_targets_are_checked_again() -> None:
    q = quantize(draw(1, (64, 256)), "fp8_channel")
    values = dequantize(q, "float8_e4m3fn")
    dequantize(q, out=values)
    with pytest.raises(ValueError, match="shares memory"):
        dequantize(q, out=q.data)
    values.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        dequantize(q, out=values)
