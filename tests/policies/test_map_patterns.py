"""What a map's keys match: what Python's `re` says, in time linear in the path."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from castwise._core import PolicyMap
from castwise.dtype_policies import DTypePolicyMap
from regular_expressions import path, pattern

pytestmark = pytest.mark.filterwarnings(
    "ignore:Possible:FutureWarning"
)  # of `re`, for sets of sets

PATHS_EACH = 5

CATASTROPHES = (r"(a+)+$", r"(a|aa)+$", r"(a*)*b", r"(.*a){12}b", r"([a-z]+/?)*!", r"(\w+\s?)*:")
"""Patterns that make `re` try a number of ways that grows exponentially with the path."""


def holds(key: str, match: str) -> PolicyMap | None:
    """A map with one key; None if `re` finds the key invalid, which the map must find too."""
    try:
        re.compile(key)
    except re.error as error:
        with pytest.raises(ValueError, match=f"position {error.pos or 0}"):
            PolicyMap(match).insert(key, True)
        return None
    one = PolicyMap(match)
    one.insert(key, True)
    return one


@pytest.mark.parametrize("patterns", [800, pytest.param(12_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("match", ["fullmatch", "search"])
def test_generated_patterns_match_what_re_matches(match: str, patterns: int) -> None:
    draw = random.Random(match)
    seen: Counter[str] = Counter()
    for _ in range(patterns):
        key = pattern(draw)
        one = holds(key, match)
        if one is None:
            seen["invalid"] += 1
            continue
        compiled = re.compile(key)
        for _ in range(PATHS_EACH):
            text = path(draw)
            expected = text == key or getattr(compiled, match)(text) is not None
            assert (one.find(text) is not None) == expected, (key, text)
            seen["match" if expected else "no match"] += 1
    # Enough of each kind to mean something.
    assert min(seen["invalid"], seen["match"], seen["no match"]) > patterns // 10, seen


@pytest.mark.parametrize("steps", [2_500, pytest.param(4_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("match", ["fullmatch", "search"])
@pytest.mark.parametrize("on_overlap", ["first", "longest"])
def test_many_patterns_together_match_what_each_matches(
    match: str, on_overlap: str, steps: int
) -> None:
    """The index finds every pattern that matches, whatever keys are added and removed."""
    draw = random.Random(f"{match} {on_overlap}")
    keys: dict[str, re.Pattern[str]] = {}
    several = PolicyMap(match, on_overlap)
    winners: set[str] = set()
    for _ in range(steps):
        key = pattern(draw)
        if draw.random() < 0.7 and key not in keys:
            try:
                keys[key] = re.compile(key)
            except re.error:
                continue
            several.insert(key, key)
        if keys and draw.random() < 0.5:
            gone = draw.choice(list(keys))
            del keys[gone]
            assert several.remove(gone) == gone
        text = path(draw)
        matching = [key for key, one in keys.items() if getattr(one, match)(text)]
        choose = matching[:1] if on_overlap == "first" else [max(matching, key=len, default="")]
        expected = text if text in keys else next(iter(choose), "")
        found = several.find(text)
        assert ("" if found is None else found[0]) == expected, (text, matching)
        winners.add(expected)
        exact = [text] if text in keys else []
        others = [key for key in matching if key != text]
        assert several.explain(text)[2] == exact + others
    assert len(winners) > 100


@pytest.mark.parametrize("match", ["fullmatch", "search"])
@pytest.mark.parametrize("key", CATASTROPHES)
def test_no_pattern_blows_up(key: str, match: str) -> None:
    """With `re`, each of these lookups would take exponential time."""
    policies = DTypePolicyMap("float32", {key: "float16"}, match=match)
    hopeless = "a" * 200_000 + "\x00"
    assert policies[hopeless].name == "float32"


def test_counted_repetitions_of_any_size_are_answered() -> None:
    """Patterns too large for an automaton are matched by `re`."""
    policies = DTypePolicyMap("float32", {"(?:a{500}){500}": "float16", "b{1,60000}": "float64"})
    assert policies["a" * 250_000].name == "float16"
    assert policies["a" * 250_001].name == "float32"
    assert policies["b" * 60_000].name == "float64"


def test_order_of_matches_is_order_of_insertion() -> None:
    policies = DTypePolicyMap("float32")
    for key in ("z.*", "zz.*", ".*", "[z]+"):
        policies[key] = "float16"
    with pytest.raises(ValueError, match=r"'z\.\*' and 'zz\.\*' and '\.\*' and '\[z\]\+'"):
        policies["zzz"]
    del policies["z.*"]
    policies["z.*"] = "float16"
    with pytest.raises(ValueError, match=r"'zz\.\*' and '\.\*' and '\[z\]\+' and 'z\.\*'"):
        policies["zzz"]


def test_the_longest_of_equals_is_the_first() -> None:
    policies = DTypePolicyMap("float32", {"a.": "float16", ".b": "bfloat16"}, on_overlap="longest")
    assert policies["ab"].name == "float16"
