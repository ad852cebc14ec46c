"""Convert policies to and from names, dtypes and Keras' dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from castwise._core import parse_policy
from castwise.dtype_policies._keras_objects import (
    from_dictionary,
    serialize_with,
    standardize_dtype,
    to_dictionary,
)
from castwise.dtype_policies._policy import (
    AWQDTypePolicy,
    DTypePolicy,
    FloatDTypePolicy,
    GPTQDTypePolicy,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
    dtype_policy,
)
from castwise.text.brief import short

# The classes that a config may name. `DTypePolicyMap` is added by its module.
CLASSES: dict[str, type[DTypePolicy]] = {
    cls.__name__: cls
    for cls in (
        DTypePolicy,
        FloatDTypePolicy,
        QuantizedDTypePolicy,
        QuantizedFloat8DTypePolicy,
        Int4DTypePolicy,
        GPTQDTypePolicy,
        AWQDTypePolicy,
    )
}

# Functions by which adapters convert other libraries' policies; they return None for all else.
OTHER_LIBRARIES: list[Callable[[Any], DTypePolicy | None]] = []

_OLDER_NAMES = {"Policy": DTypePolicy}  # TF 2's names of classes in configs


def policy_named(name: str) -> DTypePolicy:
    """Return the policy called `name`, plain or quantized. ValueError if there is none."""
    if "_from_" not in name:
        return DTypePolicy(name)
    class_name, arguments = parse_policy(name)
    return CLASSES[class_name](*arguments)


def of_other_library(identifier: object) -> DTypePolicy | None:
    """Convert another library's policy, if its adapter is installed; else return None."""
    for convert in OTHER_LIBRARIES:
        policy = convert(identifier)
        if policy is not None:
            return policy
    return None


def get(identifier: object) -> DTypePolicy:
    """Return the policy for an argument.

    Parameters
    ----------
    identifier : policy, str, dict, dtype or None
        A policy is returned as it is. A str is a policy's name, a dict a config of `serialize` or
        of Keras, a dtype what `standardize_dtype` takes. None is the policy in force.

    Raises
    ------
    ValueError
        There is no such policy.
    TypeError, KeyError
        A dict has values of a wrong type, or none that is needed, as in Keras.

    Examples
    --------
    >>> get("mixed_bfloat16")
    <DTypePolicy "mixed_bfloat16">
    >>> get({"class_name": "DTypePolicy", "config": {"name": "float32"}})
    <DTypePolicy "float32">
    >>> get("gptq/4/128_from_float32")
    <GPTQDTypePolicy "gptq/4/128_from_float32">

    """
    if isinstance(identifier, str):
        return policy_named(identifier)
    if identifier is None:
        return dtype_policy()
    if isinstance(identifier, DTypePolicy):
        return identifier
    if isinstance(identifier, dict):
        policy: DTypePolicy = from_dictionary(identifier, {**_OLDER_NAMES, **CLASSES}, None)
        return policy
    other = of_other_library(identifier)
    if other is not None:
        return other
    try:
        return DTypePolicy(standardize_dtype(identifier))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"dtype={short(identifier)} is not a policy; give a policy, the name of one, a dtype, "
            "or a config with 'class_name' and 'config'"
        ) from error


def serialize(dtype_policy: object) -> Any:  # noqa: ANN401  (of JSON)
    """Return the dictionary that Keras writes for a policy, fit for JSON.

    As in Keras, numbers, texts and None are returned as they are, and policies in containers are
    serialized; TypeError for anything else.

    >>> serialize(DTypePolicy("mixed_float16"))["config"]
    {'name': 'mixed_float16'}
    """
    return serialize_with(dtype_policy, _serialize_policy)


def _serialize_policy(policy: object) -> dict[str, Any]:
    if not isinstance(policy, DTypePolicy):
        raise TypeError(f"dtype_policy={policy!r} is not a policy; give a DTypePolicy")
    ours = CLASSES.get(type(policy).__name__) is type(policy)
    return to_dictionary(policy, policy.module if ours else None, serialize)


def deserialize(config: object, custom_objects: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401  (of any class)
    """Make the policy of a dictionary of `serialize`, or of Keras.

    Parameters
    ----------
    config : dict, str or None
        A str is the name of a class, for a policy without arguments, or of a policy. None gives
        None.
    custom_objects : mapping of str to class, optional
        Further classes, by the names in the config.

    Raises
    ------
    ValueError
        The class is not one of policies, or an argument is invalid.
    TypeError
        `config` is neither a dict nor a str, or has arguments that the class does not take.

    Examples
    --------
    >>> deserialize({"class_name": "QuantizedDTypePolicy",
    ...              "config": {"mode": "int8", "source_name": "float32"}})
    <QuantizedDTypePolicy "int8_from_float32">

    """
    if config is None:
        return None
    if isinstance(config, dict):
        return from_dictionary(config, {**_OLDER_NAMES, **CLASSES}, custom_objects)
    if isinstance(config, str):
        classes = {**CLASSES, **(custom_objects or {})}
        return classes[config]() if config in classes else policy_named(config)
    raise TypeError(f"config={short(config)} must be a dict with 'class_name' and 'config'")
