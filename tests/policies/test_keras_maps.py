"""`DTypePolicyMap` in step with the real Keras' map, through every operation that a mapping has.

Where castwise answers otherwise, the rule of the machine says what the answer must be;
test_keras_map_differences pins each of these on both sides, so that each is needed.
"""

from __future__ import annotations

import collections
import copy
import json
import operator
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from keras_map_arguments import (
    DEFAULTS,
    INVALID_KEYS,
    KEYS,
    NO_TEXTS,
    NO_VALUES,
    PATHS,
    VALUES,
    own,
)
from keras_systems import OURS, Outcome, State, System, both, facts, original, outcome

keys = st.sampled_from(KEYS)
paths = st.sampled_from(PATHS)
values = st.sampled_from(VALUES)
any_values = st.one_of(values, values, values, st.sampled_from(NO_VALUES))


def matches(policy_map: Any, path: str) -> list[str]:
    """Find the keys of a map that decide for a path, by `re` alone."""
    return [path] if path in policy_map else [k for k in policy_map if re.fullmatch(k, path)]


class InStep(RuleBasedStateMachine):
    """One map of the real Keras and one of castwise, changed and read alike."""

    theirs: Any
    ours: Any

    @initialize(
        default=st.sampled_from(DEFAULTS),
        content=st.dictionaries(keys, st.sampled_from(VALUES[:5]), max_size=5),
    )
    def make(self, default: Any, content: dict[str, Any]) -> None:
        """Make both maps; the real Keras takes nothing but policies in its dict."""
        for system in both():
            State().enter(system)
        self.default = default
        module = original().dtype_policies
        converted = {key: module.get(value) for key, value in content.items()}
        self.theirs = module.DTypePolicyMap(default, converted)
        self.ours = OURS.dtype_policies.DTypePolicyMap(default, content)

    def compare(self, call: Callable[[Any, System], Any]) -> None:
        """Do the same to both maps."""
        theirs = outcome(lambda: call(self.theirs, original()))
        ours = outcome(lambda: call(self.ours, OURS))
        assert ours == theirs, f"castwise {ours!r}, not {theirs!r}"

    def expect(self, call: Callable[[Any], Any], wanted: Outcome) -> None:
        """Do something to our map, and know what it does."""
        ours = outcome(lambda: call(self.ours))
        assert ours == wanted, f"castwise {ours!r}, not {wanted!r}"

    @rule(path=paths)
    def look_up(self, path: str) -> None:
        """Look a path up: by item, and by `get`, which looks up in the same way."""
        self.compare(lambda policy_map, _: policy_map[path])
        self.compare(lambda policy_map, _: policy_map.get(path))

    @rule(path=paths, default=st.sampled_from((None, 5, "float16")))
    def look_up_with_default(self, path: str, default: Any) -> None:
        """`get` gives the default that it was given where no key decides; Keras ignores it."""
        wanted = outcome(lambda: self.theirs.get(path, default))
        if not matches(self.theirs, path):
            wanted = Outcome(default)
        self.expect(lambda policy_map: policy_map.get(path, default), wanted)

    @rule(key=keys, value=any_values)
    def set_item(self, key: str, value: Any) -> None:
        """Set a new key, or fail: for a key that is there, or a value that is not a policy."""
        self.compare(
            lambda policy_map, system: operator.setitem(policy_map, key, own(system, value))
        )

    @rule(content=st.dictionaries(keys, any_values, max_size=3), form=st.integers(0, 2))
    def update(self, content: dict[str, Any], form: int) -> None:
        """Set several keys, up to the first that fails."""

        def update(policy_map: Any, system: System) -> None:
            made = {key: own(system, value) for key, value in content.items()}
            policy_map.update(
                made if form == 0 else made.items() if form == 1 else list(made.items())
            )

        self.compare(update)

    @rule(key=keys, value=any_values)
    def set_default(self, key: str, value: Any) -> None:
        """`setdefault` stores what it returns, if the key is not there; Keras stores nothing."""
        if key in self.theirs:
            self.compare(lambda policy_map, system: policy_map.setdefault(key, own(system, value)))
            return

        def set_and_get() -> Any:
            self.theirs[key] = own(original(), value)
            return self.theirs[key]

        wanted = outcome(set_and_get)
        self.expect(lambda policy_map: policy_map.setdefault(key, own(OURS, value)), wanted)

    @rule(key=keys, how=st.sampled_from(("del", "pop")))
    def delete(self, key: str, how: str) -> None:
        """Take a key out, which may not be there."""
        if how == "del":
            self.compare(lambda policy_map, _: operator.delitem(policy_map, key))
        elif key in self.theirs:
            self.compare(lambda policy_map, _: policy_map.pop(key))
        else:
            # Keras looks the path up first, and fails there if several keys match.
            self.expect(lambda policy_map: policy_map.pop(key), Outcome(error=KeyError))

    @rule(key=keys, default=st.sampled_from((None, 5)))
    def pop_with_default(self, key: str, default: Any) -> None:
        """`pop` gives the default where the key is not there; Keras raises."""
        wanted = outcome(lambda: self.theirs.pop(key)) if key in self.theirs else Outcome(default)
        self.expect(lambda policy_map: policy_map.pop(key, default), wanted)

    @rule()
    def pop_item(self) -> None:
        """`popitem` takes the last key, as that of dict; Keras the first."""
        if not len(self.theirs):
            self.compare(lambda policy_map, _: policy_map.popitem())
            return
        last = list(self.theirs)[-1]
        wanted = outcome(lambda: (last, self.theirs.pop(last)))
        self.expect(lambda policy_map: policy_map.popitem(), wanted)

    @precondition(lambda self: len(self.theirs) > 6)
    @rule()
    def clear(self) -> None:
        """Take out all keys."""
        self.compare(lambda policy_map, _: policy_map.clear())

    @rule(key=st.sampled_from(INVALID_KEYS), value=st.sampled_from(("float16", "abc")))
    def set_invalid_key(self, key: str, value: str) -> None:
        """A key that is not a pattern is refused when it is set; in Keras later lookups break."""
        self.expect(
            lambda policy_map: policy_map.__setitem__(key, value), Outcome(error=ValueError)
        )
        if value == "float16":
            self.theirs[key] = value
            with pytest.raises(re.error):
                _ = self.theirs["none of the keys"]
            del self.theirs[key]

    @rule(key=st.sampled_from(NO_TEXTS), default=st.sampled_from((None, 5)))
    def use_what_is_not_text(self, key: Any, default: Any) -> None:
        """A key that is not text is never in the map; setting or removing it fails."""
        for call in (
            lambda policy_map: operator.setitem(policy_map, key, "float16"),
            lambda policy_map: policy_map[key],
            lambda policy_map: policy_map.get(key, default),
            lambda policy_map: policy_map.setdefault(key, "float16"),
            lambda policy_map: policy_map.pop(key),
            lambda policy_map: policy_map.pop(key, default),
            lambda policy_map: operator.delitem(policy_map, key),
        ):
            self.expect(call, Outcome(error=TypeError))
        self.compare(lambda policy_map, _: key in policy_map)

    @rule(
        how=st.sampled_from(
            ("copy", "deepcopy", "pickle", "from_config", "deserialize", "get", "constructor")
        )
    )
    def replace(self, how: str) -> None:
        """Replace the maps by copies of them, of some kind."""
        if self.default is None and how in ("from_config", "deserialize", "get"):
            return  # the config has no names; what it loads to is tested with the configs
        if isinstance(self.default, type) and how in ("from_config", "deserialize", "get"):
            return  # the real Keras cannot load what it writes for a dtype object

        def again(policy_map: Any, system: System) -> Any:
            module = system.dtype_policies
            if how == "pickle":
                return pickle.loads(pickle.dumps(policy_map))  # noqa: S301 - made here
            if how == "from_config":
                return module.DTypePolicyMap.from_config(policy_map.get_config())
            if how == "constructor":
                return module.DTypePolicyMap(self.default, dict(policy_map))
            if how in ("copy", "deepcopy"):
                return getattr(copy, how)(policy_map)
            config = json.loads(json.dumps(module.serialize(policy_map)))
            return getattr(module, how)(config)

        before = facts(self.ours)
        self.theirs, self.ours = again(self.theirs, original()), again(self.ours, OURS)
        assert facts(self.ours) == before

    @rule(name=st.sampled_from(("float32", "mixed_float16", "int8_from_bfloat16")))
    def change_the_global_policy(self, name: str) -> None:
        """A map without a default follows the policy in force; Keras' keeps that of its making."""
        for system in both():
            system.config.set_dtype_policy(name)
        if self.default is None:
            content = dict(self.theirs)
            self.theirs = original().dtype_policies.DTypePolicyMap(None, content)

    @rule()
    def config(self) -> None:
        """The configs are the same text; ours changes nothing, so the real Keras' is of a copy."""
        if isinstance(self.default, type):
            return
        theirs = copy.deepcopy(self.theirs)
        text = json.dumps(OURS.dtype_policies.serialize(self.ours))
        assert text == json.dumps(original().dtype_policies.serialize(theirs))

    @rule(key=paths)
    def contents(self, key: str) -> None:
        """The keys, in their order, and everything that is made of them."""
        for call in (
            lambda policy_map, _: key in policy_map,
            lambda policy_map, _: key in policy_map.keys(),  # noqa: SIM118
            lambda policy_map, _: list(policy_map),
            lambda policy_map, _: list(policy_map.keys()),
            lambda policy_map, _: list(policy_map.values()),
            lambda policy_map, _: list(policy_map.items()),
            lambda policy_map, _: sorted(policy_map.keys() & {key, "a"}),
            lambda policy_map, _: sorted(policy_map.keys() - {key, "a"}),
            lambda policy_map, _: policy_map.keys() == {"a"},
            lambda policy_map, _: reversed(policy_map),
            lambda policy_map, _: bool(policy_map),
            lambda policy_map, _: {**policy_map},
            lambda policy_map, _: policy_map == dict(policy_map),
            lambda policy_map, _: policy_map.name,
            lambda policy_map, _: isinstance(policy_map, collections.abc.MutableMapping),
            lambda policy_map, _: hash(policy_map),
        ):
            self.compare(call)

    @invariant()
    def equal_in_all(self) -> None:
        """After each step the maps are described alike."""
        if hasattr(self, "theirs"):
            assert len(self.ours) == len(self.theirs)
            assert facts(self.ours) == facts(self.theirs)

    def teardown(self) -> None:
        """Leave the global state of a fresh process."""
        for system in both():
            State().enter(system)


TestInStep = InStep.TestCase
TestInStep.settings = settings(max_examples=150, stateful_step_count=30)
