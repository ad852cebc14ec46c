"""TF 2's `Policy`, its configs, the policy in force in the process, and layers' `dtype`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from castwise._core import PolicyBase, cast, mixed_compute_dtype, parse_dtype
from castwise._numbers import is_floating
from castwise._trees import map_leaves
from castwise.dtype_policies._keras_objects import (
    checked_arguments,
    from_dictionary,
    serialize_with,
    to_dictionary,
)
from castwise.environment.defaults import floatx
from castwise.text.wording import rename_arguments


class Policy(PolicyBase):
    """The dtype in which a layer computes, and the dtype of its variables.

    Parameters
    ----------
    name : str
        A dtype as TensorFlow spells it ("float32", "half", ...), for both; "mixed_float16" or
        "mixed_bfloat16", to compute in 16 bits with variables in float32; "_infer", to leave both
        open (None).

    Raises
    ------
    TypeError
        `name` is not a str.
    ValueError
        There is no such policy, or no longer ("float16_with_float32_vars"; the message says what
        replaced it).

    Examples
    --------
    >>> policy = Policy("mixed_float16")
    >>> policy.compute_dtype, policy.variable_dtype
    ('float16', 'float32')
    >>> Policy("half")
    <Policy "half">

    """

    config_class: ClassVar[str] = "Policy"
    """The class' name in configs; a subclass without one has its Python name there."""

    def __init__(self, name: str) -> None:
        with rename_arguments(policy="name"):
            self._set_plain(name, "tf")

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Policy:
        """Make the policy of a config; a loss scale in it is dropped, as in TF."""
        del custom_objects  # accepted and unused, as in TF
        if not isinstance(config, dict):
            raise TypeError(f"config={config!r} must be a dict with 'name'")
        arguments = {key: value for key, value in config.items() if key != "loss_scale"}
        return cls(**checked_arguments(cls, arguments))

    def cast_to_lowest(self, inputs: Any) -> Any:  # noqa: ANN401  (of any structure)
        """Cast the floating arrays of a structure to the compute dtype, if that is a float.

        As layers call it that were written for TF 1.14, whose attribute for their policy was
        ``_mixed_precision_policy``.

        >>> Policy("mixed_float16").cast_to_lowest([np.ones(1), np.ones(1, np.int32)])
        [array([1.], dtype=float16), array([1], dtype=int32)]
        """
        dtype = self.compute_dtype or ""
        if not dtype.startswith(("float", "bfloat")):
            return inputs

        def leaf_cast(leaf: object, path: str) -> object:
            del path
            if isinstance(leaf, np.ndarray | np.generic) and is_floating(leaf.dtype):
                return cast(leaf, dtype)
            return leaf

        return map_leaves(inputs, leaf_cast)

    def __repr__(self) -> str:
        return f'<Policy "{self.name}">'

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return type(self) is type(other) and self._means(other)

    def __hash__(self) -> int:
        return hash((type(self), self.name))


def serialize(policy: object) -> Any:  # noqa: ANN401  (of JSON)
    """Return TF 2's entry of a layer's config: a name for one dtype, None for "_infer".

    Other plain values are returned as they are; TypeError for anything else.

    >>> serialize(Policy("float32"))
    'float32'
    >>> serialize(Policy("mixed_float16"))["config"]
    {'name': 'mixed_float16'}
    """
    return serialize_with(policy, _serialize_policy)


def _serialize_policy(policy: object) -> str | dict[str, Any] | None:
    if not isinstance(policy, Policy):
        raise TypeError(f"policy={policy!r} is not a policy; give a Policy")
    if type(policy).__dict__.get("config_class") == "PolicyV1":
        return {"class_name": "PolicyV1", "config": policy.get_config()}
    if type(policy) is not Policy:
        return to_dictionary(policy, None, serialize)
    if policy.compute_dtype is None:
        return None
    if policy.compute_dtype == policy.variable_dtype:
        return policy.name
    return to_dictionary(policy, "keras.mixed_precision", serialize)


def deserialize(config: object, custom_objects: Mapping[str, Any] | None = None) -> Policy:
    """Make the policy that `serialize`, or TF 2, wrote.

    Raises
    ------
    ValueError
        A dict without a class, or with another class than a policy; a str that is not a policy.
    TypeError
        `config` is neither a str, a dict nor None.

    """
    if config is None:
        return Policy("_infer")
    if isinstance(config, str):
        return Policy(config)
    if not isinstance(config, dict):
        raise TypeError(f"config={config!r} must be a str, a dict or None")
    # PolicyV1 is the experimental policy; its loss scale is dropped.
    policy: Policy = from_dictionary(config, {"Policy": Policy, "PolicyV1": Policy}, custom_objects)
    return policy


_in_force: dict[str, Policy | None] = {"policy": None}


def global_policy() -> Policy:
    """Return the policy in force; if none was set, a new one of `castwise.config.floatx`.

    >>> global_policy()
    <Policy "float32">
    """
    return _in_force["policy"] or Policy(floatx())


def set_global_policy(policy: Policy | str | None) -> None:
    """Put a policy in force in the whole process; None returns to floatx.

    Raises
    ------
    ValueError
        There is no such policy, or it computes in another dtype than a float.
    TypeError
        `policy` is neither a policy, a str nor None.

    """
    if policy is not None and not isinstance(policy, Policy):
        with rename_arguments(name="policy"):
            policy = Policy(policy)
    compute = None if policy is None else policy.compute_dtype
    if policy is not None and compute is not None and not compute.startswith(("float", "bfloat")):
        raise ValueError(
            f"policy={policy.name!r} computes in {compute}; only floating-point policies can be in "
            "force for all layers, such as 'mixed_float16'"
        )
    _in_force["policy"] = policy


@contextmanager
def policy_scope(policy: Policy | str | None) -> Iterator[None]:
    """Put a policy in force, in the whole process, until the end of a `with` block.

    >>> with policy_scope("mixed_float16"):
    ...     global_policy()
    <Policy "mixed_float16">
    """
    previous = _in_force["policy"]
    set_global_policy(policy)
    try:
        yield
    finally:
        _in_force["policy"] = previous


# TensorFlow's names of Python's types, which differ from Keras 3's.
_PYTHON_TYPES: dict[Any, str] = {float: "float32", bool: "bool", object: "string"}

_TEXT_KINDS = "OSU"  # the kinds of numpy's dtypes that are strings in TensorFlow


def get_policy(identifier: object) -> Policy:
    """Return the policy for the `dtype` argument of a layer.

    Parameters
    ----------
    identifier : Policy, str, dict, dtype or None
        Names of dtypes are made canonical: "half" gives the policy "float16". None, or an empty
        value, gives the policy in force.

    Raises
    ------
    TypeError
        Neither a dtype nor a policy; also for a str.
    ValueError
        A dict that is not a policy's config.

    Examples
    --------
    >>> get_policy("half"), get_policy(np.float64), get_policy(float)
    (<Policy "float16">, <Policy "float64">, <Policy "float32">)

    """
    if isinstance(identifier, Policy):
        return identifier
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if not isinstance(identifier, np.ndarray | np.generic) and not identifier:
        return global_policy()
    if isinstance(identifier, str) and mixed_compute_dtype(identifier, "tf_layer"):
        return Policy(identifier)
    return Policy(parse_dtype(dtype_name(identifier), "tf_layer"))


def dtype_name(identifier: object) -> str:
    """Return the name of the dtype that an argument means, unchecked. TypeError if it has none."""
    if isinstance(identifier, str):
        return identifier
    if isinstance(identifier, type) and identifier in _PYTHON_TYPES:
        return _PYTHON_TYPES[identifier]
    if isinstance(identifier, type) and issubclass(identifier, np.generic):
        identifier = np.dtype(identifier)
    # Arrays, jax's dtypes and others have a dtype; TensorFlow's dtypes have a name only.
    dtype = getattr(identifier, "dtype", identifier)
    if isinstance(dtype, np.dtype) and dtype.kind in _TEXT_KINDS:
        return "string"
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if not isinstance(name, str):
        raise TypeError(
            f"dtype={identifier!r} is not a dtype of TensorFlow; give a name, or a dtype of "
            "TensorFlow, numpy or ml_dtypes"
        )
    return name
