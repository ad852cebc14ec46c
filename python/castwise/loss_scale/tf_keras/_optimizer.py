"""TF 2's `LossScaleOptimizer`, around any object with `apply_gradients`."""

from __future__ import annotations

import logging
import math
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from castwise._core import cast, read_array
from castwise.loss_scale._arithmetic import reciprocal, refuse_integers, require_float, times
from castwise.loss_scale._optimizer import ArrayOptimizer, unchanged_on_failure
from castwise.loss_scale._unscaling import all_finite
from castwise.loss_scale.tf_keras._arguments import (
    WRAPPED,
    checked_machine,
    checked_pairs,
    config_arguments,
    is_of_tf_keras,
)

_LOGGER = logging.getLogger("castwise.compat.tf_keras.mixed_precision")

# The attributes that tf_keras' wrappers forward: of legacy optimizers, and of new ones.
_HYPERPARAMETERS = {"beta", "beta_1", "beta_2", "decay", "learning_rate_power", "momentum", "rho"}
_FORWARDED = _HYPERPARAMETERS | {
    *("add_slot", "clipnorm", "clipvalue", "get_slot", "get_slot_names", "get_weights"),
    *("global_clipnorm", "set_weights", "variables", "weights"),
    *("build", "ema_momentum", "finalize_variable_values", "use_ema"),
}

# The methods of optimizers that take a step, or part of one.
_TRAINING = {
    *("aggregate_gradients", "apply", "compute_gradients", "get_gradients", "get_updates"),
    *("minimize", "step", "update_step"),
}


class LossScaleOptimizer(ArrayOptimizer, metaclass=ABCMeta):  # classes of tf_keras are registered
    """Scales the loss, unscales gradients, and leaves out steps that are not finite.

    Around an optimizer of tf_keras, new or legacy, this is a subclass of tf_keras'
    ``LossScaleOptimizer``, for ``compile``, ``tf.function`` and checkpoints. Around any other
    object it computes with numpy, without TensorFlow.

    Parameters
    ----------
    inner_optimizer : object
        With ``apply_gradients(pairs of gradient and variable)``, and ``iterations`` if steps are
        to be counted: a skipped step counts too. Must not be wrapped already.
    dynamic : bool
        False: the scale stays, and every step is applied, whatever its gradients.
    initial_scale : float, optional
        Default 2**15; must be given if not dynamic.
    dynamic_growth_steps : int, optional
        Default 2000; must not be given if not dynamic.

    Raises
    ------
    TypeError
        `inner_optimizer` cannot apply gradients or is a LossScaleOptimizer; `dynamic` is not a
        bool.
    ValueError
        `inner_optimizer` is already wrapped; numbers do not go with `dynamic`.

    """

    __module__ = "castwise.compat.tf_keras.mixed_precision"  # where users find it, and pickles

    def __new__(cls, inner_optimizer: Any = None, *args: Any, **options: Any) -> Any:
        """Choose the class by the inner optimizer, as tf_keras does."""
        if not is_of_tf_keras(inner_optimizer):
            return super().__new__(cls)
        if cls is not LossScaleOptimizer:
            raise TypeError(
                f"inner_optimizer={inner_optimizer!r} is an optimizer of tf_keras, which "
                f"{cls.__name__} cannot wrap; derive it from type(LossScaleOptimizer(...))."
            )
        from castwise.loss_scale.tf_keras._around_tf_keras import wrap  # noqa: PLC0415 imports TensorFlow

        optimizer = wrap(inner_optimizer, *args, **options)
        cls.register(type(optimizer))
        return optimizer

    def __init__(
        self,
        inner_optimizer: Any,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
    ) -> None:
        self._machine = checked_machine(
            inner_optimizer, dynamic, initial_scale, dynamic_growth_steps
        )
        self._is_dynamic = dynamic
        self._optimizer = inner_optimizer
        setattr(inner_optimizer, WRAPPED, True)
        self._is_scaled = self._is_unscaled = False

    @property
    def inner_optimizer(self) -> Any:
        """The optimizer that applies gradients."""
        return self._optimizer

    @property
    def dynamic(self) -> bool:
        """Whether the scale changes."""
        return self._is_dynamic

    @property
    def loss_scale(self) -> np.float32:
        """The number that the loss is multiplied by."""
        return np.float32(self._machine.scale)

    @property
    def dynamic_counter(self) -> int | None:
        """Finite steps since the scale last changed; None if it is fixed."""
        return self._machine.counter if self.dynamic else None

    @property
    def initial_scale(self) -> float:
        """The scale at the first step."""
        return self._machine.initial_scale

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Finite steps after which the scale doubles; None if it is fixed."""
        return self._machine.growth_interval if self.dynamic else None

    lr = ArrayOptimizer.learning_rate

    @property
    def iterations(self) -> Any:
        """The inner optimizer's count, with skipped steps."""
        return self._optimizer.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        self._optimizer.iterations = value

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner optimizer, if tf_keras' wrapper forwards its name."""
        if name in _FORWARDED:
            return getattr(self._optimizer, name)
        if name.lstrip("_") in _TRAINING:
            raise AttributeError(
                f"{name} is not forwarded to inner_optimizer, which would train without the loss "
                "scale; use get_scaled_loss, get_unscaled_gradients and apply_gradients."
            )
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}, and does not forward it to "
            f"inner_optimizer; use inner_optimizer.{name}."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a forwarded attribute on the inner optimizer, if that has it."""
        if name in _FORWARDED and hasattr(self._optimizer, name):
            setattr(self._optimizer, name, value)
        else:
            super().__setattr__(name, value)

    def get_scaled_loss(self, loss: Any) -> Any:
        """Multiply a loss by the scale in the loss' own dtype; wrap a callable of a loss.

        Raises
        ------
        TypeError
            The loss has no dtype.

        """
        if callable(loss):
            product: Any = _is_scaled(loss, lambda: self.loss_scale)
        else:
            product = _in_its_dtype(loss, self.loss_scale)
        self._is_scaled = True
        return product

    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """Multiply gradients by the scale's float32 reciprocal in their own dtypes; keep None.

        Raises
        ------
        TypeError
            `grads` is not iterable, or a gradient does not hold floats.

        """
        if not isinstance(grads, Iterable) or isinstance(grads, str | Mapping):
            raise TypeError(f"grads={grads!r} is not valid; give a list of gradients.")
        self._is_unscaled = True
        inverse = reciprocal(self.loss_scale)
        results: list[Any] = []
        for index, grad in enumerate(grads):
            if grad is None:
                results.append(None)
                continue
            array = read_array(f"grads[{index}]", grad)
            refuse_integers(f"grads[{index}]", array)
            require_float(f"grads[{index}]", array.dtype)
            with np.errstate(all="ignore"):
                factor = inverse.astype(array.dtype)
            # castwise takes no factor that is 0 or infinite, and half of numpy's time for others.
            is_accepted = math.isfinite(factor) and factor != 0
            results.append(
                cast(array, array.dtype, scale=float(factor))
                if is_accepted
                else np.asarray(times(array, factor))
            )
        return results

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], **options: Any) -> None:
        """Apply the (unscaled) gradients, unless one is not finite; then update the scale.

        If the inner optimizer raises, the scale, the counters and arrays are unchanged.

        Raises
        ------
        ValueError
            There is no gradient, or the argument does not consist of pairs.
        TypeError
            The scale is dynamic, and a gradient holds integers.

        """
        calls = {"get_scaled_loss": self._is_scaled, "get_unscaled_gradients": self._is_unscaled}
        if missing := [name for name, was_called in calls.items() if not was_called]:
            _LOGGER.warning("apply_gradients was called without %s", " and ".join(missing))
        pairs = [pair for pair in checked_pairs(grads_and_vars) if pair[0] is not None]
        if not pairs:
            raise ValueError("grads_and_vars holds no gradient; give at least one.")
        grads = [grad for grad, _ in pairs]
        if self.dynamic:
            refuse_integers("grads_and_vars", grads)
        with unchanged_on_failure([self._optimizer], _iterations, _restore_iterations):
            applies = self._take_step(
                not self.dynamic or all_finite(grads),
                lambda: self._optimizer.apply_gradients(pairs, **options),
                [variable for _, variable in pairs],
            )
        if not applies and hasattr(self._optimizer, "iterations"):
            self._count_skipped()

    def _count_skipped(self) -> None:
        if hasattr(self._optimizer.iterations, "assign_add"):  # a variable
            self._optimizer.iterations.assign_add(1)
        else:
            self._optimizer.iterations += 1

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` takes."""
        return {
            "inner_optimizer": self._inner_config(),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    _read_config = staticmethod(config_arguments)


def _iterations(optimizer: Any) -> Any:
    return getattr(optimizer, "iterations", None)


def _restore_iterations(optimizer: Any, iterations: Any) -> None:
    if _iterations(optimizer) is not iterations:
        optimizer.iterations = iterations


def _is_scaled(loss: Callable[[], Any], scale: Callable[[], np.float32]) -> Callable[[], Any]:
    return lambda: _in_its_dtype(loss(), scale())


def _in_its_dtype(loss: Any, scale: np.float32) -> Any:
    if not hasattr(loss, "dtype"):
        raise TypeError(f"loss={loss!r} has no dtype; give an array, as numpy.float32(3.0).")
    with np.errstate(over="ignore", invalid="ignore"):
        factor = scale.astype(loss.dtype)
    return times(loss, factor)
