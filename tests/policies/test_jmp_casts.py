"""jmp's casts of trees against the real jmp's: bit for bit, with jax and without."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import peers
import pytest
from astype import IS_NEW
from castwise.compat import jmp as ours
from hypothesis import given
from hypothesis.extra import numpy as arrays
from jmp_sides import (
    BRANCHES,
    CASTS,
    LEAVES,
    WORDS,
    both,
    cast_facts,
    facts,
    leaves,
    planted,
    real,
)
from recorded import SESSION
from sides import outcome, raised, returned


def test_every_kind_of_leaf_is_listed() -> None:
    assert sorted(LEAVES) == sorted(leaves())


@pytest.mark.parametrize("kind", LEAVES)
def test_every_kind_of_leaf(kind: str) -> None:
    for how in ("bf16 compute", "f16 param", "f32 output", "f64 compute", "full", "half"):
        original, mine = both(lambda side, how=how: cast_facts(side, leaves()[kind], how))
        assert original.error is None, how
        assert mine == original, how


@given(BRANCHES, st.sampled_from(sorted(CASTS)))
def test_generated_trees(branch: Any, how: str) -> None:
    tree = planted(branch)
    original, mine = both(lambda side: cast_facts(side, tree, how))
    assert original.error is None
    assert mine == original


def float64_to_bfloat16_rounds_twice(value: Any) -> Any:
    """Where ml_dtypes, which rounds by way of float32, differs from one rounding."""
    with np.errstate(over="ignore"):
        return value.astype(np.float32).astype(ml_dtypes.bfloat16)


@given(
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        arrays.array_shapes(min_dims=0, max_dims=3, max_side=5),
        elements={"allow_nan": False},
    ),
    st.sampled_from(WORDS),
)
def test_generated_arrays(array: Any, word: str) -> None:
    """Bit for bit, but for float64 to bfloat16, which the original rounds twice."""
    original, mine = both(lambda side: side.get_policy(word).cast_to_compute(array))
    dtype = original.value.dtype
    assert mine.value.dtype == dtype
    assert mine.value is not array
    assert not np.shares_memory(mine.value, array)
    wanted = original.value
    if array.dtype == np.float64 and dtype == ml_dtypes.bfloat16:
        assert wanted.tobytes() == float64_to_bfloat16_rounds_twice(array).tobytes()
        differs = mine.value != wanted
        exact = array[differs]
        assert np.all(
            np.abs(mine.value[differs].astype(np.float64) - exact)
            < np.abs(wanted[differs].astype(np.float64) - exact)
        )
    else:
        assert mine.value.tobytes() == wanted.tobytes()


def test_float64_is_rounded_once() -> None:
    """Divergence before ml_dtypes 0.7, whose first rounding, to float32, lands on the tie."""
    if SESSION.is_live and IS_NEW:
        pytest.skip("this ml_dtypes rounds once")
    array = np.array([1 + 2**-8 + 2**-30])
    original, mine = both(lambda side: side.get_policy("bf16").cast_to_compute(array).tolist())
    assert original == returned([1.0])
    assert mine == returned([1.0078125])


@contextmanager
def without_jax() -> Iterator[None]:
    """As in a process that never imported jax."""
    peers.jax()
    jax = sys.modules.pop("jax")
    try:
        yield
    finally:
        sys.modules["jax"] = jax


@given(BRANCHES, st.sampled_from(sorted(CASTS)))
def test_without_jax_the_same_is_a_tree(branch: Any, how: str) -> None:
    tree = planted(branch, without="jax")
    original = outcome(cast_facts, real(), tree, how)
    with without_jax():
        mine = outcome(cast_facts, ours, tree, how)
    assert original.error is None
    assert mine == original


def test_keys_of_several_kinds() -> None:
    """Divergence: jax sorts the keys of a dict and fails where they have no order."""
    tree = {1: np.ones(2), "a": np.ones(2)}
    original, mine = both(lambda side: side.cast_to_half(tree))
    assert original == mine == raised(ValueError)
    with without_jax():
        alone = ours.cast_to_half(tree)
    assert list(alone) == [1, "a"]
    assert all(leaf.dtype == np.float16 for leaf in alone.values())


def test_numpy_needs_no_jax() -> None:
    """Importing castwise and casting numpy arrays do not import jax, which would take a second."""
    program = """if True:
        import sys
        import numpy as np
        from castwise.compat import jmp
        tree = jmp.get_policy("p=f32,c=half").cast_to_compute({"w": [np.ones(2), None]})
        assert tree["w"][0].dtype == jmp.half_dtype() == np.float16
        assert "jax" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_callers_tree_is_left_alone() -> None:
    for side in (real(), ours):
        array = np.ones(3, np.float32)
        tree = {"w": array, "list": [array]}
        cast = side.cast_to_half(tree)
        assert tree["w"] is array
        assert tree["list"] == [array]
        assert cast is not tree
        assert cast["w"] is not cast["list"][0]


def test_under_jit() -> None:
    """JAX traces through the casts of both, to the same result."""
    jax = peers.jax()
    tree = {"w": jax.numpy.arange(4.0), "n": jax.numpy.arange(3), "none": None}
    policy = "p=f32,c=bf16,o=f16"

    def run(side: Any) -> Any:
        return jax.jit(lambda leaf: side.get_policy(policy).cast_to_compute(leaf))(tree)

    original, mine = both(lambda side: facts(run(side), tree))
    assert original.error is None
    assert mine == original


def test_a_tree_that_jax_was_told_of() -> None:
    """A class registered as a pytree is one for both."""
    jax = peers.jax()
    kind = jax.tree_util.register_dataclass(
        dataclasses.make_dataclass("Registered", ["weight", "name"]),
        data_fields=["weight"],
        meta_fields=["name"],
    )

    def cast(side: Any) -> Any:
        cast = side.cast_to_half([kind(np.ones(2), "first")])[0]
        return type(cast) is kind, cast.name, str(cast.weight.dtype)

    original, mine = both(cast)
    assert original == returned((True, "first", "float16"))
    assert mine == original


def test_what_jax_holds_for_a_leaf_is_one() -> None:
    @dataclasses.dataclass
    class Unregistered:
        weight: Any

    class Entries(dict[str, Any]):
        """A subclass; jax knows only the classes themselves."""

    class Items(list[Any]):
        """The same."""

    array = np.ones(2)
    for tree in (
        Unregistered(array),
        collections.UserDict(a=array),
        collections.Counter(a=array),
        Entries(a=array),
        Items([array]),
        {1.5},
    ):
        original, mine = both(lambda side, tree=tree: side.cast_to_half(tree) is tree)
        assert mine == original == returned(True)
        with without_jax():
            assert ours.cast_to_half(tree) is tree, f"without jax, {tree!r} is not a leaf"


def test_half_dtype() -> None:
    original, mine = both(lambda side: np.dtype(side.half_dtype()))
    assert mine == original == returned(np.dtype(np.float16))
