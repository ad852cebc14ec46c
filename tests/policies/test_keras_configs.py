"""Configs go both ways between castwise and the real Keras, as JSON text, for every class."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras_names import Call, expected
from keras_policies import KEYS, MAPS, POLICIES, STATES, made, made_map
from keras_systems import (
    OURS,
    Outcome,
    State,
    facts,
    original,
    outcome,
    shown,
)

pytestmark = pytest.mark.usefixtures("keras_state")


@given(call=POLICIES)
def test_json_of_every_class(call: Call) -> None:
    """Both write the same text, and each loads the other's and its own to an equal policy."""
    theirs, ours = made(call, original()), made(call, OURS)
    text = json.dumps(OURS.dtype_policies.serialize(ours))
    assert text == json.dumps(original().dtype_policies.serialize(theirs))
    for system, policy in ((original(), theirs), (OURS, ours)):
        for load in (system.dtype_policies.deserialize, system.dtype_policies.get):
            loaded = load(json.loads(text))
            assert facts(loaded) == facts(ours)
            assert loaded == policy
        assert facts(type(policy).from_config(policy.get_config())) == facts(ours)
    by_name = Call("get", (theirs.name,))
    assert by_name.on(OURS) == expected(by_name, State())[0]


@given(content=MAPS)
def test_json_of_maps(content: tuple[Any, dict[str, Call]]) -> None:
    """The texts are the same, with and without a default, and each loads the other's."""
    theirs, ours = made_map(content, original()), made_map(content, OURS)
    before = facts(ours)
    text = json.dumps(OURS.dtype_policies.serialize(ours))
    assert text == json.dumps(original().dtype_policies.serialize(theirs))
    assert facts(ours) == before, "to serialize a map changes nothing in it"
    assert json.dumps(OURS.dtype_policies.serialize(ours)) == text
    if content[0] is not None:
        for system in (original(), OURS):
            for load in (system.dtype_policies.deserialize, system.dtype_policies.get):
                assert facts(load(json.loads(text))) == before
            config = json.loads(text)["config"]
            assert facts(system.dtype_policies.DTypePolicyMap.from_config(config)) == before
        assert OURS.dtype_policies.get(json.loads(text)) == ours


@given(content=st.tuples(st.none(), st.dictionaries(KEYS, POLICIES, max_size=4)))
@settings(max_examples=100)
def test_maps_without_default_follow_the_global_policy(
    content: tuple[None, dict[str, Call]],
) -> None:
    """What a map without a default says after loading depends on the policy in force there."""
    text = json.dumps(OURS.dtype_policies.serialize(made_map(content, OURS)))
    for of in STATES:
        of.enter(original())
        of.enter(OURS)
        ours = outcome(lambda: OURS.dtype_policies.deserialize(json.loads(text)))
        wanted = _loaded_map(json.loads(text)["config"], of)
        assert ours == wanted, f"{text} in {of}: {ours}, not {wanted}"


def _loaded_map(config: dict[str, Any], of: State) -> Outcome:
    """Tell what a map without a default holds when loaded: each item as if it was made now.

    Where no rule of the names applies, the real Keras must agree.
    """
    items, applied = [], False
    for key, item in config["policy_map"].items():
        call = Call(item["class_name"], tuple(item["config"].values()))
        wanted, rules = expected(call, of)
        applied = applied or bool(rules)
        if wanted.error:
            return wanted
        items.append((key, wanted.value))
    theirs = outcome(
        lambda: original().dtype_policies.DTypePolicyMap.from_config(
            {"default_policy": None, "policy_map": {}}
        )
    ).value
    names = [(key, item["name"]) for key, item in items]
    mapping = theirs["repr"].replace("mapping=[]", f"mapping={names}")
    theirs["repr"] = shown(mapping, len(names))
    theirs["items"] = items
    wanted = Outcome(theirs)
    if not applied:
        of.enter(original())
        load = original().dtype_policies.DTypePolicyMap.from_config
        assert outcome(lambda: load(config)) == wanted
    return wanted


# --- What is castwise's alone ----------------------------------------------------------------


@given(
    content=MAPS,
    match=st.sampled_from(("fullmatch", "search")),
    on_overlap=st.sampled_from(("raise", "first", "longest")),
)
def test_options_of_maps_in_configs(
    content: tuple[Any, dict[str, Call]], match: str, on_overlap: str
) -> None:
    """Options are written only where they are not the default; without them Keras can load it."""
    module = OURS.dtype_policies
    policy_map = module.DTypePolicyMap("float16", match=match, on_overlap=on_overlap)
    for key, call in content[1].items():
        policy_map[key] = made(call, OURS)
    config = json.loads(json.dumps(module.serialize(policy_map)))
    usual = {"match": "fullmatch", "on_overlap": "raise"}
    given_options = {"match": match, "on_overlap": on_overlap}
    written = {key: value for key, value in config["config"].items() if key in usual}
    assert written == {key: value for key, value in given_options.items() if value != usual[key]}
    loaded = module.deserialize(config)
    assert loaded == policy_map
    assert (loaded.match, loaded.on_overlap) == (match, on_overlap)


def test_ternary_in_configs() -> None:
    """The mode that Keras 3.16 adds has no class of its own."""
    ternary = OURS.dtype_policies.get("ternary_from_mixed_bfloat16")
    config = json.loads(json.dumps(OURS.dtype_policies.serialize(ternary)))
    assert config == {
        "module": "keras.dtype_policies",
        "class_name": "QuantizedDTypePolicy",
        "config": {"mode": "ternary", "source_name": "mixed_bfloat16"},
        "registered_name": None,
    }
    assert OURS.dtype_policies.deserialize(config) == ternary
