"""Policies of castwise as policies of the real Keras, and back."""

from __future__ import annotations

import copy
import json
import pickle
from types import SimpleNamespace
from typing import Any

import keras_systems
import numpy as np
import peers
import pytest
from castwise.adapters.keras import from_keras, install, to_keras
from castwise.adapters.keras._layer_state import optimizers_of
from castwise.adapters.keras._policies import matching_of
from castwise.dtype_policies import (
    DTypePolicy,
    DTypePolicyMap,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
    get,
    serialize,
)
from hypothesis import given
from keras_names import Call
from keras_policies import MAPS, POLICIES, made, made_map

# Keras' own, on its numpy backend.
pytestmark = [
    pytest.mark.usefixtures("keras_state"),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation:DeprecationWarning",
        "ignore:`custom_gradient`:UserWarning",
    ),
]

PATHS = ("a", "b", "b/c", "enc/x", "enc", "", "é", "ab")


@given(POLICIES)
def test_every_class_becomes_its_own_and_comes_back(call: Call) -> None:
    ours = made(call, keras_systems.OURS)
    theirs = made(call, keras_systems.original())
    converted = to_keras(ours)
    assert type(converted) is type(theirs)
    assert converted == theirs
    assert type(from_keras(theirs)) is type(ours)
    assert from_keras(theirs) == ours == from_keras(converted)
    assert to_keras(theirs) is theirs
    assert from_keras(ours) is ours


@given(MAPS)
def test_maps_say_the_same_on_both_sides(content: Any) -> None:
    ours = made_map(content, keras_systems.OURS)
    theirs = made_map(content, keras_systems.original())
    for ours_now, theirs_now in ((to_keras(ours), theirs), (to_keras(from_keras(theirs)), theirs)):
        assert isinstance(ours_now, peers.keras().dtype_policies.DTypePolicyMap)
        assert list(ours_now) == list(theirs_now)
        for path in PATHS:
            found = keras_systems.outcome(lambda seen=theirs_now, path=path: seen[path])
            assert keras_systems.outcome(lambda seen=ours_now, path=path: seen[path]) == found
        assert ours_now.compute_dtype == theirs_now.compute_dtype
    assert from_keras(to_keras(ours)) is ours
    assert from_keras(theirs) == ours


def test_a_map_is_one_map_from_both_sides() -> None:
    keras = peers.keras()
    rules = DTypePolicyMap("float32", {"a": "float16"})
    view = to_keras(rules)
    view["b"] = keras.DTypePolicy("mixed_bfloat16")
    rules["c"] = "float64"
    assert rules["b"] == DTypePolicy("mixed_bfloat16")
    assert view["c"] == keras.DTypePolicy("float64")
    assert view["c"] is view["c"]
    del view["a"]
    assert list(rules) == list(view) == ["b", "c"]
    for other in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):  # noqa: S301
        assert other == view
        other["d"] = "float16"
        assert "d" not in rules


def test_a_map_is_written_as_keras_writes_it_and_read_by_keras_alone() -> None:
    keras = peers.keras()
    rules = DTypePolicyMap("float32", {"a.*": "float16", "b": "int4/64_from_float32"})
    written = keras.dtype_policies.serialize(to_keras(rules))
    assert written == serialize(rules)
    loaded = keras.dtype_policies.deserialize(json.loads(json.dumps(written)))
    assert type(loaded) is keras.dtype_policies.DTypePolicyMap
    assert from_keras(loaded) == rules


def test_a_map_without_default_follows_the_policy_in_force() -> None:
    rules = DTypePolicyMap(None, {"a": "float16"})
    view = to_keras(rules)
    with install():
        peers.keras().config.set_dtype_policy("mixed_bfloat16")
        assert view["other"].name == rules["other"].name == "mixed_bfloat16"


@pytest.mark.parametrize(
    ("version", "match"), [("3.4.0", "search"), ("3.11.3", "search"), ("3.12.0", "fullmatch")]
)
def test_keys_match_as_in_the_release_of_keras(version: str, match: str) -> None:
    assert matching_of(version) == match


class Slow(DTypePolicy):
    """A policy that computes its dtype."""

    @property
    def compute_dtype(self) -> str:
        return "float16"


class SlowInt8(QuantizedDTypePolicy):
    @property
    def compute_dtype(self) -> str:
        return "bfloat16"


@pytest.mark.parametrize("policy", [Slow("float32"), SlowInt8("int8", "float32")], ids=repr)
def test_a_class_of_ones_own_is_asked_by_keras_layers(policy: Any) -> None:
    keras = peers.keras()
    converted = to_keras(policy)
    assert isinstance(converted, keras.DTypePolicy)
    quantized = isinstance(policy, QuantizedDTypePolicy)
    assert isinstance(converted, keras.dtype_policies.QuantizedDTypePolicy) is quantized
    layer = keras.layers.Dense(2, dtype=converted)
    assert layer(np.ones((1, 3), np.float32)).dtype.name == policy.compute_dtype
    assert (layer._kernel.dtype == "int8") is quantized
    assert layer.get_config()["dtype"]["class_name"] == type(policy).__name__
    assert from_keras(converted) is policy
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):  # noqa: S301
        assert other == converted == to_keras(policy)
        assert other != to_keras(get("float32"))


def test_a_class_of_ones_own_of_keras_is_asked_by_castwise() -> None:
    keras = peers.keras()

    class Own(keras.dtype_policies.QuantizedDTypePolicy):  # type: ignore[misc,name-defined]
        extra = 3

        @property
        def variable_dtype(self) -> str:
            return "bfloat16"

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "extra": 3}

    original = Own("int8", "float32")
    policy = from_keras(original)
    assert isinstance(policy, DTypePolicy)
    assert (policy.name, policy.variable_dtype, policy.extra) == (
        "int8_from_float32",
        "bfloat16",
        3,
    )
    assert policy.quantization_mode == "int8"
    assert policy.get_config()["extra"] == 3
    assert to_keras(policy) is original
    assert policy == from_keras(Own("int8", "float32"))
    assert len({policy, from_keras(original)}) == 1
    assert policy != get("int8_from_float32")
    assert copy.deepcopy(policy) == policy
    assert to_keras(DTypePolicyMap("float32", {"a": policy}))["a"] is original


def test_castwise_reads_policies_of_keras_while_it_is_installed() -> None:
    keras = peers.keras()
    theirs = keras.dtype_policies.get("float8_from_mixed_bfloat16")
    with pytest.raises(ValueError, match="is not a policy"):
        get(theirs)
    with install():
        assert get(theirs) == QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16")
        assert DTypePolicyMap(theirs, {"a": keras.DTypePolicy("float16")})["a"].name == "float16"
    with pytest.raises(ValueError, match="is not a policy"):
        get(theirs)


def test_optimizers_in_optimizers_are_found_however_deep() -> None:
    keras = peers.keras()
    innermost = keras.optimizers.SGD()
    middle = keras.optimizers.LossScaleOptimizer(innermost)
    model = SimpleNamespace(optimizer=keras.optimizers.LossScaleOptimizer(middle))
    assert optimizers_of(model) == [model.optimizer, middle, innermost]
    assert optimizers_of(SimpleNamespace(optimizer=None)) == optimizers_of(object()) == []
