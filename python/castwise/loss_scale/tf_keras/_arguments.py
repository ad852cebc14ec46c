"""Check the arguments and configs of TF 2's `LossScaleOptimizer`."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from castwise._core import DynamicLossScale
from castwise.dtype_policies._keras_objects import from_dictionary
from castwise.environment.frameworks import require
from castwise.loss_scale._arithmetic import number
from castwise.loss_scale._optimizer import inner_config
from castwise.loss_scale.tf_keras._loss_scales import FixedLossScale, deserialize
from castwise.text.wording import rename_arguments

# The attribute that is True on a wrapped optimizer, also by tf_keras: only one may wrap it.
WRAPPED = "_is_wrapped_by_loss_scale_optimizer"


def is_of_tf_keras(optimizer: Any) -> bool:
    """Tell whether an optimizer is one of tf_keras, new or legacy, without importing tf_keras."""
    tf_keras = sys.modules.get("tf_keras")
    if tf_keras is None:
        return False
    optimizers = tf_keras.optimizers
    return isinstance(optimizer, optimizers.Optimizer | optimizers.legacy.Optimizer)


def checked_machine(
    inner_optimizer: Any, dynamic: Any, initial_scale: Any, dynamic_growth_steps: Any
) -> DynamicLossScale:
    """Make the loss scale that `LossScaleOptimizer` starts with; raise what it raises."""
    scales = hasattr(type(inner_optimizer), "get_unscaled_gradients")
    if scales or not callable(getattr(inner_optimizer, "apply_gradients", None)):
        raise TypeError(
            f"inner_optimizer={inner_optimizer!r} is not valid; give an object with "
            "apply_gradients that is not a LossScaleOptimizer."
        )
    if not isinstance(dynamic, bool):
        raise TypeError(f"dynamic={dynamic!r} must be a bool; use True or False.")
    if getattr(inner_optimizer, WRAPPED, False):
        raise ValueError("inner_optimizer is wrapped by a LossScaleOptimizer already.")
    if not dynamic and initial_scale is None:
        raise ValueError("initial_scale=None is not valid if dynamic=False; give a number.")
    if not dynamic and dynamic_growth_steps is not None:
        raise ValueError(
            f"dynamic_growth_steps={dynamic_growth_steps!r} must be None if dynamic=False."
        )
    initial = number("initial_scale", 2.0**15 if initial_scale is None else initial_scale)
    steps = 2000 if dynamic_growth_steps is None else dynamic_growth_steps
    steps = number("dynamic_growth_steps", steps, int)
    # TensorFlow counts steps in an int64.
    if not -(2**63) <= steps < 2**63:
        raise ValueError(f"dynamic_growth_steps={steps!r} is not valid; use an int of 64 bits.")
    with rename_arguments(growth_interval="dynamic_growth_steps"):
        return DynamicLossScale(initial, steps, preset="tf_keras")


def checked_pairs(grads_and_vars: Iterable[Any]) -> list[tuple[Any, Any]]:
    remedy = "is not valid; give pairs of a gradient and its variable."
    if not isinstance(grads_and_vars, Iterable):
        raise TypeError(f"grads_and_vars={grads_and_vars!r} {remedy}")
    pairs = []
    for index, item in enumerate(grads_and_vars):
        if not isinstance(item, Iterable):
            raise TypeError(f"grads_and_vars[{index}]={item!r} {remedy}")
        pair = tuple(item)
        if len(pair) != 2:  # noqa: PLR2004
            raise ValueError(f"grads_and_vars[{index}]={pair!r} {remedy}")
        pairs.append(pair)
    return pairs


def config_arguments(
    config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Make the arguments of `LossScaleOptimizer`, with the inner optimizer, from a config."""
    arguments = dict(config)
    if "loss_scale" in arguments:
        arguments["inner_optimizer"] = inner_config(arguments, "optimizer")
        arguments.update(_from_loss_scale(arguments.pop("loss_scale")))
    inner = inner_config(arguments)
    if isinstance(inner, Mapping):
        inner = _optimizer(inner, custom_objects or {})
    return {"inner_optimizer": inner, **arguments}


def _optimizer(config: Mapping[str, Any], custom_objects: Mapping[str, Any]) -> Any:
    """Make the optimizer, of tf_keras or of one's own, that a dictionary describes."""
    name, module = config.get("class_name"), config.get("module", "keras")
    of_tf_keras = str(module).partition(".")[0] in ("keras", "tf_keras")
    if name is None or name in custom_objects or not of_tf_keras:
        # A config never causes an import.
        inner_class = getattr(sys.modules.get(str(module)), str(name), None)
        classes = {str(name): inner_class} if hasattr(inner_class, "apply_gradients") else {}
        return from_dictionary(config, {} if of_tf_keras else classes, custom_objects)
    return _deserialize(config, custom_objects)


def _deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any]) -> Any:
    """Make the optimizer of tf_keras, legacy or new, that a dictionary of any release describes."""
    optimizers = require("tf_keras").optimizers
    # `deserialize` changes its argument.
    item = {**config, "config": dict(config.get("config") or {})}
    return optimizers.deserialize(
        item,
        custom_objects=dict(custom_objects),
        use_legacy_format="module" not in config,
        use_legacy_optimizer="legacy" in str(config.get("module", "legacy")),
    )


def _from_loss_scale(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the config of TF 2.3's loss scale to arguments."""
    with rename_arguments(config="loss_scale"):
        loss_scale = deserialize(config)
    if isinstance(loss_scale, FixedLossScale):
        return {"dynamic": False, "initial_scale": loss_scale.get_config()["loss_scale_value"]}
    numbers = loss_scale.get_config()
    if numbers["multiplier"] != 2:  # noqa: PLR2004
        raise ValueError(
            f"loss_scale={dict(config)!r} is not valid; only a FixedLossScale, or a "
            "DynamicLossScale whose multiplier is 2, can be loaded."
        )
    return {
        "dynamic": True,
        "initial_scale": numbers["initial_loss_scale"],
        "dynamic_growth_steps": numbers["increment_period"],
    }
