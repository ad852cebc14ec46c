"""Models of twelve kinds give the bits of torch.autocast, however they are called."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import real_frameworks
from castwise.adapters.torch import GradScaler, autocast
from torch_models import MODELS, inputs_of, made, need_model

torch = real_frameworks.torch()
nn = torch.nn
checkpoint = torch.utils.checkpoint.checkpoint

HALF, SINGLE = torch.bfloat16, torch.float32

# torch's own: of weight_norm.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    """Small products in several threads wait for each other where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Region = Callable[[Any, Any], AbstractContextManager[Any]]


def torchs(model: Any, dtype: Any = HALF) -> AbstractContextManager[Any]:
    del model
    return torch.autocast("cpu", dtype=dtype, enabled=dtype != SINGLE)


def ours(model: Any, dtype: Any = HALF) -> AbstractContextManager[Any]:
    return autocast(model, dtype)


def once(model: Any, inputs: Any, region: Region) -> Any:
    with region(model, HALF):
        return model(*inputs)


def twice(model: Any, inputs: Any, region: Region) -> Any:
    """Two calls of a `with`, which share what torch caches."""
    with region(model, HALF):
        return model(*inputs) + model(*inputs)


def first_without_gradients(model: Any, inputs: Any, region: Region) -> Any:
    with region(model, HALF):
        with torch.no_grad():
            model(*inputs)
        return model(*inputs)


def functional(model: Any, inputs: Any, region: Region) -> Any:
    changed = {name: p * 1.25 for name, p in model.named_parameters()}
    with region(model, HALF):
        return torch.func.functional_call(model, changed, inputs)


def rerun(model: Any, inputs: Any, region: Region) -> Any:
    with region(model, HALF):
        return checkpoint(model, *inputs, use_reentrant=False)


def rerun_reentrant(model: Any, inputs: Any, region: Region) -> Any:
    with region(model, HALF):
        return checkpoint(model, *inputs, use_reentrant=True)


def part_without_autocast(model: Any, inputs: Any, region: Region) -> Any:
    """A model that calls its layers outside of torch's autocast."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *inputs: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return self.inner(*inputs)

    outer = Outer()
    with region(outer, HALF):
        return outer(*inputs)


WAYS = (
    once,
    twice,
    first_without_gradients,
    functional,
    rerun,
    rerun_reentrant,
    part_without_autocast,
)


def found(name: str, way: Callable[[Any, Any, Region], Any], region: Region) -> list[Any]:
    """Return output, gradients and buffers; backward runs after the `with`."""
    model, inputs = made(name), inputs_of(name)
    torch.manual_seed(0)
    output = way(model, inputs, region)
    output.float().square().sum().backward()
    tensors = [inputs[0], *model.parameters()]
    return [output.detach(), *(tensor.grad for tensor in tensors), *model.buffers()]


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        a is b is None or (a.dtype == b.dtype and torch.equal(a, b))
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_bits_of_torchs_autocast(name: str, way: Any) -> None:
    need_model(name)
    before = dict(vars(nn.Linear))
    wanted = found(name, way, torchs)
    assert same(found(name, way, ours), wanted)
    assert vars(nn.Linear) == before
    if way is once:  # and it makes a difference
        model, inputs = made(name), inputs_of(name)
        torch.manual_seed(0)
        assert not torch.equal(model(*inputs), wanted[0])


class Graphs:
    """A backend of torch.compile that counts the graphs it gets."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, _: Any) -> Any:
        self.count += 1
        return graph


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_of_torch_compile(name: str) -> None:
    need_model(name)
    other = HALF if name == "lstm" else torch.float16

    def outcome(region: Region) -> Any:
        torch._dynamo.reset()
        model, inputs, graphs = made(name), inputs_of(name), Graphs()
        compiled = torch.compile(model, backend=graphs, fullgraph=True)
        results = []
        for dtype in (None, HALF, HALF, other, None, HALF):
            with nullcontext() if dtype is None else region(model, dtype):
                output = compiled(*inputs)
            output.float().sum().backward()
            results.append(output.detach())
        gradients = [tensor.grad for tensor in (inputs[0], *model.parameters())]
        return graphs.count, [*results, *gradients, *model.buffers()]

    with torch._dynamo.config.patch(allow_rnn=True):
        wanted, found = outcome(torchs), outcome(ours)
    assert found[0] == wanted[0] == (2 if other == HALF else 3)
    assert same(found[1], wanted[1])


@pytest.mark.parametrize("name", MODELS)
def test_two_threads_with_different_policies(name: str) -> None:
    need_model(name)
    inputs = inputs_of(name)
    models = [made(name).eval()] * 2
    if name == "weight norm":  # whose hooks write into the module
        models[1] = made(name).eval()

    def result(model: Any, region: Region, dtype: Any) -> list[Any]:
        with region(model, dtype):
            output = model(*inputs)
        # The end of an autocast clears what torch has cached, in all threads. So the gradients of a
        # tensor that is used several times are summed in another order, now and then.
        if name == "tied":
            return [output.detach()]
        loss = output.float().square().sum()
        return [output.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    dtypes = (HALF, SINGLE if name == "lstm" else torch.float16)  # which torch lacks for LSTM here
    barrier = threading.Barrier(2)

    def results(
        model: Any, region: Region, dtype: Any, count: int, apart: bool = False
    ) -> list[Any]:
        """In a thread, for which the number of torch's own threads is set anew."""
        found: list[Any] = []

        def work() -> None:
            torch.set_num_threads(1)
            try:
                if not apart:
                    barrier.wait(60)
                found.extend(result(model, region, dtype) for _ in range(count))
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        if apart:
            thread.join()
        threads.append(thread)
        return found

    threads: list[Any] = []
    pairs = list(zip(models, dtypes, strict=True))
    wanted = [results(model, torchs, dtype, 1, apart=True) for model, dtype in pairs]
    together = [results(model, ours, dtype, 20) for model, dtype in pairs]
    for thread in threads:
        thread.join()
    for (right,), outcomes in zip(wanted, together, strict=True):
        assert len(outcomes) == 20
        for outcome in outcomes:
            assert same(outcome, right)


def test_training_with_a_scaler_of_losses() -> None:
    outcomes = []
    for region, scaler in (
        (torchs, torch.amp.GradScaler("cpu", init_scale=2.0**12)),
        (ours, torch.amp.GradScaler("cpu", init_scale=2.0**12)),
        (ours, GradScaler(init_scale=2.0**12)),
    ):
        model = made("mlp")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(5):
            (x,) = inputs_of("mlp", step)
            optimizer.zero_grad()
            with region(model, torch.float16):
                y = model(x)
            scaler.scale(y.float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        outcomes.append([p.detach() for p in model.parameters()])
    assert same(outcomes[0], outcomes[1])
    assert same(outcomes[0], outcomes[2])


def test_a_compiler_of_code_gives_the_same() -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch's inductor needs g++")
    # In a process of its own, because torch warns while it compiles, and leaves threads.
    program = """
        import torch
        from castwise.adapters.torch import autocast
        nn, outcomes, half = torch.nn, [], torch.bfloat16
        for region in (lambda _: torch.autocast("cpu", half), lambda m: autocast(m, half)):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))
            compiled, x = torch.compile(model, fullgraph=True), torch.randn(4, 8)
            for _ in range(2):
                with region(model):
                    y = compiled(x)
                y.float().sum().backward()
            outcomes.append([y.detach(), *(p.grad for p in model.parameters())])
        assert y.dtype == torch.bfloat16
        assert all(map(torch.equal, *outcomes))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler reads it
def test_a_compiled_part_and_a_compiled_function() -> None:
    model, (x,), graphs = made("norms"), inputs_of("norms"), Graphs()
    with torchs(model):
        wanted = model(x)
    model.layers[1].compile(backend=graphs, fullgraph=True)
    function = torch.compile(lambda x: model(x) * 2, backend=graphs, fullgraph=True)
    plain = model(x)
    for _ in range(3):
        with ours(model):
            assert torch.equal(model(x), wanted)
            assert torch.equal(function(x), wanted * 2)
        assert torch.equal(model(x), plain)
    assert graphs.count == 3  # the part without and with, and the function


def test_as_many_casts_are_held_as_under_torchs_autocast() -> None:
    def halves() -> int:
        objects = gc.get_objects()
        return sum(type(each) is torch.Tensor and each.dtype == HALF for each in objects)

    counts = []
    for region in (torchs, ours):
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        gc.collect()
        before = halves()
        with region(model, HALF), torch.no_grad():
            for _ in range(5):
                model(torch.ones(1, 64))
            gc.collect()
            counts.append(halves() - before)
        with region(model, HALF):
            saved: list[Any] = []
            with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda each: each):
                model(torch.ones(1, 64))
        counts.append(len(saved))
    assert counts[:2] == counts[2:]


def test_modules_that_have_a_forward_of_their_own() -> None:
    """As accelerate gives them one."""
    model, (x,) = made("mlp"), inputs_of("mlp")
    with torchs(model):
        wanted = model(x)
    forward = model[0].forward
    model[0].forward = functools.partial(lambda forward, x: forward(x), forward)
    given = model[0].forward
    for _ in range(2):
        with ours(model):
            assert torch.equal(model(x), wanted)
            with autocast(model[0], "float32"):
                assert model[0](x.to(HALF)).dtype == SINGLE
            assert copy.deepcopy(model[0])(x).dtype == SINGLE
        assert model[0].forward is given
        assert model[0](x).dtype == SINGLE


def test_calls_by_other_names_and_direct_ones() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

        def encode(self, x: Any) -> Any:
            return self.layer(x)

    model, (x,) = Named(), inputs_of("mlp")
    with torchs(model):
        wanted = model(x)
    with ours(model):
        assert list(inspect.signature(model.forward).parameters) == ["x"]
        for found in (model(x), model.encode(x), model.forward(x), model.layer.forward(x)):
            assert torch.equal(found, wanted)
