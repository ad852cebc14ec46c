"""Loss scales as values: bounded, equal, hashable, pickled, saved, loaded; and their events."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import random
from typing import Any

import numpy as np
import pytest
import support
from castwise.loss_scale import (
    DelayedScaling,
    DynamicLossScale,
    FixedLossScale,
    LossScaleEvent,
    LossScaler,
)
from float_environment import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, SUPPORTED, mxcsr
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

PRESETS = ("castwise", "keras", "tf_keras", "tf", "torch", "jmp", "mpx", "megatron", "apex")


class Bounded(RuleBasedStateMachine):
    """The default never leaves its limits, whatever its parameters and the flags."""

    @initialize(
        minimum=st.floats(2.0**-126, 1.0),
        maximum=st.floats(1.0, 3.0e38),
        interval=st.integers(1, 4),
        growth=st.floats(1.0 + 2.0**-24, 1e30, exclude_min=True),
        backoff=st.floats(0.0, 1.0 - 2.0**-24, exclude_min=True),
        hysteresis=st.integers(1, 3),
    )
    def make(  # noqa: PLR0917
        self,
        minimum: float,
        maximum: float,
        interval: int,
        growth: float,
        backoff: float,
        hysteresis: int,
    ) -> None:
        self.low, self.high = float(np.float32(minimum)), float(np.float32(maximum))
        self.state = DynamicLossScale(
            1.0,
            interval,
            growth,
            backoff,
            minimum=minimum,
            maximum=maximum,
            hysteresis=hysteresis,
        )
        self.nonfinite = 0

    @rule(finite=st.booleans(), times=st.integers(1, 200))
    def steps(self, finite: bool, times: int) -> None:
        for _ in range(times):
            before = self.state
            self.state, applies, event = before.transition(finite)
            assert applies == finite
            self.nonfinite = 0 if finite else self.nonfinite + 1
            if finite:
                assert self.state.scale >= before.scale
                assert event in (None, "grew", "at the ceiling")
            else:
                assert self.state.scale <= before.scale
                assert (event == "held back") == (self.nonfinite < before.hysteresis)
            assert (event in ("grew", "backed off")) == (self.state.scale != before.scale)
            assert event != "at the floor" or self.state.scale == self.low
            assert event != "at the ceiling" or self.state.scale == self.high

    @rule()
    def saved_and_loaded(self) -> None:
        fresh = DynamicLossScale.from_config(self.state.get_config())
        assert fresh.with_state(self.state.state_dict()) == self.state
        assert pickle.loads(pickle.dumps(self.state)) == self.state  # noqa: S301

    @invariant()
    def within_limits(self) -> None:
        if hasattr(self, "state"):
            assert self.low <= self.state.scale <= self.high
            assert 0 <= self.state.counter < self.state.growth_interval


TestBounded = Bounded.TestCase


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.0])
def test_a_million_flags_leave_a_usable_scale(share: float) -> None:
    draw = random.Random(1).random
    state = DynamicLossScale(growth_interval=3)
    for _ in range(1_000_000 // support.FEWER):
        state, _ = state.next(draw() >= share)
        assert 0 < state.scale < math.inf


@pytest.mark.parametrize("preset", PRESETS)
def test_values(preset: str) -> None:
    first = DynamicLossScale(preset=preset)
    state = first
    for finite in (True, False, False, True):
        state, _ = state.next(finite)
    assert first == DynamicLossScale(preset=preset) != state
    assert hash(first) == hash(DynamicLossScale(preset=preset))
    assert len({first, state, copy.deepcopy(state)}) == 2
    assert pickle.loads(pickle.dumps(state)) == state == copy.copy(state)  # noqa: S301
    assert DynamicLossScale.from_config(state.get_config()) == first
    assert first.with_state(state.state_dict()).state_dict() == state.state_dict()
    assert repr(preset) in repr(state)
    assert repr(state.scale) in repr(state)
    with pytest.raises(AttributeError):
        state.scale = 1.0  # type: ignore[misc]


def test_torchs_state_has_torchs_keys() -> None:
    state = DynamicLossScale(4.0, 7, 3.0, 0.25, preset="torch").next(True)[0]
    assert state.state_dict() == {
        "scale": 4.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 7,
        "_growth_tracker": 1,
    }
    loaded = DynamicLossScale(preset="torch").with_state(state.state_dict())
    assert loaded.growth_factor == 3.0
    assert loaded.next(False)[0].scale == 1.0


def test_hysteresis_in_a_row() -> None:
    state = DynamicLossScale(16.0, hysteresis=3)
    scales = []
    for finite in (False, False, True, False, False, False, False, True, False):
        state, _ = state.next(finite)
        scales.append(state.scale)
    assert scales == [16, 16, 16, 16, 16, 8, 4, 4, 4]


def test_megatrons_hysteresis_comes_back_with_growth_only() -> None:
    default = DynamicLossScale(16.0, 3, hysteresis=2)
    megatron = DynamicLossScale(16.0, 3, hysteresis=2, preset="megatron")
    seen = []
    for first in (default, megatron):
        state = first
        for finite in (False, True, False, True, True, True, False):
            state, _ = state.next(finite)
        seen.append(state.scale)
    assert seen == [32.0, 16.0]


def test_a_fixed_scale_stays_and_may_apply_anything() -> None:
    careful, careless = FixedLossScale(1024), FixedLossScale(1024, skip_nonfinite=False)
    assert careful.next(False) == (careful, False)
    assert careless.next(False) == (careless, True)
    assert careful != careless
    assert careful == FixedLossScale(1024.0)
    assert hash(careful) == hash(FixedLossScale(1024.0))
    assert pickle.loads(pickle.dumps(careless)) == careless  # noqa: S301
    assert eval(repr(careless)) == careless  # noqa: S307
    assert careful.with_state(careful.state_dict()) == careful


@pytest.mark.parametrize(
    "finite", [np.True_, np.array(True), np.bool_(True)], ids=["np.True_", "0-d", "np.bool_"]
)
def test_flags_of_numpy(finite: object) -> None:
    assert DynamicLossScale().next(finite)[1] is True


@pytest.mark.parametrize("finite", [1, 1.0, "yes", None, np.array([True, True]), np.float32(1)])
def test_what_is_not_a_flag(finite: object) -> None:
    with pytest.raises(TypeError, match="finite="):
        DynamicLossScale().next(finite)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"growth_factor": 1.0}, "growth_factor=1.0 is not valid; use a number above 1"),
        ({"growth_factor": math.nan}, "growth_factor=NaN"),
        ({"growth_factor": math.inf}, "growth_factor=inf"),
        ({"backoff_factor": 1.0}, "backoff_factor=1.0 is not valid; use a number between 0 and 1"),
        ({"backoff_factor": 0.0}, "backoff_factor=0.0"),
        ({"growth_factor": 1 + 1e-9}, "growth_factor=1.000000001 is not valid; use a number above"),
        ({"growth_factor": 1 + 2.0**-24}, "growth_factor=1.00000005"),
        ({"backoff_factor": 1 - 1e-9}, "backoff_factor=0.999999999 is not valid; use a number of"),
        ({"growth_interval": 0}, "growth_interval=0 is not valid; use an int of 1 or more"),
        ({"hysteresis": 0}, "hysteresis=0"),
        ({"initial_scale": math.nan}, "initial_scale=NaN"),
        ({"initial_scale": math.inf}, "initial_scale=inf"),
        ({"initial_scale": 0.0}, "initial_scale=0.0"),
        ({"initial_scale": 2.0, "minimum": 4.0}, "initial_scale=2.0 is not valid; use minimum=4.0"),
        ({"minimum": 8, "maximum": 4}, "minimum=8.0 is not valid; use maximum=4.0 or less"),
        ({"initial_scale": 2.0, "maximum": 1.0}, "initial_scale=2.0 is not valid; use maximum=1.0"),
        ({"minimum": 0.0}, "minimum=0.0"),
        ({"maximum": math.inf}, "maximum=inf"),
        ({"maximum": 1e39}, "maximum=1e39"),
        ({"preset": "Keras"}, 'preset="Keras" is not valid; use one of "castwise", "keras"'),
        ({"hysteresis": 2, "preset": "keras"}, "hysteresis=2 is not valid with preset='keras'"),
        ({"growth_factor": 1.0, "preset": "torch"}, "growth_factor=1.0"),
        ({"backoff_factor": 1.0, "preset": "torch"}, "backoff_factor=1.0"),
        ({"minimum": 2.0**33, "preset": "megatron"}, "initial_scale="),
        ({"growth_interval": 2**80}, "growth_interval=1208925819614629174706176"),
    ],
)
def test_parameters_that_make_no_sense(parameters: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match="valid") as error:
        DynamicLossScale(**parameters)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "parameters", [{"initial_scale": "8"}, {"growth_interval": 2.5}, {"hysteresis": True}]
)
def test_parameters_of_the_wrong_type(parameters: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=next(iter(parameters))):
        DynamicLossScale(**parameters)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e39, 1e-50])
def test_fixed_scales_that_make_no_sense(scale: float) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        FixedLossScale(scale)


def test_states_of_others() -> None:
    default, torch = DynamicLossScale(), DynamicLossScale(preset="torch")
    with pytest.raises(ValueError, match=r"unknown key 'growth_factor'.*preset that saved it"):
        default.with_state(torch.state_dict())
    with pytest.raises(ValueError, match="lacks the key 'scale'"):
        torch.with_state({})
    with pytest.raises(ValueError, match="FixedLossScale has no state"):
        FixedLossScale(2.0).with_state(default.state_dict())
    with pytest.raises(TypeError, match="scale='8'"):
        default.with_state({**default.state_dict(), "scale": "8"})
    with pytest.raises(ValueError, match="scale=NaN"):
        default.with_state({**default.state_dict(), "scale": math.nan})
    with pytest.raises(ValueError, match=r"scale=1e\+?30"):
        default.with_state({**default.state_dict(), "scale": 1e30})
    with pytest.raises(ValueError, match="counter=-1"):
        default.with_state({**default.state_dict(), "counter": -1})
    later = DynamicLossScale(hysteresis=3).state_dict()
    with pytest.raises(ValueError, match=r"hysteresis_left=3 .* at most hysteresis=1"):
        default.with_state(later)
    with pytest.raises(TypeError, match="state is of type"):
        FixedLossScale(2.0).with_state(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"counter=1\.5"):
        default.with_state({**default.state_dict(), "counter": 1.5})
    with pytest.raises(TypeError, match="state is of type"):
        default.with_state([("scale", 1.0)])


def test_events_reach_callback_and_log(caplog: pytest.LogCaptureFixture) -> None:
    events: list[LossScaleEvent] = []
    scale = DynamicLossScale(2.0, 2, minimum=1.0, maximum=4.0, hysteresis=2)
    scaler = LossScaler(scale, on_event=events.append)
    with caplog.at_level(logging.DEBUG, "castwise.loss_scale"):
        applied = [scaler.update(finite) for finite in [True] * 4 + [False] * 8]
    assert applied == [True] * 4 + [False] * 8
    names = [event.name for event in events]
    assert (
        names == ["grew", "at the ceiling", "held back", *["backed off"] * 2] + ["at the floor"] * 5
    )
    assert [event.step for event in events] == [2, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [event.floor_steps for event in events[5:]] == [1, 2, 3, 4, 5]
    assert (events[0].before, events[0].scale) == (2.0, 4.0)
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 8  # of the five at the floor, steps 1, 2 and 4
    assert "for 4 steps" in logged[-1]
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_preset_that_loses_its_scale_says_so() -> None:
    events: list[LossScaleEvent] = []
    scaler = LossScaler(DynamicLossScale(2.0**127, 1, preset="keras"), on_event=events.append)
    scaler.update(True)
    assert [event.name for event in events] == ["lost"]
    assert scaler.scale == math.inf


def test_a_lost_scale_is_logged_ever_less(caplog: pytest.LogCaptureFixture) -> None:
    events: list[LossScaleEvent] = []
    scaler = LossScaler(DynamicLossScale(2.0**127, 1, preset="keras"), on_event=events.append)
    for _ in range(20):
        scaler.update(True)
    assert len(events) == 20
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"step {step}" for step in (1, 2, 4, 8, 16)
    ]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("finite", [True, False])
def test_every_reachable_state_is_restored(preset: str, finite: bool) -> None:
    state = fresh = DynamicLossScale(growth_interval=1, preset=preset)
    for _ in range(1200):  # to 0 or infinity where the preset goes there
        state, _ = state.next(finite)
    assert fresh.with_state(state.state_dict()).state_dict() == state.state_dict()
    assert pickle.loads(pickle.dumps(state)) == state == copy.deepcopy(state)  # noqa: S301
    if preset in ("keras", "megatron") and finite:
        assert state.scale == math.inf


def test_jmps_counter_near_the_end_of_ints() -> None:
    scale = DynamicLossScale(growth_interval=2**63 - 1, preset="jmp")
    state = {**scale.state_dict(), "counter": 2**63 - 4}
    assert scale.with_state(state).next(True)[0].counter == 2**63 - 3
    for interval, wanted in ((-(2**63), -1), (-1, 0), (7, (2**63 - 1) % 7)):
        scale = DynamicLossScale(growth_interval=interval, preset="jmp")
        state = {**scale.state_dict(), "counter": 2**63 - 2}
        assert scale.with_state(state).next(True)[0].counter == wanted


def test_a_scaler_goes_on_from_a_saved_state() -> None:
    first, second = LossScaler(DynamicLossScale(8.0)), LossScaler(DynamicLossScale(8.0))
    first.update(False)
    second.load_state_dict(first.state_dict())
    assert second.scale == first.scale == 4.0
    assert second.loss_scale == first.loss_scale
    assert second.steps == first.steps == 1
    second.load_state_dict(DynamicLossScale(8.0).state_dict())
    assert (second.scale, second.steps) == (8.0, 1)
    for steps in (-1, True, 1.5, None):
        with pytest.raises(ValueError, match="steps="):
            second.load_state_dict({**first.state_dict(), "steps": steps})
    with pytest.raises(TypeError, match="state is of type"):
        second.load_state_dict(None)  # type: ignore[arg-type]
    assert (second.scale, second.steps) == (8.0, 1)
    assert LossScaler(8).scale == 8.0
    assert LossScaler(None).scale == 1.0
    with pytest.raises(ValueError, match='use "dynamic"'):
        LossScaler("Dynamic")


@pytest.mark.skipif(not SUPPORTED, reason="MXCSR is x86-64's")
def test_flush_to_zero_changes_no_scale() -> None:
    state = DynamicLossScale(2.0**-126, 1, preset="torch")
    with mxcsr(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO):
        down = state.next(False)[0]
        up = down.next(True)[0]
    assert down.scale == 2.0**-127
    assert up.scale == 2.0**-126


@pytest.mark.parametrize("kind", [FixedLossScale, DynamicLossScale, DelayedScaling])
@pytest.mark.parametrize("config", [5, None, "x", [("scale", 2.0)]])
def test_a_config_is_a_dict(kind: Any, config: object) -> None:
    name = type(config).__name__
    with pytest.raises(TypeError, match=f"config is of type <class '{name}'>; give the dict that"):
        kind.from_config(config)
