"""castwise's loss scales as pytrees, whose steps can be traced.

The state consists of arrays. The rules of a step come from the table of presets in Rust.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from castwise._core import DynamicLossScale, FixedLossScale, restore_loss_scale
from castwise._frameworks import require
from castwise.loss_scale._scaler import get

jax: Any = require("jax")

__all__ = ["LossScale", "loss_scale"]

_FIELDS = ("scale", "counter", "hysteresis_left", "floor_steps")
"""The state, in the order of the leaves."""


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
    counter, left, floor_steps = (whole(getattr(machine, name)) for name in _FIELDS[1:])
    # Without the state, so that one compiled program steps all that have the same parameters.
    parameters = DynamicLossScale.from_config(machine.get_config())
    return LossScale(real(machine.scale), counter, left, floor_steps, parameters)


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
        after = [_after_finite(self, self.machine), _after_nonfinite(self, self.machine)]
        state = {
            name: jnp.where(finite, good, bad).astype(getattr(self, name).dtype)
            for name, good, bad in zip(_FIELDS, *after, strict=True)
        }
        return dataclasses.replace(self, **state), finite

    def to_machine(self) -> DynamicLossScale | FixedLossScale:
        """Return the loss scale of `castwise.loss_scale` in this state, to print or to save."""
        if isinstance(self.machine, FixedLossScale):
            return self.machine
        counts = [int(getattr(self, name)) for name in _FIELDS[1:]]
        state = (float(self.scale), counts[0], counts[1], counts[2])
        return restore_loss_scale(self.machine.get_config(), state)

    def _arrays(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _FIELDS)


_LIMIT = 2**31
"""Counts below this have 32 bits."""


def _after_finite(state: LossScale, machine: DynamicLossScale) -> tuple[Any, ...]:
    """Return scale, counter, hysteresis and steps at the floor after a step that is finite."""
    jnp = jax.numpy
    rules, interval = machine._rules, machine.growth_interval
    counter_limit = np.iinfo(state.counter.dtype).max
    counter = jnp.where(state.counter == counter_limit, counter_limit, state.counter + 1)
    reached = rules["growth"] == "Reached"
    grows = counter >= interval if reached else counter == interval
    if rules["growth"] == "Modulo":
        counter = counter % interval if interval else jnp.zeros_like(counter)
    counter = jnp.where(grows, 0, counter)
    grown = _computed(rules, lambda scale, factor: scale * factor, state, machine.growth_factor)
    if rules["ceiling"] == "Unchanged":
        grown = jnp.where(jnp.isfinite(grown), grown, state.scale)
    elif rules["ceiling"] == "Maximum" and machine.maximum is not None:
        maximum = grown.dtype.type(machine.maximum)
        grown = jnp.where(grown < maximum, grown, maximum)
    restored = grows if rules["restore"] == "Growth" else True
    hysteresis_left = jnp.where(restored, machine.hysteresis, state.hysteresis_left)
    return jnp.where(grows, grown, state.scale), counter, hysteresis_left, 0


def _after_nonfinite(state: LossScale, machine: DynamicLossScale) -> tuple[Any, ...]:
    """Return scale, counter, hysteresis and steps at the floor after a step that is skipped."""
    jnp = jax.numpy
    rules = machine._rules
    hysteresis_limit = np.iinfo(state.hysteresis_left.dtype).min
    hysteresis_left = jnp.where(
        state.hysteresis_left == hysteresis_limit, hysteresis_limit, state.hysteresis_left - 1
    )
    keeps_scale = hysteresis_left > 0
    if rules["backoff"] == "Multiply":
        lower = _computed(rules, lambda scale, by: scale * by, state, machine.backoff_factor)
    else:
        lower = _computed(rules, lambda scale, by: scale / by, state, machine.growth_factor)
    if machine.minimum is not None:
        minimum = lower.dtype.type(machine.minimum)
        lower = jnp.where(lower < minimum, minimum, lower)  # NaN stays NaN
    step_limit = np.iinfo(state.floor_steps.dtype).max
    at_floor = jnp.where(state.floor_steps == step_limit, step_limit, state.floor_steps + 1)
    floor_steps = jnp.where(lower < state.scale, 0, at_floor)
    return (
        jnp.where(keeps_scale, state.scale, lower),
        0,
        hysteresis_left if rules["restore"] == "Growth" else jnp.maximum(hysteresis_left, 0),
        jnp.where(keeps_scale, state.floor_steps, floor_steps),
    )


def _computed(rules: dict[str, str], function: Any, state: LossScale, factor: float) -> Any:
    """Multiply or divide the scale by a factor, and round as the machine does.

    The computation has 64 bits: a product or quotient of 32-bit floats, rounded to 32 bits
    afterwards, equals that of 32-bit arithmetic. XLA's 32-bit division may use a reciprocal.
    """
    lax = jax.lax
    with _sixty_four_bits():
        wide = lax.convert_element_type(state.scale, np.float64)
        number = np.float64(np.float32(factor) if rules["arithmetic"] == "Single" else factor)
        return lax.convert_element_type(function(wide, number), state.scale.dtype)


def _sixty_four_bits() -> Any:
    """Allow 64-bit types within a block, whatever the program's setting."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return jax.experimental.enable_x64()  # the place of `enable_x64` in older releases


def _named(value: LossScale) -> Any:
    keys = map(jax.tree_util.GetAttrKey, _FIELDS)
    return list(zip(keys, value._arrays(), strict=True)), value.machine


# Where the class is defined, so that it is a pytree wherever one is unpickled.
jax.tree_util.register_pytree_with_keys(
    LossScale,
    _named,
    lambda machine, arrays: LossScale(**dict(zip(_FIELDS, arrays, strict=True)), machine=machine),
    lambda value: (value._arrays(), value.machine),
)
