"""The real Keras and castwise's Keras dialect behind one interface, and what a call to either did.

A test makes the same `Call` on both systems in the same `State` and compares the two `Outcome`s:
the value in plain data, or the built-in class of the exception. Whatever differs on purpose is
described by the test file, as a predicate on the call, never by loosening the comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import castwise.config
import castwise.dtype_policies
import peers
from recorded import SESSION, Peer
from sides import Outcome

# The classes of Keras 3.15.
CLASSES = (
    "DTypePolicy",
    "FloatDTypePolicy",
    "QuantizedDTypePolicy",
    "QuantizedFloat8DTypePolicy",
    "Int4DTypePolicy",
    "GPTQDTypePolicy",
    "AWQDTypePolicy",
    "DTypePolicyMap",
)

# Attributes that some of the classes have beside those that all share.
_EXTRAS = ("mode", "block_size", "weight_bits", "group_size", "amax_history_length")


@dataclass(frozen=True, eq=False)
class System:
    """One implementation of Keras' policies: the module of the classes, and that of the state."""

    dtype_policies: ModuleType
    config: Any


@cache
def _original() -> System:
    keras = peers.keras()

    def clear() -> None:
        keras.utils.clear_session(free_memory=False)

    return System(
        keras.dtype_policies,
        SimpleNamespace(
            dtype_policy=keras.config.dtype_policy,
            set_dtype_policy=keras.config.set_dtype_policy,
            floatx=keras.config.floatx,
            set_floatx=keras.config.set_floatx,
            standardize_dtype=keras.backend.standardize_dtype,
            is_float_dtype=keras.backend.is_float_dtype,
            is_int_dtype=keras.backend.is_int_dtype,
            clear_dtype_policy=clear,
        ),
    )


ORIGINAL: Any = Peer(_original)
OURS = System(castwise.dtype_policies, castwise.config)


def original() -> Any:
    """The real Keras."""
    return ORIGINAL


def both() -> tuple[System, System]:
    """Give the real Keras and castwise, in this order."""
    return original(), OURS


@dataclass(frozen=True)
class State:
    """What the global state is before a call: floatx, and a policy's name or a map's default."""

    floatx: str = "float32"
    policy: str | None = None
    is_map: bool = False

    def enter(self, system: System) -> None:
        """Bring one system into this state, in this thread."""
        if system is OURS or SESSION.is_live:
            with SESSION.unrecorded():
                self._enter(system)

    def _enter(self, system: System) -> None:
        system.config.clear_dtype_policy()
        system.config.set_floatx(self.floatx)
        if self.is_map:
            system.config.set_dtype_policy(system.dtype_policies.DTypePolicyMap(self.policy))
        elif self.policy is not None:
            system.config.set_dtype_policy(self.policy)

    @property
    def name(self) -> str:
        """The name of the policy in force, or of the default of the map in force."""
        return self.policy or self.floatx

    @property
    def plain(self) -> str:
        """The name of the plain policy in force, under quantization and maps."""
        return self.name.partition("_from_")[2] or self.name


@contextmanager
def state(of: State = State()) -> Iterator[tuple[System, System]]:
    """Bring both systems into a state, and back into that of a fresh process."""
    systems = both()
    try:
        for system in systems:
            of.enter(system)
        yield systems
    finally:
        for system in systems:
            State().enter(system)


def outcome(call: Callable[[], Any]) -> Outcome:
    """Make a call and tell what it did.

    An exception counts as its nearest built-in class: only those can be caught without an import.
    """
    found: Outcome = SESSION.outcome(lambda: _outcome(call), keeps_message=False)
    return found


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        value = call()
    except Exception as error:
        built_in = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return Outcome(error=built_in, message=str(error))
    return Outcome(facts(value))


def facts(value: Any) -> Any:
    """Describe a value in plain data, equal for equal behavior whichever system made it."""
    packages = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    for system in [OURS] * ("castwise" in packages) + [original()] * ("keras" in packages):
        if isinstance(value, system.dtype_policies.DTypePolicyMap):
            return _facts_of_map(value)
        if isinstance(value, system.dtype_policies.DTypePolicy):
            return _facts_of_policy(value, system)
    if isinstance(value, dict):
        return {key: facts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(facts(item) for item in value)
    return str(value) if isinstance(value, str) else value


def _facts_of_policy(policy: Any, system: System) -> dict[str, Any]:
    return {
        "class": type(policy).__name__,
        "instance of": [
            name for name in CLASSES if isinstance(policy, getattr(system.dtype_policies, name))
        ],
        "name": policy.name,
        "compute_dtype": policy.compute_dtype,
        "variable_dtype": policy.variable_dtype,
        "quantization_mode": policy.quantization_mode,
        "repr": repr(policy),
        "config": policy.get_config(),
        "more": {name: getattr(policy, name) for name in _EXTRAS if hasattr(policy, name)},
    }


SHOWN = 4
"""Keys of a map that castwise's `repr` shows."""


def shown(text: str, keys: int) -> str:
    """Take the address out of the `repr` of a map; "" where there are more keys than ours shows."""
    return re.sub(r" at 0x[0-9a-f]+", "", text) if keys <= SHOWN else ""


def _facts_of_map(policy_map: Any) -> dict[str, Any]:
    # Neither `name` nor the config is read here: one fails under a map as the global policy, the
    # other destroys the policies of a Keras map without a default.
    return {
        "class": type(policy_map).__name__,
        "default_policy": facts(policy_map.default_policy),
        "compute_dtype": policy_map.compute_dtype,
        "variable_dtype": policy_map.variable_dtype,
        "quantization_mode": policy_map.quantization_mode,
        "items": [(key, facts(policy)) for key, policy in policy_map.items()],
        "repr": shown(repr(policy_map), len(policy_map)),
    }
