"""The `repr` of an object takes at most three lines, however much it holds; `str` is a table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import autocast, checkpoint, config, dtype_policies, loss_scale, quantization
from castwise.adapters import protocol
from castwise.compat import jmp, keras, tf_keras, torch
from castwise.compat.tf_keras import mixed_precision
from castwise.compat.tf_keras.mixed_precision import experimental

LINE, LINES = 100, 3
MANY = 40
"""Tensors, layers and keys: more than fit on three lines."""

MODULES = (
    "castwise.surveys",
    *("castwise", "castwise.autocast", "castwise.checkpoint", "castwise.config"),
    *("castwise.dtype_policies", "castwise.loss_scale", "castwise.quantization"),
    *("castwise.adapters.protocol", "castwise.compat.jmp", "castwise.compat.torch"),
    *("castwise.compat.keras.layers", "castwise.compat.keras.mixed_precision"),
    *("castwise.compat.tf_keras.layers", "castwise.compat.tf_keras.mixed_precision"),
    *("castwise.compat.tf_keras.mixed_precision.experimental",),
)


class Descent:
    """An optimizer that the loss-scaling ones take."""

    learning_rate, iterations = 0.5, 0
    variables: tuple[()] = ()

    def apply(self, grads: Any, trainable_variables: Any = None) -> None: ...

    def apply_gradients(self, grads_and_vars: Any) -> None: ...


class Arrays(protocol.Adapter):
    def is_array(self, value: Any) -> bool:
        return False

    def dtype_of(self, array: Any) -> Any: ...

    def to_host(self, array: Any) -> Any: ...

    def from_host(self, array: Any, like: Any) -> Any: ...


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of many tensors, which is cast and quantized beside it."""
    path = tmp_path_factory.mktemp("models")
    weight = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    names = [f"model.layers.{place}.self_attn.q_proj.weight" for place in range(MANY)]
    checkpoint.save(path / "model.safetensors", dict.fromkeys(names, weight))
    checkpoint.quantize_file(path / "model.safetensors", path / "fp8.safetensors", "fp8_block")
    return path


def many_keys(policy: str) -> dict[str, str]:
    return {f"model/layers/{place}/self_attention/.*": policy for place in range(MANY)}


def surveyed(models: Path) -> Any:
    return checkpoint.survey_file(models / "model.safetensors")


def policy_map() -> Any:
    return dtype_policies.DTypePolicyMap("float32", many_keys("mixed_bfloat16"))


def explanation() -> Any:
    return policy_map().explain(f"model/layers/{place}/mlp/kernel" for place in range(MANY))


def many_matches() -> Any:
    keys = {f"a{{{place}}}.*": "float16" for place in range(MANY)}
    policies = dtype_policies.DTypePolicyMap("float32", keys, on_overlap="first")
    return policies.explain(["a" * MANY]).paths["a" * MANY]


def report() -> Any:
    return castwise.cast(np.linspace(-1e6, 1e6, 100), "float8_e4m3fn", report=True)[1]


def cast(models: Path, **options: Any) -> Any:
    return checkpoint.cast_file(
        models / "model.safetensors", models / "o.npz", "fp4", overwrite=True, **options
    )


def verification(models: Path) -> Any:
    cast(models)
    return checkpoint.verify(models / "model.safetensors", models / "o.npz")


def difference(models: Path) -> Any:
    cast(models)
    return checkpoint.diff(models / "model.safetensors", models / "o.npz")


def quantized() -> Any:
    return quantization.quantize(np.linspace(-1, 1, 1 << 12).reshape(64, 64), "nvfp4")


def event() -> Any:
    seen: list[Any] = []
    scaler = loss_scale.LossScaler(loss_scale.DynamicLossScale(), on_event=seen.append)
    scaler.update(False)
    return seen[0]


def inspected(models: Path) -> Any:
    return checkpoint.inspect(models / "fp8.safetensors")


def gradient_log() -> Any:
    log = castwise.surveys.GradientLog(every=1, by_name=True)
    for step in range(MANY + 1):
        gradients = {f"layers/{place}/kernel": np.geomspace(1e-9, 1e-3, 9) for place in range(MANY)}
        log.record(step, gradients, loss_scale=2.0**step)
    return log


PUBLIC: dict[type, Callable[[Path], Any]] = {
    castwise.CastReport: lambda _: report(),
    castwise.Comparison: lambda _: castwise.compare(
        np.ones((3, MANY)), np.arange(3 * MANY).reshape(3, MANY)
    ),
    castwise.Survey: lambda _: castwise.survey(np.geomspace(1e-30, 1e30, MANY)),
    castwise.surveys.Binades: lambda _: castwise.survey(np.ones(MANY)).binades,
    castwise.surveys.Blocks: lambda _: castwise.survey(np.ones(MANY)).blocks((1, 16)),
    castwise.surveys.GradientLog: lambda _: gradient_log(),
    castwise.surveys.GradientSurvey: lambda _: gradient_log().at(MANY),
    castwise.surveys.LossScales: lambda _: gradient_log().at(MANY).loss_scales(),
    castwise.surveys.Prediction: lambda _: castwise.survey(np.ones(MANY)).predict("nvfp4"),
    castwise.FormatInfo: lambda _: castwise.finfo("float8_e4m3b11fnuz"),
    castwise.caster: lambda _: castwise.caster("float32", "int8", scale=np.ones((MANY, 1))),
    checkpoint.Advice: lambda models: checkpoint.advise(models / "model.safetensors", bits=9.0),
    checkpoint.Choice: lambda models: checkpoint.advise(
        models / "model.safetensors", bits=9.0
    ).choices[0],
    checkpoint.CastPlan: lambda models: cast(models, dry_run=True),
    checkpoint.CastRow: lambda models: cast(models).rows[0],
    checkpoint.CastSummary: cast,
    checkpoint.CheckpointSurvey: surveyed,
    checkpoint.TensorSurvey: lambda models: surveyed(models).tensors[0],
    checkpoint.DecodeReport: lambda _: checkpoint.DecodeReport(10, 1, 2, 3, 4),
    checkpoint.CastExplanation: lambda models: difference(models).tensors[0].explanation,
    checkpoint.Diff: difference,
    checkpoint.TensorDiff: lambda models: difference(models).tensors[0],
    checkpoint.Difference: lambda models: verification(models).differences[0],
    checkpoint.DtypeMap: lambda _: checkpoint.DtypeMap.of(many_keys("bfloat16")),
    checkpoint.Finding: lambda models: cast(models).findings(["inexact"])[0],
    checkpoint.Inspection: inspected,
    checkpoint.LoadingCheck: lambda models: checkpoint.verify_loading(
        models / "model.safetensors", "vllm"
    ),
    checkpoint.Orphan: lambda _: checkpoint.Orphan(
        "model.layers.0.self_attn.q_proj.weight", True, tuple(many_keys(""))
    ),
    checkpoint.Progress: lambda _: checkpoint.Progress(1, 2, "model.layers.0.q_proj.weight"),
    checkpoint.Quantization: lambda models: inspected(models).quantization,
    checkpoint.QuantizedWeight: lambda models: inspected(models).quantization.weights[0],
    checkpoint.TensorInfo: lambda models: inspected(models).tensors[0],
    checkpoint.Verification: verification,
    quantization.QuantizationReport: lambda _: quantized().report(
        np.linspace(-1, 1, 1 << 12).reshape(64, 64)
    ),
    quantization.QuantizedArray: lambda _: quantized(),
    quantization.Consumer: lambda _: quantization.consumers()[0],
    quantization.Loading: lambda _: quantization.consumers()[0].loads[0],
    quantization.Scheme: lambda _: quantization.schemes()[-1],
    dtype_policies.DTypePolicy: lambda _: castwise.DTypePolicy("mixed_bfloat16"),
    dtype_policies.FloatDTypePolicy: lambda _: dtype_policies.FloatDTypePolicy("float32"),
    dtype_policies.QuantizedDTypePolicy: lambda _: dtype_policies.get("int8_from_mixed_bfloat16"),
    dtype_policies.QuantizedFloat8DTypePolicy: lambda _: dtype_policies.get("float8_from_float32"),
    dtype_policies.Int4DTypePolicy: lambda _: dtype_policies.get("int4/64_from_mixed_bfloat16"),
    dtype_policies.GPTQDTypePolicy: lambda _: dtype_policies.get("gptq/4/64_from_float32"),
    dtype_policies.AWQDTypePolicy: lambda _: dtype_policies.get("awq/4/-1_from_float32"),
    dtype_policies.DTypePolicyMap: lambda _: policy_map(),
    dtype_policies.Explanation: lambda _: explanation(),
    dtype_policies.PathMatch: lambda _: many_matches(),
    config.dtype_policy_scope: lambda _: config.dtype_policy_scope(policy_map()),
    loss_scale.FixedLossScale: lambda _: loss_scale.FixedLossScale(8.0),
    loss_scale.DynamicLossScale: lambda _: loss_scale.DynamicLossScale(preset="torch"),
    loss_scale.DelayedScaling: lambda _: loss_scale.DelayedScaling(1024),
    loss_scale.LossScaler: lambda _: loss_scale.LossScaler(loss_scale.DynamicLossScale()),
    loss_scale.LossScaleEvent: lambda _: event(),
    autocast.AutoCastVariable: lambda _: autocast.AutoCastVariable(np.ones((MANY, MANY))),
    autocast.AutocastScope: lambda _: autocast.AutocastScope("bfloat16"),
    autocast.Layer: lambda _: autocast.Layer(dtype=policy_map()),
    protocol.Adapter: lambda _: Arrays(),
    jmp.Policy: lambda _: jmp.get_policy("params=float32,compute=bfloat16,output=float32"),
    jmp.NoOpLossScale: lambda _: jmp.NoOpLossScale(),
    jmp.StaticLossScale: lambda _: jmp.StaticLossScale(8.0),
    jmp.DynamicLossScale: lambda _: jmp.DynamicLossScale(8.0),
    torch.GradScaler: lambda _: torch.GradScaler(),
    keras.mixed_precision.LossScaleOptimizer: lambda _: keras.mixed_precision.LossScaleOptimizer(
        Descent()
    ),
    tf_keras.layers.Layer: lambda _: tf_keras.layers.Layer(),
    mixed_precision.LossScaleOptimizer: lambda _: mixed_precision.LossScaleOptimizer(Descent()),
    mixed_precision.Policy: lambda _: mixed_precision.Policy("mixed_float16"),
    experimental.Policy: lambda _: experimental.Policy("mixed_float16"),
    experimental.FixedLossScale: lambda _: experimental.FixedLossScale(8.0),
    experimental.DynamicLossScale: lambda _: experimental.DynamicLossScale(8.0),
}

ABSTRACT = {experimental.LossScale}


def public_classes() -> Iterator[type]:
    for name in MODULES:
        module = importlib.import_module(name)
        for value in (getattr(module, public) for public in module.__all__):
            if isinstance(value, type) and not issubclass(value, BaseException):
                yield value


def test_every_public_class_is_listed() -> None:
    assert set(public_classes()) - ABSTRACT == set(PUBLIC)


def check_short(shown: str) -> None:
    assert len(shown.splitlines()) <= LINES
    assert len(shown) <= LINE * LINES


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_a_repr_takes_three_lines(models: Path, cls: type) -> None:
    made = PUBLIC[cls](models)
    assert isinstance(made, cls)
    check_short(repr(made))
    assert cls.__name__.lstrip("_") in repr(made) or cls in RENAMED


RENAMED = {dtype_policies.FloatDTypePolicy, experimental.Policy, protocol.Adapter, jmp.Policy}
"""Those that another class stands for, as in the original."""

LOSSES = "SQNR dB exact overflowed saturated underflowed NaN in NaN out max rel error"

TABLES: dict[type, tuple[int, str]] = {
    castwise.surveys.GradientLog: (
        MANY + 5,
        "step loss scale amax amin_nonzero zeros underflow subnormal overflow fitting exponents",
    ),
    castwise.Comparison: (12, f"shape (3, {MANY})"),
    checkpoint.CastPlan: (5, "tensor shape from to by tensors before after"),
    checkpoint.CastSummary: (6, f"tensor shape from to tensors {LOSSES}"),
    checkpoint.Inspection: (18, "tensor dtype shape tensors bytes"),
    checkpoint.Quantization: (2 + MANY, "stated in metadata: fp8"),
    checkpoint.Verification: (2 + MANY, "tensor as at first second different of max abs max ulp"),
    checkpoint.DtypeMap: (1 + MANY, "pattern format"),
    quantization.QuantizedArray: (5, "nvfp4 of shape (64, 64)"),
    quantization.QuantizationReport: (9, "elements 4096"),
    dtype_policies.DTypePolicyMap: (2 + MANY, "key policy"),
    dtype_policies.Explanation: (1 + 2 * MANY, "path policy key also matched by"),
}
"""Lines at least, and the words of the first."""


@pytest.mark.parametrize("cls", TABLES, ids=lambda cls: cls.__name__)
def test_what_holds_much_prints_as_a_table(models: Path, cls: type) -> None:
    lines, words = TABLES[cls]
    shown = str(PUBLIC[cls](models)).splitlines()
    assert len(shown) >= lines
    assert shown[0].split() == words.split()


def test_short_maps_are_shown_whole() -> None:
    shown = repr(dtype_policies.DTypePolicyMap("float32", {"a/.*": "float16"}))
    assert shown == "<DTypePolicyMap default_policy=float32, mapping=[('a/.*', 'float16')]>"
    cut = repr(policy_map())
    assert "layers/3/" in cut
    assert "layers/4/" not in cut
    assert cut.endswith(f"{MANY} keys>")


def test_reports_of_adapters_are_short(framework: Callable[[str], ModuleType]) -> None:
    nn = framework("torch").nn
    from castwise.adapters import torch as adapter  # noqa: PLC0415

    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(MANY)))
    done = adapter.cast_module(module, {"default": "bfloat16", "nothing.*": "float16"})
    for shown in (done, done.summary):
        check_short(repr(shown))
        assert len(str(shown).splitlines()) > MANY
    done.remove()


def test_one_name_more_is_one_other(models: Path) -> None:
    assert repr(surveyed(models)).endswith("float16, float8_e4m3fn and 1 other>")
