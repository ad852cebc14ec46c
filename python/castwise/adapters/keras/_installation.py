"""Patch Keras' functions to take castwise's policies, and to cast with its kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any

from castwise.adapters._replaced_function import ReplacedFunction, patched
from castwise.adapters.keras import _hooks as hooks
from castwise.dtype_policies import _configs as configs
from castwise.environment.frameworks import require
from castwise.environment.switch import Switch, Turn


def install() -> Installation:
    """Let Keras' own layers obey castwise's policies and maps, on every backend.

    Experimental, because it patches Keras from outside. Afterwards, in any thread:

    - A policy or map of castwise is accepted wherever Keras accepts one: as the ``dtype=`` of
      layers, losses and metrics, by ``layer.dtype_policy = ...``,
      ``keras.config.set_dtype_policy``, ``keras.dtype_policies.get``, and in the configs of
      layers. `to_keras` converts it for Keras. `castwise.dtype_policies.get` accepts policies of
      Keras.
    - The global policy is that of `castwise.config`: ``castwise.config.dtype_policy_scope`` is
      obeyed by layers that are made in it, and a policy set in Keras is set in both.
    - numpy's arrays that layers are called with are cast to the compute dtype by castwise's
      kernels, and on the numpy backend all others that Keras casts, with the same bits as Keras'
      own casts. (Small arrays, NaN and infinity, and 8-bit floats are left to Keras.)

    A policy that was set in Keras stays in force in both after `uninstall`; one that was set by
    `castwise.config` stays in force in castwise only. A policy that is set in Keras within a
    ``castwise.config.dtype_policy_scope`` ends with the scope, in both.

    Calling it again changes nothing. `uninstall` undoes all calls; as a context manager, a call
    undoes itself.

    Returns
    -------
    Installation
        A context manager.

    Raises
    ------
    ImportError
        Keras is not installed.
    RuntimeError
        The installed release lacks a function that castwise patches; nothing was changed.

    Examples
    --------
    >>> import keras
    >>> from castwise.adapters.keras import install
    >>> with install(), castwise.config.dtype_policy_scope("mixed_float16"):
    ...     keras.layers.Dense(2).compute_dtype
    'float16'

    """
    return Installation()


def uninstall() -> None:
    """Restore Keras' functions, however often `install` was called.

    Examples
    --------
    >>> from castwise.adapters.keras import install, uninstall
    >>> _ = install()
    >>> uninstall()

    """
    Installation.switch.turn_off()


def _hook() -> Callable[[], None]:
    """Put the hooks in; return a function that takes them out again."""
    with patched("keras") as undo:
        _hook_in(require("keras"), undo)
        undo_hooks = undo.pop_all()
    with undo_hooks:
        hooks.adopt()
        return undo_hooks.pop_all().close


def _hook_in(keras: Any, undo: ExitStack) -> None:
    """Replace Keras' functions by hooks."""
    policies = import_module("keras.src.dtype_policies")
    policy = import_module("keras.src.dtype_policies.dtype_policy")
    state = import_module("keras.src.backend.common.global_state")
    of_inputs = (
        (_numpy_core().convert_to_tensor, hooks.convert_to_tensor)
        if keras.config.backend() == "numpy"
        else (policy.DTypePolicy.convert_input, hooks.convert_input)
    )
    for function, hook in (
        (policies.get, hooks.with_policies_of_keras),
        (keras.saving.serialize_keras_object, hooks.with_policies_of_keras),
        (policy.dtype_policy, hooks.dtype_policy),
        (policy.set_dtype_policy, hooks.set_dtype_policy),
        (state.clear_session, hooks.clear_session),
        (policies.DTypePolicyMap.from_config.__func__, hooks.map_from_config),
        of_inputs,
    ):
        undo.callback(ReplacedFunction(function, hook).restore)
    configs.OTHER_LIBRARIES.append(hooks.read_policy)
    undo.callback(configs.OTHER_LIBRARIES.remove, hooks.read_policy)


def _numpy_core() -> Any:
    """Return the module of the numpy backend that casts; it moved in Keras 3.16."""
    with suppress(ModuleNotFoundError):
        return import_module("keras.src.backend.numpy.ops.core")
    return import_module("keras.src.backend.numpy.core")


# The switch of an earlier copy of this module, if there is one: what it installed can be undone.
_SWITCH: Switch = globals().get("_SWITCH") or Switch(_hook)


class Installation(Turn):
    """One call of `install`; as a context manager, it is undone at the end of the block."""

    switch = _SWITCH
