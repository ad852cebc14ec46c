"""The optimizer that scales the loss, from castwise to tf_keras and back in the midst of training.

Both wrap an optimizer of tf_keras, and only one of them may: the one that is given is not to be
used any more.
"""

from __future__ import annotations

from typing import Any

from castwise.adapters.framework import require
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer

_WRAPPED = "_is_wrapped_by_loss_scale_optimizer"


def to_tf_keras_optimizer(optimizer: LossScaleOptimizer) -> Any:
    """An optimizer of tf_keras around the same inner one, with the scale and counter of today.

    Parameters
    ----------
    optimizer : LossScaleOptimizer of `castwise.compat.tf_keras`
        Around an optimizer of tf_keras. Not to be used any more.

    Returns
    -------
    tf_keras.mixed_precision.LossScaleOptimizer

    Raises
    ------
    TypeError
        It is none, or is around an optimizer of another library.
    ImportError
        tf_keras is not installed.

    """
    original = require("tf_keras").mixed_precision.LossScaleOptimizer
    if not isinstance(optimizer, LossScaleOptimizer):
        raise TypeError(
            f"optimizer={optimizer!r} is no LossScaleOptimizer of castwise.compat.tf_keras"
        )
    inner = optimizer.inner_optimizer
    if not isinstance(inner, _optimizers()):
        raise TypeError(
            f"optimizer={optimizer!r} is around an optimizer of another library, {inner!r}; "
            "tf_keras takes its own"
        )
    setattr(inner, _WRAPPED, False)
    try:
        converted = original(inner, **_options(optimizer))
    finally:
        setattr(inner, _WRAPPED, True)
    if converted.dynamic:
        converted._loss_scale.current_loss_scale.assign(optimizer.loss_scale)
        converted.dynamic_counter.assign(optimizer.dynamic_counter)
    return converted


def from_tf_keras_optimizer(optimizer: Any) -> LossScaleOptimizer:
    """An optimizer of castwise around the same inner one, with the scale and counter of today.

    Parameters
    ----------
    optimizer : tf_keras.mixed_precision.LossScaleOptimizer
        Not to be used any more.

    Returns
    -------
    LossScaleOptimizer of `castwise.compat.tf_keras`

    Raises
    ------
    TypeError
        It is none.
    ImportError
        tf_keras is not installed.

    """
    if not isinstance(optimizer, _optimizers()) or not hasattr(optimizer, "dynamic_growth_steps"):
        raise TypeError(
            f"optimizer={optimizer!r} is no LossScaleOptimizer of tf_keras.mixed_precision"
        )
    inner = optimizer.inner_optimizer
    _forget_wrapper(inner)
    setattr(inner, _WRAPPED, False)
    try:
        converted = LossScaleOptimizer(inner, **_options(optimizer))
    finally:
        setattr(inner, _WRAPPED, True)
    if converted.dynamic:
        converted.load_state_dict(
            {
                "current_loss_scale": float(optimizer.loss_scale),
                "good_steps": int(optimizer.dynamic_counter),
            }
        )
    return converted


def _options(optimizer: Any) -> dict[str, Any]:
    """The arguments, besides the inner optimizer, that make an optimizer like it."""
    return {
        "dynamic": optimizer.dynamic,
        "initial_scale": optimizer.initial_scale,
        "dynamic_growth_steps": optimizer.dynamic_growth_steps,
    }


def _optimizers() -> tuple[Any, ...]:
    """The base classes of optimizers, since TF 2.11 and before."""
    optimizers = require("tf_keras").optimizers
    return optimizers.Optimizer, optimizers.legacy.Optimizer


def _forget_wrapper(inner: Any) -> None:
    """Take out of an optimizer's checkpoints what a LossScaleOptimizer of tf_keras added to them.

    A second one adds it again, and would find the name taken.
    """
    for name in ("loss_scale", "base_optimizer"):
        if inner._self_unconditional_dependency_names.pop(name, None) is not None:
            inner._self_unconditional_checkpoint_dependencies[:] = [
                each
                for each in inner._self_unconditional_checkpoint_dependencies
                if each.name != name
            ]
