"""Modules of real torch: cast by map in place, and computing in the dtypes of a map."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import castwise
import numpy as np
import pytest
import real_frameworks
from castwise import DTypePolicyMap
from castwise.adapters.torch import (
    autocast,
    cast_module,
    cast_state_dict,
    explain,
    to_numpy,
)

torch = real_frameworks.torch()
nn = torch.nn

HALF, SINGLE = torch.bfloat16, torch.float32


class Model(nn.Module):
    """An encoder with a norm in it, a head, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)
        self.register_buffer("shift", torch.full((2,), 0.1))
        self.register_buffer("steps", torch.tensor(300))

    def forward(self, x: Any, bias: Any = None) -> Any:
        y = self.head(torch.relu(self.encoder(x))) + self.shift
        return y if bias is None else y + bias["b"][0]


def dtypes(module: Any) -> dict[str, Any]:
    return {name: tensor.dtype for name, tensor in module.state_dict().items()}


def test_parameters_are_castwises_casts_and_stay_the_same_objects() -> None:
    model, original = Model(), Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = dict(model.named_parameters())
    model.head.bias.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    done = cast_module(model, {r"encoder\.1\..*": "keep", "default": torch.bfloat16})
    for name, parameter in model.named_parameters():
        assert parameter is before[name]
        kept = name.startswith("encoder.1")
        wanted = to_numpy(original.get_parameter(name).detach())
        wanted = wanted if kept else castwise.cast(wanted, "bfloat16")
        assert to_numpy(parameter.detach()).tobytes() == wanted.tobytes()
        assert parameter.requires_grad == (name != "head.bias")
        assert parameter.grad is None or parameter.grad.dtype == parameter.dtype
    assert optimizer.param_groups[0]["params"][0] is model.encoder[0].weight
    assert (model.steps.dtype, model.shift.dtype) == (torch.int64, HALF)
    assert done.summary.tensors["encoder.1.bias"] == ("float32", "float32", r"encoder\.1\..*")
    model(torch.randn(3, 4)).float().sum().backward()
    optimizer.step()


def test_what_matched_is_reported() -> None:
    done = cast_module(Model(), {r"encoder\..*": "float16", "haed.weight": "float64"}, inputs=False)
    assert str(done) == str(done.summary)
    lines = str(done).splitlines()
    assert lines[0].split() == ["tensor", "from", "to", "key"]
    assert r"encoder.0.weight  float32  float16  encoder\..*" in lines
    assert lines[-1] == "unused pattern 'haed.weight'; nearest is 'head.weight'"
    assert done.summary.keys == {r"encoder\..*": 6, "haed.weight": 0}
    assert done.hooks == ()
    model = Model()
    seen = explain(model, {"head": "float16"})
    assert seen.tensors["head.bias"] == ("float32", "float16", "head")
    assert explain(model.state_dict(), {"head": "float16"}).unused == {"head": "head.bias"}
    assert set(dtypes(model).values()) == {SINGLE, torch.int64}


@pytest.mark.parametrize(
    ("keys", "cast"),
    [
        ({r"encoder\.0\..*": "float16"}, {"encoder.0.weight", "encoder.0.bias"}),
        ({"encoder/0/.*": "float16"}, {"encoder.0.weight", "encoder.0.bias"}),
        ({"encoder.0": "float16"}, {"encoder.0.weight", "encoder.0.bias"}),
        ({"encoder/0": "float16", "encoder/0/bias": "keep"}, {"encoder.0.weight"}),
        (
            {r".*\.bias": "float16"},
            {"encoder.0.bias", "encoder.1.bias", "encoder.2.bias", "head.bias"},
        ),
        ({".*": "float16", "default": "float64"}, set(dtypes(Model())) - {"steps"}),
        ({"steps": "float16"}, {"steps"}),
        ({"shift": "float16"}, {"shift"}),
        ({"": "float16"}, {"shift"}),
        ({"encoder": "float16"}, set()),
    ],
)
def test_keys_are_names_of_tensors_or_modules_with_dots_or_slashes(
    keys: dict[str, str], cast: set[str]
) -> None:
    model = Model()
    cast_module(model, keys, inputs=False)
    assert {name for name, dtype in dtypes(model).items() if dtype == torch.float16} == cast


def test_a_policy_map_is_about_modules() -> None:
    policies = DTypePolicyMap("float32", {"encoder/0": "bfloat16", "head": "mixed_bfloat16"})
    model = Model()
    with pytest.raises(
        ValueError, match=r"'head' would have variables in float32 and compute in b"
    ):
        cast_module(model, policies)
    assert set(dtypes(model).values()) == {SINGLE, torch.int64}
    done = cast_module(model, policies, inputs=False)
    found = dtypes(model)
    assert (found["encoder.0.weight"], found["head.weight"]) == (HALF, SINGLE)
    assert done.summary.keys == {"encoder/0": 2, "head": 2}
    inner: dict[str, Any] = {}
    for name in ("encoder.0", "encoder.1", "head"):
        module = model.get_submodule(name)
        module.register_forward_hook(
            lambda m, x, y, name=name: inner.update({name: (m.weight.dtype, y.dtype)})
        )
    with autocast(model, policies):
        y = model(torch.randn(3, 4))
    y.sum().backward()
    assert inner == {
        "encoder.0": (HALF, HALF),
        "encoder.1": (SINGLE, SINGLE),
        "head": (SINGLE, HALF),
    }
    assert model.head.weight.grad.dtype == SINGLE


def test_layers_cast_their_inputs_to_the_dtype_of_their_parameters() -> None:
    class Stepped(nn.Module):
        """A model that has time steps for an input, and a cache that its layers fill."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4, bias=False))
            self.norm, self.attention = nn.LayerNorm(4), nn.MultiheadAttention(4, 2)

        def forward(self, x: Any, time: Any = None, cache: Any = None) -> Any:
            cache.append(time)
            y = self.norm(self.layer(x))
            return self.attention(query=y, key=y, value=y)[0]

    model, x = Stepped(), torch.randn(3, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="dtype"):
        model(x, cache=[])
    plain = copy.deepcopy(model)
    time, cache = torch.tensor([999.7]), []
    with cast_module(model, "bfloat16") as done:
        assert repr(done).endswith("inputs cast>")
        copies = [copy.deepcopy(model), plain]
        cast_module(plain, "bfloat16")
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for each in (model, compiled, *copies):
            assert each(x, time=time, cache=cache).dtype == HALF
        assert len(cache) == 4
        assert all(each is time for each in cache)
    with pytest.raises(RuntimeError, match="dtype"):
        model(x, cache=[])
    embedding = nn.Embedding(5, 3)
    cast_module(embedding, "float16")
    assert embedding(torch.tensor([1, 2])).dtype == torch.float16


def test_inputs_in_dicts_that_refuse_to_be_updated() -> None:
    class Output(OrderedDict[str, Any]):
        """As the outputs of the transformers library."""

        def update(self, *_: Any, **__: Any) -> None:
            raise TypeError("You cannot use update.")

    class Takes(nn.Linear):
        def forward(self, output: Any, seen: Any) -> Any:
            seen.append(type(output))
            return super().forward(output["x"])

    given, seen = Output(), []
    given["x"] = torch.ones(1, 3, dtype=HALF)
    model = Takes(3, 3)
    with autocast(model, "float32"):
        assert model(given, seen).dtype == SINGLE
    assert (seen, given["x"].dtype) == ([Output], HALF)


def test_values_that_became_infinite_or_zero_are_reported() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([[1e6, -1e-12], [torch.inf, 0.0]])
        model[0].bias[:] = 1e-30
    model[1].bias = model[0].bias
    model.register_buffer("seen", torch.tensor([7e4 + 0j, 1e-9 + 1e-9j]))
    wanted = {"0.weight": (1, 1), "0.bias": (0, 2)}
    for options in ({}, {"rounding": "towards-zero"}, {"overflow": "saturate"}):
        done = cast_module(copy.deepcopy(model), "float16", inputs=False, **options)
        assert done.losses["0.bias"] == wanted["0.bias"]
        assert done.losses["0.weight"].zero == 1
    done = cast_module(copy.deepcopy(model), "float16")
    assert done.losses == wanted
    assert str(done).splitlines()[-2:] == [
        "'0.weight': 1 value became infinite, 1 value became zero",
        "'0.bias': 2 values became zero",
    ]
    assert "'0.weight': 1 value became infinite" in repr(done)
    assert cast_module(copy.deepcopy(model), "bfloat16").losses == {}
    held = cast_module(copy.deepcopy(model), "float8_e4m3fn", inputs=False).losses
    assert held["0.weight"] == (2, 1)


def test_parameters_in_float8_and_an_autocast_to_compute_in() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"'0\.weight' would be torch\.float8.*inputs=False"):
        cast_module(model, "float8_e4m3fn")
    assert model[0].weight.dtype == SINGLE
    cast_module(model, "float8_e4m3fn", inputs=False, overflow="saturate")
    with autocast(model, "bfloat16"):
        assert model(torch.randn(3, 4)).dtype == HALF
    with pytest.raises(TypeError, match="inputs='bfloat16' is not True or False; give inputs=Fal"):
        cast_module(model, "float8_e4m3fn", inputs="bfloat16")


def test_float32_and_float64_are_for_parameters_that_have_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    for dtype in ("float64", {"0": "float64"}):
        with pytest.raises(
            ValueError, match=r"module '0' would compute in torch\.float64, but '0\.w"
        ):
            autocast(model, dtype)
    cast_module(model, "float64", inputs=False)
    with autocast(model, "float64"):
        assert model(torch.ones(2, 4)).dtype == torch.float64
    with pytest.raises(ValueError, match=r"would compute in torch\.float8_e5m2, in which torch"):
        autocast(model, "float8_e5m2")


def test_float32_within_16_bits_and_16_bits_within_float32() -> None:
    class Weighed(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.exp().sum(-1)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
            self.loss = Weighed()

        def forward(self, x: Any) -> Any:
            return self.loss(self.last(self.norm(self.first(x))))

    torch.manual_seed(0)
    model, x = Whole(), torch.randn(3, 4)
    keep = {"default": "bfloat16", "norm|loss": "float32"}
    with autocast(model, keep):
        found = model(x)
    with torch.autocast("cpu", dtype=HALF):
        y = model.first(x)
        with torch.autocast("cpu", enabled=False):
            y = model.norm(y.float())
        y = model.last(y)
        with torch.autocast("cpu", enabled=False):
            wanted = model.loss(y.float())
    assert torch.equal(found, wanted)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    policies = DTypePolicyMap("float32", {"first": "mixed_bfloat16", "last": "mixed_float16"})
    for each in (keep, policies):
        with autocast(model, each):
            assert torch.equal(compiled(x), model(x))
    with autocast(model, policies):
        found = model(x)
    with torch.autocast("cpu", dtype=HALF):
        y = model.first(x)
    y = model.norm(y.float())
    with torch.autocast("cpu", dtype=torch.float16):
        y = model.last(y)
    assert torch.equal(found, model.loss(y.float()))


def test_threads_of_data_parallel_would_lose_a_dtype() -> None:
    model = nn.DataParallel(Model())
    model.device_ids = [0, 1]  # as on a machine with two
    with pytest.raises(ValueError, match=r"DataParallel, whose threads follow one dtype, but"):
        autocast(model, {r"module\.head": "bfloat16"})
    with autocast(model, "bfloat16"), autocast(Model(), {"head": "bfloat16"}):
        pass


def test_tied_parameters_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[2].weight.data = model[0].weight.data
    cast_module(model, {"default": "bfloat16"})
    assert model[1].weight is model[0].weight
    assert model[2].weight.data_ptr() == model[0].weight.data_ptr()
    with pytest.raises(ValueError, match=r"'0\.weight' and '1\.weight' are one tensor"):
        cast_module(model, {r"0\..*": "float16", r"1\..*": "float32"})
    assert model[0].weight.dtype == HALF


def test_nothing_is_changed_where_anything_is_refused() -> None:
    model = Model()
    with torch.no_grad():
        model.head.bias[0] = 1e9
    for raised, options in (
        (pytest.raises(OverflowError, match=r"'head\.bias'"), {"overflow": "raise"}),
        (pytest.raises(ValueError, match="rounding"), {"rounding": "up"}),
        (pytest.raises(ValueError, match=r"'shift': scale"), {"scale": np.ones((8, 1))}),
        (pytest.raises(TypeError, match=r"inputs='half16' is not True"), {"inputs": "half16"}),
        (pytest.raises(TypeError, match=r"inputs=None is not True or False"), {"inputs": None}),
        (pytest.raises(TypeError, match="report= is about one array"), {"report": True}),
    ):
        with raised:
            cast_module(model, "float16", **options)
        assert set(dtypes(model).values()) == {SINGLE, torch.int64}
        assert "forward" not in model.__dict__


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("flaot16", TypeError, "flaot16"),
        ("float8_e3m4", TypeError, "torch has no dtype"),
        ({r"head\..*": "float6_e2m3fn"}, TypeError, "torch has no dtype"),
        ({"(": "float16"}, ValueError, r"\("),
        ({"head.*": "float16", ".*weight": "float16"}, ValueError, "matched by 2 keys"),
        ("int8", TypeError, "no dtype that torch computes|requires a gradient|torch does not"),
        ({r"head\.weight": "int8"}, TypeError, "requires a gradient"),
        ("int8_from_float32", ValueError, "quantizes"),
        (3, TypeError, "3"),
    ],
)
def test_bad_maps(what: Any, error: type[Exception], words: str) -> None:
    model = Model()
    with pytest.raises(error, match=words):
        cast_module(model, what)
    assert set(dtypes(model).values()) == {SINGLE, torch.int64}
    with pytest.raises(TypeError, match=r"give a torch\.nn\.Module"):
        cast_module({"a": torch.ones(2)}, "float16")
    with pytest.raises(TypeError, match=r"give a torch\.nn\.Module"):
        autocast(torch.ones(2), "float16")


def test_the_innermost_autocast_is_in_force() -> None:
    model, x = Model(), torch.randn(3, 4)
    part = autocast(model.encoder, "bfloat16")
    assert model.encoder(x).dtype == SINGLE
    with autocast(model, "float16"):
        with part:
            assert model.encoder[0](x).dtype == HALF
            assert model.head(torch.ones(1, 8)).dtype == torch.float16
        assert model.encoder[0](x).dtype == torch.float16
    assert model(x).dtype == SINGLE


@pytest.mark.parametrize("training", [True, False])
def test_layers_that_read_each_others_parameters(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).train(training)
    lstm = nn.LSTM(4, 8, 2)
    x, series = torch.randn(2, 5, 16), torch.randn(5, 2, 4)
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])

    def output(called: Callable[[], torch.Tensor]) -> Any:
        """Return an output, or the error of torch 2.15, whose autocast has no LSTM on AVX2."""
        try:
            with torch.set_grad_enabled(training):
                return called()
        except RuntimeError as error:
            return str(error)

    def outputs() -> list[Any]:
        calls = (lambda: layer(x), lambda: lstm(series)[0], lambda: lstm(packed)[0].data)
        return [output(called) for called in calls]

    with autocast(layer, "bfloat16"), autocast(lstm, "mixed_bfloat16"):
        found = outputs()
    with torch.autocast("cpu", dtype=HALF):
        wanted = outputs()
    for ours, of_torch in zip(found, wanted, strict=True):
        if isinstance(of_torch, str):
            assert "LSTM" in of_torch
            assert ours == of_torch
        else:
            assert torch.equal(ours, of_torch)
    assert lstm(series)[0].dtype == SINGLE


def test_layers_without_memory_are_cast_by_torch() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    cast_module(model, "bfloat16")
    assert (model.weight.dtype, model.weight.device.type) == (HALF, "meta")
    empty = nn.Linear(2, 2)
    empty.weight = nn.Parameter(torch.empty(2, 0))
    cast_module(empty, "bfloat16")
    assert empty.weight.shape == (2, 0)


def test_modules_that_have_no_elements_yet() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    for change in (lambda: cast_module(model, "bfloat16"), lambda: autocast(model, "bfloat16")):
        with pytest.raises(ValueError, match=r"'0\.weight' has no elements yet; call"):
            change()
        assert "forward" not in model.__dict__
    model(torch.ones(1, 4))
    cast_module(model, "bfloat16")
    assert model(torch.ones(1, 4)).dtype == HALF


def test_parameters_that_are_computed_from_others() -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    with autocast(model, "mixed_bfloat16"):
        y = model(torch.ones(2, 4))
        assert y.dtype == HALF
        y.float().sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {SINGLE}


def test_what_others_store_in_float8_is_theirs() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.data = model[1].weight.data.to(torch.float8_e4m3fn)
    cast_module(model, {r"0\..*": "bfloat16"})
    assert model[0](torch.ones(1, 2)).dtype == HALF
    assert model[1].weight.dtype == torch.float8_e4m3fn


def test_the_signature_stays() -> None:
    model = nn.Linear(2, 2)
    with autocast(model, "bfloat16"):
        assert list(inspect.signature(model.forward).parameters) == ["input"]


def test_stochastic_rounding_draws_anew_for_each_tensor() -> None:
    def made(seed: int) -> Any:
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.001)
        cast_module(model, "bfloat16", rounding="stochastic", seed=seed, inputs=False)
        return [to_numpy(p.detach()).tobytes() for p in model.parameters()]

    first, again, other = made(1), made(1), made(2)
    assert first == again
    assert first[0] != first[1]
    assert first != other
    assert np.unique(np.frombuffer(first[0], np.uint16)).size == 2


class Wrapper(nn.Module):
    """A model of the user's that names what it wraps as torch's wrappers do, beside another."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.encoder = Model(), nn.Linear(2, 2)


WRAPPERS: dict[str, Any] = {
    "compile": torch.compile,
    "parallel": nn.DataParallel,
    "average": torch.optim.swa_utils.AveragedModel,
    "both": lambda model: nn.DataParallel(torch.compile(model)),
    "outside": lambda model: torch.compile(nn.DataParallel(model)),
}


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize(
    "keys",
    [
        {r"encoder\.0\..*": "bfloat16", r"encoder\.2\.weight": "bfloat16", "steps": "float16"},
        {"encoder/0/.*": "bfloat16", "head/bias": "float16"},
        DTypePolicyMap("float32", {"encoder/.*": "bfloat16"}),
        {r".*\.weight": "bfloat16"},
    ],
    ids=["tensors", "slashes", "policies", "any"],
)
def test_names_that_wrappers_change(keys: Any, kind: str) -> None:
    model, plain = Model(), Model()
    wrapped = WRAPPERS[kind](model)
    found = cast_module(wrapped, keys, inputs=False).summary
    wanted = cast_module(plain, keys, inputs=False).summary
    inner = wrapped.module if kind == "average" else model
    assert dtypes(inner) == dtypes(plain)
    assert found.unused == wanted.unused == {}
    state = cast_state_dict(WRAPPERS[kind](Model()).state_dict(), keys)
    by_role = cast_state_dict(Model().state_dict(), keys)
    if not isinstance(keys, DTypePolicyMap):  # whose keys are modules; a state dict has none
        assert by_role["encoder.0.weight"].dtype == HALF
    bare = {name.replace("_orig_mod.", "").removeprefix("module."): t for name, t in state.items()}
    assert {name: bare[name].dtype for name in by_role} == {n: t.dtype for n, t in by_role.items()}
    with autocast(WRAPPERS[kind](Model()), {"encoder.*": "float16"}) as handle:
        assert handle.summary.unused == {}


def test_an_attribute_called_module_is_no_wrapper() -> None:
    model = Wrapper()
    done = cast_module(model, {r"encoder\..*": "bfloat16"}, inputs=False)
    cast = {name for name, dtype in dtypes(model).items() if dtype == HALF}
    assert cast == {"encoder.weight", "encoder.bias"}
    assert done.summary.keys == {r"encoder\..*": 2}


def test_a_map_of_which_no_key_matches() -> None:
    model = Model()
    words = r"no tensor or module of the model matches any of its keys.*'haed\.weight' is 'head\.w"
    for change in (cast_module, autocast):
        with pytest.raises(ValueError, match=words):
            change(model, {"haed.weight": "float16"})
    with pytest.raises(ValueError, match=r"policy map: no tensor .* nearest to 'haed' is 'head'"):
        autocast(model, DTypePolicyMap("bfloat16", {"haed": "float16"}))
    assert set(dtypes(model).values()) == {SINGLE, torch.int64}
    assert "forward" not in model.__dict__
    done = cast_module(model, {".*normal.*": "keep", "default": "bfloat16"})
    assert list(done.summary.unused) == [".*normal.*"]
    with autocast(Model(), {"shift": "float16"}) as handle:
        assert list(handle.summary.unused) == ["shift"]
