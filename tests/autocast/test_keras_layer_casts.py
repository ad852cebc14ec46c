"""What a layer's call sees, against the real Keras: inputs, variables, scopes, alone and nested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import layer_systems as systems
import numpy as np
import pytest
from layer_systems import Call, calls, outcome, peers

POLICIES = (
    *("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16"),
    *("float8_from_mixed_bfloat16", "int8_from_float32", "int32", "bool", "complex64"),
)
INPUTS = ("float32", "float64", "float16", "bfloat16", "int32", "bool", "complex64")
NESTED = ("float32", "float64", "float16", "mixed_float16", "mixed_bfloat16", "int32")


def assert_equal(ours: list[Call], theirs: list[Call]) -> None:
    """All equal, but for one thing: in a disabled scope, Keras' floats all report floatx."""
    for mine, original in zip(ours, theirs, strict=True):
        assert (mine.inputs, mine.scope) == (original.inputs, original.scope)
        for name, (reported, value) in original.variables.items():
            disabled = original.scope is None and name in "kdh"
            assert mine.variables[name] == (value if disabled else reported, value), name


@pytest.mark.parametrize("policy", POLICIES)
def test_one_layer(policy: str) -> None:
    for dtype, autocast in product(INPUTS, (True, False)):
        x = np.ones((1, 2)).astype(dtype)
        options = [{"dtype": policy, "autocast": autocast}]
        assert_equal(calls(systems.ours(), options, x), calls(systems.keras(), options, x))


@pytest.mark.parametrize("outer", NESTED)
def test_a_layer_in_a_layer(outer: str) -> None:
    x = np.ones((1, 2), np.float32)
    for inner, outer_casts, inner_casts in product(NESTED, (True, False), (True, False)):
        options = [
            {"dtype": outer, "autocast": outer_casts},
            {"dtype": inner, "autocast": inner_casts},
        ]
        assert_equal(calls(systems.ours(), options, x), calls(systems.keras(), options, x))


def test_three_layers() -> None:
    x = np.ones((1, 2), np.float32)
    for names in product(("float32", "mixed_float16", "int32", "mixed_bfloat16"), repeat=3):
        options: list[dict[str, Any]] = [{"dtype": name} for name in names]
        assert_equal(calls(systems.ours(), options, x), calls(systems.keras(), options, x))


def test_with_the_jax_backend() -> None:
    """The same tables, made by a Keras on jax in a process of its own; jax has no float64."""
    peers.need("keras", "jax")
    worker = Path(__file__).parents[1] / "helpers" / "autocast" / "keras_jax_worker.py"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", worker],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    rows = json.loads(done.stdout)
    assert len(rows) > 50
    for options, dtype, theirs in rows:
        ours = calls(systems.ours(), options, np.ones((1, 2)).astype(dtype))
        originals = [
            Call(inputs, {name: tuple(pair) for name, pair in variables.items()}, scope)
            for inputs, variables, scope in theirs
        ]
        assert_equal(ours, originals)


# ------------------------------------------------------------------------------- arguments


F4, F8, I4 = np.ones(2, np.float32), np.ones((2, 1)), np.ones(3, np.int32)
BF = np.ones(2).astype("bfloat16")


class Named(tuple):
    """A tuple by another name."""


ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one": ((F4,), {}),
    "two": ((F4, F8), {}),
    "by name": ((), {"x": F4}),
    "second by name": ((F4,), {"other": F8}),
    "list": (([F4, I4, F8],), {}),
    "dict": (({"b": F4, "a": [I4, (F8,)]},), {}),
    "none in a list": (([F4, None],), {}),
    "none": ((None,), {}),
    "empty list": (([],), {}),
    "empty dict": ((F4,), {"other": {}}),
    "numpy scalar": ((np.float64(2),), {}),
    "numpy scalar by name": ((F4,), {"other": np.float32(2)}),
    "integer scalar": ((np.int64(2),), {}),
    "bool scalar": ((F4,), {"other": np.bool_(True)}),
    "float": ((1.5,), {}),
    "int": ((1,), {}),
    "float by name": ((F4,), {"other": 1.5}),
    "bool by name": ((F4,), {"other": True}),
    "str": (("a",), {}),
    "str by name": ((F4,), {"other": "a"}),
    "list of floats": (([1.5, 2.0],), {}),
    "list of floats by name": ((F4,), {"other": [1.5, 2]}),
    "mixed list": (([F4, 1.5],), {}),
    "mixed list by name": ((F4,), {"other": [F4, 1.5]}),
    "mixed dict by name": ((F4,), {"other": {"a": "b", "c": F4}}),
    "array and none by name": ((F4,), {"other": [F4, None]}),
    "numbers and none by name": ((F4,), {"other": [1.5, None]}),
    "bfloat16": ((BF,), {"other": (BF, BF)}),
    "object by name": ((F4,), {"other": object}),
    "no argument": ((), {}),
    "too many": ((F4, F4, F4), {}),
    "unknown name": ((F4,), {"third": F4}),
    "twice": ((F4,), {"x": F4}),
    "without the first": ((), {"other": F4}),
    "read-only": ((np.broadcast_to(F4, (2, 2)),), {}),
    "big-endian": ((F4.astype(">f4"),), {}),
    "no elements": ((np.ones((0, 3), np.float32),), {}),
}


def shown(value: Any) -> Any:
    """A structure with the dtype, shape and bytes in the place of each array."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [shown(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.name, value.shape, value.tobytes()
    return value


def given_back(system: systems.System, layer_options: dict[str, Any], arguments: Any) -> Any:
    """What `call` got, or the exception of the layer."""

    class Echo(system.layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any, other: Any = None) -> Any:
            got.append((x, other))
            return x

    got: list[Any] = []
    args, kwargs = arguments
    layer = Echo(name="echo", **layer_options)
    result = outcome(layer, *args, **kwargs)
    return result.map(lambda _: shown(got[0]))


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_arguments(kind: str) -> None:
    for policy, autocast in product(("float32", "mixed_float16", "mixed_bfloat16"), (True, False)):
        options = {"dtype": policy, "autocast": autocast}
        ours = given_back(systems.ours(), options, ARGUMENTS[kind])
        theirs = given_back(systems.keras(), options, ARGUMENTS[kind])
        assert ours == theirs, (policy, autocast)


def test_build_gets_the_shapes_of_arrays() -> None:
    a, b = np.ones((1, 2), np.float32), np.ones(3, np.float32)

    def shapes(system: systems.System, *args: Any, **kwargs: Any) -> Any:
        class One(system.layer):  # type: ignore[misc, name-defined]
            def build(self, input_shape: Any) -> None:
                got.append(input_shape)

            def call(self, x: Any, y: Any = None) -> Any:
                return x

        class Two(system.layer):  # type: ignore[misc, name-defined]
            def build(self, x_shape: Any, y_shape: Any) -> None:
                got.append((x_shape, y_shape))

            def call(self, x: Any, y: Any = None) -> Any:
                return x

        got: list[Any] = []
        results = [outcome(layer(), *args, **kwargs).error for layer in (One, Two)]
        return got, results

    for args, kwargs in (
        ((a,), {}),
        ((a, b), {}),
        ((a,), {"y": b}),
        ((), {"x": a, "y": b}),
        (([a, b], {"k": a}), {}),
        ((a, [b, None]), {}),
        ((None, b), {}),
        ((a,), {"y": 3}),
    ):
        ours, theirs = (shapes(system, *args, **kwargs) for system in systems_of_keras())
        assert ours == theirs, (args, kwargs)


def systems_of_keras() -> tuple[systems.System, systems.System]:
    return systems.ours(), systems.keras()


def test_paths_are_those_of_keras() -> None:
    def paths(system: systems.System) -> Any:
        class Inner(system.layer):  # type: ignore[misc, name-defined]
            def build(self, input_shape: Any) -> None:
                self.w = self.add_weight(shape=(1,), name="w")

            def call(self, x: Any) -> Any:
                return x

        class Outer(system.layer):  # type: ignore[misc, name-defined]
            def __init__(self, **options: Any) -> None:
                super().__init__(**options)
                self.early = self.add_weight(shape=(1,), name="early")
                self.parts = [Inner(name="a"), Inner(name="b")]
                self.used = used

            def build(self, input_shape: Any) -> None:
                self.parts[0].build(input_shape)

            def call(self, x: Any) -> Any:
                return self.used(self.parts[1](self.parts[0](x)))

        used = Inner(name="used")
        used(np.ones((1, 1), np.float32))
        outer = Outer(name="outer")
        before = outer.path
        outer(np.ones((1, 1), np.float32))
        layers = (outer, *outer.parts, used)
        return before, [layer.path for layer in layers], sorted(v.path for v in outer.variables)

    ours, theirs = (paths(system) for system in systems_of_keras())
    assert ours == theirs
    assert ours[1] == ["outer", "outer/a", "outer/b", "used"]


def test_configs_are_those_of_keras() -> None:
    for dtype in ("float32", "mixed_float16", "float8_from_mixed_bfloat16"):
        for system in systems_of_keras():
            config = system.layer(dtype=dtype, name="dense", trainable=False).get_config()
            known = {key: config[key] for key in ("name", "trainable", "dtype")}
            again = systems.ours().layer.from_config(known)
            assert again.get_config() == known
    # What one wrote, the other reads.
    config = systems.ours().layer(dtype="mixed_float16", name="dense").get_config()
    assert systems.keras().layer(**config).compute_dtype == "float16"
