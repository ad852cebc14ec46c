"""What a layer's call sees in TF's dialect, against the real tf_keras."""

from __future__ import annotations

from itertools import product
from typing import Any

import layer_systems as systems
import numpy as np
import peers
import pytest
from castwise.compat.tf_keras import mixed_precision
from layer_systems import calls, dtype_of, outcome

POLICIES = (
    *("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16"),
    *("int32", "bool", "complex64", "half"),
)
INPUTS = ("float32", "float64", "float16", "bfloat16", "int32", "bool", "complex64")
NESTED = ("float32", "float64", "mixed_float16", "mixed_bfloat16", "int32")


pytestmark = pytest.mark.usefixtures("tf_keras_state")


def both() -> tuple[systems.System, systems.System]:
    return systems.our_tf(), systems.tf()


@pytest.mark.parametrize("policy", POLICIES)
def test_one_layer(policy: str) -> None:
    for dtype, autocast in product(INPUTS, (True, False)):
        x = np.ones((1, 2)).astype(dtype)
        options = [{"dtype": policy, "autocast": autocast}]
        ours, theirs = (calls(system, options, x) for system in both())
        assert ours == theirs, (dtype, autocast)


@pytest.mark.parametrize("outer", NESTED)
def test_a_layer_in_a_layer(outer: str) -> None:
    x = np.ones((1, 2), np.float32)
    for inner, outer_casts, inner_casts in product(NESTED, (True, False), (True, False)):
        options = [
            {"dtype": outer, "autocast": outer_casts},
            {"dtype": inner, "autocast": inner_casts},
        ]
        ours, theirs = (calls(system, options, x) for system in both())
        assert ours == theirs, options


F4, F8, I4 = np.ones(2, np.float32), np.ones((2, 1)), np.ones(3, np.int32)
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one": ((F4,), {}),
    "second is left alone": ((F4, F8), {}),
    "by name": ((), {"x": F8}),
    "both by name": ((), {"other": F8, "x": F8}),
    "list": (([F4, I4, F8],), {}),
    "dict": (({"b": F4, "a": [I4, (F8,)]},), {}),
    "none in a list": (([F4, None],), {}),
    "none": ((None,), {}),
    "empty list": (([],), {}),
    "float": ((1.5,), {}),
    "int": ((1,), {}),
    "large int": ((2**40,), {}),
    "bool": ((True,), {}),
    "float64 scalar": ((np.float64(2),), {}),
    "int64 scalar": ((np.int64(2),), {}),
    "numbers": (([1.5, 2, True],), {}),
    "complex number": ((1j,), {}),
    "str": (("a",), {}),
    "array and str": (([F4, "a"],), {}),
    "second of any kind": ((F4, [1.5, "a", F8]), {}),
    "no argument": ((), {}),
    "without the first": ((), {"other": F4}),
    "too many": ((F4, F4, F4), {}),
    "unknown name": ((F4,), {"third": F4}),
    "twice": ((F4,), {"x": F4}),
}


def shown(value: Any) -> Any:
    """A structure with dtype and values in the place of arrays and tensors."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if hasattr(value, "dtype"):
        return dtype_of(value), np.asarray(value).tolist()
    return value


def given_back(system: systems.System, layer_options: dict[str, Any], arguments: Any) -> Any:
    class Echo(system.layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any, other: Any = None) -> Any:
            got.append((x, other))
            return F4

    got: list[Any] = []
    args, kwargs = arguments
    layer = Echo(name="echo", **layer_options)
    result = outcome(layer, *args, **kwargs)
    return result.map(lambda _: shown(got[0]))


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_arguments(kind: str) -> None:
    for policy, autocast in product(("float32", "mixed_float16", "int32"), (True, False)):
        options = {"dtype": policy, "autocast": autocast}
        ours, theirs = (given_back(system, options, ARGUMENTS[kind]) for system in both())
        assert ours == theirs, (policy, autocast)


@pytest.mark.parametrize(
    "x",
    [F4, F8, np.ones(1, np.float16), I4, 1.5, [I4, F4], [F4, I4], None, "a", [None, F4]],
    ids=repr,
)
def test_a_policy_that_is_left_open(x: Any) -> None:
    """It becomes that of the first input, once."""

    def policies(system: systems.System, policy: Any) -> Any:
        class Echo(system.layer):  # type: ignore[misc, name-defined]
            def call(self, x: Any) -> Any:
                return F4

        layer = Echo(dtype=policy)
        layer(x)
        first = layer.dtype_policy.name
        layer(np.ones(1, np.float16))
        return first, layer.dtype_policy.name, layer.compute_dtype

    ours = policies(systems.our_tf(), mixed_precision.Policy("_infer"))
    assert ours == policies(systems.tf(), peers.tf_keras().mixed_precision.Policy("_infer"))


def test_a_policy_that_is_left_open_follows_a_weight() -> None:
    for dtype, expected in ((None, "float32"), ("float16", "float16"), ("half", "float16")):
        for system, module in (
            (systems.our_tf(), mixed_precision),
            (systems.tf(), peers.tf_keras().mixed_precision),
        ):
            layer = system.layer(dtype=module.Policy("_infer"))
            layer.add_weight(name="w", shape=(1,), dtype=dtype)
            assert layer.dtype_policy.name == expected


def test_which_weights_are_cast() -> None:
    for policy, dtype in product(
        ("float32", "mixed_float16", "float16", "int32"),
        (None, "float32", "float64", "float16", "bfloat16", "int32", "bool", "complex64"),
    ):
        for flags in ({}, {"autocast": False}, {"experimental_autocast": False}, BOTH, NEITHER):
            kinds = []
            for system in both():
                layer = system.layer(dtype=policy)
                weight = layer.add_weight(
                    name="w", shape=(2,), dtype=dtype, initializer="ones", **flags
                )
                cast = type(weight).__name__ == "AutoCastVariable"
                kinds.append((dtype_of(weight), getattr(weight, "_casts", cast)))
            assert kinds[0] == kinds[1], (policy, dtype, flags)


BOTH = {"autocast": True, "experimental_autocast": False}
NEITHER = {"autocast": False, "experimental_autocast": True}


def test_weights_can_be_added_after_the_first_call() -> None:
    for system in both():
        layer = system.layer(dtype="mixed_float16")
        layer(F4)
        layer.add_weight(name="late", shape=(1,))
        assert len(layer.weights) == 1


def plain_layer(system: systems.System) -> Any:
    """A class of its own: of others TF keeps the arguments as they were given."""

    class Plain(system.layer):  # type: ignore[misc, name-defined]
        def get_config(self) -> Any:
            return super().get_config()

    return Plain


def test_configs_are_those_of_tf() -> None:
    for dtype in ("float32", "mixed_float16", np.float16, None):
        ours, theirs = (
            plain_layer(system)(dtype=dtype, name="dense", trainable=False).get_config()
            for system in both()
        )
        assert ours == theirs
        assert systems.our_tf().layer.from_config(theirs).get_config() == theirs


def test_the_global_policy_is_tfs() -> None:
    for system, module in zip(
        both(), (mixed_precision, peers.tf_keras().mixed_precision), strict=True
    ):
        module.set_global_policy("mixed_bfloat16")
        assert system.layer().compute_dtype == "bfloat16"


def test_the_constructor_refuses_what_tf_refuses() -> None:
    arguments: list[dict[str, Any]] = [
        *({"dtype": "abc"}, {"dtype": int}, {"name": 3}, {"trainable": 1}, {"unknown": 1}),
        *({"name": "dense"}, {"autocast": 3}, {"dtype": np.float16}, {}),
    ]
    for options in arguments:
        ours, theirs = (outcome(lambda s, o: s.layer(**o) and 0, s, options) for s in both())
        assert ours == theirs, options
