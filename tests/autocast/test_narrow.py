"""bfloat16 and float8 under numpy's arithmetic: as float16 is, and with values rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import castwise
import numpy as np
import pytest
from castwise.autocast import Layer
from castwise.autocast._narrow import NarrowArray
from castwise.autocast._narrow import narrow as narrowed

NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
VALUES = np.array([[0.5, -1.5, 2.0], [0.25, 1.0, -0.75]])

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "add a float": lambda x: x + 1.5,
    "a float less it": lambda x: 1.5 - x,
    "times an int": lambda x: x * 2,
    "times a bool": lambda x: x * True,
    "divided": lambda x: x / 4,
    "power": lambda x: x**2,
    "root": lambda x: abs(x) ** 0.5,
    "floor": lambda x: x // 2,
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x: np.clip(x, 0, 1),
    "where": lambda x: np.where(x > 0, x, x * 0.5),
    "where with a float": lambda x: np.where(x > 0, x, 0.1),
    "select": lambda x: np.select([x > 0], [x], 0.0),
    "quantile": lambda x: np.quantile(x, 0.25),
    "gradient": lambda x: np.gradient(x, axis=1),
    "a large int": lambda x: x * 0 + 10**4 // 100,
    "told a dtype": lambda x: np.sum(x, None, np.float32),
    "told a dtype by name": lambda x: np.mean(x, dtype="float64"),
    "matmul": lambda x: x @ x.T,
    "dot": lambda x: np.dot(x, x.T),
    "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "tensordot": lambda x: np.tensordot(x, x, ([1], [1])),
    "inner": lambda x: np.inner(x, x),
    "outer": lambda x: np.multiply.outer(x[0], x[0]),
    "sum": np.sum,
    "sum of rows": lambda x: x.sum(axis=1, keepdims=True),
    "mean": lambda x: x.mean(axis=0),
    "variance": np.var,
    "max": lambda x: x.max(-1),
    "cumsum": lambda x: np.cumsum(x, axis=1),
    "softmax": lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
    "norm": np.linalg.norm,
    "tanh": np.tanh,
    "frexp": np.frexp,
    "modf": np.modf,
    "ldexp": lambda x: np.ldexp(x, 2),
    "compare": lambda x: x > 0.3,
    "isfinite": np.isfinite,
    "concatenate": lambda x: np.concatenate([x, x]),
    "stack": lambda x: np.stack([x, x]),
    "pad": lambda x: np.pad(x, 1),
    "with float32": lambda x: x + np.ones(3, np.float32),
    "with float64": lambda x: x + np.ones(3),
    "with complex": lambda x: x * np.ones(3, np.complex64),
    "astype": lambda x: x.astype(np.float32) + 1,
    "index": lambda x: x[0] + 1.5,
    "round": np.round,
    "sort": lambda x: np.sort(x, axis=-1),
    "argmax": lambda x: np.argmax(x, -1),
}


def dtypes(value: Any) -> Any:
    return [item.dtype.name for item in value] if isinstance(value, tuple) else value.dtype.name


@pytest.mark.parametrize("function", FUNCTIONS)
def test_dtypes_are_those_that_float16_would_have(function: str) -> None:
    half = FUNCTIONS[function](VALUES.astype(np.float16))
    for name in NARROW:
        x = narrowed(castwise.cast(VALUES, name))
        result = FUNCTIONS[function](x)
        expected = str(dtypes(half)).replace("float16", name)
        assert str(dtypes(result)) == expected, name
        wide = FUNCTIONS[function](castwise.cast(x, np.float32))
        if not isinstance(result, tuple):
            # Values of one step: computed in float32 and rounded once, or by ml_dtypes the same.
            close = np.asarray(wide, np.complex64), np.asarray(result).astype(np.complex64)
            eps = castwise.finfo(name).eps
            np.testing.assert_allclose(close[1], close[0], rtol=3 * eps, atol=eps)


def test_sums_do_not_stand_still() -> None:
    """In bfloat16 256 + 1 is 256; a sum is made in float32 and rounded once."""
    ones = narrowed(castwise.cast(np.ones(1000), "bfloat16"))
    assert float(ones.sum()) == float(np.add.reduce(ones)) == 1000
    assert float(ones.mean()) == 1
    assert np.asarray(ones).sum() == 256


def test_writing_into_arrays() -> None:
    x = narrowed(castwise.cast([1.0, 2.0], "bfloat16"))
    same = x
    x += 1.5
    assert same is x
    assert x.tolist() == [2.5, 3.5]
    out = np.zeros(2, np.float32)
    assert np.add(x, 1, out=out) is out
    assert out.tolist() == [3.5, 4.5]
    np.add.at(x, [0, 0], narrowed(castwise.cast([1.0, 1.0], "bfloat16")))
    assert x.tolist() == [4.5, 3.5]
    assert np.add(x, 1, where=np.array([True, True]), out=x).tolist() == [5.5, 4.5]
    assert np.add(x, x, dtype=np.float32).dtype == np.float32


def test_scalars_are_rounded_first_as_for_float16() -> None:
    x = narrowed(castwise.cast([1.0], "bfloat16"))
    assert float((x * 0.1)[0]) == float(castwise.cast(0.1, "bfloat16"))


def test_layers_return_plain_arrays() -> None:
    class Nested(Layer):
        def call(self, x: Any) -> Any:
            assert type(x) is NarrowArray
            return {"a": [x, x > 0], "b": (x * 2.5, None, 3)}

    class Outer(Layer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.nested = Nested(dtype="bfloat16")

        def call(self, x: Any) -> Any:
            inner = self.nested(x)
            assert type(inner["a"][0]) is NarrowArray
            return inner

    outputs = Outer(dtype="mixed_bfloat16")(np.ones(2))
    assert type(outputs["a"][0]) is type(outputs["b"][0]) is np.ndarray
    assert outputs["b"][0].dtype.name == "bfloat16"
    assert outputs["b"][1:] == (None, 3)


def test_errors_of_numpy_are_numpys() -> None:
    x = narrowed(castwise.cast([1.0], "bfloat16"))
    with pytest.raises(TypeError):
        x + "a"
