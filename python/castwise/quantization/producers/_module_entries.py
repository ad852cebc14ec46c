"""What GPTQModel and auto-round state of single modules, in sections of several methods."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from castwise._core import PolicyMap
from castwise.quantization.producers.stated import object_at, unknown_key

# Those that change bits, groups or order, and those that only say how codes were chosen.
_GPTQ_KEYS = frozenset(
    (
        "bits",
        "group_size",
        "sym",
        "desc_act",
        "act_group_aware",
        "static_groups",
        "true_sequential",
        "damp_percent",
        "damp_auto_increment",
        "mse",
    )
)

_AUTO_ROUND_KEYS = frozenset(
    (
        "bits",
        "group_size",
        "sym",
        "data_type",
        "act_bits",
        "act_group_size",
        "act_sym",
        "act_data_type",
        "act_dynamic",
    )
)

# The method whose tensors each `packing_format` of auto-round has; zero points are v1's.
_PACKINGS = {
    "auto_gptq": "gptq",
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:auto_awq": "awq",
    "auto_round:fp8": "fp8",
}

_AUTO_ROUND = "auto-round"
# Files state so many bits of modules that stay as they are.
_NOT_QUANTIZED_BITS = 16
_LEFT_OUT = {"bits": _NOT_QUANTIZED_BITS}
# What names a module itself: auto-round's patterns have other characters.
_NAME = r"[\w.-]+"


class ModuleValues(NamedTuple):
    """What is stated of a module, and what stands in the way of using it."""

    values: Mapping[str, Any]
    problem: str | None = None


def tensors_of(method: str, section: Mapping[str, Any]) -> str:
    """Return the method whose tensors a method has: that of auto-round depends on its packing."""
    if method != _AUTO_ROUND:
        return method
    packing = section.get("packing_format")
    return _PACKINGS.get(packing, method) if isinstance(packing, str) else method


def named_method(method: str, section: Mapping[str, Any]) -> str:
    """Return how a method is called in messages: with its packing, if that is not known."""
    if method == _AUTO_ROUND and tensors_of(method, section) == method:
        return f"{method} with packing_format {section.get('packing_format')!r}"
    return method


def module_values(section: Mapping[str, Any]) -> Callable[[str], ModuleValues]:
    """Return what tells the values of a module, by `dynamic` or `extra_config` of a section."""
    # In `dynamic`, the first pattern counts that matches the beginning of the module's name, as in
    # GPTQModel and vLLM. In auto-round's `extra_config`, the name itself counts, then the first
    # pattern that matches anywhere in the name.
    is_auto_round = section.get("quant_method") == _AUTO_ROUND
    entries = object_at(section, "extra_config" if is_auto_round else "dynamic")
    if not entries:
        return lambda module: ModuleValues(section)
    known_keys = _AUTO_ROUND_KEYS if is_auto_round else _GPTQ_KEYS
    names = {key for key in entries if is_auto_round and re.fullmatch(_NAME, key)}
    keys = tuple(key for key in entries if key not in names)
    patterns, problem = _compile("search" if is_auto_round else "fullmatch", keys)

    def values(module: str) -> ModuleValues:
        if module in names:
            entry = entries[module]
        elif problem is not None:
            return ModuleValues(section, problem)
        else:
            match = patterns.find(module)
            if match is None:
                return ModuleValues(section)
            key = match[1]
            entry = _LEFT_OUT if key.startswith("-:") else entries[key]
        if not isinstance(entry, dict):
            return ModuleValues(section, f"states {entry!r} of it, which is not an object")
        statements = {key: value for key, value in entry.items() if value is not None}
        bits = statements.get("bits")
        if isinstance(bits, int) and bits >= _NOT_QUANTIZED_BITS:
            return ModuleValues(section, "states that it is not quantized")
        return ModuleValues({**section, **statements}, unknown_key(entry, known_keys))

    return values


@lru_cache(16)  # a section is asked for each weight
def _compile(
    match: Literal["fullmatch", "search"], keys: tuple[str, ...]
) -> tuple[PolicyMap, str | None]:
    """Compile patterns of a file, which nobody trusts; say which cannot be matched."""
    policies, problem = PolicyMap(match, "first", linear=True), None
    for key in keys:
        pattern = key
        if match == "fullmatch":  # of the beginning of a name
            pattern = f"(?:{key.removeprefix('+:').removeprefix('-:')})[\\s\\S]*"
        try:
            policies.insert(pattern, key)
        except (ValueError, TypeError):
            problem = f"has the pattern {key!r}, which castwise cannot match in bounded time"
    return policies, problem
