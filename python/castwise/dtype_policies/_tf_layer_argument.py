"""Interpret the `dtype` argument of TF 2's layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from castwise._core import mixed_compute_dtype, parse_dtype
from castwise.dtype_policies._tf_in_force import global_policy
from castwise.dtype_policies._tf_policy import Policy, deserialize

_PYTHON_TYPES: dict[Any, str] = {float: "float32", bool: "bool", object: "string"}
"""TensorFlow's names of Python's types, which differ from Keras 3's."""

_TEXT_KINDS = "OSU"
"""The kinds of numpy's dtypes that are strings in TensorFlow."""


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
