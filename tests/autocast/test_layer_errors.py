"""Bad input: a refusal names the argument and its value, and says what to do; nothing is left."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from castwise.autocast import AutocastScope, AutoCastVariable, Layer, get_layer_policy
from castwise.compat.tf_keras import layers as tf_layers
from castwise.dtype_policies import DTypePolicyMap

X = np.ones((1, 3), np.float32)


class Echo(Layer):
    def call(self, x: Any, other: Any = None) -> Any:
        return x


class Forgetful(Layer):
    def __init__(self) -> None:
        self.units = 3


class Early(Layer):
    def __init__(self, attribute: str) -> None:
        getattr(self, attribute)


class Unconvertible:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("it is on a GPU")


def variable() -> AutoCastVariable:
    return AutoCastVariable(np.ones(2, np.float32), name="kernel")


def built() -> Layer:
    layer = Echo(name="echo")
    layer(X)
    return layer


def weight(**options: Any) -> Any:
    return Echo(name="echo").add_weight(**options)


REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "a float": (lambda: Echo(name="echo")(1.5), ValueError, ("1.5", "'echo'", "keyword")),
    "a str": (lambda: Echo()("text"), ValueError, ("'text'", "keyword")),
    "a mixture": (
        lambda: Echo(name="echo")(X, other=[X, "a"]),
        ValueError,
        ("'other'", "'echo'", "'a'", "str"),
    ),
    "too many": (lambda: Echo()(X, X, X), TypeError, ("positional",)),
    "no call": (lambda: Layer()(X), NotImplementedError, ("def call",)),
    "no super().__init__": (lambda: Forgetful()(X), RuntimeError, ("super().__init__()",)),
    "no super().__init__, weight": (
        lambda: Forgetful().add_weight((1,)),
        RuntimeError,
        ("super().__init__()",),
    ),
    **{
        f"no super().__init__, {name}": (
            lambda name=name: Early(name),  # type: ignore[misc]
            AttributeError,
            ("Early", repr(name), "super().__init__()"),
        )
        for name in ("compute_dtype", "dtype_policy", "name", "anything")
    },
    "no super().__init__, set policy": (
        lambda: setattr(Forgetful(), "dtype_policy", "float16"),
        RuntimeError,
        ("super().__init__()",),
    ),
    "a layer of strings": (
        lambda: Echo(dtype=str, name="echo")(X),
        TypeError,
        ("'echo'", "string", "dtype="),
    ),
    "longdouble": (
        lambda: Echo(dtype="float16", name="echo")(np.ones(1, np.longdouble)),
        TypeError,
        ("'echo'", "autocast=False"),
    ),
    "a dtype that is none": (lambda: Echo(dtype="flaot32"), ValueError, ("flaot32",)),
    "a dtype of TF that is none": (
        lambda: tf_layers.Layer(dtype="flaot32"),
        TypeError,
        ("flaot32",),
    ),
    "an unknown argument": (lambda: Echo(units=3), ValueError, ("units=", "dtype=")),
    "a map in TF's dialect": (
        lambda: tf_layers.Layer(dtype=DTypePolicyMap("float16")),
        TypeError,
        ("map", "Keras"),
    ),
    "what is no array of numpy's": (
        lambda: Echo(name="echo")(Unconvertible()),
        TypeError,
        ("'echo'", "Unconvertible", "on a GPU"),
    ),
    "a name with a slash": (lambda: Echo(name="a/b"), ValueError, ("'a/b'", "'/'")),
    "a name that is none": (lambda: Echo(name=3), ValueError, ("name=3",)),
    "trainable": (lambda: Echo(trainable="no"), ValueError, ("trainable='no'", "True")),
    "a dialect": (lambda: Echo(dialect="jax"), ValueError, ("'jax'", "'tf_keras'")),
    "a dialect that is a list": (lambda: Echo(dialect=["jax"]), ValueError, ("['jax']",)),
    "weight after build": (
        lambda: built().add_weight((1,), name="late"),
        ValueError,
        ("'echo'", "'late'", "in build"),
    ),
    "name as shape": (lambda: Echo().add_weight("kernel"), ValueError, ("name='kernel'",)),
    "shape": (lambda: weight(shape=(2, -1)), ValueError, ("(2, -1)", "0 or more")),
    "shape of None": (lambda: weight(shape=(None, 2)), ValueError, ("(None, 2)",)),
    "shape of floats": (lambda: weight(shape=(2.0,)), ValueError, ("(2.0,)",)),
    "initializer": (
        lambda: weight(shape=(2,), initializer="glorot"),
        ValueError,
        ("'glorot'", "glorot_uniform"),
    ),
    "value of another shape": (
        lambda: weight(shape=(2,), initializer=np.ones(3), name="w"),
        ValueError,
        ("(3,)", "(2,)", "echo/w"),
    ),
    "initializer of another shape": (
        lambda: weight(shape=(2,), initializer=lambda shape, dtype: np.ones(3)),
        ValueError,
        ("(3,)", "(2,)"),
    ),
    "initializer of no dtype": (
        lambda: weight(shape=(2,), initializer=lambda shape: np.ones(shape) * 2),
        TypeError,
        ("initializer=", "dtype", "numpy.zeros"),
    ),
    "initializer of text": (
        lambda: weight(shape=(2,), initializer=["a", "b"]),
        ValueError,
        ("['a', 'b']", "array"),
    ),
    "weight of strings": (
        lambda: weight(shape=(2,), dtype="string"),
        ValueError,
        ("'string'", "numbers"),
    ),
    "dtype of a weight": (lambda: weight(dtype="mixed_float16"), ValueError, ("mixed_float16",)),
    "no shape": (lambda: AutoCastVariable("zeros"), ValueError, ("'zeros'", "shape=")),
    "assign": (
        lambda: variable().assign(np.ones(3)),
        ValueError,
        ("(3,)", "(2,)", "'kernel'", "equal"),
    ),
    "assign a number": (lambda: variable().assign(0.0), ValueError, ("()", "(2,)")),
    "assign text": (lambda: variable().assign("abc"), ValueError, ("'abc'", "'kernel'")),
    "assign None": (lambda: variable().assign(None), ValueError, ("None", "'kernel'")),
    "assign ragged": (lambda: variable().assign([[1], [1, 2]]), ValueError, ("'kernel'",)),
    "assign complex": (lambda: variable().assign([1j, 2]), ValueError, ("complex", "real")),
    "assign a masked array": (
        lambda: variable().assign(np.ma.masked_array([1.0, 2.0], [True, False])),
        ValueError,
        ("masked", "'kernel'", "filled"),
    ),
    "add another shape": (lambda: variable().assign_add(np.ones((2, 2))), ValueError, ("(2, 2)",)),
    "add a wider shape": (lambda: variable().assign_add(np.ones((1, 2))), ValueError, ("(1, 2)",)),
    "truth": (lambda: not variable(), TypeError, ("'kernel'", "any()")),
    "float of many": (lambda: float(variable()), TypeError, ("'kernel'", "element")),
    "scope": (lambda: AutocastScope("int8"), ValueError, ("'int8'", "float16")),
    "policy of what has none": (lambda: get_layer_policy(3), ValueError, ("layer=3",)),
    "TF without inputs": (
        tf_layers.Layer(name="echo"),
        ValueError,
        ("'echo'", "'inputs'"),
    ),
    "TF sets no policy": (
        lambda: setattr(tf_layers.Layer(name="echo"), "dtype_policy", "float16"),
        AttributeError,
        ("'echo'", "dtype="),
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusals(kind: str) -> None:
    call, error, words = REFUSALS[kind]
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_a_failed_assignment_changes_nothing() -> None:
    kept = variable()
    for wrong in (np.ones(3), "abc", None, [1j, 1j]):
        for method in ("assign", "assign_add", "assign_sub"):
            with pytest.raises(ValueError, match="kernel"):
                getattr(kept, method)(wrong)
    assert kept.value.tolist() == [1, 1]


def test_a_failed_build_leaves_nothing() -> None:
    class Fails(Echo):
        fails = True

        def build(self, input_shape: Any) -> None:
            self.add_weight((1,), name="first")
            if self.fails:
                raise KeyError("later")
            self.add_weight((1,), name="second")

    layer = Fails(name="layer")
    for attempt in (lambda: layer(X), lambda: layer.build((1, 3))):
        with pytest.raises(KeyError):
            attempt()
        assert (layer.built, layer.path, layer.variables) == (False, None, [])
    layer.fails = False
    layer(X)
    assert [weight.name for weight in layer.variables] == ["first", "second"]


def test_a_refused_first_call_does_not_place_the_layer() -> None:
    """It is placed by the first call that its inputs allow."""

    class Outer(Layer):
        def __init__(self, inner: Layer) -> None:
            super().__init__(name="outer")
            self.inner = inner

        def call(self, x: Any) -> Any:
            return self.inner(x)

    inner = Echo(name="inner")
    with pytest.raises(ValueError, match="keyword"):
        inner(1.0)
    Outer(inner)(X)
    assert inner.path == "outer/inner"


def test_errors_of_an_authors_property_are_its_own() -> None:
    class Broken(Echo):
        @property
        def units(self) -> int:
            return None.units  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'units'"):
        _ = Broken().units
    with pytest.raises(AttributeError, match="'Echo' object has no attribute 'unit'"):
        _ = Echo().unit
    assert not hasattr(Forgetful(), "name")


def test_outputs_may_be_of_any_class() -> None:
    class Pair(list[Any]):
        def __init__(self, a: Any, b: Any) -> None:
            super().__init__([a, b])

    class Returns(Echo):
        def call(self, x: Any, other: Any = None) -> Any:
            self.outputs = Pair(x, 3)
            return self.outputs

    for dtype in ("float32", "mixed_float16"):
        layer = Returns(dtype=dtype)
        assert layer(X) is layer.outputs


def test_build_may_call_its_parents_first() -> None:
    class Parent(Echo):
        def build(self, input_shape: Any) -> None:
            self.a = self.add_weight((1,), name="a")

    class Mixin:
        def build(self, input_shape: Any) -> None:
            super().build(input_shape)  # type: ignore[misc]
            self.b = self.add_weight((1,), name="b")  # type: ignore[attr-defined]

    class Child(Mixin, Parent):
        pass

    class GrandChild(Child):
        def build(self, input_shape: Any) -> None:
            super().build(input_shape)
            self.c = self.add_weight((1,), name="c")

    for layer, names in ((Child(), "ab"), (GrandChild(), "abc")):
        layer(X)
        assert "".join(weight.name for weight in layer.variables) == names
        with pytest.raises(ValueError, match="is built"):
            layer.add_weight((1,))


def test_layers_can_be_copied() -> None:
    layer = Echo(dtype="mixed_bfloat16", name="echo")
    layer.scale = layer.add_weight((1,), "ones")
    layer(X)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301
        assert again(X).dtype == layer(X).dtype
        again.scale.assign([2.0])
        assert (float(again.variables[0][0]), float(layer.scale[0])) == (2, 1)


def test_layers_that_compare_by_value() -> None:
    """As dataclasses do, which do not hash."""

    @dataclass
    class Scale(Layer):
        factor: float

        def __post_init__(self) -> None:
            super().__init__(dtype="mixed_float16")

        def call(self, x: Any) -> Any:
            return x * self.factor

    assert Scale(2.0)(X).tolist() == [[2, 2, 2]]


def test_cast_inputs_can_be_overridden() -> None:
    class Own(Echo):
        def cast_inputs(self, inputs: Any) -> Any:
            return inputs if inputs.ndim == 1 else super().cast_inputs(inputs)

        def call(self, x: Any, other: Any = None) -> Any:
            return x.dtype.name, other.dtype.name

    layer = Own(dtype="mixed_float16")
    assert layer(X, np.ones(2)) == ("float16", "float64")
    assert layer(X[0], other=X) == ("float32", "float16")


def test_what_a_layer_holds() -> None:
    class Holds(Layer):
        def __init__(self) -> None:
            super().__init__(name="holds")
            self.state = AutoCastVariable(0, trainable=False, name="state")
            self.inner = {"a": [Echo(name="a")], "b": (Echo(name="b"),)}
            self.inner["a"][0].add_weight((1,), name="w")
            self.inner["b"][0].add_weight((1,), name="w")
            self.again = self.inner["a"][0]
            self.again.back = self
            self.own = self.add_weight((1,), name="own")

    holds = Holds()
    assert [v.path for v in holds.variables] == ["holds/own", "state", "a/w", "b/w"]
    assert len(holds.trainable_variables) == 3
    holds.trainable = False
    assert holds.trainable_variables == holds.again.trainable_variables == []
    assert not holds.own.trainable
    holds.trainable = True
    assert holds.again.trainable
