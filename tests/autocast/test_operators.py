"""Every operator of variables, beside those of Keras and of TF's weights: values, kinds, errors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import layer_systems as systems
import numpy as np
import peers
import pytest
from castwise.autocast import AutoCastVariable
from layer_systems import outcome
from numpy.lib.mixins import NDArrayOperatorsMixin

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{
        f"__{name.strip('_')}__": getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
            *("and_", "or_", "xor", "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge"),
        )
    },
    "__divmod__": divmod,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    **{f"__{name}__": getattr(operator, name) for name in ("neg", "pos", "abs", "invert", "index")},
    "__round__": round,
    "__int__": int,
    "__float__": float,
    "__bool__": bool,
    "__len__": len,
    "__hash__": hash,
}
NUMPYS_ONLY = ("__lshift__", "__rshift__", "__divmod__")
"""Operators that castwise's variables have from numpy, and those of Keras and TF lack."""

FIRST = {
    "float32": np.array([1.5, -2.5], np.float32),
    "float16": np.array([1.5, 0.0], np.float16),
    "int32": np.array([1, 2], np.int32),
    "uint8": np.array([3, 100], np.uint8),
    "bool": np.array([True, False]),
    "single": np.array(2.0, np.float32),
}
OTHERS: dict[str, Any] = {
    "an int": 3,
    "zero": 0,
    "a float": 0.5,
    "a bool": True,
    "integers": np.array([2, 4], np.int32),
    "floats": np.array([1.0, 0.0], np.float32),
    "bools": np.array([True, True]),
    "a list": [1, 0],
}


def variable(system: str, first: Any) -> Any:
    if system == "keras":
        return peers.keras().Variable(first, dtype=first.dtype.name, name="v")
    if system == "ours":
        return AutoCastVariable(first, name="v")
    weight = getattr(systems, system)().layer(dtype="float32").add_weight
    made = weight("v", first.shape, first.dtype.name, initializer="zeros")
    made.assign(first)
    return made


def seen(value: Any) -> Any:
    """Kind, shape and rounded values: in integers and floats together, Keras' widths differ."""
    if isinstance(value, tuple):
        return tuple(map(seen, value))
    array = np.asarray(value)
    kind = array.dtype.kind.replace("u", "i")
    return kind, array.shape, np.round(array.astype(np.float64), 2).tolist().__repr__()


def yielded(system: str, function: Callable[..., Any], first: Any, other: Any, order: int) -> Any:
    made = variable(system, first)
    operands = (made, made if other is None else other)[::order]
    return outcome(function, *operands).map(seen)


def test_the_list_is_complete() -> None:
    """Both of Keras' methods and of numpy's, whose mixin castwise's variables have."""
    classes = (*peers.keras().Variable.__mro__, NDArrayOperatorsMixin)
    methods = {name for cls in classes if cls is not object for name in vars(cls)}
    known = {name for name, value in vars(operator).items() if callable(value)} | {"__divmod__"}
    operators = {name for name in methods if {name, name.replace("__r", "__", 1)} & known}
    in_place = {name for name in operators if f"__{name[3:]}" in known}  # in test_variables
    assert {"__add__", "__rxor__", "__invert__"} <= operators
    listed = {*BINARY, *UNARY} | {f"__r{name[2:]}" for name in BINARY}
    assert operators - in_place - {"__getitem__"} <= listed


@pytest.mark.parametrize("order", [1, -1], ids=["", "reflected"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_as_keras(name: str, order: int) -> None:
    with np.errstate(all="ignore"):
        for kind, first in FIRST.items():
            for label, other in {**OTHERS, "itself": None}.items():
                ours, theirs = (
                    yielded(system, BINARY[name], first, other, order)
                    for system in ("ours", "keras")
                )
                if name in NUMPYS_ONLY and isinstance(theirs.error, type):
                    assert issubclass(theirs.error, TypeError)
                    plain = first if other is None else other
                    expected = outcome(BINARY[name], *(first, plain)[::order]).map(seen)
                    assert ours == expected, (kind, label)
                else:
                    assert ours == theirs, (kind, label)


@pytest.mark.parametrize("order", [1, -1], ids=["", "reflected"])
@pytest.mark.parametrize("name", ["__and__", "__or__", "__xor__"])
def test_logical_operators_give_keras_bools(name: str, order: int) -> None:
    for first in FIRST.values():
        for other in (3, True, 0.5, None):
            made = variable("ours", first)
            result = BINARY[name](*(made, made if other is None else other)[::order])
            assert result.dtype == np.bool_
    assert variable("ours", FIRST["int32"]).value.dtype == np.int32


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_as_keras(name: str) -> None:
    for kind, first in FIRST.items():
        ours, theirs = (
            outcome(UNARY[name], variable(system, first)).map(seen) for system in ("ours", "keras")
        )
        assert ours == theirs, kind


@pytest.mark.parametrize("order", [1, -1], ids=["", "reflected"])
@pytest.mark.parametrize("name", ["__and__", "__or__", "__xor__"])
def test_operators_of_bits_as_tf(name: str, order: int) -> None:
    """Weights of integers and bools, which are TF's own variables, and floats, which have none."""
    for kind, others in {
        "int32": (3, FIRST["int32"], None),
        "bool": (True, FIRST["bool"], None),
        "float32": (1, True, None),
    }.items():
        for other in others:
            if order == -1 and isinstance(other, np.ndarray):
                continue  # numpy's own operator
            ours, theirs = (
                yielded(system, BINARY[name], FIRST[kind], other, order)
                for system in ("our_tf", "tf")
            )
            if kind == "float32":
                assert ours.error is TypeError
                assert theirs.error is not None
            else:
                assert ours == theirs, (kind, other)
