"""A subclass of Keras' `LossScaleOptimizer` with castwise's checks, for optimizers of Keras.

Importing this module imports Keras.
"""

import importlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np

from castwise._core import DynamicLossScale
from castwise.environment.frameworks import require
from castwise.loss_scale._optimizer import ScaledOptimizer, unchanged_on_failure
from castwise.loss_scale.keras import _arguments as arguments

keras: Any = require("keras")
ops: Any = keras.ops


class _UntilBuilt:
    """An attribute that Keras sets in `build`; before that, its future value."""

    def __init__(self, key: str, kind: Any) -> None:
        self.key, self.kind = key, kind

    def __get__(self, optimizer: Any, owner: Any = None) -> Any:
        return self if optimizer is None else self.kind(optimizer.state_dict()[self.key])


class AroundKeras(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """Keras' class, which models and trainers accept, on every backend.

    Numbers, variables and configs are those of Keras. In addition:

    - Arguments that Keras accepts and fails on later are refused.
    - A step that raises changes neither scale, counters nor variables.
    - `apply` also works outside of ``jax.jit`` on the jax backend, where Keras' leaks tracers.
    - `dynamic_scale`, `step_counter` and `state_dict` exist before `build`.

    Configs of models name Keras' class, so that files are loaded without castwise.
    """

    dynamic_scale = _UntilBuilt("dynamic_scale", np.float32)
    step_counter = _UntilBuilt("step_counter", int)
    _state_before_build: DynamicLossScale | None = None  # the state that was loaded before `build`

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        arguments.check(inner_optimizer, initial_scale, dynamic_growth_steps, kwargs)
        super().__init__(inner_optimizer, initial_scale, dynamic_growth_steps, name)

    @property  # type: ignore[misc] # as unittest.mock does
    def __class__(self) -> type:
        """The class that configs name: Keras', or the user's own."""
        cls = type(self)
        original: type = keras.optimizers.LossScaleOptimizer
        return original if "_stands_for_keras" in vars(cls) else cls

    def build(self, var_list: Sequence[Any]) -> None:
        """Make the variables; TypeError if one of `var_list` is an array of numpy."""
        self._check_variables(var_list)
        super().build(var_list)
        if self._state_before_build is not None:
            self._machine = self._state_before_build

    def scale_loss(self, loss: Any) -> Any:
        """Multiply the loss by the scale: in float32 once built, before in the loss' dtype."""
        if self._state_before_build is not None and not self.built:
            return ops.multiply(loss, self.dynamic_scale)
        return super().scale_loss(loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Divide the scaled gradients and apply them, unless one is not finite; then update.

        Parameters
        ----------
        grads : sequence of tensor or None
            Of the scaled loss.
        trainable_variables : sequence of variable, optional
            Not needed if the optimizer was built with them.

        Raises
        ------
        ValueError
            The optimizer has no variables; the number of gradients is not that of the variables; a
            gradient has another shape than its variable.
        TypeError
            A variable is an array of numpy.

        """
        if not isinstance(grads, Iterable):
            raise TypeError(
                f"grads={grads!r} is not valid; give a gradient, or None, for each variable."
            )
        grads = list(grads)
        variables_given = None if trainable_variables is None else list(trainable_variables)
        if variables_given is None and not self.built:
            raise ValueError(
                "trainable_variables=None is not valid before build; give them, or call "
                "build(trainable_variables) first."
            )
        variables = self._trainable_variables if variables_given is None else variables_given
        self._check_variables(variables)
        arguments.check_number(grads, variables)
        _check_shapes(grads, variables)
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        with _unchanged_on_failure(self, variables):
            if keras.config.backend() == "jax":
                # Not `jax.lax.cond`, as Keras: its branches must not assign.
                finite = bool(self.check_finite(grads))
                self._take_step(finite, lambda: self._apply_divided(grads, variables), ())
            else:
                super().apply(grads, variables_given)

    def _apply_divided(self, grads: list[Any], variables: Sequence[Any]) -> None:
        quotients = [
            ops.divide(grad, self.dynamic_scale) if divide else grad
            for grad, divide in zip(grads, arguments.are_divided(grads, variables), strict=True)
        ]
        self.inner_optimizer.apply(quotients, trainable_variables=variables)

    def stateless_apply(
        self,
        optimizer_variables: Sequence[Any],
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
    ) -> Any:
        """Call Keras' method, once the number of gradients is known to be right."""
        grads = list(grads)
        arguments.check_number(grads, trainable_variables)
        if self.built:
            _check_shapes(grads, self._trainable_variables)
            arguments.check_variable_list(optimizer_variables, self.variables)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    @property
    def _machine(self) -> DynamicLossScale:
        """The loss scale that the variables contain; before `build`, what they will contain."""
        machine = arguments.machine(self.initial_scale, self.dynamic_growth_steps)
        if not self.built:
            return self._state_before_build or machine
        scale, counter = map(ops.convert_to_numpy, (self.dynamic_scale, self.step_counter))
        return machine.with_state({"dynamic_scale": float(scale), "step_counter": int(counter)})

    @_machine.setter
    def _machine(self, machine: DynamicLossScale) -> None:
        if self.built:
            self.dynamic_scale.assign(machine.scale)
            self.step_counter.assign(machine.counter)
        else:
            self._state_before_build = machine

    def _check_variables(self, variables: Iterable[Any]) -> None:
        """Refuse variables on which Keras' optimizers would fail in the middle of a step."""
        for index, variable in enumerate(variables):
            if isinstance(variable, np.ndarray):
                name = type(self.inner_optimizer).__name__
                raise TypeError(
                    f"trainable_variables[{index}] is a numpy array, which Keras' {name} "
                    "cannot assign to; give objects of keras.Variable, or wrap an optimizer that "
                    "changes arrays in place."
                )


@cache
def class_for(cls: Any, base: Any) -> Any:
    """Derive the wrapper of Keras' optimizers: castwise's (`base`), or that of a user's `cls`."""
    if cls is base:
        names = {"__module__": __name__, "_stands_for_keras": True}
        # That of Keras' class comes before it.
        names["from_config"] = vars(ScaledOptimizer)["from_config"]
        return type("KerasLossScaleOptimizer", (AroundKeras, base), names)
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls.__name__, (cls, class_for(base, base)), names)


def _check_shapes(grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Refuse gradients on which optimizers fail after they have changed other variables."""
    for index, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
        shape: Any = () if grad is None else np.shape(grad)
        if getattr(shape, "rank", 0) is None or None in shape:  # the rank is unknown to TensorFlow
            continue
        own_shape = tuple(variable.shape)
        try:
            fits = np.broadcast_shapes(tuple(shape), own_shape) == own_shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"grads[{index}] has shape {tuple(shape)}, its variable {own_shape}; give the "
                "gradient of that variable."
            )


def _unchanged_on_failure(optimizer: Any, variables: Sequence[Any]) -> AbstractContextManager[None]:
    """Restore the values of all variables if the block raises.

    Nothing is copied for Keras' own optimizers and constraints: the former fail before they change
    anything, the latter do not fail.
    """
    safe = _is_safe(optimizer.inner_optimizer, variables)
    return unchanged_on_failure(
        [] if safe else [*variables, *optimizer.variables],
        lambda variable: ops.copy(variable.value),
        lambda variable, value: variable.assign(value),
    )


def _is_safe(inner: Any, variables: Sequence[Any]) -> bool:
    parts = [inner, *(getattr(variable, "constraint", None) for variable in variables)]
    if all(type(part).__module__.startswith("keras.") for part in parts if part is not None):
        return True
    if keras.config.backend() != "tensorflow":
        return False
    # While a graph is made, nothing is changed.
    return not importlib.import_module("tensorflow").executing_eagerly()
