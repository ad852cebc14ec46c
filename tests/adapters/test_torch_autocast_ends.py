"""What outlives the `with` of an autocast: calls that run again in backward; and nothing else."""

from __future__ import annotations

import copy
import functools
import importlib
import io
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import real_frameworks
from castwise.adapters.torch import autocast, cast_module

torch = real_frameworks.torch()
nn = torch.nn
prune = importlib.import_module("torch.nn.utils.prune")
checkpoint = torch.utils.checkpoint.checkpoint

HALF, SINGLE = torch.bfloat16, torch.float32
MODES = [True, False]

# torch's own: of weight_norm, torch.jit and what it imports.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    """Small products in several threads wait for each other where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Blocks(nn.Module):
    """Layers in blocks that are run again in backward; what coincides with torch.autocast."""

    def __init__(self, reentrant: bool | None, nested: bool = False, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(2)
        )
        self.reentrant, self.nested = reentrant, nested

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + self.run(block, x)
        return x

    def run(self, block: Any, x: Any) -> Any:
        if self.reentrant is None:
            return block(x)
        if self.nested:
            return checkpoint(
                lambda x: checkpoint(block, x, use_reentrant=self.reentrant),
                x,
                use_reentrant=self.reentrant,
            )
        return checkpoint(block, x, use_reentrant=self.reentrant)


def torchs(model: Any) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=HALF)


def ours(model: Any) -> AbstractContextManager[Any]:
    return autocast(model, "bfloat16")


def data(count: int, width: int = 8) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 16, width, generator=generator)
    return x.requires_grad_(), x.detach().sin()


def trained(
    region: Callable[[Any], AbstractContextManager[Any]], reentrant: bool | None, steps: int
) -> list[Any]:
    """Losses, weights, those of the average that began inside, and what it computes outside."""
    model = Blocks(reentrant)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    average, losses = None, []
    for x, y in zip(*data(steps), strict=True):
        with region(model):
            output = model(x.to(HALF))
            if average is None:
                average = torch.optim.swa_utils.AveragedModel(model)
        # After the end: what is run again is run as the first time.
        loss = (output.float() - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        losses.append(loss.detach())
    assert average is not None
    weights = [*model.parameters(), *average.module.parameters()]
    return [*losses, *weights, average(x.detach().requires_grad_()).detach()]


@pytest.mark.parametrize("reentrant", [True, False, None])
def test_training_is_that_of_torchs_autocast_bit_for_bit(reentrant: bool | None) -> None:
    found, wanted = (trained(region, reentrant, 200) for region in (ours, torchs))
    assert {each.dtype for each in found} == {SINGLE}
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert found[199] < found[0] / 2


def gradients(model: Any, output: Any) -> list[Any]:
    model.zero_grad()
    output.float().square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("reentrant", MODES)
def test_backward_after_the_end_is_backward_before_it(reentrant: bool, nested: bool) -> None:
    (x,), _ = data(1)
    plain, model = Blocks(None), Blocks(reentrant, nested)
    with autocast(plain, "bfloat16"):
        wanted = gradients(plain, plain(x))
    with autocast(model, "bfloat16"):
        output = model(x)
        again = model(x)
        inside = gradients(model, again)
    after = gradients(model, output)
    for found in (inside, after):
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert model(x).dtype == SINGLE
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("reentrant", MODES)
def test_whole_models_segments_and_retained_graphs(reentrant: bool) -> None:
    (x,), _ = data(1)
    model = Blocks(None)
    runs: list[Callable[[], Any]] = [
        lambda: checkpoint(model, x, use_reentrant=reentrant),
        lambda: torch.utils.checkpoint.checkpoint_sequential(
            list(model.blocks), 2, x, use_reentrant=reentrant
        ),
        lambda: checkpoint(
            lambda x: torch.func.functional_call(model, dict(model.named_parameters()), (x,)),
            x,
            use_reentrant=reentrant,
        ),
    ]
    for run in runs:
        with autocast(model, "bfloat16"):
            inside = gradients(model, run())
            output = run()
        loss = output.float().square().sum()
        for _ in range(2):
            model.zero_grad()
            loss.backward(retain_graph=True)
            for parameter, wanted in zip(model.parameters(), inside, strict=True):
                assert torch.equal(parameter.grad, wanted)


def test_other_ways_to_checkpoint() -> None:
    (x,), _ = data(1)
    plain = Blocks(None)
    with autocast(plain, "bfloat16"):
        wanted = gradients(plain, plain(x))
    select = functools.partial(
        torch.utils.checkpoint.create_selective_checkpoint_contexts,
        [torch.ops.aten.addmm.default],
    )
    wrapper = importlib.import_module(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    ).checkpoint_wrapper
    ways: list[Callable[[Any, Any], Any]] = [
        lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=select),
        lambda block, x: checkpoint(block, x, use_reentrant=False, debug=True),
        lambda block, x: wrapper(block)(x),
    ]
    for way in ways:
        model = Blocks(False)
        model.run = way
        for whole in (False, True):
            with autocast(model, "bfloat16"):
                if whole:
                    model.run = lambda block, x: block(x)
                output = way(model, x) if whole else model(x)
            found = gradients(model, output)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("reentrant", MODES)
def test_a_first_run_outside_is_run_again_as_outside(reentrant: bool) -> None:
    (x,), _ = data(1)
    model = Blocks(reentrant)
    wanted = gradients(model, model(x))
    outer, inner = model(x), None
    with autocast(model, "float16"):
        found = gradients(model, outer)
        with autocast(model, "bfloat16"):
            inner = model(x)
        last = gradients(model, inner)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    with autocast(model, "bfloat16"):
        wanted = gradients(model, model(x))
    assert all(torch.equal(a, b) for a, b in zip(last, wanted, strict=True))


@pytest.mark.parametrize("reentrant", MODES)
def test_an_autocast_within_the_function_that_runs_again(reentrant: bool) -> None:
    (x,), _ = data(1)
    model = Blocks(None)
    dtypes: list[Any] = []

    def function(x: Any) -> Any:
        with autocast(model, "float16"):
            half = model.blocks[0](x)
        single = model.blocks[0](x)
        dtypes.extend((half.dtype, single.dtype))
        return half + single

    for region, wanted in ((ours, HALF), (nullcontext, SINGLE)):
        dtypes.clear()
        with region(model), torch.utils.checkpoint.set_checkpoint_early_stop(False):
            output = checkpoint(function, x, use_reentrant=reentrant)
        with autocast(model, "bfloat16"):
            output.float().sum().backward()
        assert dtypes == [torch.float16, wanted] * 2


@pytest.mark.parametrize("reentrant", MODES)
def test_backward_in_another_thread(reentrant: bool) -> None:
    (x,), _ = data(1)
    model = Blocks(reentrant)
    with autocast(model, "bfloat16"):
        wanted = gradients(model, model(x))
        output = model(x)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(gradients(model, output)))
    thread.start()
    thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


# ----------------------------------------------------------------------------------- copies


def saved(model: Any) -> Any:
    stream = io.BytesIO()
    torch.save(model, stream)
    return lambda: torch.load(io.BytesIO(stream.getvalue()), weights_only=False)


def replica_of(model: Any) -> Any:
    """What torch.nn.DataParallel makes for each device."""
    modules = list(model.modules())
    replicas = [module._replicate_for_data_parallel() for module in modules]
    for module, replica in zip(modules, replicas, strict=True):
        for name, child in module._modules.items():
            setattr(replica, name, replicas[modules.index(child)])
        replica._former_parameters = {}
        for name, parameter in module._parameters.items():
            setattr(replica, name, parameter * 1)
            replica._former_parameters[name] = getattr(replica, name)
    return replicas[0]


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),  # noqa: S301
    "file": lambda model: saved(model)(),
    "average": torch.optim.swa_utils.AveragedModel,
    "copy of a copy": lambda model: copy.deepcopy(copy.copy(copy.deepcopy(model))),
    "replica": replica_of,
}


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_holds_nothing_of_it(kind: str) -> None:
    (x,), _ = data(1)
    model = Blocks(None)
    plain = model(x)
    with autocast(model, {r"blocks\.0.*": "bfloat16"}):
        cast = model(x)
        other = COPIES[kind](model)
        assert torch.equal(
            other(x), cast if kind == "copy" else plain
        )  # a copy has the same layers
        assert torch.equal(model(x), cast)
        later = COPIES[kind](model)
    assert not torch.equal(cast, plain)
    for each in (model, other, later):
        assert torch.equal(each(x), plain)
        for module in each.modules():
            assert not {"forward", "__getstate__"} & vars(module).keys()
        state = pickle.dumps(each) if "replica" not in kind else b""
        assert b"castwise" not in state


def test_replicas_are_called_in_threads_while_their_original_is() -> None:
    """As torch.nn.DataParallel calls them; it needs several devices."""

    class Parallel(nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            outputs: dict[int, Any] = {}
            state = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

            def call(number: int, replica: Any) -> None:
                with torch.autocast("cpu", enabled=state[0], dtype=state[1]):
                    outputs[number] = replica(x)

            replicas = [replica_of(self.module) for _ in range(2)]
            threads = [
                threading.Thread(target=call, args=each, daemon=True)
                for each in enumerate(replicas)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            return outputs[0] + outputs[1]

    (x,), _ = data(1)
    model = Blocks(None)
    parallel = Parallel(model)
    outcomes = []
    for region in (ours, torchs):
        with region(parallel):
            output = parallel(x)
        outcomes.append([output, *gradients(model, output)])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_a_shallow_copy_runs_its_code_with_its_attributes() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.scale = 1

        def forward(self, x: Any) -> Any:
            return self.linear(x) * self.scale

    model, x = Scaled(), torch.ones(1, 2)
    plain = model(x)
    with autocast(model, "bfloat16"):
        copies = [copy.copy(model), copy.copy(model)]
        for other in copies:
            other.scale = 2
        copies[0].register_forward_hook(lambda *_: None)
        assert torch.equal(copies[0](x), model(x).float() * 2)  # its layer is the model's
    for other in copies:
        assert torch.equal(other(x), plain * 2)


def test_an_autocast_is_entered_again_and_by_threads() -> None:
    (x,), _ = data(1)
    model = Blocks(None)
    handle = autocast(model, "bfloat16")
    plain = model(x)
    assert plain.dtype == SINGLE
    seen: list[Any] = []
    for _ in range(2):
        with handle:
            cast = model(x)
            with handle, autocast(model, "float16"):
                assert model.blocks[0](x).dtype == torch.float16
            thread = threading.Thread(target=lambda: seen.append(model(x)))
            thread.start()
            thread.join()
            assert torch.equal(model(x), cast)
        assert torch.equal(model(x), plain)
    assert not torch.equal(cast, plain)
    assert all(torch.equal(each, plain) for each in seen)


def test_a_call_that_fails_leaves_nothing() -> None:
    model, x = Blocks(None), torch.ones(1, 8)
    before = torch.utils.checkpoint.CheckpointFunction.forward.__code__

    class Stop(BaseException):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    hook = model.blocks[1][0].register_forward_hook(stop)
    with pytest.raises(Stop), autocast(model, {"blocks.1.*": "bfloat16"}):
        model(x)
    hook.remove()
    assert not torch.is_autocast_enabled("cpu")
    assert model(x).dtype == SINGLE
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert torch.utils.checkpoint.CheckpointFunction.forward.__code__ is before
    with autocast(model, "bfloat16"):
        assert model.blocks[1](x).dtype == HALF


def test_a_file_in_another_process(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with autocast(model, "bfloat16"):
        torch.save(model, tmp_path / "within.pt")
    cast_module(model, "bfloat16")
    torch.save(model, tmp_path / "cast.pt")
    program = """
        import sys, torch
        x = torch.ones(1, 2)
        within = torch.load(sys.argv[1], weights_only=False)
        assert within(x).dtype == torch.float32
        assert "castwise" not in sys.modules
        assert torch.load(sys.argv[2], weights_only=False)(x).dtype == torch.bfloat16
    """
    paths = [str(tmp_path / name) for name in ("within.pt", "cast.pt")]
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), *paths]
    subprocess.run(command, check=True)


def test_the_state_dict_within_is_that_of_outside() -> None:
    model = Blocks(None)
    with autocast(model, "bfloat16"):
        model(torch.ones(1, 8))
        state = model.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {SINGLE}
    Blocks(None).load_state_dict(state)


# ---------------------------------------------------------------------- other ways to call


def test_weights_that_hooks_have_computed_before_the_call() -> None:
    x = torch.ones(2, 3)
    for change in (
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ):
        layer = change(nn.Linear(3, 3)).eval()
        plain = layer(x)
        with autocast(layer, "bfloat16"):
            y = layer(x)
            y.float().sum().backward()
        assert y.dtype == HALF
        assert {p.grad.dtype for p in layer.parameters() if p.grad is not None} == {SINGLE}
        assert torch.equal(layer(x), plain)


def test_hooks_see_what_they_see_without() -> None:
    model, seen = nn.Sequential(nn.Linear(3, 3)), []
    model.register_full_backward_hook(lambda m, i, o: seen.append((i[0].dtype, o[0].dtype)))
    x = torch.ones(1, 3, requires_grad=True)
    with autocast(model, "bfloat16"):
        model.register_forward_pre_hook(lambda m, args: seen.append(args[0].dtype))
        model[0].weight.register_hook(lambda grad: seen.append(grad.dtype))
        y = model(x)
    y.float().sum().backward()
    assert seen in ([SINGLE, (SINGLE, HALF), SINGLE], [SINGLE, SINGLE, (SINGLE, HALF)])


def test_torch_export_holds_the_casts() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(2, 3)
    with autocast(model, "bfloat16"):
        wanted = model(x)
        exported = torch.export.export(model, (x,))
        # Of itself torch can trace it only without its cache.
        torch.set_autocast_cache_enabled(False)
        try:
            traced = torch.jit.trace(model, x)
        finally:
            torch.set_autocast_cache_enabled(True)
    assert torch.equal(exported.module()(x), wanted)
    assert torch.equal(traced(x), wanted)
    assert {tensor.dtype for tensor in exported.state_dict.values()} == {SINGLE}
    assert model(x).dtype == SINGLE


class Nested(nn.Module):
    """It calls `forward` of another module of its class."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.inner = Nested(depth - 1) if depth else None

    def forward(self, x: Any) -> Any:
        x = self.layer(x)
        return x if self.inner is None else self.inner.forward(x).float()


def test_a_module_that_calls_forward_of_another_of_its_class() -> None:
    (x,), _ = data(1)
    model = Nested(2)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
    with autocast(model, "bfloat16"):
        assert torch.equal(model(x), expected)
