"""Keras 3's `LossScaleOptimizer`, around any object with `apply` or `apply_gradients`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from castwise._core import DynamicLossScale
from castwise.dtype_policies._keras_objects import plain_number
from castwise.loss_scale._arithmetic import is_usable
from castwise.loss_scale._optimizer import ArrayOptimizer
from castwise.loss_scale._unscaling import all_finite, unscale
from castwise.loss_scale.keras import _arguments as arguments

# How many variables precede the inner optimizer's: iteration, learning rate, counter, scale.
_STATE_COUNT = 4

# Attributes for saving that Keras' optimizers inherit.
_FOR_AUTHORS = (
    *("add_optimizer_variables", "add_variable", "add_variable_from_reference", "assign"),
    *("assign_add", "assign_sub", "exclude_from_weight_decay", "set_weights", "update_step"),
)


class LossScaleOptimizer(ArrayOptimizer):
    """Scales the loss, divides gradients, and skips steps that are not finite.

    Around an optimizer of Keras it is also a ``keras.optimizers.LossScaleOptimizer``, with tensors
    and variables of Keras' backend: see `_around_keras`. Around any other object it works on
    arrays, as described below.

    Parameters
    ----------
    inner_optimizer : object
        With ``apply(grads, trainable_variables)`` or ``apply_gradients(pairs)``. Its
        ``loss_scale_factor`` becomes None.
    initial_scale : float
        Positive and finite, also in float32.
    dynamic_growth_steps : int
        1 or more: finite steps after which the scale doubles.
    name : str, optional
        Unused but in the config.

    Raises
    ------
    TypeError
        `inner_optimizer` has neither; a number is of a wrong type.
    ValueError
        A number is out of range; ``dynamic=False``; an unknown argument.

    Examples
    --------
    >>> class Inner:
    ...     def apply(self, grads, trainable_variables): ...
    >>> LossScaleOptimizer(Inner()).state_dict()
    {'dynamic_scale': 32768.0, 'step_counter': 0}

    """

    __module__ = "castwise.compat.keras.mixed_precision"  # where users find it, and pickles

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if arguments.is_of_keras(inner_optimizer):
            from castwise.loss_scale.keras import _around_keras as around_keras  # noqa: PLC0415 imports Keras

            optimizer: Any = self
            optimizer.__class__ = around_keras.class_for(optimizer.__class__, LossScaleOptimizer)
            around_keras.AroundKeras.__init__(
                optimizer, inner_optimizer, initial_scale, dynamic_growth_steps, name, **kwargs
            )
            return
        arguments.check(inner_optimizer, initial_scale, dynamic_growth_steps, kwargs)
        self.inner_optimizer = inner_optimizer
        self.initial_scale = initial_scale
        self.dynamic_growth_steps = dynamic_growth_steps
        self.name = "loss_scale_optimizer" if name is None else name
        self.built = self._is_restored = False
        self._trainable_variables: list[Any] = []
        self._machine = arguments.machine(initial_scale, dynamic_growth_steps)
        if hasattr(inner_optimizer, "loss_scale_factor"):
            inner_optimizer.loss_scale_factor = None

    @property
    def dynamic_scale(self) -> np.float32:
        """The number that the loss is multiplied by."""
        return np.float32(self._machine.scale)

    @property
    def step_counter(self) -> int:
        """Finite steps since the scale last changed."""
        return self._machine.counter

    @property
    def iterations(self) -> Any:
        """The inner optimizer's count, without skipped steps."""
        return self.inner_optimizer.iterations

    @property
    def variables(self) -> list[Any]:
        """Keras' list: iteration and learning rate, both unused, counter, scale, and the inner's.

        The first four are new arrays of shape (); the iteration and the counter are int32, the
        others float32.
        """
        return [*_state_variables(self._machine), *self.inner_optimizer.variables]

    def build(self, var_list: Sequence[Any]) -> None:
        """Build the inner optimizer, if it can be built."""
        self._trainable_variables = list(var_list)
        if hasattr(self.inner_optimizer, "build"):
            self.inner_optimizer.build(var_list)
        self.built = True

    def scale_loss(self, loss: Any) -> Any:
        """Multiply the loss by the scale: in float32 once built, before in the loss' dtype."""
        scale = self.dynamic_scale if self.built or self._is_restored else self.initial_scale
        with np.errstate(over="ignore", invalid="ignore"):
            return np.multiply(loss, scale)

    def check_finite(self, grads: Iterable[Any]) -> bool:
        """Tell whether all gradients are finite; None is skipped."""
        return all_finite(list(grads))

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Divide the scaled gradients and apply them, unless one is not finite; then update.

        Parameters
        ----------
        grads : sequence of array or None
            Of the scaled loss. The value for a variable with ``overwrite_with_gradient`` is passed
            on as it is.
        trainable_variables : sequence, optional
            Not needed if the inner optimizer was built with them.

        Raises
        ------
        ValueError
            The number of gradients is not that of the variables.

        After any error, also of the inner optimizer, scale, counter and variables are unchanged.

        """
        grads = list(grads)
        variables: Sequence[Any] = trainable_variables or self._trainable_variables
        arguments.check_number(grads, variables := variables or [None] * len(grads))
        if not self.built:
            self.build(trainable_variables or [])
        self._take_step(
            self.check_finite(grads),
            lambda: self._apply(
                self._divide(grads, variables, self.dynamic_scale), trainable_variables
            ),
            variables,
        )

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Call `apply` with pairs of gradient and variable."""
        pairs = list(grads_and_vars)
        self.apply([grad for grad, _ in pairs], [variable for _, variable in pairs])

    def stateless_apply(
        self,
        optimizer_variables: Sequence[Any],
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Return what `apply` would make of values; change nothing.

        Parameters
        ----------
        optimizer_variables : sequence of array
            As `variables`; the inner optimizer's are passed on to its ``stateless_apply``.
        grads : sequence of array or None
            Of the scaled loss.
        trainable_variables : sequence of array
            One for each gradient.

        Returns
        -------
        trainable_variables, optimizer_variables : list of array

        Raises
        ------
        ValueError
            The optimizer is not built; the number of gradients or values is not that of the
            variables.

        """
        if not self.built:
            raise ValueError(
                "stateless_apply needs a built optimizer; call build(trainable_variables) first."
            )
        grads, inner = list(grads), list(optimizer_variables[_STATE_COUNT:])
        arguments.check_number(grads, trainable_variables)
        arguments.check_variable_list(optimizer_variables, self.variables)
        machine, trained_values = self._machine_of(optimizer_variables), list(trainable_variables)
        if finite := self.check_finite(grads):
            variables = self._trainable_variables or trained_values
            quotients = self._divide(grads, variables, np.float32(machine.scale))
            trained_values, inner = self.inner_optimizer.stateless_apply(
                inner, quotients, trained_values
            )
        machine, _ = machine.next(finite)
        keras_variables = optimizer_variables[: _STATE_COUNT - 2]
        return list(trained_values), [
            *keras_variables,
            *_state_variables(machine)[_STATE_COUNT - 2 :],
            *inner,
        ]

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Return the inner optimizer's: averages into the variables, say."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def _divide(self, grads: list[Any], variables: Sequence[Any], scale: np.float32) -> list[Any]:
        quotients = arguments.are_divided(grads, variables)
        # The reciprocal of a power of two is exact.
        exact = math.frexp(scale)[0] == 0.5 and is_usable(scale)  # noqa: PLR2004
        float32_grads = [
            grad if exact and divide and _is_single(grad) else None
            for grad, divide in zip(grads, quotients, strict=True)
        ]
        quotients_float32, _ = unscale(float32_grads, float(scale) if exact else 1.0)
        with np.errstate(all="ignore"):
            return [
                quotient if quotient is not None else np.divide(grad, scale) if divide else grad
                for grad, divide, quotient in zip(grads, quotients, quotients_float32, strict=True)
            ]

    def _apply(self, grads: list[Any], trainable_variables: Sequence[Any] | None) -> None:
        if hasattr(self.inner_optimizer, "apply"):
            self.inner_optimizer.apply(grads, trainable_variables=trainable_variables)
        else:
            if grads and not trainable_variables:
                raise ValueError(
                    f"trainable_variables={trainable_variables!r} is not valid; give them: the "
                    "inner optimizer has apply_gradients only."
                )
            self.inner_optimizer.apply_gradients(
                list(zip(grads, trainable_variables or [], strict=True))
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved scale and counter, also before `build`.

        Raises
        ------
        ValueError, TypeError
            Keys are missing or unknown; a number is invalid. Nothing has changed.

        """
        super().load_state_dict(state)
        self._is_restored = True

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Write copies of `variables` under "0", "1", and so on."""
        for index, variable in enumerate(self.variables):
            store[str(index)] = np.array(variable)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Load what `save_own_variables` wrote; assign the inner optimizer's variables in place.

        Raises
        ------
        ValueError
            The number of values is not that of the variables, or one has another shape. Nothing has
            changed.

        """
        variables = self.variables
        values = [np.asarray(store[str(index)]) for index in range(len(store.keys()))]
        arguments.check_variable_list(values, variables)
        self._machine, self._is_restored = self._machine_of(values), True
        for variable, value in zip(variables[_STATE_COUNT:], values[_STATE_COUNT:], strict=True):
            if hasattr(variable, "assign"):
                variable.assign(value)
            else:
                variable[...] = value

    def _machine_of(self, variables: Sequence[Any]) -> DynamicLossScale:
        _, _, counter, scale = variables[:_STATE_COUNT]
        return self._machine.with_state(
            {"dynamic_scale": float(scale), "step_counter": int(counter)}
        )

    def __getattr__(self, name: str) -> Any:
        if name in arguments.ONLY_DEFAULTS:
            return arguments.ONLY_DEFAULTS[name]
        if name in _FOR_AUTHORS:
            raise AttributeError(
                f"{type(self).__name__} has no {name}, which does not scale; use "
                f"inner_optimizer.{name}, or load_state_dict for scale and counter."
            )
        if hasattr(type(self), name):  # a property that reads the inner optimizer's
            inner = type(self.inner_optimizer).__name__
            raise AttributeError(f"inner_optimizer, of class {inner}, lacks {name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` takes."""
        return {
            "name": self.name,
            "inner_optimizer": self._inner_config(),
            "initial_scale": plain_number(self.initial_scale),
            "dynamic_growth_steps": plain_number(self.dynamic_growth_steps),
        }

    _read_config = staticmethod(arguments.from_config)


def _state_variables(machine: DynamicLossScale) -> list[Any]:
    keras_state = [np.zeros((), np.int32), np.zeros((), np.float32)]
    return [*keras_state, np.array(machine.counter, np.int32), np.array(machine.scale, np.float32)]


def _is_single(grad: Any) -> bool:
    """Tell whether Keras' quotient of it and a float32 is a float32."""
    dtype = np.asarray(grad).dtype
    return dtype.itemsize <= np.dtype(np.float32).itemsize and dtype.kind not in "iub"
