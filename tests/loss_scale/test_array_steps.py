"""Steps on arrays, here numpy's, are those that the machines take in Rust, preset by preset."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from castwise.loss_scale import DynamicLossScale
from castwise.loss_scale._array_steps import State, next_scale, next_state
from hypothesis import given
from hypothesis import strategies as st


def in_64_bits(function: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    return lambda scale, factor: function(scale.astype(np.float64), factor).astype(scale.dtype)


ARRAYS: Any = SimpleNamespace(
    where=np.where,
    isfinite=np.isfinite,
    minimum=np.minimum,
    maximum=lambda value, limit: np.where(value < limit, limit, value),
    multiply=in_64_bits(np.multiply),
    divide=in_64_bits(np.divide),
)
SCALES = st.sampled_from([1.0, 3.0, 2.0**15, 2.0**127, 2.0**-149]) | st.floats(
    1.0, 2.0**24, width=32
)
LENIENT = SCALES | st.sampled_from([0.0, -4.0, math.inf, math.nan])
INTERVALS = st.integers(1, 4)
NUMBERS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "castwise": {
        "initial_scale": st.floats(1.0, 2.0**24, width=32),
        "growth_interval": INTERVALS,
        "growth_factor": st.floats(1.001, 100.0),
        "backoff_factor": st.floats(0.001, 0.999),
        "hysteresis": st.integers(1, 3),
    },
    "keras": {"initial_scale": LENIENT, "growth_interval": INTERVALS},
    "tf_keras": {"initial_scale": LENIENT, "growth_interval": st.integers(-1, 4)},
    "tf": {"growth_interval": INTERVALS, "growth_factor": st.sampled_from([1.1, 0.5, -2.0])},
    "torch": {"initial_scale": LENIENT, "growth_interval": INTERVALS},
    "jmp": {"growth_interval": st.integers(-2, 4), "minimum": st.sampled_from([1.0, 0.0, 16.0])},
    "mpx": {"initial_scale": LENIENT, "growth_interval": st.integers(-2, 4)},
    "megatron": {"growth_interval": INTERVALS, "hysteresis": st.integers(1, 4)},
    "apex": {"initial_scale": LENIENT, "growth_interval": INTERVALS},
}


@pytest.mark.parametrize("preset", NUMBERS)
@given(data=st.data())
def test_steps_are_those_in_rust(preset: Any, data: st.DataObject) -> None:
    numbers = {name: data.draw(values, name) for name, values in NUMBERS[preset].items()}
    machine = DynamicLossScale(**numbers, preset=preset)
    real = np.float64 if preset == "apex" else np.float32
    counts = machine.counter, machine.hysteresis_left, machine.floor_steps
    state = State(np.asarray(machine.scale, real), *map(np.asarray, counts))
    for finite in data.draw(st.lists(st.booleans(), max_size=20), "flags"):
        with np.errstate(all="ignore"):
            stepped = next_state(ARRAYS, state, machine, finite)
            scale, counter = next_scale(ARRAYS, state.scale, state.counter, machine, finite)
        state = State(stepped.scale.astype(real), *map(np.int64, stepped[1:]))
        machine, _ = machine.next(finite)
        expected = machine.scale, machine.counter, machine.hysteresis_left, machine.floor_steps
        np.testing.assert_array_equal([float(number) for number in state], expected)
        if machine.hysteresis == 1:
            np.testing.assert_array_equal([float(scale), float(counter)], expected[:2])
