"""`AutoCastVariable`: what it yields and stores, against Keras' and TF's variables."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import layer_systems as systems
import ml_dtypes
import numpy as np
import peers
import pytest
from castwise.autocast import AutocastScope, AutoCastVariable, enable_auto_cast_variables
from hypothesis import given
from hypothesis import strategies as st
from layer_systems import dtype_of, outcome

F2, F4, F8 = (np.array([1.5, 2.5], dtype) for dtype in ("f2", "f4", "f8"))
I4 = np.array([1, 2], np.int32)

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    **{
        f"{function.__name__} {other!r}": lambda v, f=function, o=other: f(v, o)
        for function in (operator.add, operator.sub, operator.mul, operator.truediv)
        for other in (F2, F4, 2, 0.1, np.float16(0.1), True)
    },
    **{
        f"reflected {function.__name__} {other!r}": lambda v, f=function, o=other: f(o, v)
        for function in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow)
        for other in (2, 0.1)
    },
    **{
        f"{function.__name__} 2": lambda v, f=function: f(v, 2)
        for function in (operator.floordiv, operator.mod, operator.pow)
    },
    **{
        f"{function.__name__}": lambda v, f=function: f(v, 1.2)
        for function in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq)
    },
    **{f.__name__: f for f in (operator.neg, operator.pos, operator.abs, round, list)},
    "element": lambda v: v[0],
    "slice": lambda v: v[:1],
    "new axis": lambda v: v[None, :],
    "itself": lambda v: v + v,
    "matmul": lambda v: v @ v,
    "array of it": np.asarray,
    "ufunc": lambda v: np.add(v, F2),
    "function": lambda v: np.concatenate([v, F2]),
    "numpy()": lambda v: v.numpy(),
    "value": lambda v: v.value,
    "dtype": dtype_of,
    "shape": lambda v: (v.shape, v.ndim),
    "float": float,
    "bool": bool,
    "hash": hash,
    "len": len,
    "name": lambda v: v.name,
}


def shown(value: Any) -> Any:
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.name, np.shape(value), value.tobytes()
    return value


def made(system: str, first: Any, **options: Any) -> Any:
    if system == "keras":
        return peers.keras().Variable(first, name="v", **options)
    return AutoCastVariable(first, name="v", **options)


def scope(system: str, dtype: Any) -> Any:
    if system == "keras":
        return peers.keras().src.backend.common.variables.AutocastScope(dtype)
    return AutocastScope(dtype)


FIRST = {
    "float32": np.array([1 / 3, -2.5], np.float32),
    "float16": np.array([1 / 3, -2.5], np.float16),
    "int32": I4,
    "bool": np.array([True, False]),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_it_yields(operation: str) -> None:
    """In and outside of scopes, for floats, integers and variables that are not to be cast."""
    with np.errstate(all="ignore"):
        for name, first in FIRST.items():
            for held in ("outside", "float16", "float32"):
                for casts in (True, False):
                    ours, theirs = (
                        yielded(system, first, held, casts, OPERATIONS[operation])
                        for system in ("ours", "keras")
                    )
                    if theirs.error in (TypeError, AttributeError) and ours.error is None:
                        # Keras lacks the argument `copy` of __array__, and numpy says so.
                        assert operation in ("function", "ufunc"), (name, held)
                        continue
                    if name in ("int32", "bool"):
                        ours, theirs = (side.map(without_width) for side in (ours, theirs))
                    assert ours == theirs, (name, held, casts)


def yielded(system: str, first: Any, held: str, casts: bool, operation: Any) -> Any:
    variable = made(system, first, autocast=casts)
    if held == "outside":
        return outcome(operation, variable).map(shown)
    with scope(system, held):
        return outcome(operation, variable).map(shown)


def without_width(value: Any) -> Any:
    """Integers and bools with others: numpy goes on to 64 bits, Keras does not; rounded alike."""
    if isinstance(value, list):
        return [without_width(item) for item in value]
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        name, shape, content = value
        array = np.frombuffer(content, name).astype(np.float64)
        return name.rstrip("0123456789"), shape, np.round(array, 2).tolist()
    return value


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_value_in_other_scopes(dtype: str) -> None:
    for first in FIRST.values():
        values = []
        for system in ("ours", "keras"):
            variable = made(system, first)
            with scope(system, dtype):
                values.append((variable.dtype, shown(np.asarray(variable.value))))
        assert values[0] == values[1]


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
    st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
    st.sampled_from(["float16", "bfloat16", None]),
)
def test_assignments_are_exact_in_storage_precision(
    first: list[float], delta: list[float], held: str | None
) -> None:
    """As without any scope, and as TF does it."""
    stored, delta32 = np.array(first, np.float32), np.array(delta, np.float32)
    with np.errstate(all="ignore"):
        for method, ufunc in (("assign_add", np.add), ("assign_sub", np.subtract)):
            variable = AutoCastVariable(stored)
            with AutocastScope(held):
                getattr(variable, method)(delta32)
            assert variable.value.tobytes() == ufunc(stored, delta32).tobytes()
    variable = AutoCastVariable(np.zeros(2, np.float32))
    with AutocastScope(held):
        variable.assign(delta32)
    assert variable.value.tobytes() == delta32.tobytes()


@pytest.mark.parametrize(
    "value",
    [F2, F4, F8, [1.1, 1e6], (1, 2), I4, 0.5, np.ones(3), np.ones((1, 2)), "abc", [1, "a"]],
    ids=repr,
)
def test_assign_as_keras_and_tf(value: Any) -> None:
    tf = peers.tensorflow()
    wrap = peers.tf_keras().src.mixed_precision.autocast_variable
    results = []
    for system in ("ours", "keras"):
        variable = made(system, np.zeros(2, np.float32))
        with scope(system, "float16"):
            result = outcome(variable.assign, value).map(shown)
        results.append((result, shown(variable.value)))
    assert results[0] == results[1]
    theirs = wrap.create_autocast_variable(tf.Variable(np.zeros(2, np.float32)))
    with wrap.enable_auto_cast_variables(tf.float16):
        error = outcome(theirs.assign, value).error
    assert (error is None) == (results[0][0].error is None)
    assert shown(theirs.numpy()) == results[0][1]


def tf_pair() -> tuple[Any, Any]:
    """A weight of a mixed layer, of either side."""
    return tuple(
        system.layer(dtype="mixed_float16").add_weight(name="w", shape=(2,), initializer="ones")
        for system in (systems.our_tf(), systems.tf())
    )


def test_weights_of_tf_layers() -> None:
    """What is stored is what numpy sees, and an assignment returns the variable."""
    tf = peers.tensorflow()
    real_scope = peers.tf_keras().src.mixed_precision.autocast_variable.enable_auto_cast_variables
    contexts = ("float16", "bfloat16", "float32", "int32", "complex64", None)
    for name in contexts:
        real = real_scope(getattr(tf, name) if name else None)
        for weight, context in zip(
            tf_pair(), (enable_auto_cast_variables(name), real), strict=True
        ):
            with context:
                seen = weight.assign_add(np.array([0.1, 1e6]))
                assert dtype_of(seen) == dtype_of(weight)
                assert weight.assign([1.0, 2.0], read_value=False) is None
                row = [dtype_of(weight), dtype_of(weight.true_dtype), dtype_of(weight + 1)]
                row += [dtype_of(np.asarray(weight)), dtype_of(weight.numpy())]
                row += [dtype_of(weight.read_value()), dtype_of(weight[0]), dtype_of(-weight)]
                row += [np.asarray(weight.assign_sub(np.ones(2))).tolist()]
            if isinstance(weight, AutoCastVariable):
                ours = row
        assert ours == row, name


def test_first_values_as_keras() -> None:
    for first, options in (
        *((1.0, {}), (1, {}), (True, {}), ([1.0, 2.0], {}), (F4, {}), (F2, {}), (I4, {})),
        *((1.0, {"dtype": "float16"}), (F8, {"dtype": "float64"}), (1, {"dtype": "float32"})),
        *((np.zeros, {"shape": (2,)}), ("ones", {"shape": [2, 3]}), ("zeros", {"shape": ()})),
        *((np.ones, {"shape": (2,), "dtype": "bfloat16"}), ("ones", {}), (np.zeros, {})),
        *(("nope", {"shape": (2,)}), (F4, {"dtype": "mixed_float16"}), ("a/b", {"shape": (1,)})),
        *(("ones", {"shape": (-1,)}), ("ones", {"shape": (None,)}), ("ones", {"shape": 2})),
        ("ones", {"shape": ("2",)}),
    ):
        ours, theirs = (
            outcome(made, system, first, **options).map(lambda v: (v.dtype, v.shape, shown(v[...])))
            for system in ("ours", "keras")
        )
        assert ours == theirs, (first, options)


def test_values_cannot_be_changed_behind_its_back() -> None:
    source = np.ones(2, np.float32)
    variable = AutoCastVariable(source)
    source[0] = 9
    assert variable.value.tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        variable.value[0] = 9
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(variable)[0] = 9
    for change in (
        lambda: operator.setitem(variable, 0, 9),
        lambda: np.add(variable, 1, out=variable),
        lambda: np.cumsum(np.ones(2), out=variable),
        lambda: np.add.at(variable, [0], 1),  # numpy's own does, read-only or not
    ):
        with pytest.raises(TypeError, match="assign"):
            change()
    writes: tuple[Callable[[Any], Any], ...] = (
        lambda v: operator.setitem(v.value, 0, 9),
        lambda v: operator.iadd(v[:1], 1),
        lambda v: np.copyto(v, 9),
        lambda v: np.put(v, [0], 9),
        lambda v: np.cumsum(np.ones(2, np.float32), 0, None, v),
    )
    # In a scope, too, where they would be lost.
    for dtype in ("float16", "bfloat16", "float32"):
        with AutocastScope(dtype):
            for write in writes:
                with pytest.raises(ValueError, match="read-only"):
                    write(variable)
    copied = variable.numpy()
    copied[0] = 9
    assert variable.value.tolist() == [1, 1]


def test_in_place_operators_make_an_array_as_in_keras() -> None:
    for system in ("ours", "keras"):
        variable = made(system, np.ones(2, np.float32))
        result = variable
        result += 1
        assert isinstance(result, np.ndarray)
        assert variable.value.tolist() == [1, 1]


def test_numpy_functions_see_the_value() -> None:
    kernel = AutoCastVariable(np.eye(2, dtype=np.float32))
    x = np.ones((3, 2), np.float16)
    with AutocastScope("float16"):
        for result in (
            *(x @ kernel, np.matmul(x, kernel), np.dot(x, kernel), np.tensordot(x, kernel, 1)),
            *(np.einsum("ij,jk->ik", x, kernel), np.stack([kernel, kernel]), kernel.T),
            *(np.where(x > 0, x, kernel[0]), np.sum(kernel, axis=0), kernel.sum(0), x * kernel[0]),
            *(
                np.multiply.outer(x, kernel),
                np.add.reduce(kernel),
                kernel.reshape(4),
                kernel.mean(),
            ),
        ):
            assert result.dtype == np.float16
        target = np.zeros((3, 2), np.float16)
        assert np.matmul(x, kernel, out=target) is target
        assert target.tolist() == x.tolist()
    assert (x @ kernel).dtype == np.float32
    assert np.asarray(kernel, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy=False"):
        np.array(kernel, np.float64, copy=False)
    with pytest.raises(AttributeError, match="value"):
        kernel.sort()


def test_copies_and_pickles() -> None:
    for dtype in ("float32", "bfloat16"):
        variable = AutoCastVariable([1.0, 2.0], dtype=dtype, name="v")
        for again in (copy.deepcopy(variable), pickle.loads(pickle.dumps(variable))):  # noqa: S301
            assert (again.name, again.dtype) == ("v", dtype)
            assert not again.value.flags.writeable
            again.assign([3.0, 4.0])
            assert variable.value.tolist() == [1, 2]


def test_integers_take_what_fits() -> None:
    """As if computed exactly and then cut off, as Keras does outside of scopes."""
    for first, delta in ((1, 0.5), (-1, 0.5), (5, -2), (3, 1.75)):
        ours, theirs = made("ours", first), made("keras", first)
        ours.assign_add(delta)
        theirs.assign_add(delta)
        assert int(ours) == int(theirs)


def test_integers_that_do_not_fit_are_refused_as_numpy_does() -> None:
    for first, dtype in (([2**40], None), ([300], "int8"), (-1, "uint8")):
        for system in ("ours", "keras"):
            with pytest.raises((ValueError, OverflowError), match=r"fit in u?int|out of bounds"):
                made(system, first, dtype=dtype)
    variable = made("ours", [1, 2])
    with pytest.raises(ValueError, match=r"value=\[1, 2147483648\].*int32.*'v'"):
        variable.assign([1, 2**31])
    assert variable.value.tolist() == [1, 2]


def test_storage_has_the_byte_order_of_the_machine() -> None:
    assert AutoCastVariable(np.ones(2, ">f4")).value.dtype == np.dtype("=f4")
    assert AutoCastVariable(np.ones(2, ">f4")).value.dtype.isnative


def test_astype_has_the_rules_of_the_call() -> None:
    """As a layer's author would cast a weight that is not cast: statistics of a batch, say."""
    mean = AutoCastVariable(np.ones(2, np.float32), autocast=False)
    with AutocastScope("bfloat16"):
        assert (mean.astype(ml_dtypes.bfloat16) + 1e-3).dtype == ml_dtypes.bfloat16


def test_bfloat16_storage_adds_in_bfloat16() -> None:
    variable = AutoCastVariable(np.array([256.0], ml_dtypes.bfloat16))
    variable.assign_add(1)
    assert variable.value.dtype == ml_dtypes.bfloat16
    assert variable.value.tolist() == [256]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("overwrite_with_gradient", True),
        ("overwrite_with_gradient", 1),
        ("overwrite_with_gradient", None),
        ("constraint", np.abs),
        ("constraint", None),
        ("constraint", 5),
        ("regularizer", np.abs),
        ("regularizer", "l2"),
    ],
)
def test_what_an_optimizer_reads(name: str, value: Any) -> None:
    results: list[Any] = []
    for variable in (peers.keras().Variable(F4), AutoCastVariable(F4)):
        before = getattr(variable, name)
        try:
            setattr(variable, name, value)
        except (TypeError, ValueError) as error:
            results.append((before, type(error), getattr(variable, name)))
        else:
            results.append((before, getattr(variable, name)))
    assert results[0] == results[1]
