"""The optimizer that scales the loss, from castwise to tf_keras and back in the midst of training.

Both wrap an optimizer of tf_keras, and only one of them may: the one that is given is not to be
used any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from castwise._frameworks import require
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer
from castwise.compat.tf_keras.mixed_precision._optimizer_arguments import (
    WRAPPED,
    is_of_tf_keras,
)


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
        It is not one, or is around an optimizer of another library.
    ImportError
        tf_keras is not installed.

    """
    original = require("tf_keras").mixed_precision.LossScaleOptimizer
    if not isinstance(optimizer, LossScaleOptimizer):
        raise TypeError(
            f"optimizer={optimizer!r} is not a LossScaleOptimizer of castwise.compat.tf_keras; "
            "give one."
        )
    inner = optimizer.inner_optimizer
    if not is_of_tf_keras(inner):
        raise TypeError(
            f"optimizer={optimizer!r} is around an optimizer of another library, {inner!r}; "
            "tf_keras takes its own"
        )
    return _moved(optimizer, original)


def from_tf_keras_optimizer(optimizer: Any) -> LossScaleOptimizer:
    """An optimizer of castwise around the same inner one, with the scale and counter of today.

    Parameters
    ----------
    optimizer : tf_keras.mixed_precision.LossScaleOptimizer
        Not to be used any more. One of castwise is returned as it is.

    Returns
    -------
    LossScaleOptimizer of `castwise.compat.tf_keras`
        An optimizer of tf_keras too, for ``compile``, ``tf.function`` and checkpoints.

    Raises
    ------
    TypeError
        It is not one.
    ImportError
        tf_keras is not installed.

    """
    if isinstance(optimizer, LossScaleOptimizer):
        return optimizer
    if not is_of_tf_keras(optimizer) or not hasattr(optimizer, "dynamic_growth_steps"):
        raise TypeError(
            f"optimizer={optimizer!r} is not a LossScaleOptimizer of tf_keras.mixed_precision; "
            "give one, or wrap an optimizer in LossScaleOptimizer of castwise.compat.tf_keras."
        )
    moved: LossScaleOptimizer = _moved(optimizer, LossScaleOptimizer)
    return moved


def _moved(optimizer: Any, make: Callable[..., Any]) -> Any:
    """Make another wrapper of the same inner optimizer, in the same state, by `make`."""
    inner = optimizer.inner_optimizer
    _forget_wrapper(inner)
    setattr(inner, WRAPPED, False)
    try:
        moved = make(
            inner, optimizer.dynamic, optimizer.initial_scale, optimizer.dynamic_growth_steps
        )
    finally:
        setattr(inner, WRAPPED, True)
    if moved.dynamic:
        moved._loss_scale.current_loss_scale.assign(optimizer.loss_scale)
        moved.dynamic_counter.assign(optimizer.dynamic_counter)
    return moved


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
