"""castwise in Keras: its own functions take castwise's policies, and cast with its kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from castwise._frameworks import require, tested_releases
from castwise._switch import Switch, Turn
from castwise.adapters.keras import _hooks as hooks
from castwise.adapters.keras._replaced_function import ReplacedFunction
from castwise.dtype_policies import _configs as configs


def install() -> Installation:
    """Let Keras' own layers obey castwise's policies and maps, on whichever backend.

    From here on, in any thread:

    - A policy or map of castwise is taken wherever Keras takes one: as the ``dtype=`` of layers,
      losses and metrics, by ``layer.dtype_policy = ...``, ``keras.config.set_dtype_policy``,
      ``keras.dtype_policies.get``, in the configs of layers. Keras works with what `to_keras`
      makes of it. The other way, `castwise.dtype_policies.get` takes policies of Keras.
    - The global policy is that of `castwise.config`: ``castwise.config.dtype_policy_scope`` is
      obeyed by layers that are made in it, and what is set in Keras is set in both.
    - Arrays of numpy that layers are called with are cast to their compute dtype by castwise's
      kernels, on the numpy backend also wherever Keras casts, to the very bits of Keras' own
      casts. (Small ones, NaN and infinity, and 8-bit floats are left to Keras.)

    A policy that is set in Keras stays in force in both after `uninstall`; one that is set by
    `castwise.config` is castwise's again. What is set in Keras within a
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
        It is a release that lacks what castwise hooks into; nothing was changed in it.

    """
    return Installation()


def uninstall() -> None:
    """Make Keras' functions what they were, however often `install` was called."""
    Installation.switch.turn_off()


def _hooked() -> Callable[[], None]:
    """Put the hooks in their places; the result takes them out again."""
    keras = require("keras")
    try:
        hooked = _hooked_in(keras)
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        raise RuntimeError(
            f"The installed keras {keras.__version__} is not made as those that castwise knows "
            f"({error}), and was left as it was; install one of keras {tested_releases('keras')}."
        ) from error
    with hooked:
        hooks.adopt()
        return hooked.pop_all().close


def _hooked_in(keras: Any) -> ExitStack:
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
            numpy_backend = import_module("keras.src.backend.numpy.core")
            _replace_function(undo, numpy_backend.convert_to_tensor, hooks.convert_to_tensor)
        else:
            _replace_method(undo, policy.DTypePolicy, "convert_input", hooks.convert_input)
        configs.OTHER_LIBRARIES.append(hooks.read_policy)
        undo.callback(configs.OTHER_LIBRARIES.remove, hooks.read_policy)
        return undo.pop_all()


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


# The same one where this module is loaded again: what was installed before can still be undone.
_SWITCH: Switch = globals().get("_SWITCH") or Switch(_hooked)


class Installation(Turn):
    """One call of `install`; as a context manager, it is undone at the end of the block."""

    switch = _SWITCH
