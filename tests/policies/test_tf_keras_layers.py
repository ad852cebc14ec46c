"""What a layer of TF 2 takes for its dtype, against the real tf_keras."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import peers
import pytest
from hypothesis import given
from sides import raised, returned
from tf2_sides import (
    ALIASES,
    DTYPE_NAMES,
    GENERATED_NAMES,
    NAMES,
    NamedFloat16,
    Side,
    both,
    described,
    layer_policy,
    our_tf_keras,
    real_tf_keras,
)

pytestmark = pytest.mark.usefixtures("tf_keras_state")


class WithDtype:
    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype


LAYER_ARGUMENTS: dict[str, Any] = {
    **{repr(name): name for name in NAMES},
    **{f"python {kind.__name__}": kind for kind in (float, bool, int, str, complex, bytes, object)},
    **{repr(value): value for value in (None, 0, False, 0.0, b"", [], (), [1], b"float32", ...)},
    **{f"numpy {np.dtype(code)}": np.dtype(code) for code in ("f2", ">f4", "O", "U3", "S3", "M8")},
    **{
        f"numpy type {kind.__name__}": kind
        for kind in (np.float16, np.bool_, np.intp, np.str_, np.bytes_, np.object_, np.longdouble)
    },
    **{f"abstract {kind.__name__}": kind for kind in (np.floating, np.generic, np.datetime64)},
    **{
        f"ml_dtypes {kind.__name__}": kind
        for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu)
    },
    **{
        f"ml_dtypes {kind.__name__}": kind
        for kind in (ml_dtypes.int4, ml_dtypes.float6_e2m3fn, ml_dtypes.float4_e2m1fn)
    },
    "ml_dtypes dtype": np.dtype(ml_dtypes.bfloat16),
    "structured": np.dtype([("a", "f4")]),
    "one half": np.ones(1, np.float16),
    "numpy string": np.str_("half"),
    "numpy mixed": np.str_("mixed_float16"),
    "object with a dtype": WithDtype(np.dtype("float16")),
    "object with a dtype's name": WithDtype("float16"),
    "object with no dtype": WithDtype("abc"),
}


@pytest.mark.parametrize("kind", LAYER_ARGUMENTS)
def test_every_kind_of_layer_argument(kind: str) -> None:
    original, ours = both(lambda side: layer_policy(side, LAYER_ARGUMENTS[kind]))
    assert ours == original


@given(GENERATED_NAMES)
def test_generated_layer_arguments(name: str) -> None:
    original, ours = both(lambda side: layer_policy(side, name))
    assert ours == original


def test_a_number_is_not_a_dtype() -> None:
    """Divergence: to the original 19 means float16, the number that TensorFlow's files give it."""
    meanings = {}
    for number in (*range(-2, 140), 19.0, 3.0, True, 1.5, np.inf, np.nan, 10**30):
        original, ours = both(lambda side, number=number: layer_policy(side, number))
        assert ours == (raised(TypeError) if number else original), number
        if original.error is None:
            meanings[number] = original.value[1]
        else:
            assert original == raised(TypeError), number
    assert meanings[0] == "float32"
    assert (meanings[19], meanings[119], meanings[3.0]) == ("float16", "float16_ref", "int32")
    assert len(meanings) == 1 + 2 * len([name for name in DTYPE_NAMES if name not in ALIASES])


@pytest.mark.parametrize(
    "value", [np.int64(19), np.float32(19), np.float64(0), np.uint8(0)], ids=repr
)
def test_a_numpy_scalar_stands_for_its_dtype(value: Any) -> None:
    """Divergence: to the original it is a number, or, when it is zero, nothing."""

    def of_layer(side: Side) -> Any:
        side.set_global_policy("mixed_bfloat16")
        return layer_policy(side, value)

    original, ours = both(of_layer)
    assert original.value[1] == ("float16" if value else "mixed_bfloat16")
    assert ours == returned(described(our_tf_keras().policy(value.dtype.name)))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_an_array_stands_for_its_dtype(size: int) -> None:
    """Divergence: the original asks whether an array is true, which only one of size 1 answers."""

    def of_layer(side: Side) -> Any:
        side.set_global_policy("mixed_bfloat16")
        return layer_policy(side, np.zeros(size, np.float16))

    original, ours = both(of_layer)
    if size == 1:
        assert original.value[1] == "mixed_bfloat16"
    else:
        assert original == raised(ValueError)
    assert ours == returned(described(our_tf_keras().policy("float16")))


def test_what_has_the_name_of_a_dtype_is_one() -> None:
    """Divergence: castwise does not import TensorFlow, and knows its dtypes by their names."""
    original, ours = both(lambda side: layer_policy(side, NamedFloat16()))
    assert original == raised(TypeError)
    assert ours == returned(described(our_tf_keras().policy("float16")))


def test_tensorflow_dtypes_are_layer_arguments() -> None:
    tensorflow = peers.tensorflow()
    for name in DTYPE_NAMES:
        original, ours = both(lambda side, name=name: layer_policy(side, getattr(tensorflow, name)))
        if original.error is not AttributeError:  # tensorflow exports most of its dtypes
            assert ours == original, name


def test_a_policy_is_its_own_layer_argument() -> None:
    for side in (real_tf_keras(), our_tf_keras()):
        policy = side.policy("half")
        assert side.get_policy is not None
        assert side.get_policy(policy) is policy


@pytest.mark.parametrize("empty", [None, "", 0, False, [], ()])
def test_nothing_means_the_global_policy(empty: Any) -> None:
    for side in (real_tf_keras(), our_tf_keras()):
        policy = side.policy("mixed_bfloat16")
        side.set_global_policy(policy)
        assert side.get_policy is not None
        assert side.get_policy(empty) is policy
