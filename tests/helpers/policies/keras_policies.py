"""Policies of every class, and maps of them, to be made on both systems."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from keras_names import Call
from keras_systems import State, System

STATES = (
    State(),
    State(floatx="bfloat16"),
    State(policy="mixed_float16"),
    State(policy="mixed_bfloat16"),
    State(policy="int8_from_mixed_bfloat16"),
    State(policy="float16", is_map=True),
)

# A policy of each class, and all that a class can hold; canonical, so that no rule applies.
SOURCES = st.sampled_from(("float32", "bfloat16", "mixed_bfloat16", "int", "int8", "mixed_float16"))
GROUPS = st.one_of(st.just(-1), st.integers(1, 2**40))
POLICIES = st.one_of(
    st.builds(lambda name: Call("DTypePolicy", (name,)), SOURCES),
    st.builds(lambda name: Call("FloatDTypePolicy", (name,)), SOURCES),
    st.builds(
        lambda mode, source: Call("QuantizedDTypePolicy", (mode, source)),
        st.sampled_from(("float8", "int4", "gptq", "awq")),
        SOURCES,
    ),
    st.builds(
        lambda source: Call("QuantizedDTypePolicy", ("int8", source)),
        SOURCES.filter(lambda source: source != "mixed_float16"),
    ),
    st.builds(
        lambda source, length: Call("QuantizedFloat8DTypePolicy", ("float8", source, length)),
        SOURCES,
        st.integers(1, 10**6),
    ),
    st.builds(lambda g, s: Call("Int4DTypePolicy", (f"int4/{g}", s)), GROUPS, SOURCES),
    st.builds(
        lambda b, g, s: Call("GPTQDTypePolicy", (f"gptq/{b}/{g}", s)),
        st.sampled_from((2, 3, 4, 8)),
        GROUPS,
        SOURCES,
    ),
    st.builds(lambda g, s: Call("AWQDTypePolicy", (f"awq/4/{g}", s)), GROUPS, SOURCES),
)
KEYS = st.sampled_from(("a", "b/c", "enc/.*", "", "é", "a|b"))
MAPS = st.tuples(
    st.one_of(st.none(), st.just("float16"), st.just("int4/8_from_float32"), POLICIES),
    st.dictionaries(KEYS, POLICIES, max_size=4),
)


def made(call: Call, system: System) -> Any:
    """Make a policy on one system."""
    return getattr(system.dtype_policies, call.function)(*call.arguments)


def made_map(content: tuple[Any, dict[str, Call]], system: System) -> Any:
    """Make a map on one system."""
    default, items = content
    if isinstance(default, Call):
        default = made(default, system)
    policy_map = {key: made(call, system) for key, call in items.items()}
    return system.dtype_policies.DTypePolicyMap(default, policy_map)
