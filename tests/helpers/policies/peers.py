"""The packages that castwise speaks for, imported on first use: they are slow to import, and noisy.

Each function returns the real thing, from PyPI. The environment is set before the first of them
is imported, so import this module before any of the peers. A test whose file imports this module,
itself or through another, is marked `frameworks` (conftest.py).
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from functools import cache, wraps
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TypeVar

import pytest
from process_state import environment_kept
from recorded import SESSION

T = TypeVar("T")

# Keras picks its backend, and TensorFlow and JAX their devices, once at import.
for _name, _value in (
    ("KERAS_BACKEND", "numpy"),
    ("JAX_PLATFORMS", "cpu"),
    ("TF_CPP_MIN_LOG_LEVEL", "3"),
    ("TF_ENABLE_ONEDNN_OPTS", "0"),
    ("CUDA_VISIBLE_DEVICES", ""),
):
    os.environ.setdefault(_name, _value)


are_wanted = True
"""Whether this run is to import any of them; `-m "not frameworks"` says no."""


def need(*names: str) -> None:
    """Skip the test or file that asks for packages which are not installed, or not wanted."""
    SESSION.ask()
    for name in names:
        if not are_wanted:
            pytest.skip(f"{name}: run `pytest -m frameworks`", allow_module_level=True)
        if find_spec(name) is None:
            remedy = "pip install '.[test-frameworks]'"
            pytest.skip(f"{name} is not installed: {remedy}", allow_module_level=True)


def framework(name: str) -> ModuleType:
    """Import a module without its warnings, which the test run would turn into errors."""
    need(name.partition(".")[0])
    with environment_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def peer(make: Callable[[], T]) -> Callable[[], T]:
    """Import a module once, and tell the session of each use."""
    made = cache(make)

    @wraps(make)
    def asked() -> T:
        SESSION.ask()
        return made()

    return asked


@peer
def keras() -> ModuleType:
    """Keras 3 on its numpy backend."""
    module = framework("keras")
    assert module.config.backend() == "numpy", "KERAS_BACKEND was set before these tests"
    return module


@peer
def tf_keras() -> ModuleType:
    """tf_keras; `tf_keras().src.mixed_precision.policy` is the module of its policies."""
    framework("tf_keras.src.mixed_precision.policy")
    framework("tf_keras.src.mixed_precision.autocast_variable")
    return framework("tf_keras")


@peer
def tensorflow() -> ModuleType:
    """TensorFlow, for its dtypes and tensors."""
    return framework("tensorflow")


@peer
def tf24() -> SimpleNamespace:
    """`tf.keras.mixed_precision.experimental` of TF 2.4, whose code TensorFlow still carries."""
    tensorflow()
    package = "tensorflow.python.keras.mixed_precision"
    policy = framework(f"{package}.policy")
    get_layer_policy = framework(f"{package}.get_layer_policy")
    loss_scale = framework(f"{package}.loss_scale")
    classes = framework("tensorflow.python.training.experimental.loss_scale")
    return SimpleNamespace(
        Policy=policy.PolicyV1,
        set_policy=policy.set_global_policy,
        global_policy=policy.global_policy,
        policy_scope=policy.policy_scope,
        get_layer_policy=get_layer_policy.get_layer_policy,
        serialize=policy.serialize,
        deserialize=policy.deserialize,
        LossScale=classes.LossScale,
        FixedLossScale=classes.FixedLossScale,
        DynamicLossScale=classes.DynamicLossScale,
        policy_module=policy,
        loss_scale_module=loss_scale,
    )


@peer
def jmp() -> ModuleType:
    """jmp, on JAX's CPU backend."""
    return framework("jmp")


@peer
def jax() -> ModuleType:
    """JAX with its numpy module."""
    framework("jax.numpy")
    return framework("jax")


@peer
def torch() -> ModuleType:
    """PyTorch, on the CPU."""
    return framework("torch")
