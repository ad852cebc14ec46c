"""Where castwise's maps differ from the real Keras', with the behavior of both sides."""

from __future__ import annotations

import re
from typing import Any

import pytest
from keras_map_arguments import (
    DEFAULTS,
    NO_VALUES,
    VALUES,
    own,
)
from keras_systems import OURS, both, facts, original, outcome, state


@pytest.fixture
def pair() -> Any:
    """Give a map of each system, with the same two keys."""
    with state() as systems:
        yield [
            system.dtype_policies.DTypePolicyMap(
                "float32",
                {
                    "a": system.dtype_policies.get("float16"),
                    "enc/.*": system.dtype_policies.get("bfloat16"),
                },
            )
            for system in systems
        ]


def test_get_has_a_default(pair: Any) -> None:
    """Keras' `get` ignores the default that it is given."""
    theirs, ours = pair
    assert theirs.get("b", 5).name == "float32"
    assert ours.get("b", 5) == 5
    assert ours.get("b", None) is None


def test_pop_has_a_default(pair: Any) -> None:
    """Keras' `pop` raises despite a default."""
    theirs, ours = pair
    with pytest.raises(KeyError):
        theirs.pop("b", 5)
    assert ours.pop("b", 5) == 5
    assert ours.pop("enc/x", None) is None
    assert ours.pop(key="a", default=None).name == "float16"
    for policy_map in (theirs, ours):
        policy_map["enc/x.*"] = "float16"
    with pytest.raises(ValueError, match="multiple"):
        theirs.pop("enc/x")
    with pytest.raises(KeyError):
        ours.pop("enc/x")


def test_setdefault_stores(pair: Any) -> None:
    """Keras' `setdefault` returns the map's default and stores nothing."""
    theirs, ours = pair
    assert theirs.setdefault("b", "float64").name == "float32"
    assert "b" not in theirs
    assert ours.setdefault("b", "float64").name == "float64"
    assert ours["b"].name == "float64"


def test_popitem_takes_the_last(pair: Any) -> None:
    """Keras' `popitem` takes the first key."""
    theirs, ours = pair
    assert theirs.popitem()[0] == "a"
    assert ours.popitem()[0] == "enc/.*"


def test_items_contain_what_they_list(pair: Any) -> None:
    """In Keras `(path, policy) in m.items()` looks the path up, and finds what is not listed."""
    theirs, ours = pair
    for policy_map, is_there in ((theirs, True), (ours, False)):
        assert (("enc/x", policy_map["enc/.*"]) in policy_map.items()) is is_there
        assert ("a", policy_map["a"]) in policy_map.items()


def test_views_are_live(pair: Any) -> None:
    """The views of a mapping follow what is done to it."""
    for policy_map in pair:
        views = policy_map.keys(), policy_map.values(), policy_map.items()
        policy_map["b"] = "float64"
        del policy_map["a"]
        assert [len(view) for view in views] == [2, 2, 2]
        assert list(views[0]) == ["enc/.*", "b"]
        assert [policy.name for policy in views[1]] == ["bfloat16", "float64"]
        assert [key for key, _ in views[2]] == ["enc/.*", "b"]
        assert "b" in views[0]


def test_maps_may_change_while_they_are_read(pair: Any) -> None:
    """Keras' map fails as a dict does when it changes size under a loop; ours shows what was there.

    Other threads may change a map at any time.
    """

    def delete_all(policy_map: Any) -> list[str]:
        deleted = []
        for key in policy_map:
            del policy_map[key]
            deleted.append(key)
        return deleted

    theirs, ours = pair
    with pytest.raises(RuntimeError):
        delete_all(theirs)
    assert delete_all(ours) == ["a", "enc/.*"]
    assert not ours


def test_keys_are_patterns(pair: Any) -> None:
    """Keras stores what is not a pattern, and fails at later lookups; ours says where."""
    theirs, ours = pair
    theirs["enc/["] = "float16"
    with pytest.raises(re.error):
        _ = theirs["x"]
    with pytest.raises(ValueError, match=r"(?s)enc/\[.*\b4\b"):
        ours["enc/["] = "float16"
    assert list(ours) == ["a", "enc/.*"]
    theirs[1] = "float16"
    with pytest.raises(TypeError):
        ours[1] = "float16"
    with pytest.raises(KeyError):
        del theirs[2]
    with pytest.raises(TypeError):
        del ours[2]
    for call in (
        lambda: OURS.dtype_policies.DTypePolicyMap(policy_map={"[": "float16"}),
        lambda: OURS.dtype_policies.DTypePolicyMap(policy_map={1: "float16"}),
    ):
        assert outcome(call).error in (ValueError, TypeError)


def test_a_missing_default_follows(pair: Any) -> None:
    """Keras documents that a map without a default defers to the global policy, and latches it."""
    names = []
    for system in both():
        policy_map = system.dtype_policies.DTypePolicyMap()
        system.config.set_dtype_policy("mixed_bfloat16")
        names.append((policy_map["x"].name, policy_map.name, policy_map.compute_dtype))
        assert policy_map.default_policy is policy_map["x"]
    assert names == [
        ("float32", "map_float32", "float32"),
        ("mixed_bfloat16", "map_mixed_bfloat16", "bfloat16"),
    ]
    with OURS.config.dtype_policy_scope("float16"):
        assert OURS.dtype_policies.DTypePolicyMap().default_policy.name == "float16"


@pytest.mark.parametrize("default", DEFAULTS, ids=str)
def test_the_callers_dict_is_copied(default: Any) -> None:
    """Keras keeps a dict that is not empty, and writes into it; its values it takes as they are."""
    with state():
        theirs, ours = {"a": original().dtype_policies.get("float16")}, {"a": "float16"}
        their_map = original().dtype_policies.DTypePolicyMap(default, theirs)
        our_map = OURS.dtype_policies.DTypePolicyMap(default, ours)
        for policy_map, content in ((their_map, theirs), (our_map, ours)):
            policy_map["b"] = "float16"
            content["c"] = "float16"
        assert list(their_map) == list(theirs) == ["a", "b", "c"]
        assert list(our_map) == ["a", "b"]
        assert list(ours) == ["a", "c"]
        assert their_map["c"] == "float16"
        assert our_map["a"].name == "float16"


def test_values_are_validated() -> None:
    """What `get` refuses is refused in the constructor too; Keras takes anything there."""
    with state():
        for value in NO_VALUES:
            original().dtype_policies.DTypePolicyMap(policy_map={"a": value})
            wrong = outcome(lambda: OURS.dtype_policies.DTypePolicyMap(policy_map={"a": value}))  # noqa: B023
            assert wrong.error is ValueError
        for value in VALUES:
            theirs = original().dtype_policies.DTypePolicyMap("float32")
            theirs["a"] = own(original(), value)
            ours = OURS.dtype_policies.DTypePolicyMap("float32", {"a": own(OURS, value)})
            assert facts(ours) == facts(theirs)


def test_get_config_changes_nothing() -> None:
    """Keras takes the names from the policies in a map without a default, global ones included."""
    with state() as systems:
        names = []
        for system in systems:
            system.config.set_dtype_policy("mixed_float16")
            policy_map = system.dtype_policies.DTypePolicyMap()
            policy_map["a"] = None
            policy_map["b"] = "int8_from_float32"
            policy_map.get_config()
            names.append((system.config.dtype_policy().name, policy_map["b"].name))
        assert names == [(None, None), ("mixed_float16", "int8_from_float32")]
