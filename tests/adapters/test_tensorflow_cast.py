"""TensorFlow's tensors stay tensors, with the elements that the array gets and with gradients."""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
import peers
import pytest
from castwise.adapters import registry

tf = peers.tensorflow()
ADAPTER = registry.find(tf.Tensor)
assert ADAPTER is not None

SHARED = [
    "bool",
    "int2",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint2",
    "uint4",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float4_e2m1fn",
    "complex128",
    "complex64",
]
VALUES = np.array([0, 1, -2.5, 447.9, 464, 1e6, np.inf, -np.inf, np.nan, 1e-8], np.float32)


@pytest.mark.parametrize("target", SHARED)
def test_a_tensor_is_cast_as_its_array_is(target: str) -> None:
    array = np.tile(VALUES, (3, 1))
    dtype: Any = castwise.finfo(target).dtype
    tensor = tf.constant(array)
    for options in ({}, {"overflow": "saturate"}, {"scale": 0.3, "threads": 1}):
        wanted, report = castwise.cast(array, target, report=True, **options)
        result, said = castwise.cast(tensor, target, report=True, **options)
        assert isinstance(result, tf.Tensor)
        assert (result.dtype.as_numpy_dtype, result.shape) == (dtype.type, array.shape)
        assert result.numpy().tobytes() == wanted.tobytes()
        assert said == report
        named = castwise.cast(tensor, result.dtype, **options)
        assert (named.dtype, named.numpy().tobytes()) == (result.dtype, wanted.tobytes())
    if castwise.finfo(target).kind != "complex":
        back = castwise.cast(castwise.cast(tensor, target), "float32")
        wanted = castwise.cast(castwise.cast(array, target), "float32")
        assert back.numpy().tobytes() == wanted.tobytes()


def test_variables_and_scales() -> None:
    variable = tf.Variable([1.0, 2.0])
    result = castwise.cast(variable, "bfloat16", scale=tf.constant([2.0, 4.0]))
    assert isinstance(result, tf.Tensor)
    assert tf.cast(result, tf.float32).numpy().tolist() == [2, 8]
    assert result.device == variable.device


def test_gradients_pass() -> None:
    variable = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        half = castwise.cast(variable, "float16", scale=np.array([1.0, 2.0, 4.0]))
        loss = tf.reduce_sum(tf.cast(half, tf.float32) * [1.0, 10.0, 100.0])
    assert tape.gradient(loss, variable).numpy().tolist() == [1, 20, 400]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(castwise.cast(variable, tf.bfloat16))
    grad = tape.gradient(loss, variable)
    assert (grad.dtype, grad.numpy().tolist()) == (tf.float32, [1, 1, 1])


def test_trees() -> None:
    tree = {"w": tf.ones(2), "n": tf.constant([1]), "s": tf.constant("text"), "v": tf.Variable(1.0)}
    result = castwise.cast_tree(tree, tf.bfloat16)
    assert (result["w"].dtype, result["v"].dtype) == (tf.bfloat16, tf.bfloat16)
    assert (result["n"], result["s"]) == (tree["n"], tree["s"])
    by_map = castwise.cast_tree(tree, {"w": tf.float16, "n": "float32"})
    assert (by_map["w"].dtype, by_map["n"].dtype) == (tf.float16, tf.float32)
    assert by_map["v"] is tree["v"]
    assert castwise.survey(tf.constant(VALUES)) == castwise.survey(VALUES)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda t: castwise.cast(t, "float8_e3m4"), TypeError, "not a dtype that TensorFlow has"),
        (lambda t: castwise.cast(t, "float8_e5m3fnu"), TypeError, "that TensorFlow has"),
        (lambda t: castwise.cast(t, tf.string), TypeError, "not a format"),
        (castwise.cast, TypeError, "nothing to cast to"),
        (lambda t: castwise.cast(t, out=np.empty(2)), TypeError, "out= is not for a EagerTensor"),
        (lambda t: castwise.cast(t * 1e9, "float16", overflow="raise"), OverflowError, "index 0"),
        (lambda t: castwise.cast(t, "float16", overflow="wrap"), ValueError, 'overflow="wrap"'),
        (lambda _: castwise.cast(tf.constant("a"), "float16"), TypeError, "does not cast"),
    ],
)
def test_refusals(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(tf.ones(2))


def test_inside_of_functions() -> None:
    @tf.function
    def traced(tensor: Any) -> Any:
        return castwise.cast(tensor, "float16")

    with pytest.raises(ValueError, match=r"no elements inside of tf\.function; .*tf\.cast"):
        traced(tf.ones(2))
