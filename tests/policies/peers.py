"""The packages that castwise speaks for, imported on first use: they are slow to import, and noisy.

Each function returns the real thing, from PyPI. The environment is set before the first of them
is imported, so import this module before any of the peers.
"""

from __future__ import annotations

import importlib
import os
import warnings
from functools import cache
from types import ModuleType, SimpleNamespace

# Keras picks its backend, and TensorFlow and JAX their devices, once at import.
for _name, _value in (
    ("KERAS_BACKEND", "numpy"),
    ("JAX_PLATFORMS", "cpu"),
    ("TF_CPP_MIN_LOG_LEVEL", "3"),
    ("TF_ENABLE_ONEDNN_OPTS", "0"),
    ("CUDA_VISIBLE_DEVICES", ""),
):
    os.environ.setdefault(_name, _value)


def _imported(name: str) -> ModuleType:
    """Import a module without its warnings, which the test run would turn into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@cache
def keras() -> ModuleType:
    """Keras 3 on its numpy backend."""
    module = _imported("keras")
    assert module.config.backend() == "numpy", "KERAS_BACKEND was set before these tests"
    return module


@cache
def tf_keras() -> ModuleType:
    """tf_keras; `tf_keras().src.mixed_precision.policy` is the module of its policies."""
    _imported("tf_keras.src.mixed_precision.policy")
    _imported("tf_keras.src.mixed_precision.autocast_variable")
    return _imported("tf_keras")


@cache
def tensorflow() -> ModuleType:
    """TensorFlow, for its dtypes and tensors."""
    return _imported("tensorflow")


@cache
def tf24() -> SimpleNamespace:
    """`tf.keras.mixed_precision.experimental` of TF 2.4, whose code TensorFlow still carries."""
    tensorflow()
    package = "tensorflow.python.keras.mixed_precision"
    policy = _imported(f"{package}.policy")
    get_layer_policy = _imported(f"{package}.get_layer_policy")
    loss_scale = _imported(f"{package}.loss_scale")
    classes = _imported("tensorflow.python.training.experimental.loss_scale")
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


@cache
def jmp() -> ModuleType:
    """jmp, on JAX's CPU backend."""
    return _imported("jmp")


@cache
def jax() -> ModuleType:
    """JAX with its numpy module."""
    _imported("jax.numpy")
    return _imported("jax")


@cache
def torch() -> ModuleType:
    """PyTorch, on the CPU."""
    return _imported("torch")
