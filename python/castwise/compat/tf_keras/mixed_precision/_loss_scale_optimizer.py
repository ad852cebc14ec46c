"""TF 2's `LossScaleOptimizer`, around any object with `apply_gradients`."""

from __future__ import annotations

import logging
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from castwise._core import cast
from castwise._keras_objects import to_dictionary
from castwise.compat import _scaling as scaling
from castwise.compat.tf_keras.mixed_precision._optimizer_arguments import (
    WRAPPED,
    checked_machine,
    checked_pairs,
    config_arguments,
    is_of_tf_keras,
    refuse_state,
)
from castwise.loss_scale._unscaling import all_finite, unscale_as_originals

_LOGGER = logging.getLogger(__name__)

_HYPERPARAMETERS = {"beta", "beta_1", "beta_2", "decay", "learning_rate_power", "momentum", "rho"}
_FORWARDED = _HYPERPARAMETERS | {
    *("add_slot", "clipnorm", "clipvalue", "get_slot", "get_slot_names", "get_weights"),
    *("global_clipnorm", "set_weights", "variables", "weights"),
    *("build", "ema_momentum", "finalize_variable_values", "use_ema"),
}
"""What either wrapper of tf_keras forwards: around legacy optimizers, and around new ones."""

_TRAINING = {
    *("aggregate_gradients", "apply", "compute_gradients", "get_gradients", "get_updates"),
    *("minimize", "step", "update_step"),
}
"""What takes a step, or part of one, in optimizers of any library."""


class LossScaleOptimizer(metaclass=ABCMeta):  # noqa: B024 for classes that are registered
    """Scales the loss, unscales gradients, and leaves out steps that are not finite.

    Around an optimizer of tf_keras, new or legacy, the object that is made is an optimizer of
    tf_keras too, for ``compile``, ``tf.function`` and checkpoints: a subclass of its
    ``LossScaleOptimizer``. Around any other it computes with numpy, without TensorFlow.

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
        `inner_optimizer` is wrapped already; the wrong numbers for `dynamic`.

    """

    def __new__(cls, inner_optimizer: Any = None, *args: Any, **options: Any) -> Any:
        """Choose the class by the inner optimizer, as tf_keras does."""
        if not is_of_tf_keras(inner_optimizer):
            return super().__new__(cls)
        if cls is not LossScaleOptimizer:
            raise TypeError(
                f"inner_optimizer={inner_optimizer!r} is an optimizer of tf_keras, which "
                f"{cls.__name__} cannot wrap; derive it from type(LossScaleOptimizer(...))."
            )
        from castwise.compat.tf_keras.mixed_precision._around_tf_keras import wrap  # noqa: PLC0415 imports TensorFlow

        made = wrap(inner_optimizer, *args, **options)
        cls.register(type(made))
        return made

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
        self._fixed = None if dynamic else self._machine.initial_scale
        self._optimizer = inner_optimizer
        setattr(inner_optimizer, WRAPPED, True)
        self._scaled = self._unscaled = False

    @property
    def inner_optimizer(self) -> Any:
        """The optimizer that applies gradients."""
        return self._optimizer

    @property
    def dynamic(self) -> bool:
        """Whether the scale changes."""
        return self._fixed is None

    @property
    def loss_scale(self) -> np.float32:
        """What the loss is multiplied by."""
        return np.float32(self._machine.scale if self._fixed is None else self._fixed)

    @property
    def dynamic_counter(self) -> int | None:
        """Finite steps since the scale last changed; None if it never does."""
        return self._machine.counter if self.dynamic else None

    @property
    def initial_scale(self) -> float:
        """The scale at the first step."""
        return self._machine.initial_scale if self._fixed is None else self._fixed

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Finite steps after which the scale doubles; None if it never does."""
        return self._machine.growth_interval if self.dynamic else None

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's; `lr` is another name of it."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._optimizer.learning_rate = value

    lr = learning_rate

    @property
    def iterations(self) -> Any:
        """The inner optimizer's; skipped steps count."""
        return self._optimizer.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        self._optimizer.iterations = value

    def __getattr__(self, name: str) -> Any:
        """The inner optimizer's, for the names that a wrapper of tf_keras forwards."""
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
        """The loss times the scale, in the loss' own dtype; of a callable, a callable."""
        self._scaled = True
        if callable(loss):
            return _scaled(loss, lambda: self.loss_scale)
        return _in_its_dtype(loss, self.loss_scale)

    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """The gradients times the scale's float32 reciprocal, each in its own dtype; None stays."""
        self._unscaled = True
        grads = list(grads)
        reciprocal = scaling.reciprocal(self.loss_scale)
        results: list[Any] = [None] * len(grads)
        fused = []
        for index, grad in enumerate(grads):
            if grad is None:
                continue
            array = np.asarray(grad)
            scaling.refuse_integers(f"grads[{index}]", array)
            with np.errstate(all="ignore"):
                factor = float(own := reciprocal.astype(array.dtype))
            if not (np.isfinite(factor) and factor):
                results[index] = np.asarray(scaling.times(array, own))
                continue
            # One pass over all whose dtype holds the reciprocal; the others by their own factor.
            if factor == float(reciprocal):
                fused.append(index)
            else:
                results[index] = cast(array, array.dtype, scale=factor)
        if fused:
            sources = [np.asarray(grads[index]) for index in fused]
            targets = [np.empty_like(source) for source in sources]
            unscale_as_originals(sources, float(self.loss_scale), targets)
            for index, target in zip(fused, targets, strict=True):
                results[index] = target
        return results

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], **options: Any) -> None:
        """Apply the (unscaled) gradients, unless one is not finite; then update the scale.

        If the inner optimizer raises, the scale, the counters and arrays are what they were.

        Raises
        ------
        ValueError
            There is no gradient, or what is given is not pairs.
        TypeError
            The scale is dynamic, and a gradient is one of integers.

        """
        if not (self._scaled and self._unscaled):
            missing = [
                name
                for name, called in (
                    ("get_scaled_loss", self._scaled),
                    ("get_unscaled_gradients", self._unscaled),
                )
                if not called
            ]
            _LOGGER.warning("apply_gradients was called without %s", " and ".join(missing))
        pairs = [pair for pair in checked_pairs(grads_and_vars) if pair[0] is not None]
        if not pairs:
            raise ValueError("grads_and_vars holds no gradient; give at least one.")
        machine, applies = self._machine, True
        if self.dynamic:
            grads = [grad for grad, _ in pairs]
            scaling.refuse_integers("grads_and_vars", grads)
            machine, applies = machine.next(all_finite(grads))
        if applies:
            self._apply_or_restore(pairs, options)
        elif hasattr(self._optimizer, "iterations"):
            self._count_skipped()
        self._machine = machine

    def _apply_or_restore(self, pairs: list[tuple[Any, Any]], options: dict[str, Any]) -> None:
        """Apply gradients; if that raises, give arrays and the count their values back."""
        arrays = [v for _, v in pairs if isinstance(v, np.ndarray) and v.flags.writeable]
        before = [array.copy() for array in arrays]
        iterations = getattr(self._optimizer, "iterations", None)
        try:
            self._optimizer.apply_gradients(pairs, **options)
        except BaseException:
            for array, value in zip(arrays, before, strict=True):
                array[...] = value
            if getattr(self._optimizer, "iterations", None) is not iterations:
                self._optimizer.iterations = iterations
            raise

    def _count_skipped(self) -> None:
        if hasattr(self._optimizer.iterations, "assign_add"):  # a variable, which cannot be set
            self._optimizer.iterations.assign_add(1)
        else:
            self._optimizer.iterations += 1

    def state_dict(self) -> dict[str, Any]:
        """The scale and the counter, by the names of TensorFlow's checkpoints.

        Empty if the scale is fixed: it is in the config. The inner optimizer's is its own.
        """
        return self._machine.state_dict() if self.dynamic else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved scale and counter.

        Raises
        ------
        ValueError, TypeError
            Keys are missing or unknown; a number is no valid one. Nothing has changed.

        """
        if self.dynamic:
            self._machine = scaling.restored(self._machine, state)
        else:
            refuse_state(state)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` takes."""
        return {
            "inner_optimizer": to_dictionary(self._optimizer, None, lambda value: value),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> LossScaleOptimizer:
        """The optimizer of a config; of TF 2.3's too ("optimizer" and "loss_scale").

        Parameters
        ----------
        config : mapping
            Stays as it is. "inner_optimizer" is an optimizer, or a dict with "class_name" and
            "config": of a class of tf_keras, in `custom_objects`, or in a module that is imported.
        custom_objects : mapping of str to class
            The classes of optimizers that may be named besides.

        Raises
        ------
        ValueError, TypeError
            An optimizer that is not among them; a DynamicLossScale whose multiplier is not 2.
        KeyError
            There is no optimizer.
        ImportError
            The class is one of tf_keras, which is not installed.

        """
        made: LossScaleOptimizer = cls(**config_arguments(config, custom_objects))
        return made


def _scaled(loss: Callable[[], Any], scale: Callable[[], np.float32]) -> Callable[[], Any]:
    return lambda: _in_its_dtype(loss(), scale())


def _in_its_dtype(loss: Any, scale: np.float32) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        factor = scale.astype(loss.dtype)
    return scaling.times(loss, factor)
