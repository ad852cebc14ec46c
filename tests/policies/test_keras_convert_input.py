"""`convert_input` against the real Keras': what is cast, to what bits, and what is left alone."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import peers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from keras_systems import OURS, Outcome, System, both, original, outcome

TARGETS = (
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int32", "uint8", "int8", "bool", "complex64", "complex128", "string", "int"),
)
OTHER_TARGETS = (None, np.float16, np.dtype("f8"), float, "mixed_float16", "abc", "float8_e4m3", [])
ML_DTYPES = tuple(
    np.dtype(value)
    for value in vars(ml_dtypes).values()
    if isinstance(value, type) and issubclass(value, np.generic)
)
NUMPY_DTYPES = tuple(np.dtype(character) for character in "?bBhHiIlLefdFD")
KERAS_DTYPES = (
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("complex64", "complex128"),
)
FLOATS = ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2")


pytestmark = pytest.mark.usefixtures("keras_state")


def result(system: System, x: Any, autocast: Any, dtype: Any) -> Outcome:
    """Describe what one system gives."""

    def call() -> Any:
        policy = system.dtype_policies.DTypePolicy("mixed_float16")
        # numpy warns of what overflows; ml_dtypes and castwise do not.
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            given_back = policy.convert_input(x, autocast, dtype)
        return described(given_back, x)

    return outcome(call)


def described(given_back: Any, x: Any) -> Any:
    """Describe what became of an argument: the same object, or the type, dtype, shape and bytes."""
    if given_back is x:
        return "the same object"
    return (
        *(isinstance(given_back, np.ndarray), str(given_back.dtype), given_back.shape),
        np.ascontiguousarray(given_back).tobytes(),
    )


def wanted(x: Any, autocast: Any, dtype: Any) -> tuple[Outcome, bool]:
    """Tell what castwise must give, and whether that is not what the real Keras gives.

    Keras refuses arrays of dtypes that it does not know. Here they are inputs like any others:
    floats are cast, if castwise casts them at all, and all else is left alone.
    """
    theirs = result(original(), x, autocast, dtype)
    is_array = isinstance(x, np.ndarray | np.generic)
    target = outcome(lambda: OURS.config.standardize_dtype(dtype))
    if not is_array or x.dtype.name in KERAS_DTYPES or target.error:
        return theirs, False
    assert theirs.error is ValueError
    if not autocast or not x.dtype.name.startswith("float"):
        return Outcome("the same object"), True
    return outcome(lambda: described(castwise.cast(x, target.value), x)), True


def compare(x: Any, autocast: Any, dtype: Any) -> bool:
    """Compare the two systems on one argument; tell whether they differ, as they must."""
    theirs, differs = wanted(x, autocast, dtype)
    ours = result(OURS, x, autocast, dtype)
    assert ours == theirs, f"{x!r} of {type(x)}, {autocast}, {dtype!r}: {ours}, not {theirs}"
    return differs


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *ML_DTYPES], ids=str)
def test_arrays_of_every_dtype(dtype: np.dtype[Any]) -> None:
    """Each dtype of numpy and ml_dtypes, in several layouts, to each dtype of Keras."""
    base = np.array([0, 1, 1, 0, 1, 1], np.uint8).astype(dtype)
    if dtype.name in ("float32", "float64", "float16"):
        base = np.array([0.1, 1.5, 3.25, 7.75, 65519, 100]).astype(dtype)
    square = base.reshape(2, 3)
    read_only = base.copy()
    read_only.flags.writeable = False
    shapes = (
        *(base, base[:0], square, square.T, base[::-1], base[::2], base[0], base[:1].reshape(())),
        *(read_only, np.broadcast_to(base[1], (2, 2))),
    )
    if dtype.isnative and dtype in NUMPY_DTYPES:
        shapes = (*shapes, base.astype(dtype.newbyteorder()))
    differs = False
    for x, target, autocast in product(shapes, (*TARGETS, *OTHER_TARGETS), (True, False)):
        if target in ("uint8", "int8") and dtype.kind == "f":
            compare(np.clip(x, 0, 100), autocast, target)  # beyond the range numpy defines nothing
        else:
            differs = compare(x, autocast, target) or differs
    assert differs is (dtype.name not in KERAS_DTYPES)


@given(
    x=arrays.arrays(
        st.sampled_from((np.float16, np.float32, np.float64)), arrays.array_shapes(min_side=0)
    ),
    target=st.sampled_from(FLOATS),
)
def test_values(x: np.ndarray[Any, Any], target: str) -> None:
    """Any floats: rounded as the real Keras rounds, but once where ml_dtypes rounds twice."""
    x = np.where(np.isnan(x), np.copysign(x.dtype.type(np.nan), x), x)  # no other payloads
    with np.errstate(over="ignore"):
        through_float32 = np.asarray(x, np.float32) if x.dtype == np.float64 else x
    twice = np.dtype(target) in ML_DTYPES and not np.array_equal(through_float32, x, equal_nan=True)
    if twice:
        ours = OURS.dtype_policies.DTypePolicy().convert_input(x, True, target)
        assert ours.tobytes() == castwise.cast(x, target).tobytes()
    else:
        compare(x, True, target)


def test_float64_is_rounded_once() -> None:
    """The real Keras rounds as ml_dtypes does, which went through float32 before 0.7."""
    x = np.array([1 + 2**-8 + 2**-30])
    by_ml_dtypes = float(x.astype(ml_dtypes.bfloat16)[0])
    results = [
        float(system.dtype_policies.DTypePolicy().convert_input(x, True, "bfloat16")[0])
        for system in both()
    ]
    assert results == [by_ml_dtypes, 1.0078125]


class _OnlyArray:
    """An object whose only method is `__array__`."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([1.5, 2.5], dtype or np.float32)


class _Subclass(np.ndarray):
    """An ndarray by another name."""


def test_everything_else() -> None:
    """Scalars, lists, None, strings and arrays of other libraries."""
    jnp = peers.jax().numpy
    values = (
        *(1.5, 1, True, None, "a", b"a", 1j, [1.5], (1.5,), {"a": 1.5}, {1}, object(), float, ...),
        *(
            [np.ones(2)],
            np.float32(1.5),
            np.float64(0.1),
            np.float16(2),
            np.int8(3),
            np.bool_(True),
        ),
        *(np.complex64(1j), ml_dtypes.bfloat16(1.5), ml_dtypes.float8_e5m2(1.5), np.str_("a")),
        *(np.array("a"), np.array(["a", "b"]), np.array([b"a"]), np.array([None, 1.5], object)),
        *(np.array(["2020-01-01"], "M8[D]"), np.array([1], "m8[s]"), np.zeros(2, "f4,i4")),
        *(np.ones(2, np.longdouble), np.ones(2, np.clongdouble), np.ones(2).view(_Subclass)),
        *(jnp.ones(2), jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float16), jnp.arange(3)),
        *(jnp.float32(1.5), jnp.ones((), jnp.int8)),
    )
    for x, autocast, target in product(
        values, (True, False, 1, 0, None), ("float16", "bfloat16", "float32", "int32", None)
    ):
        compare(x, autocast, target)


def test_what_only_becomes_an_array() -> None:
    """Keras on numpy takes an object with `__array__` alone for a dtype, and fails."""
    theirs, ours = (result(system, _OnlyArray(), True, "float16") for system in both())
    assert theirs.error is ValueError
    assert ours == result(original(), np.array([1.5, 2.5], np.float32), True, "float16")


def test_maps_convert_too() -> None:
    """A map is a policy, and converts as one."""
    for system in both():
        policy_map = system.dtype_policies.DTypePolicyMap("mixed_float16")
        converted = policy_map.convert_input(np.ones(2, np.float32), True, "bfloat16")
        assert converted.dtype == ml_dtypes.bfloat16
