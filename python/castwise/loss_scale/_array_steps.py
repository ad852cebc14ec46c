"""The steps of a loss scale on arrays of any library, by the rules of its preset.

`DynamicLossScale` takes its steps in Rust, on numbers. Traced programs take them here, on arrays,
by the columns of the same table:

```text
finite     counted   the counter, and whether the scale grows
           grown     times the growth factor, up to the ceiling
otherwise  reduced   times the backoff factor or divided by the growth factor, down to the minimum
both       limited   between the minimum and the maximum, for presets that see to it at every step
```
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from castwise._core import DynamicLossScale


# `numpy` and `jax.numpy` are such objects. Numbers of Python get the dtype of the array beside
# them.
class Arrays(Protocol):
    """The functions of a library of arrays that a step calls, by numpy's names."""

    where: Callable[..., Any]
    isfinite: Callable[..., Any]
    minimum: Callable[..., Any]
    maximum: Callable[..., Any]
    multiply: Callable[..., Any]
    divide: Callable[..., Any]


class State(NamedTuple):
    """What a step changes: numbers in arrays of rank 0."""

    scale: Any
    counter: Any
    hysteresis_left: Any
    floor_steps: Any


def next_counter(arrays: Arrays, counter: Any, machine: DynamicLossScale) -> tuple[Any, Any]:
    """Return the counter after a finite step, and whether the scale grows."""
    growth, interval = machine._rules["growth"], machine.growth_interval
    if growth == "Modulo":  # of integers or floats, as jmp's are
        return (counter + 1) % interval, counter == interval - 1
    count = _increment(arrays, counter)
    grows = count >= interval if growth == "Reached" else count == interval
    return arrays.where(grows, 0, count), grows


def grow(arrays: Arrays, scale: object, machine: DynamicLossScale) -> Any:
    """Return the scale after a growth; beyond the range, as the preset says."""
    rules, maximum = machine._rules, machine.maximum
    product = arrays.multiply(scale, _round(machine.growth_factor, rules))
    if rules["ceiling"] == "Unchanged":
        return arrays.where(arrays.isfinite(product), product, scale)
    if rules["ceiling"] == "Maximum" and maximum is not None:
        return arrays.where(product < maximum, product, maximum)
    return product


def reduce_scale(arrays: Arrays, scale: object, machine: DynamicLossScale) -> Any:
    """Return the scale after it backed off; a NaN stays one."""
    rules = machine._rules
    if rules["backoff"] == "Multiply":
        lower = arrays.multiply(scale, _round(machine.backoff_factor, rules))
    else:
        lower = arrays.divide(scale, _round(machine.growth_factor, rules))
    return lower if machine.minimum is None else arrays.maximum(lower, machine.minimum)


def limit(arrays: Arrays, scale: Any, machine: DynamicLossScale) -> Any:
    """Return a scale between the limits, where the preset has them at every step; a NaN stays."""
    if machine._rules["limits"] == "AtEveryStep":
        if machine.minimum is not None:
            scale = arrays.where(scale < machine.minimum, machine.minimum, scale)
        if machine.maximum is not None:
            scale = arrays.where(scale > machine.maximum, machine.maximum, scale)
    return scale


def next_scale(
    arrays: Arrays, scale: object, counter: Any, machine: DynamicLossScale, finite: object
) -> tuple[Any, Any]:
    """Return the scale and the counter after a step, for presets without hysteresis."""
    count, grows = next_counter(arrays, counter, machine)
    larger = arrays.where(grows, grow(arrays, scale, machine), scale)
    following = arrays.where(finite, larger, reduce_scale(arrays, scale, machine))
    return limit(arrays, following, machine), arrays.where(finite, count, 0)


def next_state(arrays: Arrays, state: State, machine: DynamicLossScale, finite: object) -> State:
    scale, counter, hysteresis_left, floor_steps = state
    count, grows = next_counter(arrays, counter, machine)
    full, by_growth = machine.hysteresis, machine._rules["restore"] == "Growth"
    after_finite = (
        limit(arrays, arrays.where(grows, grow(arrays, scale, machine), scale), machine),
        count,
        arrays.where(grows, full, hysteresis_left) if by_growth else full,
        0,
    )
    steps_left = _decrement(arrays, hysteresis_left)
    lower = limit(arrays, reduce_scale(arrays, scale, machine), machine)
    at_floor = arrays.where(lower < scale, 0, _increment(arrays, floor_steps))
    after_nonfinite = (
        arrays.where(steps_left > 0, scale, lower),
        0,
        steps_left if by_growth else arrays.maximum(steps_left, 0),
        arrays.where(steps_left > 0, floor_steps, at_floor),
    )
    pairs = zip(after_finite, after_nonfinite, strict=True)
    return State(*(arrays.where(finite, *pair) for pair in pairs))


def _round(factor: float, rules: dict[str, str]) -> float:
    """Round a factor as the preset rounds it."""
    if rules["arithmetic"] != "Single":
        return factor
    with np.errstate(over="ignore"):
        return float(np.float32(factor))


def _increment(arrays: Arrays, count: Any) -> Any:
    """Add 1, unless it is the largest number of its dtype."""
    return arrays.minimum(count, np.iinfo(count.dtype.name).max - 1) + 1


def _decrement(arrays: Arrays, count: Any) -> Any:
    """Subtract 1, unless it is the smallest number of its dtype."""
    return arrays.maximum(count, np.iinfo(count.dtype.name).min + 1) - 1
