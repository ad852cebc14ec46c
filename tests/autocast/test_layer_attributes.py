"""Attributes of layers that are deleted or get another value: which weights a layer then has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import layer_systems as systems
import numpy as np
import peers
import pytest
from castwise.autocast import AutoCastVariable
from layer_systems import outcome

Action = Callable[[Any, Any, Callable[[], Any]], Any]
"""What is done to a layer, given the class of its sublayers and what makes another variable."""

BOTH: dict[str, Action] = {
    "nothing": lambda layer, _sub, _new: None,
    "delete a weight": lambda layer, _sub, _new: delattr(layer, "own"),
    "delete a weight twice": lambda layer, _sub, _new: (delattr(layer, "own"), layer.own),
    "delete a weight of two names": lambda layer, _sub, _new: (
        setattr(layer, "again", layer.own),
        delattr(layer, "own"),
        delattr(layer, "again"),
    ),
    "delete a weight of a sublayer": lambda layer, _sub, _new: delattr(layer.first, "a"),
    "delete one that is not trained": lambda layer, _sub, _new: delattr(layer.first, "b"),
    "delete a list of weights": lambda layer, _sub, _new: delattr(layer, "several"),
    "empty list for a list of weights": lambda layer, _sub, _new: setattr(layer, "several", []),
    "take a sublayer from a list": lambda layer, _sub, _new: layer.listed.pop(),
    "no such attribute": lambda layer, _sub, _new: delattr(layer, "missing"),
    "None for a weight": lambda layer, _sub, _new: setattr(layer, "own", None),
    "a number for a weight": lambda layer, _sub, _new: setattr(layer, "own", 1.0),
    "its own weight again": lambda layer, _sub, _new: setattr(layer, "own", layer.own),
    "another weight": lambda layer, _sub, new: setattr(layer, "own", new()),
    "a weight of a sublayer": lambda layer, _sub, _new: setattr(layer, "own", layer.first.a),
    "a new weight": lambda layer, _sub, new: setattr(layer, "extra", new()),
    "a new sublayer": lambda layer, sub, _new: setattr(layer, "extra", sub(name="extra")),
    "a second name": lambda layer, _sub, _new: setattr(layer, "extra", layer.first),
}
AS_TF: dict[str, Action] = {
    "delete one of two names": lambda layer, _sub, _new: (
        setattr(layer, "again", layer.own),
        delattr(layer, "own"),
    ),
    "delete a sublayer": lambda layer, _sub, _new: delattr(layer, "first"),
    "None for a sublayer": lambda layer, _sub, _new: setattr(layer, "first", None),
    "another sublayer": lambda layer, _sub, _new: setattr(layer, "first", layer.second),
    "delete a list of sublayers": lambda layer, _sub, _new: delattr(layer, "listed"),
    "take a weight from a list": lambda layer, _sub, _new: layer.several.pop(),
    "remove a weight from a dict": lambda layer, _sub, _new: layer.named.pop("d"),
}
"""Where both dialects do as tf_keras: a layer holds the sublayers that its attributes hold, and the
weights that it made. Keras holds what was deleted or replaced, and drops what leaves a list."""


def made(system: systems.System, built: bool) -> tuple[Any, type[Any]]:
    """A layer with weights and sublayers, as attributes, in a list and in a dict."""

    class Sub(system.layer):  # type: ignore[misc, name-defined]
        def build(self, input_shape: Any) -> None:
            self.a = self.add_weight(name="a", shape=(1,), initializer="zeros")
            self.b = self.add_weight(name="b", shape=(1,), initializer="zeros", trainable=False)
            self.c = self.add_weight(name="c", shape=(1,), initializer="zeros")

        def call(self, x: Any) -> Any:
            return x

    class Top(system.layer):  # type: ignore[misc, name-defined]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.first, self.second = Sub(name="first"), Sub(name="second")
            self.own = self.weight("own")
            self.listed = [Sub(name="third")]
            self.several = [self.weight("s"), self.weight("t")]
            self.named = {"d": self.weight("d")}

        def weight(self, name: str) -> Any:
            return self.add_weight(name=name, shape=(1,), initializer="zeros")

        def call(self, x: Any) -> Any:
            return self.listed[0](self.second(self.first(x)))

    layer = Top(name="top")
    if built:
        layer(np.ones((1, 2), np.float32))
    return layer, Sub


def names(variables: list[Any]) -> list[str]:
    return [variable.name.partition(":")[0].split("/")[-1] for variable in variables]


def after(name: str, built: bool, action: Action) -> Any:
    """The error, if any; the trained weights in order, and all of them."""
    first = np.ones(1, np.float32)
    new: Callable[[], Any] = {
        "keras": lambda: peers.keras().Variable(first, name="x"),
        "tf": lambda: peers.tensorflow().Variable(first, name="x"),
    }.get(name, lambda: AutoCastVariable(first, name="x"))
    layer, sub = made(getattr(systems, name)(), built)
    error = outcome(action, layer, sub, new).error
    weights = names(layer.weights)
    # TF has all the trained ones first, castwise those of each layer.
    return error, names(layer.trainable_weights), weights if "keras" in name else sorted(weights)


def needs_build(case: str) -> bool:
    return "of a sublayer" in case or "not trained" in case


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("case", BOTH)
def test_weights_are_those_of_the_originals(case: str, built: bool) -> None:
    if not built and needs_build(case):
        built = True  # there are no such weights yet
    keras, ours = (after(name, built, BOTH[case]) for name in ("keras", "ours"))
    assert (ours[0], ours[1], sorted(ours[2])) == (keras[0], keras[1], sorted(keras[2]))
    assert after("our_tf", built, BOTH[case]) == after("tf", built, BOTH[case])


@pytest.mark.parametrize("case", AS_TF)
def test_where_keras_holds_on_or_drops_both_dialects_do_as_tf_keras(case: str) -> None:
    tf = after("tf", True, AS_TF[case])
    assert after("our_tf", True, AS_TF[case]) == tf
    assert after("ours", True, AS_TF[case])[:2] == tf[:2]
    assert after("keras", True, AS_TF[case])[:2] != tf[:2]


def test_what_a_built_layer_does_not_take_is_named() -> None:
    layer, sub = made(systems.ours(), built=True)
    with pytest.raises(ValueError, match=r"'top' is built .*weight.*extra=.*__init__ or in build"):
        layer.extra = AutoCastVariable(1.0)
    with pytest.raises(ValueError, match=r"'top' is built .*layer.*extra=.*'late'"):
        layer.extra = sub(name="late")
    assert not hasattr(layer, "extra")
    layer.own.assign([3.0])
    kept = layer.own
    with pytest.raises(ValueError, match="own="):
        layer.own = AutoCastVariable(1.0)
    assert layer.own is kept


ADD_WEIGHT: dict[str, Callable[[Any], Any]] = {
    "a name": lambda layer: layer.add_weight("m"),
    "a name and a shape": lambda layer: layer.add_weight("m", (2,)),
    "a name and shape=": lambda layer: layer.add_weight("m", shape=(2,)),
    "a shape and shape=": lambda layer: layer.add_weight((2,), shape=(2,)),
    "a shape": lambda layer: layer.add_weight((2,)),
    "a shape and an initializer": lambda layer: layer.add_weight((2,), "zeros"),
    "an initializer twice": lambda layer: layer.add_weight((2,), "zeros", initializer="ones"),
    "four": lambda layer: layer.add_weight("m", (2,), "float16", "zeros"),
    "twenty": lambda layer: layer.add_weight(*range(20)),
    "no shape": lambda layer: layer.add_weight(),
    **{
        f"shape={shape!r}": lambda layer, shape=shape: layer.add_weight(shape=shape)
        for shape in ("m", 2, 2.5, (2.5,), (-1,), (None,), (2, 3))
    },
    **{
        f"name={name!r}": lambda layer, name=name: layer.add_weight(name=name, shape=(2,))
        for name in (3, (2,), "", None)
    },
    "an unknown argument": lambda layer: layer.add_weight(shape=(2,), units=1),
    "an unknown dtype": lambda layer: layer.add_weight(shape=(2,), dtype="flaot"),
    "an unknown initializer": lambda layer: layer.add_weight(shape=(2,), initializer="nope"),
}


@pytest.mark.parametrize("case", ADD_WEIGHT)
def test_arguments_of_add_weight_are_taken_and_refused_as_by_the_originals(case: str) -> None:
    def seen(system: systems.System) -> Any:
        found = outcome(ADD_WEIGHT[case], system.layer())
        return found.map(lambda weight: (tuple(weight.shape), systems.dtype_of(weight)))

    assert seen(systems.ours()) == seen(systems.keras())
    assert seen(systems.our_tf()) == seen(systems.tf())
