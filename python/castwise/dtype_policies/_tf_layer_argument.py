"""What TF 2's layers take as their `dtype` argument."""

from __future__ import annotations

from typing import Any

import numpy as np

from castwise._core import mixed_compute_dtype, parse_dtype
from castwise.dtype_policies._tf_in_force import global_policy
from castwise.dtype_policies._tf_policy import Policy, deserialize

_PYTHON_TYPES: dict[Any, str] = {float: "float32", bool: "bool", object: "string"}
"""TensorFlow has its own idea of some of Python's types, and none of the others."""

_TEXT_KINDS = "OSU"
"""Kinds of numpy's dtypes that hold strings in TensorFlow."""


def get_policy(identifier: Any) -> Policy:
    """The policy that a layer makes of its `dtype` argument.

    Parameters
    ----------
    identifier : Policy, str, dict, dtype or None
        Names of dtypes are made canonical: "half" gives the policy "float16". What is empty or None
        gives the policy in force.

    Raises
    ------
    TypeError
        No dtype and no policy; a str too.
    ValueError
        A dict that is no policy's config.

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


def dtype_name(identifier: Any) -> str:
    """What an argument calls a dtype. TypeError if it calls none; the name is not checked."""
    if isinstance(identifier, str):
        return identifier
    if isinstance(identifier, type) and identifier in _PYTHON_TYPES:
        return _PYTHON_TYPES[identifier]
    if isinstance(identifier, type) and issubclass(identifier, np.generic):
        identifier = np.dtype(identifier)
    # Arrays, jax's dtypes, and whatever else has a dtype; TensorFlow's own have a name only.
    dtype = getattr(identifier, "dtype", identifier)
    if isinstance(dtype, np.dtype) and dtype.kind in _TEXT_KINDS:
        return "string"
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if not isinstance(name, str):
        raise TypeError(
            f"dtype={identifier!r} is no dtype of TensorFlow; give a name, or a dtype of "
            "TensorFlow, numpy or ml_dtypes"
        )
    return name
