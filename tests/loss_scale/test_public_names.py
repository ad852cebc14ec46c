"""Classes that stand in for torch's, jmp's and TF 2.4's have their public names and arguments."""

from __future__ import annotations

import dataclasses
import inspect
from types import MappingProxyType
from typing import Any

import pytest
from castwise.adapters import torch as torch_adapter
from castwise.compat import jmp, torch
from castwise.compat.tf_keras.mixed_precision import experimental, loss_scale
from originals import library
from public_names import missing


def original(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(library(module), name)


GRAPH = "tensorflow.python.training.experimental.loss_scale"
POLICY = "tensorflow.python.keras.mixed_precision.policy"
PAIRS = [
    ("torch.amp.GradScaler", torch.GradScaler),
    ("torch.amp.GradScaler", torch_adapter.GradScaler),
    ("jmp.Policy", jmp.Policy),
    ("jmp.NoOpLossScale", jmp.NoOpLossScale),
    ("jmp.StaticLossScale", jmp.StaticLossScale),
    ("jmp.DynamicLossScale", jmp.DynamicLossScale),
    (f"{POLICY}.PolicyV1", experimental.Policy),
    (f"{GRAPH}.LossScale", experimental.LossScale),
    (f"{GRAPH}.FixedLossScale", experimental.FixedLossScale),
    (f"{GRAPH}.DynamicLossScale", experimental.DynamicLossScale),
]
LISTED: dict[str, dict[str, str]] = {}
"""Names that are left out on purpose, by original, each with the reason: none so far."""


@pytest.mark.parametrize(
    ("path", "ours"), PAIRS, ids=lambda value: getattr(value, "__name__", value)
)
def test_public_names_of_classes(path: str, ours: Any) -> None:
    cls = original(path)
    assert missing(cls, ours, LISTED.get(path, {})) == set()
    for name in LISTED.get(path, {}):
        assert not hasattr(ours, name)
    if dataclasses.is_dataclass(cls):
        fields = [field.name for field in dataclasses.fields(cls)]
        assert fields == [field.name for field in dataclasses.fields(ours)]


@pytest.mark.parametrize(
    ("path", "ours"), PAIRS, ids=lambda value: getattr(value, "__name__", value)
)
def test_arguments_of_methods(path: str, ours: Any) -> None:
    cls = original(path)
    public = {name for name in dir(cls) if not name.startswith("_")} & set(dir(ours))
    for name in ["__init__", *sorted(public)]:
        wanted = getattr(cls, name)
        if not callable(wanted) or name not in dir(ours):
            continue
        theirs, mine = (_arguments(function) for function in (wanted, getattr(ours, name)))
        assert theirs == mine[: len(theirs)], name


def _arguments(function: Any) -> list[str]:
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in {"self", "args", "kwargs"}]


@pytest.mark.parametrize(
    ("path", "ours", "listed"),
    [
        ("jmp", jmp, {}),
        (
            "tensorflow.python.keras.mixed_precision.loss_scale",
            loss_scale,
            dict.fromkeys(("generic_utils", "loss_scale_module"), "an import of the module"),
        ),
    ],
    ids=["jmp", "loss_scale"],
)
def test_public_names_of_modules(path: str, ours: Any, listed: dict[str, str]) -> None:
    assert missing(library(path), ours, listed) == set()


EXPERIMENTAL = ["DynamicLossScale", "FixedLossScale", "LossScale", "LossScaleOptimizer", "Policy"]
EXPERIMENTAL += ["get_layer_policy", "global_policy", "set_policy"]
"""What TF 2.4 has in `tf.keras.mixed_precision.experimental`, a module removed since."""

NOT_OFFERED = {
    "LossScaleOptimizer": "that of tf.keras.mixed_precision reads its configs, and is offered"
}


def test_names_of_the_experimental_module() -> None:
    assert {name for name in EXPERIMENTAL if not hasattr(experimental, name)} == set(NOT_OFFERED)


def test_a_name_that_is_neither_there_nor_listed_is_found() -> None:
    class Original:
        here = there = refused = listed = 1

    class Ours:
        here = 1

        @property
        def refused(self) -> Any:
            raise AttributeError("refused is not offered; use here")

    assert missing(Original, Ours(), MappingProxyType({"listed": "a reason"})) == {"there"}
