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


@pytest.mark.thinned(6)
@pytest.mark.parametrize("steps", [3_500, pytest.param(6_000, marks=pytest.mark.exhaustive)])
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


ORDINARY = (
    *(r"[\w-]+(a+)+b", r"[[a]+(a+)+b", r"[a&&]+(a+)+b", r"(?P<n>a+)+b", r"(?#c)(a+)+b", r"(a+)+b{"),
    *(r"(?s:.+)(a+)+b", r"(?a:\w+)(a+)+b", r"(?i:(a+)+b)", r"(?i)(?-i:(a+)+b)", r"(?x: (a+)+ b )"),
    *(r"(?u)(a+)+b", r"(?a)(\w+)+b", r"(?m)^(a+)+b$", r"(?x) (a+)+ b # c", r"(?imsx)(a+)+b"),
    *(r"\x61(a+)+b", r"\u0061(a+)+b", r"\U00000061(a+)+b", r"\N{LATIN SMALL LETTER A}(a+)+b"),
    *(r"a{(a+)+b", r"(a+){,}b", r"[\N{LATIN SMALL LETTER A}-](a+)+b"),
)
"""Syntax of Python's that means the same to the linear engine."""

ONLY_PYTHON = {
    "looks ahead": r"(?=a)(a+)+b",
    "looks behind": r"(?<=a)b",
    "refers back": r"(a)\1",
    "condition": r"(a)?(?(1)b|c)",
    "atomic group": r"(?>a+)b",
    "possessive": r"a*+b",
    "no boundary": r"a\Bb",
    "octal escape": r"\101b",
    "large": r"(?:a{500}){500}",
    "deep": "(" * 150 + "a" + ")" * 150,
    "folded beyond ASCII": r"(?i)é",
    "difference of sets": r"[--b]",
}
"""What `.github/SECURITY.md` and the pages list as matched by `re`."""


@pytest.mark.parametrize("match", ["fullmatch", "search"])
@pytest.mark.parametrize("key", ORDINARY)
def test_ordinary_syntax_is_matched_in_linear_time(key: str, match: str) -> None:
    linear = PolicyMap(match, linear=True)
    linear.insert(key, True)
    usual = PolicyMap(match)
    usual.insert(key, True)
    compiled = re.compile(key)
    for text in ("aab", "aaab", "aab{", "a{aab", "-aab", "a aab", "[aab", "&aab", "aaba", "b", ""):
        expected = getattr(compiled, match)(text) is not None
        assert (linear.find(text) is not None) == expected, text
        assert (usual.find(text) is not None) == expected, text
    hopeless = "a" * 5_000 + "\x00"  # `re` would not come to an end
    assert linear.find(hopeless) is None
    assert usual.find(hopeless) is None


@pytest.mark.parametrize("key", ONLY_PYTHON.values(), ids=ONLY_PYTHON)
def test_what_only_python_can_match_is_refused_by_a_linear_map(key: str) -> None:
    PolicyMap().insert(key, True)
    with pytest.raises(ValueError, match="cannot be matched in linear time"):
        PolicyMap(linear=True).insert(key, True)


@pytest.mark.parametrize(
    ("key", "path"), [(r"\bé?a", "éa"), (r"(?i)a.", "aé"), (r"(a$|b)\n?", "a\n")]
)
def test_a_path_that_only_python_can_judge_is_refused_by_a_linear_map(key: str, path: str) -> None:
    linear = PolicyMap(linear=True)
    linear.insert(key, True)
    with pytest.raises(ValueError, match="cannot be matched in linear time with"):
        linear.find(path)


@pytest.mark.parametrize(
    "key", [r"(?a:\W)+", r"(?a:[\Wa])+", r"(?a:\S\D)+", r"(?a)\s+", r"(?a)\w+"]
)
@pytest.mark.parametrize("text", ["é", "a", "\u0663", "\x1c", "1", "aé1", "\x1c\x1d", " ", "é\x1f"])
def test_ascii_classes_hold_what_pythons_do(key: str, text: str) -> None:
    linear = PolicyMap(linear=True)
    linear.insert(key, True)
    assert (linear.find(text) is not None) == (re.fullmatch(key, text) is not None)


@pytest.mark.parametrize(
    "key",
    [r"(?ai)\W", r"(?ai)[^\Wq]", r"(?ai)\S", "(?i)[Z-a]", "(?i)[^B-k]", "(?i:s)", "(?i)(?-i:k)|M"],
)
def test_case_is_ignored_as_python_does_it(key: str) -> None:
    r"""Folded beyond ASCII, `\W`, which has the Kelvin sign, would have `k` too."""
    linear = PolicyMap(linear=True)
    linear.insert(key, True)
    texts = [chr(code) for code in range(128)]
    found = [text for text in texts if linear.find(text) is not None]
    assert found == [text for text in texts if re.fullmatch(key, text)]


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
