"""What Keras' own functions do while castwise is installed in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from castwise import config, global_state
from castwise.adapters.framework import require
from castwise.adapters.keras.input_casts import kernel_cast, to_tensor
from castwise.adapters.keras.policies import from_keras, to_keras
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap

Original = Callable[..., Any]

_PAIR = "castwise_dtype_policy"
"""Keras' global attribute with castwise's policy that was in force last, and the one it became."""


def _keras_state() -> Any:
    return import_module("keras.src.backend.common.global_state")


def get(original: Original, identifier: Any) -> Any:
    """``keras.dtype_policies.get``, and with it every ``dtype=`` of a layer."""
    return original(_for_keras(identifier))


def serialize(original: Original, obj: Any) -> Any:
    """``keras.saving.serialize_keras_object``: policies within the configs of layers."""
    return original(_for_keras(obj))


def read_policy(value: Any) -> DTypePolicy | None:
    """What castwise's own `get` makes of a policy of Keras."""
    is_policy = isinstance(value, require("keras").dtype_policies.DTypePolicy)
    return from_keras(value) if is_policy else None


def _for_keras(value: Any) -> Any:
    return to_keras(value) if isinstance(value, DTypePolicy) else value


def dtype_policy(original: Original) -> Any:
    """``keras.config.dtype_policy``: what is in force in castwise.

    Where nothing was ever set there, it is what is in force in Keras, from now on in both.
    """
    policy = global_state.current_policy()
    if policy is None:
        policy = original()
        config.set_dtype_policy(from_keras(policy))
        return _remembered(policy)
    known, converted = _keras_state().get_global_attribute(_PAIR, (None, None))
    return converted if known is policy else _remembered(to_keras(policy))


def set_dtype_policy(original: Original, policy: Any) -> None:
    """``keras.config.set_dtype_policy``: in Keras and in castwise."""
    state = _keras_state()
    before = state.get_global_attribute("dtype_policy")
    original(_for_keras(policy))
    after = state.get_global_attribute("dtype_policy")
    try:
        config.set_dtype_policy(from_keras(after))
    except (TypeError, ValueError):
        state.set_global_attribute("dtype_policy", before)
        raise
    _remembered(after)


def _remembered(converted: Any) -> Any:
    """Give the same policy of Keras again, as long as the same one of castwise is in force."""
    pair = global_state.current_policy(), converted
    _keras_state().set_global_attribute(_PAIR, pair)
    return converted


def clear_session(original: Original, *args: Any, **kwargs: Any) -> None:
    """``keras.utils.clear_session``: it clears the policy in force."""
    original(*args, **kwargs)
    config.clear_dtype_policy()


def map_from_config(original: Original, config: dict[str, Any], custom_objects: Any = None) -> Any:
    """``DTypePolicyMap.from_config``, also of what only castwise's maps can do."""
    if {"match", "on_overlap"}.isdisjoint(config):
        return original(config, custom_objects)
    return to_keras(DTypePolicyMap.from_config(config, custom_objects))


def convert_input(original: Original, self: Any, x: Any, autocast: bool, dtype: Any) -> Any:
    """``DTypePolicy.convert_input``: what layers do with each of their inputs."""
    backend = _backend()
    cast = kernel_cast(x, dtype, backend) if autocast else None
    return original(self, x, autocast, dtype) if cast is None else to_tensor(cast, backend)


def convert_to_tensor(original: Original, x: Any, dtype: Any = None, *more: Any, **kw: Any) -> Any:
    """``convert_to_tensor`` of the numpy backend, and with it its ``cast``."""
    cast = None if any(more) or any(kw.values()) else kernel_cast(x, dtype, "numpy")
    return original(x, dtype, *more, **kw) if cast is None else cast


@functools.cache
def _backend() -> str:
    return str(require("keras").config.backend())
