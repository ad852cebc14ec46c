"""Check the arguments, gradients and configs of `LossScaleOptimizer`."""

import copy
import importlib
import math
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from castwise._core import DynamicLossScale
from castwise.dtype_policies._keras_objects import from_dictionary
from castwise.loss_scale._arithmetic import number
from castwise.loss_scale._optimizer import inner_config
from castwise.text.wording import rename_arguments

# Arguments of older configs, each with the only value that is accepted.
ONLY_DEFAULTS: dict[str, Any] = {
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}


def is_of_keras(inner_optimizer: Any) -> bool:
    """Tell whether an optimizer is one of Keras 3, without importing Keras."""
    return any(
        base.__name__ == "Optimizer" and base.__module__.startswith("keras.")
        for base in type(inner_optimizer).__mro__
    )


def check(
    inner_optimizer: Any, initial_scale: Any, dynamic_growth_steps: Any, options: dict[str, Any]
) -> None:
    """Refuse arguments of `LossScaleOptimizer`, as its docstring says."""
    if not (dynamic := options.pop("dynamic", True)):
        raise ValueError(
            f"dynamic={dynamic!r} is not valid; leave it out, or set `loss_scale_factor` on "
            "the inner optimizer."
        )
    for argument, value in options.items():
        if argument not in ONLY_DEFAULTS or value != ONLY_DEFAULTS[argument]:
            raise ValueError(f"{argument}={value!r} is not valid; set it on the inner optimizer.")
    if not _is_optimizer(inner_optimizer):
        raise TypeError(
            f"inner_optimizer={inner_optimizer!r} is not valid; give an object with apply or "
            "apply_gradients."
        )
    _check_numbers(initial_scale, dynamic_growth_steps)


def _is_optimizer(value: Any) -> bool:
    return any(hasattr(value, method) for method in ("apply", "apply_gradients"))


def _check_numbers(initial_scale: Any, dynamic_growth_steps: Any) -> None:
    if isinstance(initial_scale, str):
        raise ValueError(  # noqa: TRY004 - what Keras raises
            f"initial_scale={initial_scale!r} is not valid; use a number, as 32768.0."
        )
    with np.errstate(over="ignore"):
        float32_scale = np.float32(number("initial_scale", initial_scale))
    if not 0 < float32_scale < math.inf:
        raise ValueError(
            f"initial_scale={initial_scale!r} is not valid; use a positive finite number that a "
            "float32 holds."
        )
    try:
        steps = operator.index(dynamic_growth_steps)
    except TypeError:
        raise TypeError(
            f"dynamic_growth_steps={dynamic_growth_steps!r} is not valid; use an int of 1 or more."
        ) from None
    if steps < 1:
        raise ValueError(
            f"dynamic_growth_steps={dynamic_growth_steps!r} is not valid; use 1 or more."
        )


def machine(initial_scale: Any, dynamic_growth_steps: Any) -> DynamicLossScale:
    """Return the loss scale of an optimizer with these arguments, before the first step."""
    with rename_arguments(growth_interval="dynamic_growth_steps"):
        return DynamicLossScale(initial_scale, dynamic_growth_steps, preset="keras")


def check_number(grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Raise ValueError unless there are as many gradients as variables."""
    if len(grads) != len(variables):
        raise ValueError(
            f"grads has {len(grads)} gradients and trainable_variables {len(variables)} "
            "variables; give one gradient, or None, for each variable."
        )


def are_divided(grads: Sequence[Any], variables: Sequence[Any]) -> list[bool]:
    """Tell of each gradient whether it is divided by the scale, and not passed on as it is."""
    return [
        grad is not None and not getattr(variable, "overwrite_with_gradient", False)
        for grad, variable in zip(grads, variables, strict=True)
    ]


def check_variable_list(values: Sequence[Any], variable_list: Sequence[Any]) -> None:
    """Raise ValueError unless values have the number and the shapes of variables."""
    shapes, expected_shapes = [
        [tuple(np.shape(value)) for value in side] for side in (values, variable_list)
    ]
    if shapes != expected_shapes:
        raise ValueError(
            f"{len(shapes)} values of the shapes {shapes} are given for the {len(expected_shapes)} "
            f"variables of the optimizer, {expected_shapes}; give one for each of `variables`, in "
            "order."
        )


def from_config(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None) -> Any:
    """Make the arguments of `LossScaleOptimizer`, with the inner optimizer, from a config."""
    rest = dict(config)
    inner = inner_config(rest)
    if isinstance(inner, Mapping):
        inner = _inner_from_config(inner, custom_objects)
    return {"inner_optimizer": inner, **rest}


def _inner_from_config(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None) -> Any:
    """Make the inner optimizer of a config, which is not changed."""
    # Keras makes its own and registered ones. Other classes are searched in `custom_objects`, then
    # in their module, if that is already imported; a config imports nothing but Keras.
    custom = dict(custom_objects or {})
    name, module = config.get("class_name"), config.get("module") or "__main__"
    registered_name = config.get("registered_name")
    of_keras = module.partition(".")[0] == "keras"
    keras: Any = importlib.import_module("keras") if of_keras else sys.modules.get("keras")
    if of_keras or (
        keras and registered_name and keras.saving.get_registered_object(registered_name)
    ):
        return keras.saving.deserialize_keras_object(copy.deepcopy(dict(config)), custom)
    inner_class = getattr(sys.modules.get(module), str(name), None)
    if (
        isinstance(inner_class, type)
        and _is_optimizer(inner_class)
        and registered_name not in custom
    ):
        custom.setdefault(str(name), inner_class)
    return from_dictionary(config, {}, custom)
