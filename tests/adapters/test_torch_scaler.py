"""GradScaler in training runs beside torch.amp's, with optimizers that unscale by themselves."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import real_frameworks
from castwise.adapters.torch import GradScaler
from castwise.compat import torch as compat

torch = real_frameworks.torch()
nn, optim = torch.nn, torch.optim

NUMBERS = {
    "init_scale": 1024.0,
    "growth_factor": 1.5,
    "backoff_factor": 0.7,
    "growth_interval": 4,
}
STEPS = 200

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: optim.SGD(parameters, 0.05, momentum=0.9),
    "fused sgd": lambda parameters: optim.SGD(parameters, 0.05, momentum=0.9, fused=True),
    "adam": lambda parameters: optim.Adam(parameters, 0.01),
    "fused adam": lambda parameters: optim.Adam(parameters, 0.01, fused=True),
    "fused adamw": lambda parameters: optim.AdamW(parameters, 0.01, fused=True),
}


class Run:
    """A model, its optimizers and a scaler, trained step by step."""

    def __init__(self, scaler: Any, *makers: Callable[[Any], Any]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        halves = [self.model[0].parameters(), self.model[2].parameters()]
        parts = halves if len(makers) == 2 else [self.model.parameters()]
        self.optimizers = [make(part) for make, part in zip(makers, parts, strict=True)]
        self.scaler = scaler

    def step(self, number: int, dtype: Any, clip: bool) -> Any:
        """Train on one batch; every 7th gradient has an infinity or a NaN."""
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(number))
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        self.scaler.scale(loss).backward()
        if number % 7 == 6:
            layer = self.model[0 if number % 2 else 2]
            layer.weight.grad.view(-1)[number % 4] = (math.inf, math.nan, -math.inf)[number % 3]
        for optimizer in self.optimizers:
            if clip:
                self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            self.scaler.step(optimizer)
            assert not hasattr(optimizer, "grad_scale")
            assert not hasattr(optimizer, "found_inf")
        self.scaler.update()
        return loss.detach()


def assert_equal_runs(makers: Iterable[Any], dtype: Any = None, clip: bool = False) -> None:
    makers = list(makers)
    theirs = Run(torch.amp.GradScaler("cpu", **NUMBERS), *makers)
    ours = Run(GradScaler(**NUMBERS), *makers)
    scales = set()
    for number in range(STEPS):
        assert torch.equal(ours.step(number, dtype, clip), theirs.step(number, dtype, clip))
        assert ours.scaler.state_dict() == theirs.scaler.state_dict()
        scales.add(ours.scaler.get_scale())
        pairs = zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
        assert all(torch.equal(mine, other) for mine, other in pairs)
        assert all(parameter.isfinite().all() for parameter in ours.model.parameters())
    assert len(scales) > 3  # it grew and backed off


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_with_planted_infinities(name: str, clip: bool) -> None:
    assert_equal_runs([OPTIMIZERS[name]], clip=clip)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["sgd", "fused adam"])
def test_training_under_autocast(name: str, dtype: str) -> None:
    assert_equal_runs([OPTIMIZERS[name]], dtype=getattr(torch, dtype))


@pytest.mark.parametrize("clip", [False, True])
def test_training_with_several_optimizers(clip: bool) -> None:
    assert_equal_runs([OPTIMIZERS["fused adam"], OPTIMIZERS["sgd"]], clip=clip)
    assert_equal_runs([OPTIMIZERS["fused sgd"], OPTIMIZERS["fused adamw"]], clip=clip)


# --- what an optimizer gets ------------------------------------------------------------------


class Recorder(optim.SGD):
    """An optimizer that unscales and skips by itself, and keeps what it was given."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, 1.0)
        self.seen: list[Any] = []

    def step(self, closure: Any = None) -> str:
        self.seen.append((self.grad_scale, self.found_inf))
        return "stepped"


class Taker(optim.SGD):
    """An optimizer whose step takes the scaler."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, 1.0)
        self.seen: list[Any] = []

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> str:
        found = grad_scaler._check_inf_per_device(self)
        assert found == grad_scaler._found_inf_per_device(self)
        scale = grad_scaler._get_scale_async()
        self.seen.append((grad_scaler, described(scale), described(sum(found.values()))))
        return "stepped"


def prepared(scaler: Any, cls: Any, value: float) -> tuple[Any, Any]:
    parameter = nn.Parameter(torch.ones(2))
    scaler.scale(torch.ones(()))
    parameter.grad = torch.tensor([8.0, value])
    return cls([parameter]), parameter


@pytest.mark.parametrize("before", ["nothing", "unscale_", "grad_scale", "both"])
@pytest.mark.parametrize("value", [4.0, math.inf, math.nan])
def test_an_optimizer_that_unscales_by_itself(value: float, before: str) -> None:
    seen = []
    for scaler in (torch.amp.GradScaler("cpu", init_scale=4.0), GradScaler(init_scale=4.0)):
        optimizer, parameter = prepared(scaler, Recorder, value)
        if before in {"grad_scale", "both"}:
            optimizer.grad_scale = torch.tensor(3.0)
        if before in {"unscale_", "both"}:
            scaler.unscale_(optimizer)
        assert scaler.step(optimizer) == "stepped"
        assert not {"grad_scale", "found_inf"} & vars(optimizer).keys()
        with pytest.raises(RuntimeError, match=r"step\(\) has"):
            scaler.step(optimizer)
        scaler.update()
        (given,) = optimizer.seen
        seen.append((parameter.grad.tolist(), scaler.state_dict(), *map(described, given)))
    assert repr(seen[0]) == repr(seen[1])


def described(value: Any) -> Any:
    return (value.dtype, value.device, value.item()) if torch.is_tensor(value) else value


@pytest.mark.parametrize("value", [4.0, math.inf])
def test_an_optimizer_whose_step_takes_the_scaler(value: float) -> None:
    seen = []
    for scaler in (torch.amp.GradScaler("cpu", init_scale=4.0), GradScaler(init_scale=4.0)):
        optimizer, parameter = prepared(scaler, Taker, value)
        with pytest.warns(FutureWarning, match="GradScaler is going to stop passing itself") as got:
            assert scaler.step(optimizer) == "stepped"
        assert got[0].filename == __file__
        scaler.update()
        ((passed, *given),) = optimizer.seen
        assert passed is scaler
        seen.append((parameter.grad.tolist(), scaler.state_dict(), *given))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("make", [torch.amp.GradScaler, GradScaler])
def test_an_optimizer_without_gradients(make: Any) -> None:
    scaler = make("cpu", init_scale=4.0)
    optimizer, parameter = prepared(scaler, Recorder, 1.0)
    parameter.grad = None
    assert scaler.step(optimizer) == "stepped"
    assert (optimizer.seen[0][0].item(), optimizer.seen[0][1]) == (4.0, 0)
    with pytest.raises(AssertionError):
        scaler.update()
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("make", [torch.amp.GradScaler, GradScaler])
def test_gradients_of_16_bits_go_to_optimizers_that_unscale(make: Any) -> None:
    scaler = make("cpu", init_scale=4.0)
    optimizer, parameter = prepared(scaler, Recorder, 1.0)
    parameter.data = parameter.data.half()
    parameter.grad = torch.tensor([8.0, math.inf], dtype=torch.float16)
    with pytest.raises(ValueError, match=r"(?i)(float16|fp16) grad"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert optimizer.seen[0][1].item() == 1.0
    scaler.update()
    assert scaler.get_scale() == 2.0


def test_optimizers_of_numpy_get_numbers_of_numpy() -> None:
    class Numpy:
        _step_supports_amp_scaling = True

        def __init__(self, grad: np.ndarray[Any, Any]) -> None:
            parameter = type("Parameter", (), {"grad": grad})()
            self.param_groups = [{"params": [parameter]}]

        def step(self) -> list[Any]:
            return [self.grad_scale, self.found_inf]  # type: ignore[attr-defined]

    scaler = compat.GradScaler(init_scale=4.0)
    scaler.scale(np.float32(1))
    for value, found in ((1.0, 0.0), (math.nan, 1.0)):
        optimizer = Numpy(np.array([value], np.float32))
        given = scaler.step(optimizer)
        assert given == [4.0, found]
        assert {type(each) for each in given} == {np.float32}
        assert not hasattr(optimizer, "found_inf")
    scaler.update()
    assert scaler.get_scale() == 2.0


# --- steps that cannot be taken --------------------------------------------------------------


class Failing(optim.SGD):
    """An optimizer that fails once."""

    failures = 1

    def step(self, closure: Any = None) -> Any:
        self.failures -= 1
        if self.failures == 0:
            raise ArithmeticError("no memory for this step")
        return super().step(closure)


class FailingByItself(Failing):
    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> Any:
        given = (self.grad_scale.item(), self.found_inf.item())
        del self.grad_scale, self.found_inf  # which the SGD below does not take
        super().step(closure)
        self.grad_scale, self.found_inf = map(torch.tensor, given)
        return given


@pytest.mark.parametrize("make", [torch.amp.GradScaler, GradScaler])
def test_a_step_that_fails_can_be_taken_again(make: Any) -> None:
    scaler = make("cpu", init_scale=4.0)
    parameter = nn.Parameter(torch.ones(1))
    optimizer = Failing([parameter], 1.0)
    scaler.scale(torch.ones(()))
    parameter.grad = torch.tensor([2.0])
    state = copy.deepcopy(scaler.state_dict())
    with pytest.raises(ArithmeticError):
        scaler.step(optimizer)
    assert (parameter.item(), parameter.grad.item()) == (1.0, 0.5)
    assert scaler.state_dict() == state
    scaler.step(optimizer)
    scaler.update()
    assert (parameter.item(), scaler.state_dict()["_growth_tracker"]) == (0.5, 1)


@pytest.mark.parametrize("own", [None, 3.0])
def test_an_optimizer_that_fails_keeps_its_attributes(own: float | None) -> None:
    """Torch leaves the scale in the attribute, and multiplies by it again at the next step."""
    scaler = GradScaler(init_scale=4.0)
    parameter = nn.Parameter(torch.ones(1))
    optimizer = FailingByItself([parameter], 1.0)
    if own is not None:
        optimizer.grad_scale = torch.tensor(own)
    before = vars(optimizer).copy()
    scaler.scale(torch.ones(()))
    parameter.grad = torch.tensor([2.0])
    with pytest.raises(ArithmeticError):
        scaler.step(optimizer)
    before["failures"] = 0
    assert vars(optimizer) == before
    assert (parameter.item(), parameter.grad.item(), scaler.get_scale()) == (1.0, 2.0, 4.0)
    assert scaler.step(optimizer) == (4.0 * (own or 1.0), 0.0)
    scaler.update()
    assert scaler.state_dict()["_growth_tracker"] == 1


# --- errors ----------------------------------------------------------------------------------


def test_the_scaler_for_arrays_names_the_one_for_tensors() -> None:
    loss = torch.ones(2)
    for outputs in (loss, [loss], (np.ones(1), [loss])):
        with pytest.raises(ValueError, match=r"use castwise\.adapters\.torch\.GradScaler"):
            compat.GradScaler().scale(outputs)
    for scaler, kind in ((compat.GradScaler(), "an array of numpy"), (GradScaler(), "a tensor")):
        with pytest.raises(ValueError, match=f"outputs='text' must be {kind} or") as got:
            scaler.scale("text")
        assert "adapters" not in str(got.value)


NEW_SCALES = {
    **{
        name: torch.tensor(3, dtype=getattr(torch, name))
        for name in ("float64", "float32", "int64")
    },
    "bfloat16": torch.tensor(3.0, dtype=torch.bfloat16),
    "requires_grad": torch.tensor(3.0, requires_grad=True),
    "several": torch.ones(2),
}


@pytest.mark.parametrize("name", NEW_SCALES)
def test_a_new_scale_in_a_tensor(name: str) -> None:
    """Tensors of one element of any dtype are scales, as in torch, but none with gradients."""
    outcomes = []
    for scaler in (torch.amp.GradScaler("cpu"), GradScaler()):
        scaler.scale(torch.ones(()))
        try:
            scaler.update(NEW_SCALES[name])
        except AssertionError:
            outcomes.append(None)
        else:
            outcomes.append(scaler.get_scale())
    assert outcomes[0] == outcomes[1]
    assert (outcomes[1] is None) == (name in {"requires_grad", "several"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="it has CUDA")
def test_without_cuda_a_scaler_for_it_is_disabled() -> None:
    for make in (torch.amp.GradScaler, GradScaler):
        with pytest.warns(UserWarning, match="CUDA is not available"):
            assert not make("cuda").is_enabled()
        assert not make("cuda", enabled=False).is_enabled()
    assert compat.GradScaler("cuda").is_enabled()
