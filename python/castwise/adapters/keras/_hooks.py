"""The hooks that run in Keras' functions while castwise is installed."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from castwise import config
from castwise.adapters.keras._input_casts import kernel_cast, to_tensor
from castwise.adapters.keras._policies import from_keras, takes_quantized_global, to_keras
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap
from castwise.environment import defaults as global_state
from castwise.environment.frameworks import require

Original = Callable[..., Any]

# Keras' global attribute with the last policy in force: castwise's, Keras', and whether castwise
# took it from Keras.
_KNOWN = "castwise_dtype_policy"


def _keras_state() -> Any:
    return import_module("keras.src.backend.common.global_state")


def with_policies_of_keras(original: Original, *args: Any, **kwargs: Any) -> Any:
    """Hook of functions of Keras that take policies."""
    # The functions are ``keras.dtype_policies.get``, and with it every ``dtype=`` of a layer, and
    # ``keras.saving.serialize_keras_object``, for the configs of layers.
    return original(
        *map(_for_keras, args), **{name: _for_keras(value) for name, value in kwargs.items()}
    )


def read_policy(value: Any) -> DTypePolicy | None:
    """Convert a policy of Keras for castwise's own `get`."""
    is_policy = isinstance(value, require("keras").dtype_policies.DTypePolicy)
    return from_keras(value) if is_policy else None


def _for_keras(value: Any) -> Any:
    return to_keras(value) if isinstance(value, DTypePolicy) else value


def dtype_policy(original: Original) -> Any:
    """Hook of ``keras.config.dtype_policy``: return the policy in force in castwise."""
    # If castwise has none, Keras' policy is put in force in castwise, too; also if castwise's came
    # from Keras, and another one was set in Keras since.
    state, policy = _keras_state(), global_state.current_policy()
    ours, theirs, is_taken = state.get_global_attribute(_KNOWN, (None, None, False))
    is_known = policy is ours
    if policy is None or (
        is_known and is_taken and state.get_global_attribute("dtype_policy") is not theirs
    ):
        policy_of_keras = original()
        config.set_dtype_policy(from_keras(policy_of_keras))
        return _remember(policy_of_keras, is_taken=True)
    return theirs if is_known else _remember(_global_policy(policy), is_taken=False)


def _global_policy(policy: DTypePolicy) -> Any:
    """Return a policy in force in castwise for Keras, which takes no quantized one from 3.16 on."""
    version = require("keras").__version__
    if policy.quantization_mode is not None and not takes_quantized_global(version):
        raise ValueError(
            f"the policy in force, {policy.name!r}, is quantized, and layers that cannot be "
            f"quantized would fail: keras {version} takes no such policy for all layers; put "
            "another one in force, and call quantize() of the layer or the model"
        )
    return to_keras(policy)


def adopt() -> None:
    """Put the policy of Keras in this thread in force in castwise, if castwise has none."""
    if _keras_state().get_global_attribute("dtype_policy") is not None:
        require("keras").config.dtype_policy()


def set_dtype_policy(original: Original, *args: Any, **kwargs: Any) -> None:
    """Hook of ``keras.config.set_dtype_policy``: set it in Keras and in castwise."""
    # Within a scope of castwise it is set in castwise only, until the scope ends.
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
    _remember(after, is_taken=stays)


def _remember(policy_of_keras: Any, is_taken: bool) -> Any:
    """Return the same policy of Keras as before, while castwise's policy in force is the same."""
    memory = global_state.current_policy(), policy_of_keras, is_taken
    _keras_state().set_global_attribute(_KNOWN, memory)
    return policy_of_keras


def clear_session(original: Original, *args: Any, **kwargs: Any) -> None:
    """Hook of ``keras.utils.clear_session``: clear the policy in force in both."""
    original(*args, **kwargs)
    config.clear_dtype_policy()


def map_from_config(
    original: Original, cls: Any, config: dict[str, Any], custom_objects: Any = None
) -> Any:
    """Hook of ``DTypePolicyMap.from_config``: accept the options of castwise's maps."""
    if {"match", "on_overlap"}.isdisjoint(config):
        return original(cls, config, custom_objects)
    return to_keras(DTypePolicyMap.from_config(config, custom_objects))


def convert_input(original: Original, self: Any, x: Any, autocast: bool, dtype: Any) -> Any:
    """Hook of ``DTypePolicy.convert_input``, which layers call for each of their inputs."""
    backend = _backend()
    cast = kernel_cast(x, dtype, backend) if autocast else None
    return original(self, x, autocast, dtype) if cast is None else to_tensor(cast, backend)


def convert_to_tensor(original: Original, x: Any, dtype: Any = None, *more: Any, **kw: Any) -> Any:
    """Hook of ``convert_to_tensor`` of the numpy backend, which its ``cast`` calls."""
    cast = None if any(more) or any(kw.values()) else kernel_cast(x, dtype, "numpy")
    return original(x, dtype, *more, **kw) if cast is None else cast


@functools.cache
def _backend() -> str:
    return str(require("keras").config.backend())
