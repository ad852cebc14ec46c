"""jmp's policies against the real jmp: the strings, and the values made of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import peers
import pytest
from castwise.compat import jmp as ours
from hypothesis import example, given
from jmp_sides import (
    WORDS,
    both,
    dtypes,
    real,
)
from sides import outcome, raised, returned

KEYS = ("p", "params", "c", "compute", "o", "output")
STRANGE_WORDS = ("f", "h", "F16", " f16", "f16 ", "float", "fp16", "int8", "", "<f4", "f8", "mixed")
STRANGE_KEYS = ("P", "param", "x", " c", "c ", "", "outputs", "p-params")
# behavior of the grammar's corners, and every row of its table
STRINGS = (
    *WORDS,
    *STRANGE_WORDS,
    *(f"{key}={word}" for key in KEYS for word in WORDS),
    *(f"{key}=f16" for key in STRANGE_KEYS),
    *(f"c={word}" for word in STRANGE_WORDS),
    *("params=float32,compute=float16,output=float32", "p=f16,c=bf16", "p=f16,o=f32"),
    *("output=full,params=half", "p=f16,params=bf16", "p=f32,c=f16,o=f32,c=bf16", "o=f64,c=f16"),
    *("c=f16,", ",c=f16", "p=f32;c=f16", "p=f32=f16", "c", "c,p=f16", "=", "==", ",", "=f16", "c="),
    *("c = f16", "c=f16, p=f32", "c=f16\n", "c=f16,,p=f32", "x=abc", "c=f16,x=f16", "x=f16,c=abc"),
)


# ----------------------------------------------------------------------------------- strings


@pytest.mark.thinned(2)
@pytest.mark.parametrize("string", STRINGS, ids=repr)
def test_every_string(string: str) -> None:
    original, mine = both(lambda side: dtypes(side.get_policy(string)))
    assert mine == original


PARTS = st.one_of(
    st.tuples(st.sampled_from(KEYS + STRANGE_KEYS), st.sampled_from(WORDS + STRANGE_WORDS)).map(
        "=".join
    ),
    st.tuples(st.sampled_from(KEYS), st.sampled_from(WORDS)).map("=".join),
    st.sampled_from(WORDS + STRANGE_WORDS + KEYS),
)
SEPARATORS = st.sampled_from([",", ",", ",", ",", ", ", ";", "=", ""])


@st.composite
def strings(draw: st.DrawFn) -> str:
    """Draw the parts of a policy's string, mostly in the right order."""
    parts = draw(st.lists(PARTS, max_size=5))
    return "".join(part for each in parts for part in (each, draw(SEPARATORS)))[
        : draw(st.integers(5, 90))
    ]


@given(strings())
def test_generated_strings(string: str) -> None:
    original, mine = both(lambda side: dtypes(side.get_policy(string)))
    assert mine == original


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(WORDS)).map("=".join), min_size=1))
def test_generated_strings_without_a_mistake(parts: list[str]) -> None:
    original, mine = both(lambda side: dtypes(side.get_policy(",".join(parts))))
    assert original.error is None
    assert mine == original


@given(st.text(alphabet="pco=,f1632b halt", max_size=14) | st.text(max_size=8))
def test_any_text(string: str) -> None:
    original, mine = both(lambda side: dtypes(side.get_policy(string)))
    assert mine == original


@pytest.mark.parametrize("value", [None, b"f16", 16, 1.5, True, np.float16, {"c": "f16"}], ids=repr)
def test_what_is_not_a_string(value: Any) -> None:
    original, mine = both(lambda side: side.get_policy(value))
    assert mine == original == raised(TypeError)


def test_a_numpy_string_is_a_string() -> None:
    original, mine = both(lambda side: dtypes(side.get_policy(np.str_("c=f16"))))
    assert mine == original


@pytest.mark.parametrize(
    ("value", "error"),
    [(("f16",), ValueError), (["f16", "="], AttributeError), (("=",), AttributeError)],
    ids=repr,
)
def test_a_container_is_not_a_string(value: Any, error: type[Exception]) -> None:
    """Divergence: the original fails with an unrelated error, castwise names what it takes."""
    original, mine = both(lambda side: side.get_policy(value))
    assert (original, mine) == (raised(error), raised(TypeError))


@pytest.mark.parametrize("string", ["f", "c=f", "h", "p=f16,c=F16"])
def test_a_wrong_dtype_is_told_the_right_ones(string: str) -> None:
    """Divergence of words only: jmp's own message offers 'f' for 'full', and then refuses it."""
    original, mine = both(lambda side: side.get_policy(string))
    assert mine == original == raised(ValueError)
    assert "'f' for 'full'" in original.message
    assert "'f' for 'full'" not in mine.message
    for word in ("bf16", "f16", "f32", "full", "half"):
        assert word in mine.message


@pytest.mark.parametrize("string", ["x=f16", "c,p=f16", "c=f16,", "p=f16=f32"])
def test_a_wrong_part_is_named(string: str) -> None:
    original, mine = both(lambda side: side.get_policy(string))
    assert mine == original == raised(ValueError)
    assert string in mine.message
    for key in ("params", "compute", "output"):
        assert key in mine.message


# ------------------------------------------------------------------------------------ values


def spellings(name: str) -> tuple[Any, ...]:
    """Ways to write a dtype that jmp holds for equal."""
    jax_numpy = peers.jax().numpy
    kind = np.dtype(getattr(ml_dtypes, name, name)).type
    return (getattr(jax_numpy, name), kind)


NAMES = ("float16", "float32", "float64", "bfloat16")
TRIPLES = st.tuples(*[st.sampled_from(NAMES)] * 3)


@given(TRIPLES, st.data())
def test_str_is_a_string_of_the_policy(names: tuple[str, ...], data: st.DataObject) -> None:
    fields = [data.draw(st.sampled_from(spellings(name))) for name in names]
    original, mine = both(lambda side: str(side.Policy(*fields)))
    assert mine == original
    assert ours.get_policy(mine.value) == ours.Policy(*fields)
    assert real().get_policy(mine.value) == real().Policy(*fields)


@given(TRIPLES, TRIPLES, st.data())
@example(("float32",) * 3, ("float32",) * 3, None)
def test_equality_and_hash(one: tuple[str, ...], other: tuple[str, ...], data: Any) -> None:
    """Policies are equal and hash alike when their dtypes are equal, however they are spelled."""

    def fields(names: tuple[str, ...]) -> list[Any]:
        return [
            spellings(name)[0] if data is None else data.draw(st.sampled_from(spellings(name)))
            for name in names
        ]

    first, second = fields(one), fields(other)

    def comparison(side: Any) -> tuple[bool, bool, int]:
        policies = side.Policy(*first), side.Policy(*second)
        return policies[0] == policies[1], policies[0] != policies[1], len(set(policies))

    original, mine = both(comparison)
    assert mine == original
    assert original.value[0] == (one == other)


@pytest.mark.parametrize(
    ("one", "other"), [("c=f16", "p=f32,c=f16"), ("half", "f16"), ("f64", "f16")]
)
def test_strings_that_mean_the_same(one: str, other: str) -> None:
    def comparison(side: Any) -> tuple[bool, bool]:
        first, second = side.get_policy(one), side.get_policy(other)
        return first == second, hash(first) == hash(second)

    original, mine = both(comparison)
    assert mine == original


@pytest.mark.parametrize("other", ["c=f16", None, 1, ("f32", "f16", "f16")], ids=repr)
def test_a_policy_equals_only_policies(other: Any) -> None:
    original, mine = both(
        lambda side: (side.get_policy("c=f16") == other, side.get_policy("c=f16") != other)
    )
    assert mine == original == returned((False, True))


def test_policies_have_no_order() -> None:
    original, mine = both(lambda side: side.get_policy("f16") < side.get_policy("f32"))
    assert mine == original == raised(TypeError)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["a dtype", "a string"])
def test_dtypes_and_strings_as_fields(name: str, form: str) -> None:
    """Divergence: the original keeps them unread, so `str` fails and a string equals nothing."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    field = dtype if form == "a dtype" else name
    kind = dtype.type
    original, mine = both(lambda side: str(side.Policy(kind, kind, field)))
    assert original == raised(KeyError)
    assert mine == outcome(lambda: str(ours.Policy(kind, kind, kind)))

    def comparison(side: Any) -> tuple[bool, bool]:
        written, meant = side.Policy(kind, kind, field), side.Policy(kind, kind, kind)
        return written == meant, hash(written) == hash(meant)

    original, mine = both(comparison)
    assert original == returned((form == "a dtype", False))
    assert mine == returned((True, True))


@pytest.mark.parametrize("arguments", [(), ("float16",), (np.float16,) * 2, (np.float16,) * 4])
def test_a_policy_takes_three_dtypes(arguments: tuple[Any, ...]) -> None:
    original, mine = both(lambda side: side.Policy(*arguments))
    assert mine == original == raised(TypeError)


@pytest.mark.parametrize("field", ["abc", 1, None, "mixed_float16"], ids=repr)
def test_what_is_not_a_dtype_is_refused_at_once(field: Any) -> None:
    """Divergence: the original takes it, and fails (None: takes float64) when it meets an array."""
    original, mine = both(lambda side: side.Policy(np.float32, field, np.float32))
    assert original.error is None
    assert mine == raised(TypeError)
    cast = outcome(original.value.cast_to_compute, np.ones(2, np.float32))
    assert cast.error is TypeError or (field is None and cast.value.dtype == np.float64)


def test_a_policy_is_a_frozen_dataclass() -> None:
    def told(side: Any) -> tuple[Any, ...]:
        policy = side.get_policy("p=f32,c=bf16,o=f16")
        return (
            dataclasses.is_dataclass(policy),
            [field.name for field in dataclasses.fields(policy)],
            list(dataclasses.asdict(policy)),
            [np.dtype(value) for value in dataclasses.astuple(policy)],
            dtypes(dataclasses.replace(policy, param_dtype=np.float64)),
            dtypes(policy.with_output_dtype(np.float64)),
            dtypes(policy),
            side.Policy.__match_args__,
        )

    original, mine = both(told)
    assert original.error is None
    assert mine == original
    for name in ("param_dtype", "other"):
        original, mine = both(lambda side, name=name: setattr(side.get_policy("f16"), name, None))
        assert mine == original == raised(dataclasses.FrozenInstanceError)
        original, mine = both(lambda side, name=name: delattr(side.get_policy("f16"), name))
        assert mine == original == raised(dataclasses.FrozenInstanceError)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_copies_are_equal(copied: Callable[[Any], Any]) -> None:
    def copies(side: Any) -> tuple[Any, ...]:
        policy = side.get_policy("p=f32,c=bf16,o=f16")
        again = copied(policy)
        return again == policy, hash(again) == hash(policy), dtypes(again)

    original, mine = both(copies)
    assert mine == original
    assert original.value[:2] == (True, True)


def test_repr_names_the_three_dtypes() -> None:
    """Divergence: the same fields in the same order, but no classes of a framework's own."""
    original, mine = both(lambda side: repr(side.get_policy("p=f32,c=bf16,o=f16")))
    assert original.value.count("jax.numpy") == 3
    assert "jax" not in mine.value
    pattern = (
        r"Policy\(param_dtype=.*float32.*, compute_dtype=.*bfloat16.*, output_dtype=.*float16.*\)"
    )
    assert re.fullmatch(pattern, original.value)
    assert re.fullmatch(pattern, mine.value)
