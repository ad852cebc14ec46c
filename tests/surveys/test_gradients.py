"""Logs of gradients say what casts of them count, and which loss scales save them."""

from __future__ import annotations

import json
import math
import pickle
import re
from functools import cache

import castwise
import numpy as np
import pytest
from castwise.surveys import GradientLog, GradientSurvey, LossScales
from oracle import Array

RNG = np.random.default_rng(3)
GRADIENTS = {
    "normal": 1e-6 * RNG.standard_normal((64, 500)),
    "Laplace": 1e-3 * RNG.laplace(size=(64, 500)),
    "many sizes": RNG.standard_normal((64, 500)) * np.exp2(RNG.integers(-40, 20, (64, 1))),
    "zeros among others": RNG.standard_normal((64, 500)) * (RNG.random((64, 500)) < 0.1) * 1e-9,
    "float16": (1e-5 * RNG.standard_normal((64, 500))).astype(np.float16),
    "large": 1e30 * RNG.standard_normal((64, 500)),
    "powers of two": np.exp2(RNG.integers(-30, 0, (64, 500))),
    "the largest of float16": np.full(3, 65504.0),
    "what rounds to it": np.full(3, np.nextafter(np.float32(65520), 0)),
    "what overflows": np.full(3, 65520.0),
}
TARGETS = (
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float4_e2m1fn",
)
SHARES = (0.0, 0.001, 0.1)
EXPONENTS = range(-126, 128)


def gradient(name: str) -> Array:
    return np.asarray(GRADIENTS[name], np.float32)


def logged(gradients: object, **options: object) -> GradientSurvey:
    recorded = GradientLog().record(0, gradients, **options)
    assert recorded is not None
    return recorded


def smallest(target: str) -> float:
    return castwise.finfo(target).smallest_subnormal


@cache
def count_losses(name: str, target: str) -> list[tuple[float, int]]:
    """What is too small at each exponent, beside what is not zero; infinite with an overflow."""
    counts: list[tuple[float, int]] = []
    for exponent in EXPONENTS:
        scaled = np.ldexp(gradient(name).astype(np.float64), exponent)
        _, report = castwise.cast(scaled, target, report=True)
        nonzero = np.abs(scaled[scaled != 0])
        too_small = np.count_nonzero(nonzero < smallest(target))
        assert report.underflowed <= too_small
        overflows = report.overflowed + report.saturated > 0
        counts.append((math.inf if overflows else too_small, nonzero.size))
    return counts


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_loss_scales_are_those_that_casts_count(name: str, target: str, share: float) -> None:
    x = gradient(name)
    counts = zip(EXPONENTS, count_losses(name, target), strict=True)
    fitting = [exponent for exponent, (lost, size) in counts if lost <= share * size]
    scales = logged(x).loss_scales(target, share=share)
    if not fitting:
        assert scales is None
        return
    assert fitting == list(range(fitting[0], fitting[-1] + 1))
    assert scales == (2.0 ** fitting[0], 2.0 ** fitting[-1])
    # Also where gradients are recorded with a loss scale, or after its division.
    scaled = np.ldexp(x.astype(np.float64), 7)
    assert logged(scaled, loss_scale=128.0).loss_scales(target, share=share) == scales
    assert logged(x, loss_scale=1e4, unscaled=True).loss_scales(target, share=share) == scales


@pytest.mark.parametrize("loss_scale", [1000.0, 3.0, 1 / 3, 65536 * 1.5])
def test_loss_scales_of_gradients_at_any_loss_scale(loss_scale: float) -> None:
    x = gradient("normal").astype(np.float64)
    exact = logged(x).loss_scales()
    scales = logged(x * loss_scale, loss_scale=loss_scale).loss_scales()
    assert exact is not None
    assert scales is not None
    assert scales.highest == exact.highest
    assert scales.lowest in (exact.lowest, 2 * exact.lowest)


@pytest.mark.parametrize("loss_scale", [1.0, 64.0, 2.0**20])
@pytest.mark.parametrize("name", ["normal", "Laplace", "many sizes", "zeros among others"])
def test_predictions_are_what_casts_count(name: str, loss_scale: float) -> None:
    x = gradient(name)
    recorded = logged(x * np.float32(8), loss_scale=8.0)
    _, report = castwise.cast(x, "float16", scale=loss_scale, report=True)
    prediction = recorded.predict(loss_scale=loss_scale)
    for field in ("overflowed", "underflowed", "subnormal"):
        expected = getattr(report, field)
        assert getattr(prediction, field) == pytest.approx(expected, rel=0.1, abs=30), field
    assert recorded.amax == np.abs(x).max()
    assert recorded.amin_nonzero == np.abs(x[x != 0]).min()
    assert recorded.predict() == recorded.predict(loss_scale=8.0)


def test_steps_that_are_recorded() -> None:
    log = GradientLog(every=10)
    recorded = [log.record(step, {"w": np.ones(step + 1)}) for step in range(25)]
    assert [step for step, survey in enumerate(recorded) if survey is not None] == [0, 10, 20]
    assert log.steps == (0, 10, 20)
    assert [survey.total.count for survey in log] == [1, 11, 21]
    assert log.at(20) is recorded[20]
    log.record(20, np.zeros(3))
    assert (len(log), log.at(20).total.count) == (3, 3)


def test_what_is_not_due_is_not_looked_at() -> None:
    assert GradientLog().record(1, {"w": object()}) is None


def test_trees_of_gradients() -> None:
    kernel, bias = RNG.standard_normal((4, 130)), RNG.standard_normal(3)
    log = GradientLog(by_name=True)
    log.record(0, {"dense": [kernel, None], "bias": bias})
    recorded = log.at(0)
    assert list(recorded.by_name) == ["dense/0", "bias"]
    assert recorded.by_name["bias"] == castwise.survey(bias)
    assert recorded.total == castwise.survey(kernel) + castwise.survey(bias)
    assert recorded.predict(name="bias") == castwise.survey(bias).predict("float16")
    assert recorded.loss_scales(name="bias") == logged(bias).loss_scales()
    assert logged(kernel).by_name == {}
    assert logged(None).total.count == 0


def test_gradients_that_are_zero_fit_all_loss_scales() -> None:
    assert logged(np.zeros(3)).loss_scales() == (2.0**-126, 2.0**127)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_loss_scale_is_known_to_save_what_is_not_finite(value: float) -> None:
    assert logged([value, 1.0]).loss_scales() is None


def test_loss_scales_of_a_whole_log() -> None:
    log = GradientLog(every=1)
    assert log.loss_scales() == (2.0**-126, 2.0**127)
    log.record(0, [2.0**-30, 2.0**-10])
    log.record(1, [2.0**-20, 2.0**-5])
    assert log.loss_scales() == (2.0**6, 2.0**20)
    assert str(log.loss_scales()) == "2^6 to 2^20"
    log.record(2, [math.inf], loss_scale=1024.0)
    assert log.loss_scales() == (2.0**6, 2.0**9)
    log.record(3, [math.inf], loss_scale=48.0)
    assert log.loss_scales() is None


def test_ranges_of_loss_scales() -> None:
    scales = LossScales(2.0, 16.0)
    assert scales.intersection(LossScales(8.0, 64.0)) == (8.0, 16.0)
    assert scales.intersection(LossScales(32.0, 64.0)) is None


def test_logs_add_up() -> None:
    """Those of ranks, which have parts of the gradients, and those of parts of a run."""
    parts = [RNG.standard_normal((4, 200)) for _ in range(4)]
    logs = []
    for rank in (0, 1):
        log = GradientLog(by_name=True)
        log.record(0, {"w": parts[rank], f"only {rank}": parts[2]}, loss_scale=2.0)
        log.record(100 * (rank + 1), parts[3])
        logs.append(log)
    both = sum(logs)
    assert isinstance(both, GradientLog)
    assert both.steps == (0, 100, 200)
    surveys = [castwise.survey(part) for part in parts]
    assert both.at(0).by_name["w"] == surveys[0] + surveys[1]
    assert both.at(0).total == sum(surveys[:2]) + surveys[2] + surveys[2]
    assert list(both.at(0).by_name) == ["w", "only 0", "only 1"]
    assert logs[0].steps == (0, 100)
    assert both == logs[1] + logs[0]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (GradientLog(every=10), "every of the logs is 100 and 10"),
        (GradientLog(target="bfloat16"), "target of the logs"),
        (GradientLog(by_name=True), "by_name of the logs"),
    ],
)
def test_logs_that_do_not_add_up(other: GradientLog, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GradientLog() + other
    with pytest.raises(TypeError):
        GradientLog() + 1  # type: ignore[operator]


def test_steps_that_do_not_add_up() -> None:
    with pytest.raises(ValueError, match=r"loss_scale of step 0 is 1\.0 and 2\.0; add logs"):
        logged([1.0]) + logged([1.0], loss_scale=2.0)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_log_is_saved(by_name: bool) -> None:
    log = GradientLog(every=7, target="float8_e5m2", by_name=by_name)
    for step in range(0, 40, 7):
        gradients = {"b": RNG.standard_normal(30), "a": RNG.standard_normal((3, 30))}
        log.record(step, gradients, loss_scale=1.1, unscaled=step > 20)
    assert GradientLog.from_dict(json.loads(json.dumps(log.to_dict()))) == log
    assert pickle.loads(pickle.dumps(log)) == log  # noqa: S301 - what was just saved
    assert log != GradientLog(every=7, target="float8_e5m2", by_name=by_name)


def test_what_is_no_saved_log_is_refused() -> None:
    with pytest.raises(ValueError, match="schema=None; this castwise reads 1"):
        GradientLog.from_dict({})
    with pytest.raises(ValueError, match=r"damaged \('every'\); give what to_dict"):
        GradientLog.from_dict({"schema": 1})
    with pytest.raises(ValueError, match="saved log has schema=None"):
        GradientLog.from_dict([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"step": "first"},
        {"step": -1},
        {"step": [0]},
        {"loss_scale": "0x1p99999"},
        {"loss_scale": "nan"},
        {"loss_scale": "0x0p0"},
        {"loss_scale": 1.0},
        {"unscaled": 3},
        {"total": {}},
        {"total": None},
        {"by_name": []},
    ],
)
def test_damaged_logs_are_refused(change: dict[str, object]) -> None:
    log = GradientLog()
    log.record(0, gradient("normal"))
    saved = log.to_dict()
    saved["steps"][0].update(change)
    with pytest.raises(ValueError, match=r"saved log is damaged \(.+\); give what to_dict"):
        GradientLog.from_dict(saved)


def test_a_log_with_a_step_twice_is_refused() -> None:
    log = GradientLog()
    log.record(0, gradient("normal"))
    saved = log.to_dict()
    with pytest.raises(ValueError, match="step 0 stands twice"):
        GradientLog.from_dict({**saved, "steps": saved["steps"] * 2})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"every": 0}, ValueError, "every=0 is not valid; use 1 or more"),
        ({"every": 1.5}, TypeError, "every=1.5 is not valid; use an int"),
        ({"target": "int8"}, TypeError, "target='int8' does not hold gradients"),
        ({"target": "float8_e8m0fnu"}, TypeError, "use a signed float format"),
    ],
)
def test_refused_options(options: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        GradientLog(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "gradients", "loss_scale", "error", "text"),
    [
        (-1, [1.0], 1.0, ValueError, "step=-1 is not valid; use 0 or more"),
        (0.5, [1.0], 1.0, TypeError, "step=0.5 is not valid; use an int"),
        (0, [1.0], 0.0, ValueError, "loss_scale=0.0 is not valid; use a positive"),
        (0, [1.0], math.inf, ValueError, "loss_scale=inf is not valid"),
        (0, [1.0], math.nan, ValueError, "loss_scale=nan is not valid"),
        (0, {"a": {"b": np.ones(2, complex)}}, 1.0, TypeError, "the gradient at 'a/b': "),
        (0, {"a": "text"}, 1.0, TypeError, "the gradient at 'a': "),
    ],
)
def test_refused_steps(
    step: int, gradients: object, loss_scale: float, error: type[Exception], text: str
) -> None:
    log = GradientLog()
    with pytest.raises(error, match=text):
        log.record(step, gradients, loss_scale=loss_scale)
    assert log.steps == ()


def test_refused_questions() -> None:
    log = GradientLog(every=5)
    log.record(0, [1.0])
    log.record(5, [1.0])
    with pytest.raises(KeyError, match="step=3 was not recorded; there are 2 from 0 to 5; give"):
        log.at(3)
    with pytest.raises(KeyError, match=r"name='w' is not among .*GradientLog\(by_name=True\)"):
        log.at(0).predict(name="w")
    with pytest.raises(ValueError, match=r"share=1 is not valid; use a number from 0 to below 1\."):
        log.loss_scales(share=1)


def test_the_table() -> None:
    log = GradientLog(every=1)
    assert str(log) == "no step was recorded"
    magnitudes = np.repeat([0.0, 2.0**-30, 2.0**-20], [50, 25, 25])
    log.record(0, magnitudes)
    log.record(1, magnitudes, loss_scale=4, unscaled=True)
    log.record(2, np.repeat([2.0**16, math.inf, 1.0], [1, 1, 2]))
    header, _, *rows, _, fitting = str(log).splitlines()
    assert header.split() == [
        *("step", "loss", "scale", "amax", "amin_nonzero", "zeros"),
        *("underflow", "subnormal", "overflow", "fitting", "exponents"),
    ]
    cells = [re.split(r"  +", row.strip())[:9] for row in rows]
    half = "50.00 %"
    assert cells == [
        ["0", "1", "9.54e-07", "9.31e-10", half, half, half, "0", "2^6 to 2^35"],
        ["1", "4", "9.54e-07", "9.31e-10", half, half, half, "0", "2^6 to 2^35"],
        ["2", "1", "6.55e+04", "1.00e+00", "0", "0", "0", half, "none"],
    ]
    # Three binades a letter from 2^-30, and the normal numbers of float16 from 2^-14 to 2^15.
    strips = [row.rpartition("2^35  ")[2] for row in rows[:2]]
    assert strips == ["█  █ [           ]", "█   █[           ]"]
    assert rows[2].endswith("none       [     █    ▄]")
    assert "at most 0.1 % of what is not zero; for all steps none" in fitting


def test_the_table_agrees_with_itself_at_the_end_of_the_range() -> None:
    """One gradient overflows at the loss scale of the step, so it is not among those that fit."""
    x = np.clip(RNG.standard_normal(20_000), -3, 3).astype(np.float32)
    x[7] = np.float32(65530 / 2.0**14)
    log = GradientLog(every=1)
    gradients = log.record(0, x, loss_scale=2.0**14, unscaled=True)
    assert gradients is not None
    assert gradients.predict().overflowed == 1
    row = re.split(r"  +", str(log).splitlines()[2].strip())
    assert row[7:9] == ["0.01 %", "2^-14 to 2^13"]


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_not_finite_overflows_once(target: str) -> None:
    log = GradientLog(every=1, target=target)
    log.record(0, np.repeat([0.5, math.inf, math.nan], [2, 1, 1]))
    assert re.split(r"  +", str(log).splitlines()[2].strip())[7] == "50.00 %"


def test_every_step_is_a_line_of_the_table() -> None:
    log = GradientLog(every=1)
    for step in range(50):
        log.record(step, RNG.standard_normal(100) * 10.0**-step)
    lines = str(log).splitlines()
    assert [line.split()[0] for line in lines[2:52]] == [str(step) for step in range(50)]
    assert len(repr(log)) < 200
    assert len(repr(log.at(3))) < 200
