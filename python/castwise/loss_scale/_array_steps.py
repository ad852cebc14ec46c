"""The steps of a loss scale on arrays of any library, by the rules of its preset.

`DynamicLossScale` takes its steps in Rust, on numbers. Traced programs take them here, on arrays,
by the columns of the same table:

```text
finite     counted   the counter, and whether the scale grows
           grown     times the growth factor, up to the ceiling
otherwise  reduced   times the backoff factor or divided by the growth factor, down to the minimum
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from castwise._core import DynamicLossScale


class Arrays(Protocol):
    """The functions of a library of arrays that a step calls, by numpy's names.

    `numpy` and `jax.numpy` are such objects. Numbers of Python get the dtype of the array beside
    them.
    """

    @property
    def where(self) -> Callable[..., Any]: ...
    @property
    def isfinite(self) -> Callable[..., Any]: ...
    @property
    def minimum(self) -> Callable[..., Any]: ...
    @property
    def maximum(self) -> Callable[..., Any]: ...
    @property
    def multiply(self) -> Callable[..., Any]: ...
    @property
    def divide(self) -> Callable[..., Any]: ...


class Scalar(Protocol):
    """A number in an array of rank 0, of any library."""

    @property
    def dtype(self) -> Any: ...
    def __add__(self, other: int, /) -> Any: ...
    def __sub__(self, other: int, /) -> Any: ...


class State(NamedTuple):
    """What a step changes: numbers in arrays of rank 0."""

    scale: Scalar
    counter: Scalar
    hysteresis_left: Scalar
    floor_steps: Scalar


@dataclass(frozen=True)
class Rules:
    """The numbers of a loss scale, which may be arrays, and how its preset takes a step."""

    growth_interval: int
    growth_factor: float | Scalar
    backoff_factor: float
    minimum: float | Scalar | None
    maximum: float | None
    hysteresis: int
    growth: str
    ceiling: str
    backoff: str
    restore: str


def rules_of(machine: DynamicLossScale) -> Rules:
    """Read the rules of a loss scale; its factors are rounded as its preset rounds them."""
    columns = machine._rules
    factors = np.array([machine.growth_factor, machine.backoff_factor])
    if columns["arithmetic"] == "Single":
        with np.errstate(over="ignore"):
            factors = factors.astype(np.float32)
    growth_factor, backoff_factor = factors.tolist()
    return Rules(
        machine.growth_interval,
        growth_factor,
        backoff_factor,
        machine.minimum,
        machine.maximum,
        machine.hysteresis,
        *(columns[name] for name in ("growth", "ceiling", "backoff", "restore")),
    )


def counted(arrays: Arrays, counter: Scalar, rules: Rules) -> tuple[Any, Any]:
    """Return the counter after a finite step, and whether the scale grows."""
    interval, count = rules.growth_interval, _incremented(arrays, counter)
    grows = count >= interval if rules.growth == "Reached" else count == interval
    if rules.growth == "Modulo":
        count = count % interval if interval else count * 0
    return arrays.where(grows, 0, count), grows


def grown(arrays: Arrays, scale: Scalar, rules: Rules) -> Any:
    """Return the scale after a growth."""
    product = arrays.multiply(scale, rules.growth_factor)
    if rules.ceiling == "Unchanged":
        return arrays.where(arrays.isfinite(product), product, scale)
    if rules.ceiling == "Maximum" and rules.maximum is not None:
        return arrays.where(product < rules.maximum, product, rules.maximum)
    return product


def reduced(arrays: Arrays, scale: Scalar, rules: Rules) -> Any:
    """Return the scale after it backed off; a NaN stays one."""
    if rules.backoff == "Multiply":
        lower = arrays.multiply(scale, rules.backoff_factor)
    else:
        lower = arrays.divide(scale, rules.growth_factor)
    return lower if rules.minimum is None else arrays.maximum(lower, rules.minimum)


def next_scale(
    arrays: Arrays, scale: Scalar, counter: Scalar, rules: Rules, finite: object
) -> tuple[Any, Any]:
    """Return the scale and the counter after a step, for presets without hysteresis."""
    count, grows = counted(arrays, counter, rules)
    larger = arrays.where(grows, grown(arrays, scale, rules), scale)
    lower = reduced(arrays, scale, rules)
    return arrays.where(finite, larger, lower), arrays.where(finite, count, 0)


def next_state(arrays: Arrays, state: State, rules: Rules, finite: object) -> State:
    """Return the state after a step, of any preset."""
    count, grows = counted(arrays, state.counter, rules)
    left, full = _decremented(arrays, state.hysteresis_left), rules.hysteresis
    by_growth, is_held, lower = (
        rules.restore == "Growth",
        left > 0,
        reduced(arrays, state[0], rules),
    )
    at_floor = arrays.where(lower < state.scale, 0, _incremented(arrays, state.floor_steps))
    after_finite = (
        arrays.where(grows, grown(arrays, state.scale, rules), state.scale),
        count,
        arrays.where(grows, full, state.hysteresis_left) if by_growth else full,
        0,
    )
    after_nonfinite = (
        arrays.where(is_held, state.scale, lower),
        0,
        left if by_growth else arrays.maximum(left, 0),
        arrays.where(is_held, state.floor_steps, at_floor),
    )
    pairs = zip(after_finite, after_nonfinite, strict=True)
    return State(*(arrays.where(finite, *pair) for pair in pairs))


def _incremented(arrays: Arrays, count: Scalar) -> Any:
    """Add 1, unless it is the largest number of its dtype."""
    return arrays.minimum(count, np.iinfo(count.dtype.name).max - 1) + 1


def _decremented(arrays: Arrays, count: Scalar) -> Any:
    """Subtract 1, unless it is the smallest number of its dtype."""
    return arrays.maximum(count, np.iinfo(count.dtype.name).min + 1) - 1
