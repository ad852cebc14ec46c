"""Keras 3's `LossScaleOptimizer`, around any object with `apply` or `apply_gradients`."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from castwise._core import DynamicLossScale
from castwise.compat import scaling
from castwise.keras_objects import from_dictionary, to_dictionary
from castwise.loss_scale.unscaling import all_finite, unscale

_ONLY_DEFAULTS: dict[str, Any] = {
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
"""What older configs hold, and only this value of each."""


class LossScaleOptimizer:
    """Scales the loss, divides gradients, and leaves out steps that are not finite.

    Parameters
    ----------
    inner_optimizer : object
        With ``apply(grads, trainable_variables)`` or ``apply_gradients(pairs)``. Its
        ``loss_scale_factor`` becomes None.
    initial_scale : float
        Positive and finite, in float32 too.
    dynamic_growth_steps : int
        1 or more: finite steps after which the scale doubles.
    name : str, optional
        Kept for the config.

    Raises
    ------
    TypeError
        `inner_optimizer` can do neither; a number is none.
    ValueError
        Other numbers; ``dynamic=False``; other arguments.

    """

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not (dynamic := kwargs.pop("dynamic", True)):
            raise ValueError(
                f"dynamic={dynamic!r} is not valid; leave it out, or set `loss_scale_factor` on "
                "the inner optimizer."
            )
        for argument, value in kwargs.items():
            if argument not in _ONLY_DEFAULTS or value != _ONLY_DEFAULTS[argument]:
                raise ValueError(
                    f"{argument}={value!r} is not valid; set it on the inner optimizer."
                )
        if not any(hasattr(inner_optimizer, method) for method in ("apply", "apply_gradients")):
            raise TypeError(
                f"inner_optimizer={inner_optimizer!r} is not valid; give an object with apply or "
                "apply_gradients."
            )
        _check(initial_scale, dynamic_growth_steps)
        self.inner_optimizer = inner_optimizer
        self.initial_scale = initial_scale
        self.dynamic_growth_steps = dynamic_growth_steps
        self.name = "loss_scale_optimizer" if name is None else name
        self.built = self._restored = False
        self._machine = DynamicLossScale(initial_scale, dynamic_growth_steps, preset="keras")
        if hasattr(inner_optimizer, "loss_scale_factor"):
            inner_optimizer.loss_scale_factor = None

    @property
    def dynamic_scale(self) -> np.float32:
        """What the loss is multiplied by."""
        return np.float32(self._machine.scale)

    @property
    def step_counter(self) -> int:
        """Finite steps since the scale last changed."""
        return self._machine.counter

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    @property
    def iterations(self) -> Any:
        """The inner optimizer's: skipped steps do not count."""
        return self.inner_optimizer.iterations

    def build(self, var_list: Sequence[Any]) -> None:
        """Build the inner optimizer, if it is to be built.

        Raises
        ------
        TypeError
            It is one of Keras', and a variable is an array.

        """
        _check_variables(self.inner_optimizer, var_list)
        if hasattr(self.inner_optimizer, "build"):
            self.inner_optimizer.build(var_list)
        self.built = True

    def scale_loss(self, loss: Any) -> Any:
        """The loss times the scale: in float32 once built, before that in the loss' dtype."""
        scale = self.dynamic_scale if self.built or self._restored else self.initial_scale
        with np.errstate(over="ignore", invalid="ignore"):
            return np.multiply(loss, scale)

    def check_finite(self, grads: Iterable[Any]) -> bool:
        """Whether all gradients are finite; None is skipped."""
        return all_finite(list(grads))

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Divide the scaled gradients and apply them, unless one is not finite; then update.

        Parameters
        ----------
        grads : sequence of array or None
            Of the scaled loss. One whose variable has ``overwrite_with_gradient`` is no gradient,
            and is handed on as it is.
        trainable_variables : sequence, optional
            Left out if the inner optimizer was built with them.

        Raises
        ------
        ValueError
            There are more gradients than variables, or fewer.
        TypeError
            The inner optimizer is one of Keras', and a variable is an array.

        """
        grads = list(grads)
        _check_variables(self.inner_optimizer, trainable_variables or [])
        variables: Sequence[Any] = trainable_variables or [None] * len(grads)
        if len(variables) != len(grads):
            raise ValueError(
                f"grads has {len(grads)} gradients and trainable_variables {len(variables)} "
                "variables; give one gradient, or None, for each variable."
            )
        if not self.built:
            self.build(trainable_variables or [])
        finite = self.check_finite(grads)
        if finite:
            self._apply(self._divide(grads, variables), trainable_variables)
        self._machine, _ = self._machine.next(finite)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """`apply` for pairs of gradient and variable."""
        pairs = list(grads_and_vars)
        self.apply([grad for grad, _ in pairs], [variable for _, variable in pairs])

    def _divide(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        divided = [
            grad is not None and not getattr(variable, "overwrite_with_gradient", False)
            for grad, variable in zip(grads, variables, strict=True)
        ]
        scale = self.dynamic_scale
        # Of a power of two the reciprocal is exact, if there is one.
        if math.frexp(scale)[0] == 0.5 and scaling.is_usable(scale):  # noqa: PLR2004
            chosen = [
                grad if divide and _is_single(grad) else None
                for grad, divide in zip(grads, divided, strict=True)
            ]
            unscaled, _ = unscale(chosen, float(scale))
        else:
            unscaled = [None] * len(grads)
        with np.errstate(all="ignore"):
            return [
                new if new is not None else np.divide(grad, scale) if divide else grad
                for grad, divide, new in zip(grads, divided, unscaled, strict=True)
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

    def state_dict(self) -> dict[str, Any]:
        """The scale and the counter, by the names of Keras' variables; not the inner optimizer's.

        >>> class Inner:
        ...     def apply(self, grads, trainable_variables): ...
        >>> LossScaleOptimizer(Inner()).state_dict()
        {'dynamic_scale': 32768.0, 'step_counter': 0}
        """
        return self._machine.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved scale and counter, before `build` too.

        Raises
        ------
        ValueError, TypeError
            Keys are missing or unknown; a number is no valid one. Nothing has changed.

        """
        self._machine = self._machine.with_state(state)
        self._restored = True

    def get_config(self) -> dict[str, Any]:
        """What `from_config` takes."""
        return {
            "name": self.name,
            "inner_optimizer": to_dictionary(self.inner_optimizer, None, lambda value: value),
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> LossScaleOptimizer:
        """The optimizer of a config, which stays as it is.

        Parameters
        ----------
        config : mapping
            "inner_optimizer" is an optimizer, or a dict with "class_name" and "config".
        custom_objects : mapping of str to class
            The classes of optimizers that may be named.

        Raises
        ------
        KeyError
            There is no "inner_optimizer".

        """
        arguments = dict(config)
        inner = scaling.inner_config(arguments)
        if isinstance(inner, Mapping):
            inner = from_dictionary(inner, {}, custom_objects)
        return cls(inner, **arguments)


def _check_variables(inner_optimizer: Any, variables: Iterable[Any]) -> None:
    """Refuse what Keras' own optimizers would fail on in the middle of a step."""
    cls = type(inner_optimizer)
    if not any(base.__module__.startswith("keras.") for base in cls.__mro__):
        return
    for index, variable in enumerate(variables):
        if isinstance(variable, np.ndarray):
            raise TypeError(
                f"trainable_variables[{index}] is a numpy array, which Keras' {cls.__name__} "
                "cannot assign to; give objects of keras.Variable, or wrap an optimizer that "
                "changes arrays in place."
            )


def _check(initial_scale: Any, dynamic_growth_steps: Any) -> None:
    if isinstance(initial_scale, str):
        raise ValueError(  # noqa: TRY004 - what Keras raises
            f"initial_scale={initial_scale!r} is not valid; use a number, as 32768.0."
        )
    with np.errstate(over="ignore"):
        held = np.float32(scaling.number("initial_scale", initial_scale))
    if not 0 < held < math.inf:
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


def _is_single(grad: Any) -> bool:
    """Whether Keras' quotient of it and a float32 is a float32."""
    dtype = np.asarray(grad).dtype
    return dtype.itemsize <= np.dtype(np.float32).itemsize and dtype.kind not in "iub"
