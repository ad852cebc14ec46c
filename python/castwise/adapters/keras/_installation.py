"""Patch Keras' functions to take castwise's policies, and to cast with its kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any

from castwise.adapters._replaced_function import ReplacedFunction
from castwise.adapters.keras import _hooks as hooks
from castwise.dtype_policies import _configs as configs
from castwise.environment.frameworks import require, tested_releases
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
    keras = require("keras")
    try:
        undo_hooks = _hook_in(keras)
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        raise RuntimeError(
            f"The installed keras {keras.__version__} differs from those that castwise can patch "
            f"({error}), and was left as it was; install one of keras {tested_releases('keras')}."
        ) from error
    with undo_hooks:
        hooks.adopt()
        return undo_hooks.pop_all().close


def _hook_in(keras: Any) -> ExitStack:
    """Replace Keras' functions by hooks; closing the stack puts the originals back."""
    policies = import_module("keras.src.dtype_policies")
    policy = import_module("keras.src.dtype_policies.dtype_policy")
    state = import_module("keras.src.backend.common.global_state")
    with ExitStack() as undo:
        for function, hook in (
            (policies.get, hooks.with_policies_of_keras),
            (keras.saving.serialize_keras_object, hooks.with_policies_of_keras),
            (policy.dtype_policy, hooks.dtype_policy),
            (policy.set_dtype_policy, hooks.set_dtype_policy),
            (state.clear_session, hooks.clear_session),
        ):
            _replace_function(undo, function, hook)
        _replace_class_method(undo, policies.DTypePolicyMap, "from_config", hooks.map_from_config)
        if keras.config.backend() == "numpy":
            _replace_function(undo, _numpy_core().convert_to_tensor, hooks.convert_to_tensor)
        else:
            _replace_method(undo, policy.DTypePolicy, "convert_input", hooks.convert_input)
        configs.OTHER_LIBRARIES.append(hooks.read_policy)
        undo.callback(configs.OTHER_LIBRARIES.remove, hooks.read_policy)
        return undo.pop_all()


def _numpy_core() -> Any:
    """Return the module of the numpy backend that casts; it moved in Keras 3.16."""
    with suppress(ModuleNotFoundError):
        return import_module("keras.src.backend.numpy.ops.core")
    return import_module("keras.src.backend.numpy.core")


def _replace_function(undo: ExitStack, function: Any, hook: hooks.Original) -> None:
    undo.callback(ReplacedFunction(function, hook).restore)


def _replace_method(undo: ExitStack, cls: Any, name: str, hook: hooks.Original) -> None:
    original = vars(cls)[name]

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(original, self, *args, **kwargs)

    setattr(cls, name, method)
    undo.callback(setattr, cls, name, original)


def _replace_class_method(undo: ExitStack, cls: Any, name: str, hook: hooks.Original) -> None:
    original = vars(cls)[name]

    @functools.wraps(original.__func__)
    def method(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(functools.partial(original.__func__, cls), *args, **kwargs)

    setattr(cls, name, classmethod(method))
    undo.callback(setattr, cls, name, original)


# The switch of an earlier copy of this module, if there is one: what it installed can be undone.
_SWITCH: Switch = globals().get("_SWITCH") or Switch(_hook)


class Installation(Turn):
    """One call of `install`; as a context manager, it is undone at the end of the block."""

    switch = _SWITCH
