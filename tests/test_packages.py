"""`dir()` of a package is its `__all__`."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest

PACKAGES = (
    "castwise",
    "castwise.autocast",
    "castwise.checkpoint",
    "castwise.compat",
    "castwise.compat.jmp",
    "castwise.compat.keras",
    "castwise.compat.tf_keras",
    "castwise.compat.tf_keras.mixed_precision",
    "castwise.dtype_policies",
    "castwise.loss_scale",
    "castwise.quantization",
)
FRAMEWORKS = ("jax", "keras", "tf_keras", "torch")
ADAPTERS = ("castwise.adapters", *(f"castwise.adapters.{name}" for name in FRAMEWORKS))


def check(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, each) for each in package.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_dir_is_all(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", ADAPTERS)
def test_dir_of_an_adapter_is_all(name: str, framework: Callable[[str], object]) -> None:
    for each in FRAMEWORKS if name == "castwise.adapters" else (name.rpartition(".")[2],):
        framework(each)
    check(name)
