"""Convert optimizers that scale the loss, from castwise to tf_keras and back, during training.

Both wrap the same optimizer of tf_keras, so that the given one must not be used afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer
from castwise.environment.frameworks import require
from castwise.loss_scale.tf_keras._arguments import WRAPPED, is_of_tf_keras


def to_tf_keras_optimizer(optimizer: LossScaleOptimizer) -> Any:
    """Return tf_keras' wrapper of the same inner optimizer, with the same scale and counter.

    Parameters
    ----------
    optimizer : LossScaleOptimizer of `castwise.compat.tf_keras`
        Around an optimizer of tf_keras. It must not be used afterwards.

    Returns
    -------
    tf_keras.mixed_precision.LossScaleOptimizer

    Raises
    ------
    TypeError
        `optimizer` is another object, or is around an optimizer of another library.
    ImportError
        tf_keras is not installed.

    Examples
    --------
    >>> import tf_keras
    >>> from castwise.adapters.tf_keras import to_tf_keras_optimizer
    >>> from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer
    >>> optimizer = LossScaleOptimizer(tf_keras.optimizers.SGD(), initial_scale=64)
    >>> float(to_tf_keras_optimizer(optimizer).loss_scale)
    64.0

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
    return _move(optimizer, original)


def from_tf_keras_optimizer(optimizer: Any) -> LossScaleOptimizer:
    """Return castwise's wrapper of the same inner optimizer, with the same scale and counter.

    Parameters
    ----------
    optimizer : tf_keras.mixed_precision.LossScaleOptimizer
        It must not be used afterwards. One of castwise is returned as it is.

    Returns
    -------
    LossScaleOptimizer of `castwise.compat.tf_keras`
        An optimizer of tf_keras too, for ``compile``, ``tf.function`` and checkpoints.

    Raises
    ------
    TypeError
        `optimizer` is another object.
    ImportError
        tf_keras is not installed.

    Examples
    --------
    >>> import tf_keras
    >>> from castwise.adapters.tf_keras import from_tf_keras_optimizer
    >>> sgd = tf_keras.optimizers.SGD()
    >>> optimizer = tf_keras.mixed_precision.LossScaleOptimizer(sgd, initial_scale=64)
    >>> float(from_tf_keras_optimizer(optimizer).loss_scale)
    64.0

    """
    if isinstance(optimizer, LossScaleOptimizer):
        return optimizer
    if not is_of_tf_keras(optimizer) or not hasattr(optimizer, "dynamic_growth_steps"):
        raise TypeError(
            f"optimizer={optimizer!r} is not a LossScaleOptimizer of tf_keras.mixed_precision; "
            "give one, or wrap an optimizer in LossScaleOptimizer of castwise.compat.tf_keras."
        )
    wrapper: LossScaleOptimizer = _move(optimizer, LossScaleOptimizer)
    return wrapper


def _move(optimizer: Any, make: Callable[..., Any]) -> Any:
    """Make another wrapper of the same inner optimizer, by `make`, in the same state."""
    inner = optimizer.inner_optimizer
    _forget_wrapper(inner)
    setattr(inner, WRAPPED, False)
    try:
        wrapper = make(
            inner, optimizer.dynamic, optimizer.initial_scale, optimizer.dynamic_growth_steps
        )
    finally:
        setattr(inner, WRAPPED, True)
    if wrapper.dynamic:
        wrapper._loss_scale.current_loss_scale.assign(optimizer.loss_scale)
        wrapper.dynamic_counter.assign(optimizer.dynamic_counter)
    return wrapper


def _forget_wrapper(inner: Any) -> None:
    """Remove from an optimizer's checkpoints what a LossScaleOptimizer of tf_keras added."""
    # A second wrapper adds it again under the same name.
    for name in ("loss_scale", "base_optimizer"):
        if inner._self_unconditional_dependency_names.pop(name, None) is not None:
            inner._self_unconditional_checkpoint_dependencies[:] = [
                dependency
                for dependency in inner._self_unconditional_checkpoint_dependencies
                if dependency.name != name
            ]
