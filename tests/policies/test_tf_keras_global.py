"""The global policy of TF 2 against the real tf_keras: of the whole process, following floatx."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import hypothesis.strategies as st
import numpy as np
import peers
import pytest
from hypothesis import example, given
from sides import outcome, raised
from tf2_sides import (
    NAMES,
    Side,
    both,
    described,
    layer_policy,
    our_tf_keras,
    real_tf_keras,
    reset,
)

pytestmark = pytest.mark.usefixtures("tf_keras_state")


GLOBAL_ARGUMENTS: list[Any] = [
    *NAMES,
    None,
    np.float32,
    1,
    {},
    {"class_name": "Policy", "config": {"name": "mixed_float16"}},
    np.str_("half"),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("argument", GLOBAL_ARGUMENTS, ids=repr)
def test_set_global_policy(argument: Any) -> None:
    """What is refused leaves the policy that was there."""

    def after(side: Side) -> tuple[Any, ...]:
        side.set_global_policy("mixed_bfloat16")
        done = outcome(side.set_global_policy, argument)
        return done, described(side.global_policy())

    original, ours = both(after)
    assert original.error is None
    assert ours == original


def test_a_tensorflow_dtype_is_not_a_global_policy() -> None:
    dtype = peers.tensorflow().float32
    original, ours = both(lambda side: side.set_global_policy(dtype))
    assert ours == original == raised(TypeError)


def test_the_object_that_was_set_comes_back() -> None:
    for side in (real_tf_keras(), our_tf_keras()):
        policy = side.policy("mixed_float16")
        side.set_global_policy(policy)
        assert side.global_policy() is policy
        with side.policy_scope("float64"):
            assert side.global_policy() is not policy
        assert side.global_policy() is policy


# One step: what it does with a side and the scopes that it has open.
Step = tuple[str, Any]
SETTABLE = st.sampled_from((*NAMES, None))
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("set"), SETTABLE),
        st.tuples(st.just("enter"), SETTABLE),
        st.tuples(st.just("leave"), st.booleans()),
        st.tuples(st.just("floatx"), st.sampled_from(["float16", "float32", "float64"])),
        st.tuples(st.just("floatx"), st.sampled_from(["float8_e4m3fn", "half", "int8", None])),
        st.tuples(st.just("layer"), st.sampled_from([None, "", "half", "mixed_float16"])),
    ),
    max_size=12,
)


def enter(scopes: list[AbstractContextManager[None]], side: Side, argument: Any) -> None:
    scope = side.policy_scope(argument)
    assert scope.__enter__() is None
    scopes.append(scope)


def leave(scopes: list[AbstractContextManager[None]], failing: bool) -> bool | None:
    if not scopes:
        return None
    error = KeyError("from inside")
    return bool(scopes.pop().__exit__(*((KeyError, error, None) if failing else (None,) * 3)))


def run(side: Side, steps: list[Step]) -> list[Any]:
    """Take the steps; note what each did, and the global policy after it."""
    reset(side)
    notes: list[Any] = []
    with ExitStack() as stack:
        scopes: list[AbstractContextManager[None]] = []
        stack.callback(lambda: [leave(scopes, failing=False) for _ in tuple(scopes)])
        for kind, argument in steps:
            if kind == "set":
                done = outcome(side.set_global_policy, argument)
            elif kind == "enter":
                done = outcome(enter, scopes, side, argument)
            elif kind == "leave":
                done = outcome(leave, scopes, argument)
            elif kind == "floatx":
                done = outcome(side.set_floatx, argument)
            else:
                done = outcome(layer_policy, side, argument)
            notes.append((kind, argument, done, described(side.global_policy())))
    notes.append(described(side.global_policy()))
    reset(side)
    return notes


@given(STEPS)
@example([("enter", "float16"), ("enter", "int32"), ("set", "half"), ("leave", True)])
@example([("floatx", "float16"), ("enter", "half"), ("floatx", "float64"), ("leave", False)])
def test_any_sequence_of_changes(steps: list[Step]) -> None:
    assert run(our_tf_keras(), steps) == run(real_tf_keras(), steps)


def test_the_global_policy_is_the_whole_process() -> None:
    """Another thread sees it, and its own change is seen here."""

    def story(side: Side) -> list[Any]:
        seen = []

        def elsewhere() -> None:
            seen.append(described(side.global_policy()))
            side.set_global_policy("float64")

        side.set_global_policy("mixed_float16")
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return [*seen, described(side.global_policy())]

    original, ours = both(story)
    assert [each[1] for each in original.value] == ["mixed_float16", "float64"]
    assert ours == original
