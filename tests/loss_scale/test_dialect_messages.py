"""Errors of each dialect name the dialect's own arguments, and the values that were given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from castwise.compat import jmp, torch
from castwise.compat.keras.mixed_precision import LossScaleOptimizer as KerasOptimizer
from castwise.compat.tf_keras.mixed_precision import (
    LossScaleOptimizer as TFOptimizer,
)
from castwise.compat.tf_keras.mixed_precision import experimental as tf24
from castwise.compat.tf_keras.mixed_precision import loss_scale as tf24_scales
from castwise.text.wording import rename_arguments
from optimizers import SGD

CORE = {
    *("initial_scale", "growth_interval", "growth_factor", "backoff_factor", "minimum", "maximum"),
    *("hysteresis", "preset", "on_true", "on_false"),
}
"""Names of castwise's own loss scales and casts, which are foreign to a dialect without them."""

OWN = {
    "jmp": set(),
    "tf24": set(),
    "torch": {"growth_interval", "growth_factor", "backoff_factor"},
    "keras": {"initial_scale"},
    "tf_keras": {"initial_scale"},
}

SCALE = np.float32(8)
TEXTS: list[Any] = ["x", None, 1j, [], {}]


def stepped(**numbers: Any) -> Any:
    return jmp.DynamicLossScale(**{"loss_scale": SCALE, **numbers}).adjust(True)


def scaler(**numbers: Any) -> torch.GradScaler:
    made = torch.GradScaler(**numbers)
    made.scale(SCALE)
    return made


def state(**changed: Any) -> dict[str, Any]:
    return {**torch.GradScaler().state_dict(), **changed}


def tf24_state(**changed: Any) -> dict[str, Any]:
    return {**tf24.DynamicLossScale().state_dict(), **changed}


def keras(**numbers: Any) -> KerasOptimizer:
    return KerasOptimizer(SGD(), **numbers)


def tf_keras(**numbers: Any) -> TFOptimizer:
    return TFOptimizer(SGD(), **numbers)


AXES = [np.ones(2, np.float32), [2.0]]
CALLS: dict[str, list[tuple[Callable[..., Any], str, list[Any]]]] = {
    "jmp": [
        *(
            (stepped, name, [*TEXTS, *AXES, b"2", 2**70])
            for name in ("loss_scale", "counter", "period", "factor", "min_loss_scale")
        ),
        (jmp.StaticLossScale, "loss_scale", [*TEXTS[:3], {}, b"2"]),
        (jmp.DynamicLossScale(SCALE).adjust, "grads_finite", [*TEXTS, 1.5, np.ones(1, bool)]),
        (lambda pred: jmp.select_tree(pred, 1, 2), "pred", [*TEXTS, 1, np.ones(1, bool)]),
        (jmp.get_policy, "policy_name", ["abc", "q=f32", "p=abc", "p", "", 5, None, ["f16"]]),
        *(
            (lambda n=name, **given: jmp.Policy(**{**POLICY, **given}), name, ["abc", 5, None])
            for name in ("param_dtype", "compute_dtype", "output_dtype")
        ),
        (jmp.get_policy("f32").with_output_dtype, "output_dtype", ["abc", 5, None]),
    ],
    "tf24": [
        (tf24.FixedLossScale, "loss_scale_value", [*TEXTS, "8", 0, 0.5, math.nan, 1e300]),
        (tf24.DynamicLossScale, "initial_loss_scale", [*TEXTS, 1e300, math.nan, 10**400]),
        (tf24.DynamicLossScale, "increment_period", [*TEXTS, 2**70, math.inf, math.nan]),
        (tf24.DynamicLossScale, "multiplier", [*TEXTS, 1e300, math.nan]),
        (tf24_scales.get, "identifier", ["x", [], 1j, 0.5, 0, math.nan]),
        (tf24_scales.deserialize, "config", ["x", 5, [], {}]),
        (tf24.DynamicLossScale().load_state_dict, "state", ["x", 5, None, {}, {"a": 1}]),
        (
            lambda **given: tf24.DynamicLossScale().load_state_dict(tf24_state(**given)),
            "current_loss_scale",
            [*TEXTS],
        ),
        (
            lambda **given: tf24.DynamicLossScale().load_state_dict(tf24_state(**given)),
            "good_steps",
            [*TEXTS, 2.5, 2**70],
        ),
        (tf24.Policy, "name", ["abc", "", 5, None, []]),
        (lambda **given: tf24.Policy("float16", **given), "loss_scale", ["x", [], 0.5, 0, {}]),
        (tf24.Policy.from_config, "config", ["x", 5, None]),
        (tf24.set_policy, "policy", ["abc", 5, ["x"]]),
        (tf24.get_layer_policy, "layer", ["abc", 5, None]),
    ],
    "torch": [
        (torch.GradScaler, "init_scale", [*TEXTS, True, b"2"]),
        (torch.GradScaler, "growth_factor", [*TEXTS, True, 1.0, 0.5, -2.0]),
        (torch.GradScaler, "backoff_factor", [*TEXTS, True, 1.0, 2.0]),
        (torch.GradScaler, "growth_interval", [*TEXTS, True, 2.5, 2**70]),
        (scaler().set_growth_factor, "new_factor", [*TEXTS, True]),
        (scaler().set_backoff_factor, "new_factor", [*TEXTS, True]),
        (scaler().set_growth_interval, "new_interval", [*TEXTS, True, 2.5, 2**70]),
        (scaler().update, "new_scale", ["x", 1j, [], {}, True, np.ones(2)]),
        (scaler().scale, "outputs", ["x", 5, None, 1j]),
        (scaler().unscale_, "optimizer", [5, None, "x"]),
        (scaler().step, "optimizer", [5, None, "x"]),
        (scaler().load_state_dict, "state_dict", ["x", 5, None, {"scale": 1.0}, {}]),
        *(
            (lambda **given: scaler().load_state_dict(state(**given)), name, [*TEXTS])
            for name in state()
        ),
    ],
    "keras": [
        (keras, "initial_scale", [*TEXTS, 0, -1.0, math.inf, math.nan, 1e300]),
        (keras, "dynamic_growth_steps", [*TEXTS, 2.5, 0, -1, 2**70]),
        (keras().load_state_dict, "state", ["x", 5, None, {}, {"a": 1}]),
        (KerasOptimizer, "inner_optimizer", [3, None, "x"]),
    ],
    "tf_keras": [
        (tf_keras, "initial_scale", ["x", 1j, [], {}]),
        (tf_keras, "dynamic_growth_steps", ["x", 1j, [], {}, math.inf, 2**70]),
        (tf_keras().load_state_dict, "state", [{}, {"a": 1}]),
        (tf_keras, "dynamic", ["x", None, 1]),
        (TFOptimizer, "inner_optimizer", [3, None, "x"]),
        (tf_keras().get_scaled_loss, "loss", [3.0, 3, True, None, [3.0], "x"]),
        (tf_keras().get_unscaled_gradients, "grads", [3.0, None, "x", {"a": 1.0}]),
    ],
}
POLICY = dict.fromkeys(("param_dtype", "compute_dtype", "output_dtype"), "float32")


@pytest.mark.parametrize(
    ("dialect", "call", "argument", "values"),
    [
        pytest.param(dialect, call, argument, values, id=f"{dialect}-{argument}")
        for dialect, calls in CALLS.items()
        for call, argument, values in calls
    ],
)
def test_errors_name_what_the_caller_wrote(
    dialect: str, call: Any, argument: str, values: list[Any]
) -> None:
    errors = (TypeError, ValueError, AssertionError, KeyError, RuntimeError, AttributeError)
    for value in values:
        with pytest.raises(errors) as got:
            call(**{argument: value})
        text = str(got.value)
        assert re.search(rf"\b{argument}\b", text), f"{value!r}: {text}"
        shown = [repr(value), str(value), f'"{value}"', str(type(value))]
        if isinstance(value, dict):  # of a state or a config, whose keys say more
            shown += [*map(repr, value), "lacks", "empty"]
        assert any(each in text for each in shown), f"{value!r}: {text}"
        words = set(re.findall(r"\w+", text.replace(repr(value), "")))
        assert not words & (CORE - OWN[dialect]), text
        of_another = ("dtype=", "policy=", "name=", "config=")
        assert not text.startswith(of_another) or argument in text[:10]


def test_trees_of_different_structure() -> None:
    for b, error in (({"y": np.ones(1)}, ValueError), ({"x": np.ones(2)}, TypeError)):
        with pytest.raises(error, match=r"^a and b differ"):
            jmp.select_tree(np.True_, {"x": np.ones(1)}, b)


def test_only_the_argument_at_the_beginning_is_renamed() -> None:
    with (
        pytest.raises(ValueError, match=r"^period='minimum=growth_interval='; use minimum=1\.$"),
        rename_arguments(growth_interval="period", minimum="least"),
    ):
        raise ValueError("growth_interval='minimum=growth_interval='; use minimum=1.")
    with pytest.raises(UnicodeDecodeError), rename_arguments(dtype="policy_name"):
        b"\xff".decode()
    with (
        pytest.raises(KeyError, match="growth_interval=1"),
        rename_arguments(growth_interval="period"),
    ):
        raise KeyError("growth_interval=1")
