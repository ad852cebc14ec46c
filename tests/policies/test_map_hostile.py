"""Maps from untrusted model files, and programs that misuse maps and policies."""

from __future__ import annotations

import contextvars
import copy
import gc
import pickle
import re
import threading
import weakref
from typing import Any

import pytest
from castwise import config
from castwise.dtype_policies import (
    DTypePolicy,
    DTypePolicyMap,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
    deserialize,
    serialize,
)


@pytest.mark.parametrize("key", ["(" * 300_000, "(?:" * 100_000, "(a|" * 50_000])
def test_a_key_of_any_depth_is_refused_and_does_not_crash(key: str) -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        DTypePolicyMap("float32")[key] = "float16"


def test_deep_but_valid_keys_are_pythons() -> None:
    key = "(" * 150 + "a" + ")" * 150
    assert DTypePolicyMap("float32", {key: "float16"})["a"].name == "float16"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("a{99999999999999999999}", "repetition number"),
        ("(?=a)" + "(" * 5000 + ")" * 5000, "not a regular expression"),
    ],
)
def test_what_re_cannot_compile_is_refused(key: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        DTypePolicyMap("float32")[key] = "float16"


def test_maps_in_circles_are_freed() -> None:
    policy_map = DTypePolicyMap("float32")
    policy_map["self"] = policy_map
    value = DTypePolicy("float16")
    value.back = policy_map
    policy_map["value"] = value
    gone = weakref.ref(policy_map)
    del policy_map, value
    gc.collect()
    assert gone() is None


def test_halves_of_surrogate_pairs_match_what_re_says() -> None:
    policy_map = DTypePolicyMap("float32", {"a.*": "float16", "b": "float64"})
    assert policy_map["\ud800"].name == "float32"
    assert policy_map["a\ud800"].name == "float16"
    assert "\ud800" not in policy_map
    assert policy_map.get("\ud800", 1) == 1
    assert policy_map.explain(["a\ud800"]).keys == {"a.*": 1, "b": 0}
    with pytest.raises(ValueError, match="surrogate"):
        policy_map["\ud800"] = "float16"


@pytest.mark.parametrize("paths", ["encoder/query", None])
def test_one_path_is_not_explained_letter_by_letter(paths: Any) -> None:
    with pytest.raises(TypeError, match=f"paths={paths!r} must be several paths"):
        DTypePolicyMap("float32").explain(paths)


@pytest.mark.parametrize(
    ("keys", "count"),
    [(300, 20), (60, 500), pytest.param(300, 500, marks=pytest.mark.exhaustive)],
)
def test_keys_of_many_alternatives_are_still_told_apart(keys: int, count: int) -> None:
    policy_map = DTypePolicyMap("float32")
    for number in range(keys):
        names = "|".join(f"layer_{number}_{part}" for part in range(count))
        policy_map[f"model/(?:{names})/kernel"] = "float16"
    assert policy_map["model/layer_7_3/kernel"].name == "float16"
    assert policy_map["model/layer_7_3/bias"].name == "float32"


def test_many_keys_without_literals() -> None:
    keys = [rf"[a-z]+_[0-9]{{{n % 60 + 1}}}/[a-z]{{{n // 60 + 1}}}" for n in range(5_000)]
    policy_map = DTypePolicyMap("float32", dict.fromkeys(keys, "float16"))
    for path in ("stage_123/ab", "stage_123/", "x_1/a", "x_/a"):
        expected = any(re.fullmatch(key, path) for key in keys[:200]) or path == "x_1/a"
        assert (policy_map[path].name == "float16") is expected, path


@pytest.mark.parametrize("match", ["fullmatch", "search"])
@pytest.mark.parametrize("key", ["x$", "^x$", "x$|y$", "(x$)", "x$\n", "(?s)x.$", "$"])
def test_the_end_of_a_path_with_a_newline(key: str, match: str) -> None:
    policy_map = DTypePolicyMap("float32", {key: "float16"}, match=match)
    for path in ("x", "x\n", "x\n\n", "ax\n", "xa", "y\n", ""):
        expected = path == key or getattr(re, match)(key, path) is not None
        assert (policy_map[path].name == "float16") is expected, repr(path)


@pytest.mark.parametrize("key", [r"(\w+)+/", r"(\w+\s?)*:", r"([\d\W]|\w)*!", r"(?:[^\W\d]+)+/"])
def test_characters_beyond_ascii_open_no_door_to_backtracking(key: str) -> None:
    policy_map = DTypePolicyMap("float32", {key: "float16"})
    assert policy_map["é" + "a" * 50_000 + "\x00"].name == "float32"


def test_classes_hold_what_pythons_do() -> None:
    """Every character, against every class, as this Python has them."""
    keys = (r"\d", r"\w", r"\s", r"[^\d]", r"[^\w]", r"[\W\d]", r"\D", r"\S", r"[a\S]")
    characters = [chr(code) for code in range(0x80, 0x110000, 7) if not 0xD800 <= code < 0xE000]
    for key in keys:
        policy_map = DTypePolicyMap("float32", {key: "float16"})
        compiled = re.compile(key)
        for character in characters[:20_000] + characters[-1000:]:
            expected = compiled.fullmatch(character) is not None
            assert (policy_map[character].name == "float16") is expected, (key, character)


def test_a_newline_opens_no_door_to_backtracking() -> None:
    policy_map = DTypePolicyMap("float32", {"(a+)+$": "float16"})
    assert policy_map["a" * 50_000 + "!\n"].name == "float32"


def test_a_large_class_many_times_is_pythons() -> None:
    characters = "".join(map(chr, range(0x10000, 0x12000, 2)))
    policy_map = DTypePolicyMap("float32", {f"[{characters}]{{4900}}": "float16"})
    assert policy_map["\U00010000" * 4900].name == "float16"


def test_a_config_is_a_copy() -> None:
    given = {"class_name": "DTypePolicy", "config": {"name": "float16"}}
    policy_map = DTypePolicyMap(given)
    policy_map.get_config()["default_policy"]["config"]["name"] = "float64"
    given["config"] = {"name": "bfloat16"}
    assert policy_map.default_policy.name == "float16"
    assert policy_map.get_config()["default_policy"]["config"] == {"name": "float16"}


class Quantized(QuantizedDTypePolicy):
    """A class of a user."""


def test_a_users_class_in_a_map_without_default_is_loaded_again() -> None:
    config = serialize(DTypePolicyMap(None, {"a": Quantized("int8", "float32")}))
    assert config["config"]["policy_map"]["a"]["config"] == {"mode": "int8", "source_name": None}
    again = deserialize(config, {"Quantized": Quantized})
    assert again["a"] == Quantized("int8", "float32")


class Slotted(DTypePolicy):
    """A class of a user with an attribute of its own, and arguments of its own."""

    __slots__ = ("extra",)

    def __new__(cls, name: str, extra: int) -> Slotted:
        return super().__new__(cls, name)

    def __init__(self, name: str, extra: int) -> None:
        super().__init__(name)
        self.extra = extra

    def __getnewargs__(self) -> tuple[str, int]:
        return self.name, self.extra


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_copies_keep_what_a_subclass_adds(protocol: int) -> None:
    policy = Slotted("float16", 5)
    policy.more = 6
    for again in (
        copy.copy(policy),
        copy.deepcopy(policy),
        pickle.loads(pickle.dumps(policy, protocol)),  # noqa: S301 - our own
    ):
        assert (again, again.extra, again.more) == (policy, 5, 6)


def test_clearing_in_a_scope_ends_with_it() -> None:
    config.set_dtype_policy("bfloat16")
    try:
        with config.dtype_policy_scope("float16"):
            config.clear_dtype_policy()
            assert config.dtype_policy().name == "float32"
            config.set_dtype_policy("float64")
        assert config.dtype_policy().name == "bfloat16"
    finally:
        config.clear_dtype_policy()


def test_a_thread_in_a_copy_of_the_context_is_a_thread_of_its_own() -> None:
    """Free-threaded interpreters start threads in a copy of the context."""
    seen = []

    def work() -> None:
        seen.append(config.dtype_policy().name)
        config.set_dtype_policy("float64")
        seen.append(config.dtype_policy().name)

    with config.dtype_policy_scope("mixed_float16"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        thread.join()
        assert config.dtype_policy().name == "mixed_float16"
    assert seen == ["float32", "float64"]


def test_quantized_policies_cannot_be_changed() -> None:
    for policy, name in (
        (Int4DTypePolicy("int4/128", "float32"), "block_size"),
        (Int4DTypePolicy("int4/128", "float32"), "mode"),
        (QuantizedFloat8DTypePolicy("float8", "float32"), "amax_history_length"),
    ):
        with pytest.raises(AttributeError):
            setattr(policy, name, 7)


@pytest.mark.parametrize("keys", [8_000, pytest.param(30_000, marks=pytest.mark.exhaustive)])
def test_taking_keys_out_is_not_quadratic_in_what_is_kept(keys: int) -> None:
    policy_map = DTypePolicyMap("float32", {f"key_{n}/.*": "float16" for n in range(keys)})
    for n in range(keys - 10):
        del policy_map[f"key_{n}/.*"]
    assert len(policy_map) == 10
    assert policy_map[f"key_{keys - 5}/x"].name == "float16"
    assert policy_map["key_3/x"].name == "float32"
