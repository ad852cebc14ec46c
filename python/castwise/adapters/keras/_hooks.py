"""What Keras' own functions do while castwise is installed in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from castwise import _global_state as global_state
from castwise import config
from castwise._frameworks import require
from castwise.adapters.keras._input_casts import kernel_cast, to_tensor
from castwise.adapters.keras._policies import from_keras, to_keras
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap

Original = Callable[..., Any]

_KNOWN = "castwise_dtype_policy"
"""Keras' global attribute with the policy that was in force last: castwise's, Keras', and whether
castwise took it from Keras."""


def _keras_state() -> Any:
    return import_module("keras.src.backend.common.global_state")


def with_policies_of_keras(original: Original, *args: Any, **kwargs: Any) -> Any:
    """Functions of Keras that take policies.

    ``keras.dtype_policies.get``, and with it every ``dtype=`` of a layer;
    ``keras.saving.serialize_keras_object``, for the configs of layers.
    """
    return original(
        *map(_for_keras, args), **{name: _for_keras(value) for name, value in kwargs.items()}
    )


def read_policy(value: Any) -> DTypePolicy | None:
    """What castwise's own `get` makes of a policy of Keras."""
    is_policy = isinstance(value, require("keras").dtype_policies.DTypePolicy)
    return from_keras(value) if is_policy else None


def _for_keras(value: Any) -> Any:
    return to_keras(value) if isinstance(value, DTypePolicy) else value


def dtype_policy(original: Original) -> Any:
    """``keras.config.dtype_policy``: what is in force in castwise.

    Where nothing was set there, it is what is in force in Keras, from now on in both; also where
    what is in force in castwise came from Keras, which has had another one set since.
    """
    state, policy = _keras_state(), global_state.current_policy()
    ours, theirs, taken = state.get_global_attribute(_KNOWN, (None, None, False))
    known = policy is ours
    if policy is None or (
        known and taken and state.get_global_attribute("dtype_policy") is not theirs
    ):
        converted = original()
        config.set_dtype_policy(from_keras(converted))
        return _remembered(converted, taken=True)
    return theirs if known else _remembered(to_keras(policy), taken=False)


def adopt() -> None:
    """Put in force in castwise what is in force in this thread of Keras, if castwise has none."""
    if _keras_state().get_global_attribute("dtype_policy") is not None:
        require("keras").config.dtype_policy()


def set_dtype_policy(original: Original, *args: Any, **kwargs: Any) -> None:
    """``keras.config.set_dtype_policy``: in Keras and in castwise.

    Within a scope of castwise in castwise alone, which forgets it at the scope's end.
    """
    state = _keras_state()
    before = state.get_global_attribute("dtype_policy")
    with_policies_of_keras(original, *args, **kwargs)
    after = state.get_global_attribute("dtype_policy")
    stays = False
    try:
        config.set_dtype_policy(from_keras(after))
        stays = not global_state.in_scope()
    finally:
        if not stays:
            state.set_global_attribute("dtype_policy", before)
    _remembered(after, taken=stays)


def _remembered(converted: Any, taken: bool) -> Any:
    """Give the same policy of Keras again, as long as the same one of castwise is in force."""
    known = global_state.current_policy(), converted, taken
    _keras_state().set_global_attribute(_KNOWN, known)
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
