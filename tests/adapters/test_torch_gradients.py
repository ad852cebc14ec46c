"""Surveys of gradients while torch trains, with and without a GradScaler."""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
import pytest
import real_frameworks
from castwise.adapters.torch import GradScaler, survey_gradients, to_numpy
from castwise.surveys import GradientLog

torch = real_frameworks.torch()
nn, optim = torch.nn, torch.optim

SMALL = 1e-6
"""The loss is so small that most gradients are below float16's smallest number."""


class Run:
    """A net that learns sums; the loss of a step is small."""

    def __init__(self, make_optimizer: Any = None, scaler: Any = None, dtype: Any = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = (make_optimizer or sgd)(self.model)
        self.scaler, self.dtype, self.gradients = scaler, dtype, {}

    def step(self, number: int) -> None:
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype is not None):
            prediction = self.model(x)
        loss = SMALL * (prediction.float() - x.sum(1, keepdim=True)).square().mean()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
            return
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def take(self, steps: int, log: GradientLog) -> GradientLog:
        handle = survey_gradients(log, self.optimizer, scaler=self.scaler)
        for number in range(steps):
            self.step(number)
        handle.remove()
        return log

    def arrays(self) -> dict[str, Any]:
        """The gradients of the last step."""
        return {
            name: to_numpy(parameter.grad).copy()
            for name, parameter in self.model.named_parameters()
        }


def sgd(model: Any) -> Any:
    return optim.SGD(model.named_parameters(), 0.1)


def fused_sgd(model: Any) -> Any:
    return optim.SGD(model.parameters(), 0.1, fused=True)


def lost(arrays: dict[str, Any], loss_scale: float) -> float:
    """The share of elements that float16 makes zero."""
    every = np.concatenate([array.ravel() for array in arrays.values()])
    _, report = castwise.cast(every, "float16", scale=loss_scale, report=True)
    assert report.overflowed == 0
    return report.underflowed / np.count_nonzero(every)


def test_the_log_says_what_float16_loses_and_what_saves_it() -> None:
    run = Run()
    log = run.take(21, GradientLog(every=10, by_name=True))
    assert log.steps == (0, 10, 20)
    arrays = run.arrays()
    recorded = log.at(20)
    assert recorded.by_name == {name: castwise.survey(array) for name, array in arrays.items()}
    prediction = recorded.predict()
    assert prediction.underflowed / prediction.count == pytest.approx(lost(arrays, 1.0), abs=0.01)
    assert lost(arrays, 1.0) > 0.05
    scales = log.loss_scales()
    assert scales is not None
    assert lost(arrays, scales.lowest) <= 0.001
    assert lost(arrays, scales.highest) <= 0.001

    # Trained in float16: without a loss scale gradients are zero; with the log's they are not.
    zeros = {}
    for loss_scale in (1.0, scales.lowest):
        scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale)
        half = Run(scaler=scaler, dtype=torch.float16).take(1, GradientLog())
        zeros[loss_scale] = half.at(0).total.zeros / half.at(0).total.count
    assert zeros[1.0] > 0.2
    assert zeros[scales.lowest] < 0.01


@pytest.mark.parametrize("scaler_class", [GradScaler, torch.amp.GradScaler])
@pytest.mark.parametrize("make_optimizer", [sgd, fused_sgd])
def test_gradients_of_a_scaled_loss(scaler_class: Any, make_optimizer: Any) -> None:
    """The same gradients, whether the scaler has divided them or a fused optimizer is to."""
    plain = Run(make_optimizer).take(4, GradientLog(every=3))
    scaler = scaler_class(device="cpu", init_scale=1024.0, growth_interval=2)
    scaled = Run(make_optimizer, scaler).take(4, GradientLog(every=3))
    assert [recorded.loss_scale for recorded in scaled] == [1024.0, 2048.0]
    for recorded, expected in zip(scaled, plain, strict=True):
        assert recorded.unscaled is (make_optimizer is sgd)
        assert recorded.amax == pytest.approx(expected.amax, rel=1e-5)
        assert recorded.amin_nonzero == pytest.approx(expected.amin_nonzero, rel=0.2)
        assert recorded.loss_scales() == expected.loss_scales()
        assert recorded.predict().underflowed < expected.predict().underflowed


def test_a_scaler_that_is_disabled_or_has_unscaled() -> None:
    run = Run(fused_sgd, torch.amp.GradScaler("cpu", enabled=False))
    recorded = run.take(1, GradientLog()).at(0)
    assert (recorded.loss_scale, recorded.unscaled) == (1.0, False)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    run, log = Run(fused_sgd, scaler), GradientLog()
    survey_gradients(log, run.optimizer, scaler=scaler)
    scaler.scale(run.model(torch.ones(1, 32)).sum()).backward()
    scaler.unscale_(run.optimizer)
    scaler.step(run.optimizer)
    assert (log.at(0).loss_scale, log.at(0).unscaled) == (256.0, True)


def test_names_steps_and_parameters_without_a_gradient() -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = optim.SGD([{"params": weights[:1]}, {"params": weights[1:]}], 0.1)
    log = GradientLog(every=5, by_name=True)
    handle = survey_gradients(log, optimizer, first_step=4)
    (weights[0].sum() + weights[2].sum()).backward()
    optimizer.step()
    optimizer.step()
    assert log.steps == (5,)
    assert list(log.at(5).by_name) == ["0/0", "1/1"]
    handle.remove()
    for _ in range(10):
        optimizer.step()
    assert log.steps == (5,)


def test_sparse_gradients() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    log = GradientLog()
    survey_gradients(log, optimizer := optim.SGD(table.parameters(), 0.1))
    table(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    assert (log.at(0).total.count, log.at(0).amax) == (8, 2.0)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("log", "optimizer"), {}, TypeError, "log='log' is not valid; give a castwise.surveys"),
        ((GradientLog(), "optimizer"), {}, TypeError, "optimizer='optimizer' has no hooks"),
        ((GradientLog(), None), {"scaler": 2}, TypeError, "scaler=2 is not valid; give a Grad"),
        ((GradientLog(), None), {"first_step": -1}, ValueError, "first_step=-1 is not valid"),
    ],
)
def test_refused_arguments(
    arguments: tuple[Any, Any], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    log, optimizer = arguments
    with pytest.raises(error, match=text):
        survey_gradients(log, optimizer or Run().optimizer, **options)
