"""The two sides of the TF 2 dialects under the same names: the real packages, and castwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis.strategies as st
import peers
from castwise import config
from castwise.compat.tf_keras import mixed_precision
from recorded import SESSION, Peer
from sides import Outcome, outcome

# What tf.as_dtype takes; each also with the suffix "_ref".
ALIASES = ("half", "float", "double")
DTYPE_NAMES = (
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128", "bool", "string"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("int2", "int4", "uint2", "uint4", "qint8", "qint16", "qint32", "quint8", "quint16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz"),
    *("float4_e2m1fn", "resource", "variant", *ALIASES),
)
MIXED_NAMES = ("mixed_float16", "mixed_bfloat16")
REMOVED_NAMES = (
    *("infer_float32_vars", "infer_with_float32_vars", "float16_with_float32_vars"),
    *("bfloat16_with_float32_vars", "foo_float32_vars", "_float32_vars", "float32_float32_vars"),
)
STRANGE_NAMES = (
    *("int", "long", "str", "complex", "object", "f4", "<f4", "float128", "", "abc", "Float32"),
    *(" float32", "float32 ", "mixed_float32", "mixed_float64", "Mixed_Float16", "infer"),
    *("float32_vars", "float8", "float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float6_e2m3fn"),
    *("int1", "uint1", "bcomplex32", "complex32", "bf16", "e4m3fn", "F8_E4M3", "int8_from_float32"),
    *("_ref", "float32_ref_ref", "mixed_float16_ref", "_infer_ref", "float32\n", "float\x0032"),
)
NAMES = (
    *DTYPE_NAMES,
    *(f"{name}_ref" for name in DTYPE_NAMES),
    *MIXED_NAMES,
    "_infer",
    *REMOVED_NAMES,
    *STRANGE_NAMES,
)


@dataclass(frozen=True)
class Side:
    """One implementation of a TF 2 dialect."""

    policy: type[Any]
    global_policy: Callable[[], Any]
    set_global_policy: Callable[[Any], None]
    policy_scope: Callable[[Any], AbstractContextManager[None]]
    set_floatx: Callable[[str], None]
    serialize: Callable[[Any], Any]
    deserialize: Callable[..., Any]
    get_policy: Callable[[Any], Any] | None = None


@cache
def _real_tf_keras() -> Side:
    module = peers.tf_keras().src.mixed_precision.policy
    return Side(
        policy=module.Policy,
        global_policy=module.global_policy,
        set_global_policy=module.set_global_policy,
        policy_scope=module.policy_scope,
        set_floatx=peers.tf_keras().backend.set_floatx,
        serialize=module.serialize,
        deserialize=module.deserialize,
        get_policy=module.get_policy,
    )


REAL: Any = Peer(_real_tf_keras)


def real_tf_keras() -> Side:
    """tf_keras, the successor of TF 2.4 to 2.15."""
    side: Side = REAL
    return side


@cache
def our_tf_keras() -> Side:
    """castwise.compat.tf_keras.mixed_precision."""
    return Side(
        policy=mixed_precision.Policy,
        global_policy=mixed_precision.global_policy,
        set_global_policy=mixed_precision.set_global_policy,
        policy_scope=mixed_precision.policy_scope,
        set_floatx=config.set_floatx,
        serialize=mixed_precision.serialize,
        deserialize=mixed_precision.deserialize,
        get_policy=mixed_precision.get_policy,
    )


def described(policy: Any) -> tuple[Any, ...]:
    """Everything that a policy says of itself, without its identity."""
    return (
        type(policy).__name__,
        policy.name,
        policy.compute_dtype,
        policy.variable_dtype,
        repr(policy),
        policy.get_config(),
    )


def reset(side: Side) -> None:
    """Put the global state back to what it is at import."""
    if side is not REAL or SESSION.is_live:
        with SESSION.unrecorded():
            side.set_global_policy(None)
            side.set_floatx("float32")


@contextmanager
def fresh_state() -> Iterator[None]:
    """Give both sides the global state of a fresh process, before and after."""
    for side in (real_tf_keras(), our_tf_keras()):
        reset(side)
    yield
    for side in (real_tf_keras(), our_tf_keras()):
        reset(side)


def both(call: Callable[[Side], Any]) -> tuple[Outcome, Outcome]:
    """Do the same with the original and with castwise."""
    return outcome(call, real_tf_keras()), outcome(call, our_tf_keras())


def layer_policy(side: Side, identifier: Any) -> tuple[Any, ...]:
    """What a layer makes of its `dtype` argument."""
    assert side.get_policy is not None
    return described(side.get_policy(identifier))


class NamedFloat16:
    """A value that is not a dtype, with the name of one."""

    name = "float16"


# Names as people misspell them: pieces of real ones put together, other cases, spaces, anything.
PIECES = st.sampled_from(
    (*DTYPE_NAMES, *MIXED_NAMES, "mixed", "_", "_ref", "_float32_vars", "with", "_infer", "8", " ")
)
GENERATED_NAMES = st.one_of(
    st.sampled_from(NAMES),
    st.lists(PIECES, max_size=3).map("".join),
    st.sampled_from(NAMES).map(str.upper),
    st.sampled_from(NAMES).map(str.title),
    st.text(max_size=12),
)
