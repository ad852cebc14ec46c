"""Every name, dtype and constructor argument means what it means to the real Keras, or is listed.

What is listed, and what else castwise answers, is in keras_names.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras_names import CONSTRUCTORS, MODES, RULES, WITNESSES, Call, Own, Seen
from keras_spellings import (
    LENGTHS,
    MODE_ARGUMENTS,
    NAMES,
    NUMBERED,
    PLAIN,
    SOURCE_ARGUMENTS,
    objects,
    spelled,
)
from keras_systems import OURS, State, original, state

STATES = (
    State(),
    State(floatx="float16"),
    State(floatx="bfloat16"),
    State(policy="mixed_float16"),
    State(policy="mixed_bfloat16"),
    State(policy="float16"),
    State(policy="int32"),
    State(policy="int8_from_float32"),
    State(policy="int8_from_mixed_bfloat16"),
    State(policy="int4/64_from_mixed_float16"),
    State(policy="gptq/4/128_from_bfloat16"),
    State(policy="float8_from_mixed_float16"),
    State(policy="float32", is_map=True),
    State(policy="mixed_float16", is_map=True),
    State(policy="awq/4/-1_from_mixed_bfloat16", is_map=True),
)


@pytest.fixture
def seen() -> Iterator[Seen]:
    """Compare calls, and leave the global state of a fresh process behind."""
    with state():
        yield Seen()


BY_NAME = ("get", "set_dtype_policy", "DTypePolicy", "FloatDTypePolicy", "standardize_dtype")
OF_ANYTHING = (*BY_NAME, "is_float_dtype", "is_int_dtype", "set_floatx")


@pytest.mark.thinned(9)
@pytest.mark.parametrize("of", STATES, ids=str)
def test_every_name_in_every_state(of: State, seen: Seen) -> None:
    """Strings, through everything that takes one."""
    for name, function in product(NAMES, BY_NAME):
        seen.compare(Call(function, (name,)), of)
    for name in NAMES:
        seen.compare(Call("get", (np.str_(name),)), of)


@pytest.mark.parametrize("of", [State(), State(floatx="bfloat16", policy="float16")], ids=str)
def test_every_kind_of_object(of: State, seen: Seen) -> None:
    """Types, dtypes, arrays, and objects that only look like dtypes."""
    for text, value in objects().items():
        for function in OF_ANYTHING:
            try:
                seen.compare(Call(function, (value,)), of)
            except AssertionError as error:
                raise AssertionError(f"{text}: {error}") from None


def test_policies_as_they_are(seen: Seen) -> None:
    """A policy is its own identifier, to `get` and as the global policy, and no dtype."""
    for expression, function in product(
        (
            "DTypePolicy('mixed_float16')",
            "DTypePolicy('bfloat16')",
            "FloatDTypePolicy('int')",
            "QuantizedDTypePolicy('int8', 'float32')",
            "QuantizedFloat8DTypePolicy('float8', 'float16', 3)",
            "Int4DTypePolicy('int4/8', 'float32')",
            "DTypePolicyMap('float16')",
        ),
        ("get", "set_dtype_policy", "DTypePolicy", "set_floatx", "standardize_dtype"),
    ):
        seen.compare(Call(function, (Own(expression),)), State())
    for system in (original(), OURS):
        for policy in (
            system.dtype_policies.DTypePolicy("float16"),
            system.dtype_policies.get("gptq/4/128_from_float32"),
            system.dtype_policies.DTypePolicyMap("float16"),
        ):
            with state():
                assert system.dtype_policies.get(policy) is policy
                system.config.set_dtype_policy(policy)
                assert system.config.dtype_policy() is policy
                assert system.dtype_policies.get(None) is policy


@pytest.mark.thinned(8)
@pytest.mark.parametrize("of", STATES, ids=str)
def test_every_argument_of_the_constructors(of: State, seen: Seen) -> None:
    """Modes, sources and lengths in every combination."""
    for constructor in ("DTypePolicy", "FloatDTypePolicy"):
        seen.compare(Call(constructor, ()), of)
        for name in SOURCE_ARGUMENTS:
            seen.compare(Call(constructor, (name,)), of)
    for constructor, mode in product(CONSTRUCTORS, MODE_ARGUMENTS):
        seen.compare(Call(constructor, (mode,)), of)
        for source in SOURCE_ARGUMENTS:
            seen.compare(Call(constructor, (mode, source)), of)
    for mode, source, length in product(MODES, (None, "float32", "abc"), LENGTHS):
        seen.compare(Call("QuantizedFloat8DTypePolicy", (mode, source, length)), of)


def test_signatures(seen: Seen) -> None:
    """Arguments go by the same names; unknown, missing and excess ones are refused alike."""
    for call in (
        Call("DTypePolicy", (), (("name", "float16"),)),
        Call("DTypePolicy", ("float16", "float32")),
        Call("DTypePolicy", (), (("loss_scale", None),)),
        Call("get", ()),
        Call("get", (), (("identifier", "float16"),)),
        Call("serialize", (), (("dtype_policy", None),)),
        Call("deserialize", (), (("config", None), ("custom_objects", None))),
        Call("set_dtype_policy", ()),
        Call("set_floatx", ()),
        Call("standardize_dtype", ()),
        Call("QuantizedDTypePolicy", ()),
        Call("QuantizedDTypePolicy", ("int8",), (("source_name", "float32"),)),
        Call("QuantizedFloat8DTypePolicy", ("float8", "float16"), (("amax_history_length", 7),)),
        Call("Int4DTypePolicy", ("int4/8", "float32", 3)),
        Call("Int4DTypePolicy", ("int4/8", "float32"), (("block_size", 3),)),
        Call("DTypePolicyMap", (), (("default_policy", "float16"), ("policy_map", {}))),
    ):
        seen.compare(call, State())


def test_attributes() -> None:
    """The properties are read-only, and the class attribute of float8 is there."""
    names = ("name", "compute_dtype", "variable_dtype", "quantization_mode")
    for system in (original(), OURS):
        for policy in (
            system.dtype_policies.get(name)
            for name in ("float32", "int8_from_float32", "int4/8_from_float32")
        ):
            for name in names:
                with pytest.raises(AttributeError):
                    setattr(policy, name, "float16")
        float8 = system.dtype_policies.QuantizedFloat8DTypePolicy
        assert float8.default_amax_history_length == 1024
        with pytest.raises(AttributeError):
            float8("float8", "float32").amax_history_length = 3
        assert not hasattr(system.dtype_policies.get("float32"), "loss_scale")


def test_generated_names(seen: Seen) -> None:
    """Names from the pieces of the grammar, in every state, through everything that takes one."""

    @settings(max_examples=2500)
    @given(name=spelled(), of=st.sampled_from(STATES))
    def compare(name: str, of: State) -> None:
        for function in BY_NAME:
            seen.compare(Call(function, (name,)), of)

    compare()


def test_generated_constructors(seen: Seen) -> None:
    """Modes with numbers and sources from the pieces of the grammar, in every state."""

    @settings(max_examples=1500)
    @given(
        constructor=st.sampled_from(CONSTRUCTORS),
        mode=st.one_of(NUMBERED, spelled()),
        source=st.one_of(st.none(), PLAIN, spelled()),
        of=st.sampled_from(STATES),
    )
    def compare(constructor: str, mode: str, source: str | None, of: State) -> None:
        seen.compare(Call(constructor, (mode, source)), of)

    compare()


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_needed(name: str) -> None:
    """Each line of the list of differences has a call that differs."""
    seen = Seen()
    with state():
        seen.compare(*WITNESSES[name])
    assert seen[name] == 1
