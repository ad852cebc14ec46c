"""Patch tf_keras to take castwise's policies, and layers that were written for TF 1.14."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from castwise._core import PolicyBase
from castwise.adapters._replaced_function import ReplacedFunction, patched
from castwise.adapters.tf_keras._policies import to_tf_keras
from castwise.dtype_policies import DTypePolicyMap
from castwise.environment.frameworks import require
from castwise.environment.switch import Switch, Turn


def install() -> TfKerasInstallation:
    """Let tf_keras' own layers take castwise's policies.

    Experimental, because it patches tf_keras from outside. Afterwards, in any thread:

    - A policy of castwise is accepted as the ``dtype=`` of a layer, by
      ``tf_keras.mixed_precision.set_global_policy`` and by its ``policy_scope``. `to_tf_keras`
      converts it.
    - A layer's ``cast_inputs(inputs)`` casts its first argument, and
      ``self._mixed_precision_policy.cast_to_lowest(inputs)`` casts the floating tensors of a
      structure to the compute dtype, as in the guides of 2019 to TF 1.14.

    Calling it again changes nothing. `uninstall` undoes all calls; as a context manager, a call
    undoes itself. Layers keep the policies that they have.

    Returns
    -------
    TfKerasInstallation
        A context manager.

    Raises
    ------
    ImportError
        tf_keras is not installed.
    RuntimeError
        The installed release lacks a function that castwise patches; nothing was changed.

    Examples
    --------
    >>> import tf_keras
    >>> from castwise.adapters.tf_keras import install
    >>> from castwise.compat.tf_keras.mixed_precision import Policy
    >>> with install():
    ...     tf_keras.layers.Dense(2, dtype=Policy("mixed_float16")).compute_dtype
    'float16'

    """
    return TfKerasInstallation()


def uninstall() -> None:
    """Restore tf_keras, however often `install` was called.

    Examples
    --------
    >>> from castwise.adapters.tf_keras import install, uninstall
    >>> _ = install()
    >>> uninstall()

    """
    TfKerasInstallation.switch.turn_off()


def _hook() -> Callable[[], None]:
    """Put the hooks in; return a function that takes them out again."""
    with patched("tf_keras") as undo:
        policies = import_module("tf_keras.src.mixed_precision.policy")
        layer = require("tf_keras").layers.Layer
        for function, hook in (
            (policies.get_policy, _with_policy),
            (policies.set_global_policy, _with_policy),
            (layer._maybe_cast_inputs, _cast_inputs),
        ):
            undo.callback(ReplacedFunction(function, hook).restore)
        for owner, name, value in (
            (layer, "cast_inputs", _own_cast_inputs),
            (layer, "_mixed_precision_policy", property(lambda self: self.dtype_policy)),
            (policies.Policy, "cast_to_lowest", _cast_to_lowest),
        ):
            setattr(owner, name, value)
            undo.callback(delattr, owner, name)
        return undo.pop_all().close


def _with_policy(original: Callable[..., Any], policy: Any) -> Any:
    """Hook of functions that take a policy: convert one of castwise."""
    is_ours = isinstance(policy, PolicyBase | DTypePolicyMap)
    return original(to_tf_keras(policy) if is_ours else policy)


def _cast_inputs(original: Callable[..., Any], layer: Any, inputs: Any, *more: Any) -> Any:
    """Hook of `Layer._maybe_cast_inputs`: call what a layer's class has for it."""
    if type(layer).cast_inputs is _own_cast_inputs:
        return original(layer, inputs, *more)
    return layer.cast_inputs(inputs)


def _own_cast_inputs(self: Any, inputs: Any) -> Any:
    """Cast the floating tensors of the first argument to the compute dtype."""
    return _cast_to_lowest(self.dtype_policy, inputs) if self._autocast else inputs


def _cast_to_lowest(self: Any, inputs: Any) -> Any:
    """Cast the floating tensors of a structure to the policy's compute dtype, if it is a float."""
    tf = import_module("tensorflow")
    dtype = self.compute_dtype and tf.as_dtype(self.compute_dtype)

    def cast(leaf: Any) -> Any:
        is_floating = tf.is_tensor(leaf) and leaf.dtype.is_floating
        return tf.cast(leaf, dtype) if is_floating else leaf

    return tf.nest.map_structure(cast, inputs) if dtype and dtype.is_floating else inputs


# The switch of an earlier copy of this module, if there is one: what it installed can be undone.
_SWITCH: Switch = globals().get("_SWITCH") or Switch(_hook)


class TfKerasInstallation(Turn):
    """One call of `install`; as a context manager, it is undone at the end of the block."""

    switch = _SWITCH
