"""castwise's loss scales as pytrees, whose steps can be traced."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from castwise._core import DynamicLossScale, FixedLossScale, restore_loss_scale
from castwise.environment.frameworks import require
from castwise.loss_scale._array_steps import State, next_state
from castwise.loss_scale._scaler import get

jax: Any = require("jax")

_FIELDS = State._fields  # the state, in the order of the leaves


def loss_scale(value: Any = "dynamic") -> LossScale:
    """Return a loss scale for jax, with the parameters and the state of the given one.

    Parameters
    ----------
    value : DynamicLossScale, FixedLossScale, float, "dynamic" or None
        As for `castwise.loss_scale.LossScaler`, with any preset.

    Raises
    ------
    ValueError
        Its numbers do not fit: a growth interval beyond 32 bits, or a preset that keeps its scale
        in 64 bits, without ``jax_enable_x64``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from castwise.adapters import jax as jax_adapter
    >>> float(jax_adapter.loss_scale(1024.0).scale)
    1024.0

    """
    machine = get(value)
    wide = jax.config.jax_enable_x64
    if isinstance(machine, FixedLossScale):
        none = np.int32(0)
        return LossScale(np.float32(machine.scale), none, none, none, machine)
    if machine._rules["arithmetic"] == "Double" and not wide:
        raise ValueError(
            f"preset={machine.preset!r} keeps its scale in 64 bits, which jax has with "
            "jax.config.update('jax_enable_x64', True) only; do that, or use another preset."
        )
    real = np.float64 if machine._rules["arithmetic"] == "Double" else np.float32
    numbers = [machine.growth_interval, machine.hysteresis]
    numbers += [getattr(machine, name) for name in _FIELDS[1:]]
    if max(map(abs, numbers)) >= _LIMIT and not wide:
        raise ValueError(
            f"growth_interval={machine.growth_interval} or a count of {machine} needs 64 bits, "
            "which jax has with jax.config.update('jax_enable_x64', True) only."
        )
    whole = np.int64 if wide else np.int32
    counter, hysteresis_left, floor_steps = (whole(getattr(machine, name)) for name in _FIELDS[1:])
    # Without the state, so that one compiled program steps all that have the same parameters.
    parameters = DynamicLossScale.from_config(machine.get_config())
    return LossScale(real(machine.scale), counter, hysteresis_left, floor_steps, parameters)


@dataclasses.dataclass(frozen=True)
class LossScale:
    """A loss scale whose state consists of arrays. It is a pytree; `loss_scale` makes one.

    Attributes
    ----------
    scale : float array of rank 0
        What the loss is multiplied by.
    counter, hysteresis_left, floor_steps : int arrays of rank 0
        As those of `castwise.loss_scale.DynamicLossScale`; unused by a fixed scale.
    machine : DynamicLossScale or FixedLossScale
        The parameters and the preset, without the state; static in `jax.jit`.

    Notes
    -----
    A step gives the same bits as one of the machine, with one exception: on a device that flushes
    subnormal numbers to zero, a scale below 2**-126, which presets without a floor reach, is 0.

    """

    scale: Any
    counter: Any
    hysteresis_left: Any
    floor_steps: Any
    machine: DynamicLossScale | FixedLossScale

    def next(self, finite: Any) -> tuple[LossScale, Any]:
        """Return the loss scale for the next step, and whether this step's gradients apply.

        Parameters
        ----------
        finite : bool or bool array of rank 0
            Whether all gradients of this step were finite.

        Raises
        ------
        TypeError
            `finite` is not a boolean of rank 0.

        """
        jnp = jax.numpy
        finite = jnp.asarray(finite)
        if finite.shape != () or finite.dtype != np.bool_:
            raise TypeError(
                f"finite has shape {finite.shape} and dtype {finite.dtype}; give one boolean, as "
                "unscale() and all_finite() return."
            )
        if isinstance(self.machine, FixedLossScale):
            return self, finite if self.machine.skip_nonfinite else jnp.ones_like(finite)
        state = next_state(_ARRAYS, State(*self._arrays()), self.machine, finite)
        numbers = {
            name: number.astype(getattr(self, name).dtype)
            for name, number in state._asdict().items()
        }
        return dataclasses.replace(self, **numbers), finite

    def to_machine(self) -> DynamicLossScale | FixedLossScale:
        """Return the loss scale of `castwise.loss_scale` in this state, to print or to save."""
        if isinstance(self.machine, FixedLossScale):
            return self.machine
        counts = [int(getattr(self, name)) for name in _FIELDS[1:]]
        state = (float(self.scale), counts[0], counts[1], counts[2])
        return restore_loss_scale(self.machine.get_config(), state)

    def _arrays(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _FIELDS)


_LIMIT = 2**31  # counts below this have 32 bits


def _at_least(value: Any, limit: float) -> Any:
    return jax.numpy.where(value < limit, limit, value)  # a limit that is NaN is none


def _in_sixty_four_bits(function: Callable[..., Any], scale: Any, factor: float) -> Any:
    """Compute in 64 bits: rounded to 32 afterwards, the result equals that of 32-bit arithmetic."""
    # XLA's 32-bit division may use a reciprocal.
    convert = jax.lax.convert_element_type
    with _sixty_four_bits():
        return convert(function(convert(scale, np.float64), np.float64(factor)), scale.dtype)


def _sixty_four_bits() -> Any:
    """Allow 64-bit types within a block, whatever the program's setting."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return jax.experimental.enable_x64()  # the place of `enable_x64` in older releases


# jax's functions, with products and quotients that are rounded as the machine rounds them.
_ARRAYS = SimpleNamespace(
    where=jax.numpy.where,
    isfinite=jax.numpy.isfinite,
    minimum=jax.numpy.minimum,
    maximum=_at_least,
    multiply=lambda scale, factor: _in_sixty_four_bits(operator.mul, scale, factor),
    divide=lambda scale, factor: _in_sixty_four_bits(operator.truediv, scale, factor),
)


def _loss_scale_named(value: LossScale) -> Any:
    keys = map(jax.tree_util.GetAttrKey, _FIELDS)
    return list(zip(keys, value._arrays(), strict=True)), value.machine


# Where the class is defined, so that it is a pytree wherever one is unpickled.
jax.tree_util.register_pytree_with_keys(
    LossScale,
    _loss_scale_named,
    lambda machine, arrays: LossScale(**dict(zip(_FIELDS, arrays, strict=True)), machine=machine),
    lambda value: (value._arrays(), value.machine),
)
