"""Each preset against the library it imitates, on random flags, parameters and edge values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from castwise.loss_scale import DynamicLossScale
from hypothesis import given
from hypothesis import strategies as st
from originals import ORIGINALS

TINY, HUGE = 2.0**-149, 3.4028234663852886e38
scales = st.sampled_from(
    [1.0, 2.0, 4.0, 0.5, 1.5, 3.0, 32768.0, 2.0**24, 2.0**126, 2.0**127, HUGE, 2.0**-126, TINY]
) | st.floats(2.0**-149, HUGE, width=32)
odd_scales = scales | st.sampled_from([0.0, -4.0, math.inf, 1e300])
intervals = st.integers(1, 5)
odd_intervals = st.integers(-1, 5)
above_one = st.sampled_from([2.0, 3.0, 1.1, 1.0000001, 10.0]) | st.floats(1.001, 100.0)
below_one = st.sampled_from([0.5, 0.1, 0.9]) | st.floats(0.001, 0.999)
PARAMETERS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "keras": {"initial_scale": odd_scales, "growth_interval": odd_intervals},
    "tf": {
        "initial_scale": odd_scales,
        "growth_interval": odd_intervals,
        "growth_factor": above_one | st.sampled_from([0.5, 1.0, -2.0]),
    },
    "tf_keras": {"initial_scale": odd_scales, "growth_interval": odd_intervals},
    "jmp": {
        "initial_scale": scales.filter(lambda scale: scale >= 2.0**-126),
        "growth_interval": odd_intervals,
        "growth_factor": st.integers(2, 10) | above_one,
        "minimum": st.sampled_from([1.0, 0.0, 4.0, 16.0, 0.1]),
    },
    "mpx": {
        "initial_scale": scales | st.sampled_from([0.0, -4.0, math.inf]),
        "growth_interval": odd_intervals,
        "growth_factor": st.integers(2, 10) | above_one | st.just(1e38),
        "minimum": st.sampled_from([1.0, 0.0, 4.0, 16.0, 0.1, 1e6]),
    },
    "torch": {
        "initial_scale": odd_scales,
        "growth_interval": odd_intervals,
        "growth_factor": above_one,
        "backoff_factor": below_one | st.just(-1.0),
    },
    "megatron": {
        "initial_scale": st.floats(16.0, HUGE, width=32),
        "growth_interval": intervals,
        "growth_factor": above_one,
        "backoff_factor": below_one,
        "minimum": st.sampled_from([1.0, 0.25, 16.0]),
        "hysteresis": st.integers(1, 4),
    },
    "apex": {
        "initial_scale": odd_scales | st.just(5e-324),
        "growth_interval": intervals,
        "minimum": st.sampled_from([None, 1.0, 128.0, 0.0]),
        "maximum": st.sampled_from([2.0**24, 65536.0, 8.0]),
    },
}
FLUSH_TO_ZERO = {"tf", "tf_keras", "jmp", "mpx"}
"""Run in threads that flush subnormal numbers; what they do below 2**-126 is the machine's."""
flags = st.lists(st.booleans(), max_size=12) | st.builds(
    lambda run, then: [run[0]] * run[1] + then,
    st.tuples(st.booleans(), st.integers(1, 40)),
    st.lists(st.booleans(), max_size=6),
)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize("preset", ORIGINALS)
@given(data=st.data())
def test_every_transition_is_the_originals(preset: str, data: st.DataObject) -> None:
    parameters = {name: data.draw(values, name) for name, values in PARAMETERS[preset].items()}
    theirs = ORIGINALS[preset](**parameters)
    ours = DynamicLossScale(**parameters, preset=preset)
    for finite in data.draw(flags, "flags"):
        seen = theirs.step(finite)
        ours, applies = ours.next(finite)
        if preset in FLUSH_TO_ZERO and 0 < abs(ours.scale) < 2.0**-126:
            return
        assert same(ours.scale, seen.scale), (parameters, ours, seen)
        assert ours.counter == seen.counter
        assert applies == finite
        assert seen.applies in (None, finite)


def test_a_minimum_of_zero_is_none_for_apex() -> None:
    """It asks whether the number is true."""
    scale = DynamicLossScale(initial_scale=-4.0, minimum=0.0, preset="apex")
    assert scale.next(False)[0].scale == -2.0
    assert scale.minimum is None


def test_mpx_clips_at_every_step() -> None:
    """To the range of float16, in which it multiplies the loss, also where nothing changes."""
    scale = DynamicLossScale(1e6, preset="mpx")
    assert (scale.scale, scale.maximum) == (1e6, 65504.0)
    assert scale.next(True)[0].scale == scale.next(False)[0].scale == 65504.0
    assert DynamicLossScale(1e-3, preset="mpx").next(True)[0].scale == 1.0
    assert DynamicLossScale(preset="mpx").scale == 65504.0
    with pytest.raises(ValueError, match="maximum"):
        DynamicLossScale(maximum=1e6, preset="mpx")
