"""State dicts by map, and the GradScaler on real optimizers, beside torch's own."""

from __future__ import annotations

import copy
import math
from typing import Any

import castwise
import pytest
import real_frameworks
from castwise import DTypePolicyMap
from castwise.adapters.torch import GradScaler, cast_state_dict, explain
from castwise.adapters.torch._gradients import _divide_by_torch
from castwise.compat import torch as compat

torch = real_frameworks.torch()
nn = torch.nn


def test_a_state_dict_by_map() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    state = model.state_dict()
    result = cast_state_dict(state, {r"1\..*": "keep", r"[02]\..*": "bfloat16"})
    assert type(result) is type(state)
    assert result._metadata == state._metadata
    assert result["0.weight"].dtype == torch.bfloat16
    assert torch.equal(result["0.weight"], state["0.weight"].bfloat16())
    assert result["0.weight"].data_ptr() == result["2.weight"].data_ptr()
    assert result["1.running_mean"] is state["1.running_mean"]
    assert state["0.weight"].dtype == torch.float32
    model.load_state_dict(result)
    half = cast_state_dict(state, {".*": torch.float16})
    assert half["1.num_batches_tracked"].dtype == torch.int64
    for name in ("1.num_batches_tracked", r"1\.num_batches_tracked"):
        whole = cast_state_dict(state, {name: "float32"})
        assert whole["1.num_batches_tracked"].dtype == torch.float32


def test_nested_states_and_policies() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    result = cast_state_dict(state, {r"optimizer/state/\d+/exp_avg": "bfloat16"})
    assert result["optimizer"]["state"][0]["exp_avg"].dtype == torch.bfloat16
    assert result["optimizer"]["state"][0]["exp_avg_sq"].dtype == torch.float32
    assert (result["epoch"], result["optimizer"]["param_groups"][0]["lr"]) == (3, 1e-3)
    policies = DTypePolicyMap("float32", {"model/weight": "mixed_bfloat16"})
    lower = cast_state_dict(state, policies, role="compute")["model"]
    assert (lower["weight"].dtype, lower["bias"].dtype) == (torch.bfloat16, torch.float32)


def test_refusals_name_the_tensor() -> None:
    state = {"a.b": torch.tensor([1e9])}
    with pytest.raises(OverflowError, match=r"'a\.b'"):
        cast_state_dict(state, "float16", overflow="raise")
    with pytest.raises(TypeError, match="out= is about one array; cast_state_dict"):
        cast_state_dict(state, "float16", out=None)
    both = {"x": state["a.b"], "y": state["a.b"]}
    with pytest.raises(ValueError, match="one tensor"):
        cast_state_dict(both, {"x": "float16", "y": "bfloat16"})
    assert cast_state_dict({}, "float16") == {}


def test_names_that_are_spelled_alike() -> None:
    count, mean = torch.ones(2, dtype=torch.int64), torch.ones(2)
    result = cast_state_dict({"a.b": count, "a": {"b": mean}, "c": None}, "bfloat16")
    assert result["a.b"] is count
    assert result["a"]["b"].dtype == torch.bfloat16


def test_modules_are_no_state_dicts() -> None:
    model = nn.Linear(2, 2)
    words = r"a Linear is cast .*give its state_dict\(\)"
    with pytest.raises(TypeError, match=words):
        cast_state_dict(model, "bfloat16")
    with pytest.raises(TypeError, match=words):
        explain({"model": model}, "bfloat16")


def run(scaler: Any, steps: list[float]) -> tuple[list[float], Any, list[Any]]:
    """Training steps whose loss is multiplied by what overflows some of them."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scales, norms = [], []
    for factor in steps:
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 4)) ** 2).sum() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, model.state_dict(), norms


def same(a: Any, b: Any) -> bool:
    return all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))


def test_training_goes_as_with_torchs_scaler() -> None:
    steps = [1.0, 1.0, math.inf, 1.0, 1e36, 1.0, 1.0, math.nan, 1.0, 1.0]
    arguments: dict[str, Any] = {"init_scale": 1024.0, "growth_interval": 2, "growth_factor": 3.0}
    ours = run(GradScaler("cpu", **arguments), steps)
    theirs = run(torch.amp.GradScaler("cpu", **arguments), steps)
    assert ours[0] == theirs[0]
    assert same(ours[2], theirs[2])
    assert all(torch.equal(ours[1][key], theirs[1][key]) for key in theirs[1])


def test_scalers_go_on_where_the_other_stands() -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    run(theirs, [1.0, math.inf, 1.0])
    ours = GradScaler.from_torch(theirs)
    assert ours.state_dict() == theirs.state_dict()
    again = ours.to_torch()
    assert isinstance(again, torch.amp.GradScaler)
    assert run(again, [1.0, 1.0])[0] == run(ours, [1.0, 1.0])[0]
    assert again.state_dict() == ours.state_dict()
    assert GradScaler.from_torch(compat.GradScaler(init_scale=2.0)).get_scale() == 2
    off = GradScaler.from_torch(torch.amp.GradScaler("cpu", enabled=False))
    assert not off.is_enabled()
    assert not off.to_torch().is_enabled()
    assert run(off, [1.0])[0] == [1.0]


def test_gradients_are_divided_in_their_own_memory() -> None:
    parameters = [
        nn.Parameter(torch.ones(3)),
        nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        nn.Parameter(torch.ones(2, dtype=torch.float64)),
    ]
    optimizer = torch.optim.SGD(parameters, 1.0)
    scaler = GradScaler(init_scale=4.0)
    scaler.scale(sum(p.double().sum() for p in parameters)).backward()
    places = [p.grad.data_ptr() for p in parameters]
    scaler.unscale_(optimizer)
    assert [p.grad.tolist()[0] for p in parameters] == [1, 1, 1]
    assert [p.grad.data_ptr() for p in parameters] == places
    with pytest.raises(RuntimeError, match="unscale_"):
        scaler.unscale_(optimizer)


def test_sparse_gradients_and_half_ones() -> None:
    embedding = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), 1.0)
    before = copy.deepcopy(embedding.weight.data)
    scaler = GradScaler(init_scale=16.0)
    scaler.scale(embedding(torch.tensor([1, 1, 4])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    moved = (before - embedding.weight.data).sum(1)
    torch.testing.assert_close(moved, torch.tensor([0.0, 6, 0, 0, 3, 0, 0, 0, 0, 0]))
    half = nn.Parameter(torch.ones(2, dtype=torch.float16))
    scaler.scale(half.sum()).backward()
    with pytest.raises(ValueError, match="float16"):
        scaler.unscale_(torch.optim.SGD([half], 1.0))


def test_losses_are_scaled_as_torch_does() -> None:
    ours, theirs = GradScaler(), torch.amp.GradScaler("cpu")
    for loss in (
        torch.tensor(2.0, dtype=torch.float16),
        torch.tensor([2.0], dtype=torch.float16),
        torch.tensor(3.0, dtype=torch.bfloat16),
        torch.tensor(3.0, dtype=torch.float64),
    ):
        mine, yours = ours.scale(loss), theirs.scale(loss)
        assert (mine.dtype, mine.tolist()) == (yours.dtype, yours.tolist())
    pair = ours.scale([torch.tensor(1.0), (torch.tensor(2.0),)])
    assert (pair[0].item(), pair[1][0].item()) == (65536, 131072)
    with pytest.raises(ValueError, match="outputs"):
        ours.scale(1.0)


def test_by_torch_gives_what_the_kernels_give() -> None:
    grads = [torch.randn(5), torch.randn(3, 2, dtype=torch.float64), torch.randn(4)]
    ours = [castwise.loss_scale.unscale(g.numpy(), 3.0, dtype=g.numpy().dtype)[0] for g in grads]
    assert _divide_by_torch(grads, 3.0)
    for grad, wanted in zip(grads, ours, strict=True):
        torch.testing.assert_close(grad, torch.from_numpy(wanted))
    grads[1][0, 0] = math.inf
    assert not _divide_by_torch(grads, 1.0)
    assert _divide_by_torch([], 2.0)
