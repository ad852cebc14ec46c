"""torch and jax on the CPU, imported without their warnings, which the test run makes errors."""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType

for _name, _value in (("JAX_PLATFORMS", "cpu"), ("CUDA_VISIBLE_DEVICES", "")):
    os.environ.setdefault(_name, _value)


def _imported(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def torch() -> ModuleType:
    """The real torch."""
    return _imported("torch")


def jax() -> ModuleType:
    """The real jax, with its numpy."""
    _imported("jax.numpy")
    return _imported("jax")
