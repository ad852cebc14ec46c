"""What the constructor of a map takes, and what its options do."""

from __future__ import annotations

import collections
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras_map_arguments import (
    DEFAULTS,
    KEYS,
    NO_VALUES,
    PATHS,
    VALUES,
    own,
)
from keras_names import Own
from keras_systems import OURS, Outcome, System, both, outcome, state

keys = st.sampled_from(KEYS)
paths = st.sampled_from(PATHS)
values = st.sampled_from(VALUES)
any_values = st.one_of(values, values, values, st.sampled_from(NO_VALUES))


class _Dictionary(dict):  # type: ignore[type-arg]
    """A dict by another name."""


def test_constructors() -> None:
    """Defaults and dicts of every kind are taken or refused alike."""
    configs = (
        {"class_name": "DTypePolicy", "config": {"name": "int"}},
        {"class_name": "DTypePolicy"},
    )
    defaults = (
        *(*DEFAULTS, *NO_VALUES, *configs, float, int, "int", "", "map_float32", True),
        *map(Own, ("DTypePolicy('float16')", "DTypePolicyMap()", "get('int4/4_from_float32')")),
    )
    contents = (
        *(None, {}, [], (), "", 0, 3, "abc", [("a", "float16")], _Dictionary()),
        *(collections.OrderedDict(), collections.UserDict(), collections.ChainMap(), set()),
        *(Own("DTypePolicyMap()"), Own("{'a': get('float16')}")),
    )
    with state():
        for default in defaults:
            for content in contents:
                arguments = (default, content)
                theirs, ours = (_made(system, arguments) for system in both())
                assert ours == theirs, arguments


def _made(system: System, arguments: tuple[Any, ...]) -> Outcome:
    return outcome(
        lambda: system.dtype_policies.DTypePolicyMap(*(own(system, value) for value in arguments))
    )


def test_options_are_checked() -> None:
    """Unknown options are refused, and they go by name only."""
    make = OURS.dtype_policies.DTypePolicyMap
    assert (make().match, make().on_overlap) == ("fullmatch", "raise")
    for options in ({"match": "prefix"}, {"on_overlap": "last"}, {"match": ""}, {"on_overlap": ""}):
        with pytest.raises(ValueError, match=next(iter(options))):
            make(**options)
    for options in ({"match": None}, {"on_overlap": 3}):
        assert outcome(lambda: make(**options)).error in (ValueError, TypeError)  # noqa: B023
    with pytest.raises(TypeError):
        make(None, {}, "search")
    for name in ("match", "on_overlap", "default_policy", "name"):
        with pytest.raises(AttributeError):
            setattr(make(), name, "search")


@given(
    content=st.lists(keys, unique=True, max_size=8),
    path=paths,
    match=st.sampled_from(("fullmatch", "search")),
    on_overlap=st.sampled_from(("raise", "first", "longest")),
)
def test_overlaps(content: list[str], path: str, match: str, on_overlap: str) -> None:
    """Which of several matching keys decides, by `re` alone."""
    module = OURS.dtype_policies
    policy_map = module.DTypePolicyMap("int64", match=match, on_overlap=on_overlap)
    for number, key in enumerate(content):
        policy_map[key] = module.QuantizedFloat8DTypePolicy("float8", "float32", number + 1)
    found = [path] if path in content else [k for k in content if getattr(re, match)(k, path)]
    if len(found) > 1 and on_overlap == "raise":
        with pytest.raises(ValueError, match=str(len(found))) as caught:
            _ = policy_map[path]
        quoted = ".*".join(f"['\"]{re.escape(key)}['\"]" for key in found)
        message = str(caught.value).replace("\\\\", "\\")
        assert re.search(quoted, message), "the message names the keys in their order"
        return
    winner = max(found, key=len) if on_overlap == "longest" and found else (*found, None)[0]
    wanted = module.get("int64") if winner is None else policy_map[winner]
    assert policy_map[path] == wanted
    assert policy_map.get(path, "none") == ("none" if winner is None else wanted)
    explained = policy_map.explain([path]).paths[path]
    assert explained.key == winner
    assert explained.policy == wanted
