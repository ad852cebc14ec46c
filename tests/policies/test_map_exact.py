"""Paths that are keys are found in a dict, which always has what the map has."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import threading
import weakref

import pytest
from castwise._core import PolicyMap
from castwise.dtype_policies import DTypePolicyMap

KEYS = ["a", "b/c", "d.*", r"e\d", "é", "f(?!g)", "h{2}", "i|j"]


def check(one: PolicyMap) -> None:
    assert one.exact == dict(one.items())
    assert list(one.exact) == [key for key, _ in one.items()]
    assert len(one) == len(one.exact)


def test_it_follows_every_change() -> None:
    draw = random.Random(1)
    one = PolicyMap()
    for step in range(2_000):
        key = draw.choice(KEYS)
        try:
            match draw.randrange(5):
                case 0:
                    one.insert(key, step)
                case 1:
                    one.remove(key)
                case 2:
                    one.pop_last()
                case 3:
                    assert one.setdefault(key, step) == one.exact[key]
                case _:
                    assert one.lookup(key) == one.exact.get(key)
        except KeyError:
            pass
        check(one)
    for again in (copy.copy(one), pickle.loads(pickle.dumps(one))):  # noqa: S301
        check(again)
        assert again == one
        again.insert("new", 1)
        assert "new" not in one.exact


def test_a_map_that_is_cleared_or_copied_has_its_own() -> None:
    policies = DTypePolicyMap("float32", {"a": "float16"})
    other = copy.copy(policies)
    policies.clear()
    assert (policies["a"].name, other["a"].name) == ("float32", "float16")
    del other["a"]
    other["a"] = "bfloat16"
    assert other["a"].name == "bfloat16"
    assert pickle.loads(pickle.dumps(other))["a"].name == "bfloat16"  # noqa: S301


class Loud(str):
    """A text whose class has other ideas of equality."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("asked")


def test_keys_and_paths_of_other_classes_of_text() -> None:
    policies = DTypePolicyMap("float32")
    policies[Loud("a")] = "float16"
    assert {type(key) for key in policies} == {str}
    assert policies["a"].name == "float16"
    with pytest.raises(ValueError, match="already in the map"):
        policies["a"] = "float64"


@pytest.mark.parametrize("path", [None, 3, [], {}, ("a",), b"a"])
def test_paths_that_are_not_texts(path: object) -> None:
    policies = DTypePolicyMap("float32", {"a": "float16"})
    with pytest.raises(TypeError, match="must be a str, such as a layer's path"):
        policies[path]  # type: ignore[index]


@pytest.mark.parametrize("key", ["a(?!b", "(?!a|b))", "(?=[b)", "(?!*)", "(?<=a+)b"])
def test_wrong_look_around_is_refused_when_it_is_set(key: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        DTypePolicyMap("float32", {key: "float16"})


@pytest.mark.parametrize(
    ("key", "hit", "miss"),
    [
        ("a/(?!norm).*", "a/dense", "a/norm_1"),
        ("(?=.*x).*", "abxab", "abab"),
        ("(?i)A(?!B)[a-z]", "aC", "ab"),
        (r"(?:a(?=b)|c)\w", "ab", "ac"),
        ("(?=a)*b", "b", "ab"),
    ],
)
def test_look_ahead_is_matched_by_re(key: str, hit: str, miss: str) -> None:
    policies = DTypePolicyMap("float32", {key: "float16"})
    for _ in range(2):
        assert (policies[hit].name, policies[miss].name) == ("float16", "float32")


def test_threads_see_a_key_or_not() -> None:
    """A path that is not a key any more is not found, whatever other threads did at that moment."""
    policies = DTypePolicyMap("float32")
    ends = threading.Event()
    failures: list[str] = []

    def change(key: str) -> None:
        for _ in range(3_000):
            policies[key] = "float16"
            if policies[key].name != "float16":
                failures.append(f"{key} is not there")
            del policies[key]
            if policies[key].name != "float32":
                failures.append(f"{key} stays")

    def read() -> None:
        while not ends.is_set():
            if policies["a"].name not in ("float16", "float32"):
                failures.append("neither")

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=change, args=(key,)) for key in ("a", "b", "c")]
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    ends.set()
    reader.join()
    assert not failures
    check(policies._policies)


def test_a_map_in_a_circle_is_collected() -> None:
    class Value:
        circle: PolicyMap

    value = Value()
    value.circle = PolicyMap()
    value.circle.insert("a(?!b)", value)
    value.circle.lookup("ac")
    gone = weakref.ref(value)
    del value
    gc.collect()
    assert gone() is None


def test_many_patterns_without_literals() -> None:
    """More than are tried one by one: what each matches is found, once, and overlaps are errors."""
    policies = DTypePolicyMap("float32")
    for letters in range(1, 60):
        for digits in range(1, 6):
            policies[rf"[a-z]{{{letters}}}\d{{{digits}}}"] = (
                f"int4/{64 * letters + digits}_from_float32"
            )
    for letters in range(1, 60):
        for digits in range(1, 6):
            found = policies["x" * letters + "7" * digits]
            assert found.name == f"int4/{64 * letters + digits}_from_float32"
        assert policies["x" * letters + "7" * 6].name == "float32"
        assert policies["x" * letters + "é"].name == "float32"  # beyond what the automaton is for
        assert (
            policies["x" * letters + "\N{ARABIC-INDIC DIGIT SEVEN}"].name
            == f"int4/{64 * letters + 1}_from_float32"
        )
    policies[r"[x-z]{3}\d{2}"] = "float16"
    with pytest.raises(ValueError, match=r"'xyz12' is matched by 2 keys"):
        policies["xyz12"]
    assert policies["abc12"].name == f"int4/{64 * 3 + 2}_from_float32"
