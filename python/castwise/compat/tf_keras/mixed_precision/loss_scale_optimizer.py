"""TF 2's `LossScaleOptimizer`, around any object with `apply_gradients`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from castwise._core import DynamicLossScale, cast
from castwise.compat import scaling
from castwise.compat.tf_keras.mixed_precision.loss_scale import FixedLossScale, deserialize
from castwise.keras_objects import from_dictionary, to_dictionary
from castwise.loss_scale.unscaling import all_finite, unscale_as_originals

_LOGGER = logging.getLogger(__name__)

_WRAPPED = "_is_wrapped_by_loss_scale_optimizer"


class LossScaleOptimizer:
    """Scales the loss, unscales gradients, and leaves out steps that are not finite.

    Parameters
    ----------
    inner_optimizer : object
        With ``apply_gradients(pairs of gradient and variable)``, and ``iterations`` if steps are
        to be counted: a skipped step counts too.
    dynamic : bool
        False: the scale stays, and every step is applied, whatever its gradients.
    initial_scale : float, optional
        Default 2**15; must be given if not dynamic.
    dynamic_growth_steps : int, optional
        Default 2000; must not be given if not dynamic.

    Raises
    ------
    TypeError
        `inner_optimizer` cannot apply gradients or is a LossScaleOptimizer; `dynamic` is no bool.
    ValueError
        `inner_optimizer` is wrapped already; the wrong numbers for `dynamic`.

    """

    def __init__(
        self,
        inner_optimizer: Any,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
    ) -> None:
        if isinstance(inner_optimizer, LossScaleOptimizer) or not callable(
            getattr(inner_optimizer, "apply_gradients", None)
        ):
            raise TypeError(
                f"inner_optimizer={inner_optimizer!r} is not valid; give an object with "
                "apply_gradients that is no LossScaleOptimizer."
            )
        if not isinstance(dynamic, bool):
            raise TypeError(f"dynamic={dynamic!r} must be a bool; use True or False.")
        if getattr(inner_optimizer, _WRAPPED, False):
            raise ValueError("inner_optimizer is wrapped by a LossScaleOptimizer already.")
        if not dynamic and initial_scale is None:
            raise ValueError("initial_scale=None is not valid if dynamic=False; give a number.")
        if not dynamic and dynamic_growth_steps is not None:
            raise ValueError(
                f"dynamic_growth_steps={dynamic_growth_steps!r} must be None if dynamic=False."
            )
        initial = scaling.number(
            "initial_scale", 2.0**15 if initial_scale is None else initial_scale
        )
        steps = 2000 if dynamic_growth_steps is None else dynamic_growth_steps
        self._fixed: float | None = None if dynamic else initial
        self._machine = DynamicLossScale(
            initial, scaling.number("dynamic_growth_steps", steps, int), preset="tf_keras"
        )
        self._optimizer = inner_optimizer
        setattr(inner_optimizer, _WRAPPED, True)
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
        """What is not the wrapper's own (momentum, clipnorm, variables, ...)."""
        if name.startswith("__") or name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what is not the wrapper's own on the inner optimizer, if that has it."""
        own = name.startswith("_") or hasattr(type(self), name)
        if own or not hasattr(self._optimizer, name):
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

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

        Raises
        ------
        ValueError
            There is no gradient.
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
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        if not pairs:
            raise ValueError("grads_and_vars holds no gradient; give at least one.")
        applies = True
        if self.dynamic:
            grads = [grad for grad, _ in pairs]
            scaling.refuse_integers("grads_and_vars", grads)
            self._machine, applies = self._machine.next(all_finite(grads))
        if applies:
            self._optimizer.apply_gradients(pairs, **options)
        elif hasattr(self._optimizer, "iterations"):
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
            self._machine = self._machine.with_state(dict(state))
        elif state:
            raise ValueError(
                f"state has the unknown key {next(iter(state))!r}; a fixed loss scale has none. "
                "Load it into a LossScaleOptimizer with dynamic=True."
            )

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
            "inner_optimizer" is an optimizer, or a dict with "class_name" and "config".
        custom_objects : mapping of str to class
            The classes of optimizers that may be named.

        Raises
        ------
        ValueError, TypeError
            An optimizer that is not among them; a DynamicLossScale whose multiplier is not 2.
        KeyError
            There is no optimizer.

        """
        arguments = dict(config)
        if "loss_scale" in arguments:
            arguments["inner_optimizer"] = scaling.inner_config(arguments, "optimizer")
            arguments.update(_from_loss_scale(arguments.pop("loss_scale")))
        inner = scaling.inner_config(arguments)
        if isinstance(inner, Mapping):
            inner = from_dictionary(inner, {}, custom_objects)
        return cls(inner, **arguments)


def _from_loss_scale(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that TF 2.3's loss scale stands for."""
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


def _scaled(loss: Callable[[], Any], scale: Callable[[], np.float32]) -> Callable[[], Any]:
    return lambda: _in_its_dtype(loss(), scale())


def _in_its_dtype(loss: Any, scale: np.float32) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        factor = scale.astype(loss.dtype)
    return scaling.times(loss, factor)
