"""Every argument of every constructor that has a config goes through JSON and back."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import autocast, loss_scale
from castwise.compat import keras, tf_keras
from castwise.compat.tf_keras import mixed_precision
from castwise.compat.tf_keras.mixed_precision import experimental
from castwise.dtype_policies import (
    AWQDTypePolicy,
    DTypePolicy,
    DTypePolicyMap,
    FloatDTypePolicy,
    GPTQDTypePolicy,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
)


class Descent:
    """An optimizer that the loss-scaling ones take."""

    def __init__(self, rate: float = 0.5) -> None:
        self.rate = self.learning_rate = rate
        self.iterations, self.variables = 0, []

    def apply(self, grads: Any, trainable_variables: Any = None) -> None: ...

    def apply_gradients(self, grads_and_vars: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {"rate": self.rate}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Descent:
        return cls(**config)


F16, F32 = np.float16, np.float32
LAYER = {
    "trainable": [False],
    "dtype": ["mixed_float16", np.dtype("float16"), F16, None, DTypePolicy("mixed_bfloat16")],
    "autocast": [False, None],
    "name": ["dense", np.str_("dense"), None],
    "dialect": ["keras", "tf_keras", None],
}
TF_LAYER = LAYER | {
    "dtype": ["mixed_float16", "half", F16, mixed_precision.Policy("float64"), None]
}
SOURCE = ["mixed_bfloat16", None]
NUMBERS = [8, 8.0, F32(8), np.float64(8)]
COUNTS = [7, np.int64(7)]

ARGUMENTS: dict[Any, dict[str, list[Any]]] = {
    autocast.Layer: LAYER,
    tf_keras.layers.Layer: TF_LAYER,
    DTypePolicy: {"name": ["mixed_float16", "bool", None]},
    FloatDTypePolicy: {"name": ["float64", None]},
    QuantizedDTypePolicy: {"mode": ["int8", "ternary"], "source_name": SOURCE},
    QuantizedFloat8DTypePolicy: {
        "mode": ["float8"],
        "source_name": SOURCE,
        "amax_history_length": COUNTS,
    },
    Int4DTypePolicy: {"mode": ["int4/64"], "source_name": SOURCE},
    GPTQDTypePolicy: {"mode": ["gptq/4/64"], "source_name": SOURCE},
    AWQDTypePolicy: {"mode": ["awq/4/-1"], "source_name": SOURCE},
    DTypePolicyMap: {
        "default_policy": [
            *("mixed_float16", None, F16, float, np.dtype("float64")),
            DTypePolicy("bfloat16"),
            Int4DTypePolicy("int4/64", "float32"),
            {"class_name": "DTypePolicy", "config": {"name": "float64"}},
        ],
        "policy_map": [None, {"a": F16, "b": Int4DTypePolicy("int4/8", "float32")}],
        "match": ["search"],
        "on_overlap": ["first", "longest"],
    },
    keras.mixed_precision.LossScaleOptimizer: {
        "inner_optimizer": [Descent(0.25)],
        "initial_scale": NUMBERS,
        "dynamic_growth_steps": COUNTS,
        "name": ["scaled", None],
    },
    mixed_precision.LossScaleOptimizer: {
        "inner_optimizer": [Descent(0.25)],
        "dynamic": [True],
        "initial_scale": [*NUMBERS, None],
        "dynamic_growth_steps": [*COUNTS, None],
    },
    mixed_precision.Policy: {"name": ["mixed_float16", "half", "_infer"]},
    experimental.Policy: {
        "name": ["float16"],
        "loss_scale": [
            *("dynamic", None, *NUMBERS),
            experimental.DynamicLossScale(4.0, 7, 3.0),
            experimental.FixedLossScale(4.0),
        ],
    },
    loss_scale.FixedLossScale: {"scale": NUMBERS, "skip_nonfinite": [False]},
    loss_scale.DynamicLossScale: {
        "initial_scale": [*NUMBERS, None],
        "growth_interval": [*COUNTS, None],
        "growth_factor": [4, F32(4), None],
        "backoff_factor": [0.25, F32(0.25), None],
        "minimum": [1, F32(1), None],
        "maximum": [2**20, F32(2**20), None],
        "hysteresis": [2, np.int64(2), None],
        "preset": ["keras", "torch", "jmp", "mpx", "megatron", "apex", "tf", "tf_keras"],
    },
    loss_scale.DelayedScaling: {
        "amax_history_length": COUNTS,
        "margin": [1, np.int64(1)],
        "dtype": ["float8_e5m2", "fp8", np.dtype("float16"), None],
        "amax_algorithm": ["most_recent"],
        "preset": ["keras", "transformer_engine"],
    },
    experimental.FixedLossScale: {"loss_scale_value": NUMBERS},
    experimental.DynamicLossScale: {
        "initial_loss_scale": NUMBERS,
        "increment_period": COUNTS,
        "multiplier": [4, F32(4)],
    },
}
"""Values of each argument that are not the default, or are another way to write it."""


def parameters_of(cls: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a constructor, also where calling the class may make another one."""
    has_own = inspect.isfunction(cls.__init__)
    parameters = inspect.signature(cls.__init__ if has_own else cls).parameters
    left_out = {"self", "kwargs", "unknown"}
    return {name: each for name, each in parameters.items() if name not in left_out}


NEEDED: dict[Any, dict[str, Any]] = {
    cls: {
        name: arguments[name][0]
        for name, parameter in parameters_of(cls).items()
        if parameter.default is parameter.empty and name in arguments
    }
    for cls, arguments in ARGUMENTS.items()
}
CASES = [
    pytest.param(cls, {**NEEDED[cls], name: value}, id=f"{cls.__name__}-{name}-{place}")
    for cls, arguments in ARGUMENTS.items()
    for name, values in arguments.items()
    for place, value in enumerate(values)
] + [
    pytest.param(
        mixed_precision.LossScaleOptimizer,
        {"inner_optimizer": Descent(), "dynamic": False, "initial_scale": scale},
        id=f"a fixed scale-{scale!r}",
    )
    for scale in NUMBERS
]


def classes_with_configs() -> set[type]:
    """All classes of castwise that can be made, and write their arguments."""
    found = set()
    for package in ("autocast", "compat", "dtype_policies", "loss_scale"):
        top = importlib.import_module(f"castwise.{package}")
        inner = pkgutil.walk_packages(top.__path__, f"{top.__name__}.")
        names = [name for _, name, _ in inner if "_around_" not in name]  # which need the original
        for module in (top, *map(importlib.import_module, names)):
            values = [getattr(module, name) for name in {*vars(module), *dir(module)}]
            found |= {v for v in values if isinstance(v, type) and hasattr(v, "get_config")}
    return {
        cls
        for cls in found
        if cls.__module__.startswith("castwise.") and not cls.__name__.startswith("_")
    }


ABSTRACT = {experimental.LossScale}
"""Those whose subclasses write the config."""


def test_all_classes_and_all_of_their_arguments_are_listed() -> None:
    assert classes_with_configs() - ABSTRACT - {castwise._core.PolicyBase} == set(ARGUMENTS)
    for cls, arguments in ARGUMENTS.items():
        named = set(parameters_of(cls))
        if cls is tf_keras.layers.Layer:
            named |= {"autocast", "dialect"}  # which it hands on
        assert named == set(arguments), cls


def again(cls: Any, config: dict[str, Any]) -> Any:
    """Make an object of a config that has been text."""
    loaded = json.loads(json.dumps(config))
    if "inner_optimizer" in loaded:
        return cls.from_config(loaded, {"Descent": Descent})
    return cls.from_config(loaded)


def facts(value: Any) -> dict[str, Any]:
    """What can be read of an object."""
    names = "trainable autocast dialect compute_dtype variable_dtype name match on_overlap"
    numbers = "initial_scale dynamic dynamic_growth_steps"
    found = {
        name: getattr(value, name)
        for name in (*names.split(), *numbers.split(), "amax_history_length", "quantization_mode")
        if hasattr(value, name)
    }
    return found | {"autocast": bool(found.get("autocast"))}


@pytest.mark.parametrize(("cls", "arguments"), CASES)
def test_an_argument_goes_through_json_and_back(cls: Any, arguments: dict[str, Any]) -> None:
    made = cls(**copy.deepcopy(arguments))
    config = made.get_config()
    loaded = again(cls, config)
    assert type(loaded) is cls
    assert json.dumps(loaded.get_config()) == json.dumps(config)
    assert facts(loaded) == facts(made)


@pytest.mark.parametrize("cls", [cls for cls in ARGUMENTS if "Optimizer" not in cls.__name__])
def test_another_key_is_refused_with_the_name_of_the_class(cls: Any) -> None:
    config = {**cls(**NEEDED[cls]).get_config(), "quantize": 1}
    with pytest.raises((TypeError, ValueError), match=f"{cls.__name__}.*'?quantize") as refused:
        cls.from_config(config)
    assert "PolicyBase" not in str(refused.value)
    with pytest.raises((TypeError, ValueError), match="quantize") as refused:
        cls(**NEEDED[cls], quantize=1)
    assert "PolicyBase" not in str(refused.value)


@pytest.mark.parametrize("cls", [autocast.Layer, keras.layers.Layer, tf_keras.layers.Layer])
def test_a_layer_that_does_not_cast_does_not_after_loading(cls: Any) -> None:
    class Keeps(cls):
        def call(self, inputs: Any) -> Any:
            return inputs

    loaded = again(Keeps, Keeps(dtype="mixed_float16", autocast=False).get_config())
    assert loaded(np.ones(2, F32)).dtype == F32
    assert again(Keeps, Keeps(dtype="mixed_float16").get_config())(np.ones(2, F32)).dtype == F16
    other = "tf_keras" if Keeps.dialect == "keras" else "keras"
    assert again(Keeps, Keeps(dialect=other).get_config()).dialect == other
    assert set(Keeps().get_config()) == {"name", "trainable", "dtype"}  # as the original writes


@pytest.mark.parametrize("cls", [autocast.Layer, tf_keras.layers.Layer])
def test_what_keras_writes_as_none_is_taken_and_other_values_are_not(cls: Any) -> None:
    nothing = dict.fromkeys(("activity_regularizer", "kernel_regularizer", "bias_constraint"))
    layer = cls.from_config({**cls(name="dense").get_config(), **nothing})
    assert layer.name == "dense"
    for argument in (*nothing, "unts"):
        value = None if argument == "unts" else "l2"
        with pytest.raises((TypeError, ValueError), match=f"Layer does not take {argument}="):
            cls(**{argument: value})


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_configs_of_real_layers_load_and_ours_load_there(
    framework: Callable[[str], ModuleType], name: str
) -> None:
    original, ours = framework(name), getattr(castwise.compat, name).layers.Layer

    class Dense(ours):  # type: ignore[misc, valid-type]
        def __init__(self, units: int, use_bias: bool = True, **others: Any) -> None:
            made = {key: others.pop(key, None) for key in ("activation", *INITIALIZERS)}
            super().__init__(**others)
            self.units, self.use_bias, self.made = units, use_bias, made

        def get_config(self) -> dict[str, Any]:
            own = {"units": self.units, "use_bias": self.use_bias}
            return {**super().get_config(), **own, **self.made}

    for options in ({}, {"dtype": "mixed_float16", "trainable": False}):
        config = json.loads(json.dumps(original.layers.Dense(3, name="d", **options).get_config()))
        loaded = Dense.from_config(config)
        assert (loaded.units, loaded.name) == (3, "d")
        assert loaded.trainable == config["trainable"]
        back = original.layers.Dense.from_config(json.loads(json.dumps(loaded.get_config())))
        assert back.get_config() == original.layers.Dense.from_config(config).get_config()
    uncast = Dense(3, dtype="mixed_float16", autocast=False)
    uncast.made = {}
    there = original.layers.Dense.from_config(json.loads(json.dumps(uncast.get_config())))
    assert (there.autocast if name == "keras" else there._autocast) is False


INITIALIZERS = ("kernel_initializer", "bias_initializer")


@pytest.mark.parametrize("depth", [400, 5000])
@pytest.mark.parametrize("make", [dict, list])
def test_deep_configs_are_refused_as_others(depth: int, make: Callable[[], Any]) -> None:
    """A config as deep as JSON may be, or deeper, is no policy's, and no RecursionError."""
    deep: Any = make()
    for _ in range(depth):
        deep = {"a": deep} if make is dict else [deep]
    configs = [
        deep,
        {"class_name": deep, "config": {}},
        {"class_name": "DTypePolicy", "registered_name": deep, "config": {}},
        {"class_name": "DTypePolicy", "config": {"name": deep}},
        {"class_name": "DTypePolicyMap", "config": {"default_policy": deep}},
        {"class_name": "DTypePolicyMap", "config": {"policy_map": {"a": deep}}},
    ]
    for config in configs:
        for read in (castwise.dtype_policies.get, castwise.dtype_policies.deserialize):
            with pytest.raises((ValueError, TypeError, KeyError)):
                read(config)
