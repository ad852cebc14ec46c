"""The real jmp and castwise's, and trees with every kind of leaf, to cast with either."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import peers
from castwise.compat import jmp as ours
from recorded import Peer
from sides import Outcome, outcome

FIELDS = ("param_dtype", "compute_dtype", "output_dtype")
WORDS = ("bf16", "bfloat16", "f16", "float16", "full", "f32", "float32", "f64", "float64", "half")


REAL = Peer(peers.jmp)


def real() -> Any:
    return REAL


def both(call: Callable[[Any], Any]) -> tuple[Outcome, Outcome]:
    """Do the same with the original and with castwise."""
    return outcome(call, real()), outcome(call, ours)


def dtypes(policy: Any) -> tuple[np.dtype[Any], ...]:
    """Its three dtypes, however either spells them."""
    assert type(policy).__name__ == "Policy"
    return tuple(np.dtype(getattr(policy, field)) for field in FIELDS)


CASTS: dict[str, Callable[[Any, Any], Any]] = {
    **{f"{word} param": lambda s, t, w=word: s.get_policy(w).cast_to_param(t) for word in WORDS},
    **{
        f"{word} compute": lambda s, t, w=word: s.get_policy(w).cast_to_compute(t) for word in WORDS
    },
    **{f"{word} output": lambda s, t, w=word: s.get_policy(w).cast_to_output(t) for word in WORDS},
    "full": lambda s, t: s.cast_to_full(t),
    "half": lambda s, t: s.cast_to_half(t),
}


class WithArray:
    """No array, although numpy would make one of it."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.ones(2)


class Kind(np.ndarray):
    """A subclass, as a library may have its own."""


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | peers.jax().Array)


def facts(value: Any, source: Any) -> Any:
    """Plain data about a cast tree: kinds, dtypes, bytes, and which leaves are the caller's own."""
    if is_array(value):
        dtype = str(value.dtype)
        if dtype.startswith("key<"):  # jax's random keys show no bytes
            return type(value).__name__, dtype, value is source
        plain = np.asarray(value)
        content = repr(plain.tolist()) if dtype == "object" else plain.tobytes()
        mask = getattr(value, "mask", None)
        hidden = None if mask is None else mask.tolist()
        return type(value).__name__, dtype, plain.shape, content, hidden, value is source
    if isinstance(value, collections.abc.Mapping):
        items = {key: facts(leaf, source[key]) for key, leaf in value.items()}
        return type(value).__name__, getattr(value, "default_factory", None), items
    if isinstance(value, list | tuple | collections.deque):
        leaves = [facts(*pair) for pair in zip(value, source, strict=True)]
        return type(value).__name__, getattr(value, "maxlen", None), leaves
    return type(value).__name__, value is source


def cast_facts(side: Any, tree: Any, how: str) -> tuple[Any, tuple[str, ...]]:
    """Cast; give the facts, and the kinds of warnings met."""
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        cast = CASTS[how](side, tree)
    kinds = {each.category.__name__ for each in met} - {"RuntimeWarning"}  # numpy: overflow
    return facts(cast, tree), tuple(sorted(kinds))


NUMBERS = [0.0, -0.0, 1 / 3, 1.0, 300.25, 65504.0, 65519.0, 1e6, 2.0**-24, 1e-30, np.inf, -np.inf]
FORMATS = ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def numbers(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.array(NUMBERS).astype(getattr(ml_dtypes, name, name))


@cache
def leaves() -> dict[str, Any]:
    """One of each kind, the same object for both sides."""
    jax = peers.jax()
    other_formats = ("float8_e8m0fnu", "float6_e2m3fn", "float4_e2m1fn", "int4", "uint2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's matrix and chararray are old
        oddities = {"matrix": np.matrix([[1.0, 2.0]]), "characters": np.char.array(["a"])}
    return {
        **{name: numbers(name) for name in FORMATS},
        **{name: np.ones(3, getattr(ml_dtypes, name)) for name in other_formats},
        **{code: np.ones(2, code) for code in ("i4", "u1", "i8", "?", "c8", "c16", "U1", "M8[s]")},
        "big endian": np.arange(3, dtype=">f4"),
        "object": np.array([1.5, None], object),
        "structured": np.zeros(2, [("a", "f4")]),
        "0-d": np.array(1.5),
        "empty": np.zeros((0, 3)),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "strided": np.arange(6, dtype=np.float32)[::2],
        "backwards": np.arange(6.0)[::-1],
        "transposed": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        "read-only": np.broadcast_to(np.float32(1.5), (2, 3)),
        "subclass": np.ones(2).view(Kind),
        **oddities,
        "masked": np.ma.masked_array([1.5, 2.5], [False, True]),
        "longdouble": np.ones(2, np.longdouble),
        **{f"numpy scalar {name}": np.dtype(name).type(1.5) for name in ("f2", "f4", "f8")},
        "bfloat16 scalar": ml_dtypes.bfloat16(1.5),
        "numpy int": np.int32(1),
        **{repr(value): value for value in (1.5, 1, True, 1j, "x", b"x", None, {1.5}, ..., len)},
        "array-like": WithArray(),
        **{f"jax {name}": jax.numpy.ones(3, name) for name in ("float16", "float32", "bfloat16")},
        **{f"jax {name}": jax.numpy.ones(3, name) for name in ("int32", "bool", "complex64")},
        "jax scalar": jax.numpy.float32(1.5),
        "jax key": jax.random.key(0),
    }


LEAVES = (
    *(*FORMATS, "float8_e8m0fnu", "float6_e2m3fn", "float4_e2m1fn", "int4", "uint2"),
    *("i4", "u1", "i8", "?", "c8", "c16", "U1", "M8[s]", "big endian", "object", "structured"),
    *("0-d", "empty", "fortran", "strided", "backwards", "transposed", "read-only", "subclass"),
    *(
        "masked",
        "longdouble",
        "matrix",
        "characters",
        "numpy scalar f2",
        "numpy scalar f4",
        "numpy scalar f8",
    ),
    *("bfloat16 scalar", "numpy int", "1.5", "1", "True", "1j", "'x'", "b'x'", "None", "{1.5}"),
    *("Ellipsis", "<built-in function len>", "array-like", "jax float16", "jax float32"),
    *("jax bfloat16", "jax int32", "jax bool", "jax complex64", "jax scalar", "jax key"),
)


class Pair(NamedTuple):
    weight: Any
    bias: Any


BRANCHES = st.recursive(
    st.sampled_from(LEAVES).map(lambda kind: ("leaf", kind)),
    lambda inner: st.one_of(
        st.tuples(st.just("list"), st.lists(inner, max_size=3)),
        st.tuples(st.just("tuple"), st.lists(inner, max_size=3)),
        st.tuples(st.just("pair"), st.lists(inner, min_size=2, max_size=2)),
        st.tuples(st.just("deque"), st.lists(inner, max_size=2)),
        st.tuples(
            st.sampled_from(["dict", "ordered", "default"]),
            st.dictionaries(st.sampled_from(["w", "b", "a/b", ""]), inner, max_size=3),
        ),
    ),
    max_leaves=8,
)


def planted(branch: Any, without: str = "nothing") -> Any:
    """Make the tree that a branch describes; leaves of a kind to go without become None."""
    kind, content = branch
    if kind == "leaf":
        return None if content.startswith(without) else leaves()[content]
    if isinstance(content, dict):
        grown = {key: planted(each, without) for key, each in content.items()}
        if kind == "default":
            return collections.defaultdict(list, grown)
        return collections.OrderedDict(grown) if kind == "ordered" else grown
    grown = [planted(each, without) for each in content]
    if kind == "pair":
        return Pair(*grown)
    if kind == "deque":
        return collections.deque(grown, maxlen=5)
    return tuple(grown) if kind == "tuple" else grown
