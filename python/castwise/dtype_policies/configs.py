"""Policies from and to what stands in files and arguments: names, dtypes, Keras' dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from castwise._core import parse_policy
from castwise.dtype_policies.policy import DTypePolicy, FloatDTypePolicy, dtype_policy
from castwise.dtype_policies.quantized import (
    AWQDTypePolicy,
    GPTQDTypePolicy,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
    TernaryDTypePolicy,
)
from castwise.standard_dtype import standardize_dtype

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
        TernaryDTypePolicy,
    )
}
"""The classes that a config may name. `DTypePolicyMap` joins them where it is defined."""


def named(name: str) -> DTypePolicy:
    """The policy called `name`, plain or quantized. ValueError if there is none."""
    if "_from_" not in name:
        return DTypePolicy(name)
    class_name, arguments = parse_policy(name)
    return CLASSES[class_name](*arguments)


def get(identifier: Any) -> DTypePolicy:
    """The policy that an argument means.

    Parameters
    ----------
    identifier : policy, str, dict, dtype or None
        A policy is returned as it is. A str is a policy's name, a dict a config of `serialize` or
        of Keras, a dtype whatever `standardize_dtype` takes. None is the policy in force.

    Raises
    ------
    ValueError
        It means none.

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
        return named(identifier)
    if identifier is None:
        return dtype_policy()
    if isinstance(identifier, DTypePolicy):
        return identifier
    if isinstance(identifier, dict):
        return _from_dict(identifier, {})
    try:
        return DTypePolicy(standardize_dtype(identifier))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"dtype={identifier!r} is no policy; give a policy, the name of one, a dtype, "
            "or a config with 'class_name' and 'config'"
        ) from error


def serialize(dtype_policy: Any) -> Any:
    """A policy as the dictionary that Keras writes for it, fit for JSON.

    What is no policy is returned as it is, as Keras does.

    >>> serialize(DTypePolicy("mixed_float16"))["config"]
    {'name': 'mixed_float16'}
    """
    if not isinstance(dtype_policy, DTypePolicy):
        return dtype_policy
    cls = type(dtype_policy)
    ours = CLASSES.get(cls.__name__) is cls
    module = None if cls.__module__ == "__main__" else cls.__module__
    return {
        "module": cls.module if ours else module,
        "class_name": cls.__name__,
        "config": {key: serialize(value) for key, value in dtype_policy.get_config().items()},
        "registered_name": None if ours else cls.__name__,
    }


def deserialize(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The policy that a dictionary of `serialize`, or of Keras, stands for.

    Parameters
    ----------
    config : dict, str or None
        A str is the name of a class, for a policy without arguments, or of a policy. None is None.
    custom_objects : mapping of str to class, optional
        Classes of your own, by the names under which they were written.

    Raises
    ------
    ValueError
        It names no class of policies, or has arguments out of their domain.
    TypeError
        It is neither dict nor str, or has arguments that the class does not take.

    Examples
    --------
    >>> deserialize({"class_name": "QuantizedDTypePolicy",
    ...              "config": {"mode": "int8", "source_name": "float32"}})
    <QuantizedDTypePolicy "int8_from_float32">

    """
    classes = {**CLASSES, **(custom_objects or {})}
    if config is None:
        return None
    if isinstance(config, dict):
        return _from_dict(config, classes)
    if isinstance(config, str):
        return classes[config]() if config in classes else named(config)
    raise TypeError(f"config={config!r} must be a dict with 'class_name' and 'config'")


def _from_dict(config: Mapping[str, Any], custom: Mapping[str, Any]) -> DTypePolicy:
    classes = {**CLASSES, **custom}
    if "class_name" not in config:
        raise ValueError(
            f"config={dict(config)!r} has no 'class_name'; a policy's config has, "
            "such as {'class_name': 'DTypePolicy', 'config': {'name': 'float32'}}"
        )
    name = config["class_name"]
    cls = classes.get(config.get("registered_name") or name) or classes.get(name)
    if cls is None:
        raise ValueError(
            f"config names the class {name!r}, which is no policy; use one of "
            f"{', '.join(classes)}, or give the class in custom_objects"
        )
    arguments = config.get("config") or {}
    if not isinstance(arguments, dict):
        raise TypeError(f"'config' of {name!r} is {arguments!r}, and must be a dict of arguments")
    policy: DTypePolicy = cls.from_config(arguments)
    return policy
