"""What a model's own code may do while castwise casts around it: real torch, unusual forwards."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import OrderedDict
from typing import Any

import pytest
import real_frameworks
from castwise.adapters.torch import autocast, cast_module

torch = real_frameworks.torch()
nn = torch.nn

HALF, SINGLE = torch.bfloat16, torch.float32


class Applied(nn.Module):
    """A linear layer beside a function of it and the inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def test_a_cache_that_a_call_fills_is_the_callers() -> None:
    def remember(module: Any, x: Any, cache: Any, seen: Any) -> Any:
        cache["key"] = module.linear(x)
        seen.append(x)
        return x

    model = Applied(remember)
    cache: dict[str, Any] = {}
    seen: list[Any] = []
    with autocast(model, "bfloat16"):
        model(torch.ones(1, 3), cache, seen)
        model(torch.ones(1, 3), cache, seen)
    assert (list(cache), len(seen), seen[0].dtype) == (["key"], 2, HALF)
    given = [torch.ones(1, 3)]
    with autocast(model, "bfloat16"):
        model(torch.ones(1, 3), {}, given)
    assert len(given) == 1
    assert given[0].dtype == SINGLE


def test_inputs_in_dicts_that_refuse_to_be_updated() -> None:
    class Output(OrderedDict[str, Any]):
        """As the outputs of the transformers library."""

        def update(self, *_: Any, **__: Any) -> None:
            raise TypeError("You cannot use update.")

    given = Output()
    given["x"] = torch.ones(1, 3)
    model = Applied(lambda module, output: (type(output), module.linear(output["x"])))
    with autocast(model, "bfloat16"):
        kind, y = model(given)
    assert (kind, y.dtype, given["x"].dtype) == (Output, HALF, SINGLE)


def test_in_inference_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.LSTM(3, 2))
    with autocast(model, "bfloat16"):
        with torch.inference_mode():
            y = model(torch.ones(2, 3))[0]
        assert (y.dtype, y.is_inference()) == (HALF, True)
        model(torch.ones(2, 3))[0].float().sum().backward()
    assert model[0].weight.grad.dtype == SINGLE
    assert model[1].num_batches_tracked == 2


def test_elements_that_a_call_changes_are_changed_and_others_keep_their_digits() -> None:
    embedding = nn.Embedding(4, 3, max_norm=1.0)
    nn.init.constant_(embedding.weight, 5.001)
    before = embedding.weight.detach().clone()
    with autocast(embedding, "bfloat16"):
        embedding(torch.tensor([1]))
    assert torch.equal(embedding.weight[0], before[0])
    torch.testing.assert_close(embedding.weight[1].norm().item(), 1.0, atol=1e-2, rtol=0)
    assert embedding.weight.is_leaf

    def mark(module: Any, x: Any) -> Any:
        module.seen[1] = 7
        return x

    model = Applied(mark)
    model.register_buffer("seen", torch.full((3,), 0.1))
    with autocast(model, "bfloat16"):
        model(torch.ones(1))
    assert model.seen.tolist() == torch.tensor([0.1, 7, 0.1]).tolist()


def test_a_module_under_two_names_computes_in_one_dtype() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    for keys in ({"0": "bfloat16", "2": "float16"}, {"2": "bfloat16"}):
        with pytest.raises(ValueError, match="'0' and '2' are one module, and are to compute in"):
            autocast(model, keys)
        assert "forward" not in shared.__dict__
    with autocast(model, {"[02]": "bfloat16"}) as handle:
        assert handle.summary.keys == {"[02]": 2}
        assert set(handle.summary.tensors) == {"0", "2"}
        assert model(torch.ones(1, 3)).dtype == HALF
    assert "forward" not in shared.__dict__


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is:DeprecationWarning")
def test_modules_of_torch_jit_are_refused() -> None:
    scripted = nn.Sequential(torch.jit.script(nn.Linear(3, 3)))
    with pytest.raises(TypeError, match=r"module '0' is compiled by torch\.jit.*inputs=False"):
        cast_module(scripted, "bfloat16")
    assert scripted[0].weight.dtype == SINGLE
    cast_module(scripted, "bfloat16", inputs=False)
    assert scripted[0].weight.dtype == HALF


def test_modules_of_torch_compile_are_recompiled() -> None:
    # In a process of its own, where triton may be: and torch warns there while it compiles.
    program = """
        import torch
        from castwise.adapters.torch import autocast
        nn = torch.nn
        model = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), backend="eager")
        for _ in range(2):
            with autocast(model, "mixed_bfloat16"):
                assert model(torch.ones(4, 3)).dtype == torch.bfloat16
            assert model(torch.ones(4, 3)).dtype == torch.float32
        inner = torch.compile(nn.Sequential(nn.Linear(3, 3)), backend="eager")
        outer = nn.Sequential(inner, nn.ReLU())
        for _ in range(2):
            with autocast(outer, "bfloat16"):
                assert outer(torch.ones(4, 3)).dtype == torch.bfloat16
            assert outer(torch.ones(4, 3)).dtype == torch.float32
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True)


def test_modules_inside_of_a_call_cost_no_walk_each(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3)) for _ in range(4)])
    walks: list[Any] = []
    modules = nn.Module.modules
    monkeypatch.setattr(nn.Module, "modules", lambda self: (walks.append(self), modules(self))[1])
    with cast_module(model, "bfloat16"):
        walks.clear()
        model(torch.ones(1, 3))
        assert walks == [model]
