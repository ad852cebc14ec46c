"""TF 2's `Policy`, and its configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from castwise._core import PolicyBase, cast
from castwise._floating import is_floating
from castwise._trees import map_leaves
from castwise.dtype_policies._keras_objects import (
    checked_arguments,
    from_dictionary,
    serialize_with,
    to_dictionary,
)
from castwise.text.argument_names import rename_arguments


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
