"""The global policy and floatx behave as the real Keras', in any order of calls and in threads.

Keras has no scope: `dtype_policy_scope` must do what a program on Keras does by hand, keep the
policy of the thread and put it back.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from castwise import config
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from keras_names import Call, Own, expected
from keras_systems import OURS, Outcome, State, both, original, outcome, state

THREADS = 3

POLICIES = st.one_of(
    st.sampled_from(("float32", "float16", "mixed_float16", "mixed_bfloat16", "int", "bool")),
    st.sampled_from(("int8_from_float32", "int4/8_from_mixed_float16", "float8_from_bfloat16")),
    st.sampled_from(
        tuple(
            map(
                Own,
                (
                    "DTypePolicy('float64')",
                    "FloatDTypePolicy('mixed_bfloat16')",
                    "QuantizedFloat8DTypePolicy('float8', 'mixed_bfloat16', 3)",
                    "DTypePolicyMap('mixed_float16')",
                    "DTypePolicyMap('int8_from_bfloat16')",
                ),
            )
        )
    ),
)
NO_POLICIES = st.sampled_from((None, "abc", "", "int4", 3, float, b"float16", {}, ["float16"]))
FLOATS = st.sampled_from(("float16", "float32", "float64", "bfloat16"))
READERS = ("get", "DTypePolicy", "QuantizedDTypePolicy", "Int4DTypePolicy")
NO_FLOATS = st.sampled_from(("int32", "float", "Float32", "", None, 3, float, b"float16", []))


class InStep(RuleBasedStateMachine):
    """Three threads, each step made on both systems in the same one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = [ThreadPoolExecutor(1) for _ in range(THREADS)]
        # Per thread: the open scopes, each with the policy that Keras' program keeps by hand.
        self.scopes: list[list[tuple[Any, Any]]] = [[] for _ in range(THREADS)]
        self.last: list[tuple[Any, ...]] = [(None, None)] * THREADS

    @initialize()
    def fresh(self) -> None:
        """Begin as a fresh process does."""
        for system in both():
            State().enter(system)

    def teardown(self) -> None:
        """End all threads."""
        for thread in range(THREADS):
            self.leave_all_scopes(thread)
            self.threads[thread].shutdown()
        self.fresh()

    def run(self, thread: int, call: Callable[[], Any]) -> Any:
        """Run something in one of the threads."""
        return self.threads[thread].submit(call).result()

    def compare(self, thread: int, call: Call) -> None:
        """Call castwise in one thread, and compare with the real Keras or what is listed."""

        def compare() -> tuple[Outcome, Outcome]:
            # To describe the state reads the policy, which latches it: only where the call does.
            of = self.state() if call.function in READERS else State()
            return expected(call, of)[0], call.on(OURS)

        wanted, ours = self.run(thread, compare)
        assert ours == wanted, f"{call} in thread {thread}: castwise {ours}, not {wanted}"

    @staticmethod
    def state() -> State:
        """Describe the state that the real Keras is in, in this thread."""
        theirs = original()
        policy = theirs.config.dtype_policy()
        is_map = isinstance(policy, theirs.dtype_policies.DTypePolicyMap)
        name = policy.default_policy.name if is_map else policy.name
        return State(theirs.config.floatx(), name, is_map)

    @rule(thread=st.integers(0, THREADS - 1), policy=st.one_of(POLICIES, POLICIES, NO_POLICIES))
    def set_policy(self, thread: int, policy: Any) -> None:
        """Set the policy of one thread, or fail to."""

        def set_both() -> list[Outcome]:
            return [
                outcome(lambda: system.config.set_dtype_policy(own(system, policy)))  # noqa: B023
                for system in both()
            ]

        theirs, ours = self.run(thread, set_both)
        assert theirs == ours

    @rule(value=st.one_of(FLOATS, NO_FLOATS), thread=st.integers(0, THREADS - 1))
    def set_floatx(self, thread: int, value: Any) -> None:
        """Set floatx, for all threads, or fail to."""
        self.compare(thread, Call("set_floatx", (value,)))

    @rule(
        thread=st.integers(0, THREADS - 1),
        call=st.sampled_from(
            (
                Call("get", (None,)),
                Call("DTypePolicy", ()),
                Call("QuantizedDTypePolicy", ("int8",)),
                Call("Int4DTypePolicy", ("int4/8",)),
                Call("standardize_dtype", (None,)),
                Call("is_float_dtype", (None,)),
            )
        ),
    )
    def read(self, thread: int, call: Call) -> None:
        """Read what depends on the global state."""
        self.compare(thread, call)

    @rule(thread=st.integers(0, THREADS - 1))
    def read_policy(self, thread: int) -> None:
        """Read the policy: equal in both systems, and a new object in both or in neither."""

        def read() -> list[Any]:
            return [system.config.dtype_policy() for system in both()]

        theirs, ours = self.run(thread, read)
        assert outcome(lambda: theirs) == outcome(lambda: ours)
        before = self.last[thread]
        assert (theirs is before[0]) is (ours is before[1])
        self.last[thread] = (theirs, ours)

    @rule(thread=st.integers(0, THREADS - 1))
    def replace_thread(self, thread: int) -> None:
        """End a thread and start another: nothing is left of the first."""
        self.leave_all_scopes(thread)
        self.threads[thread].shutdown()
        self.threads[thread] = ThreadPoolExecutor(1)

    @precondition(lambda self: not any(self.scopes))
    @rule()
    def clear(self) -> None:
        """Clear all threads: in Keras one call does it, in castwise each thread is its own."""
        original().config.clear_dtype_policy()
        for thread in range(THREADS):
            self.run(thread, OURS.config.clear_dtype_policy)

    @rule(thread=st.integers(0, THREADS - 1), policy=POLICIES)
    def enter_scope(self, thread: int, policy: Any) -> None:
        """Open a scope in castwise; in Keras keep the policy, and set one."""

        def enter() -> None:
            kept = _kept_policy()
            scope = config.dtype_policy_scope(own(OURS, policy))
            scope.__enter__()
            original().config.set_dtype_policy(own(original(), policy))
            self.scopes[thread].append((scope, kept))

        self.run(thread, enter)

    @precondition(lambda self: any(self.scopes))
    @rule(data=st.data(), fails=st.booleans())
    def leave_scope(self, data: st.DataObject, fails: bool) -> None:
        """Leave the innermost scope of a thread, sometimes by an exception."""
        open_ones = [thread for thread, scopes in enumerate(self.scopes) if scopes]
        error = (KeyError, KeyError("abc"), None) if fails else (None, None, None)
        self.leave(data.draw(st.sampled_from(open_ones)), error)

    def leave(self, thread: int, error: tuple[Any, ...] = (None, None, None)) -> None:
        """Leave the innermost scope of a thread; in Keras, put back the policy that was kept."""
        scope, kept = self.scopes[thread].pop()

        def leave() -> None:
            assert not scope.__exit__(*error)
            _keep_policy(kept)

        self.run(thread, leave)

    def leave_all_scopes(self, thread: int) -> None:
        """Leave a thread's scopes before it ends."""
        while self.scopes[thread]:
            self.leave(thread)

    @invariant()
    def floatx_is_the_same_everywhere(self) -> None:
        """Floatx belongs to the process."""
        theirs = original().config.floatx()
        assert {self.run(thread, OURS.config.floatx) for thread in range(THREADS)} == {theirs}


def own(system: Any, value: Any) -> Any:
    """Make an argument that each system makes for itself."""
    if isinstance(value, Own):
        return eval(value.expression, dict(vars(system.dtype_policies)))  # noqa: S307
    return value


def _kept_policy() -> Any:
    """Find the policy that the real Keras has for this thread, without making one."""
    from keras.src.backend.common import global_state  # noqa: PLC0415 - after peers

    return global_state.get_global_attribute("dtype_policy")


def _keep_policy(policy: Any) -> None:
    from keras.src.backend.common import global_state  # noqa: PLC0415 - after peers

    global_state.set_global_attribute("dtype_policy", policy)


TestInStep = InStep.TestCase
TestInStep.settings = settings(max_examples=150, stateful_step_count=40)


def test_clear_is_for_one_thread() -> None:
    """Keras' `clear_session` drops the policies of all threads, castwise's of its own only."""
    for system, remains in ((original(), "float32"), (OURS, "mixed_float16")):
        with state(), ThreadPoolExecutor(1) as other:
            other.submit(system.config.set_dtype_policy, "mixed_float16").result()
            system.config.set_dtype_policy("float16")
            system.config.clear_dtype_policy()
            assert system.config.dtype_policy().name == "float32"
            assert other.submit(system.config.dtype_policy).result().name == remains


def test_clear_forgets_the_latched_floatx() -> None:
    """Until it is cleared, a policy made from floatx stays; floatx itself is not cleared."""
    with state() as systems:
        for system in systems:
            system.config.set_floatx("float16")
            assert system.config.dtype_policy().name == "float16"
            system.config.set_floatx("float64")
            assert system.config.dtype_policy().name == "float16"
            system.config.clear_dtype_policy()
            assert system.config.floatx() == "float64"
            assert system.config.dtype_policy().name == "float64"


def in_force() -> str:
    """Name the policy in force here."""
    return config.dtype_policy().name


def test_scopes_nest_and_end() -> None:
    """The innermost scope counts; exceptions pass through; what is set inside is undone."""
    with state():
        config.set_dtype_policy("bfloat16")
        before = config.dtype_policy()
        with config.dtype_policy_scope("mixed_float16"):
            assert in_force() == "mixed_float16"
            with config.dtype_policy_scope(OURS.dtype_policies.get("int8_from_float32")):
                assert in_force() == "int8_from_float32"
                config.set_dtype_policy("float64")
                assert in_force() == "float64"
            assert in_force() == "mixed_float16"
            with pytest.raises(KeyError), config.dtype_policy_scope("float16"):
                raise KeyError
            assert in_force() == "mixed_float16"
        assert config.dtype_policy() is before


def test_a_scope_does_not_latch() -> None:
    """A thread that never had a policy has none after a scope: floatx still counts."""
    with state():
        with config.dtype_policy_scope("mixed_float16"):
            assert in_force() == "mixed_float16"
        config.set_floatx("float64")
        assert in_force() == "float64"


@pytest.mark.parametrize(
    "value", ["abc", "", "int4", 3, pytest.param(object(), id="object"), {}, ["float16"]], ids=repr
)
def test_scopes_of_no_policy(value: Any) -> None:
    """What `get` refuses cannot be the policy of a scope, and changes nothing."""
    with state() as (theirs, ours):
        wanted = outcome(lambda: theirs.dtype_policies.get(value))
        assert wanted.error is ValueError
        with config.dtype_policy_scope("mixed_float16"):

            def enter() -> None:
                with ours.config.dtype_policy_scope(value):
                    pytest.fail(f"{value!r} is not a policy")

            assert outcome(enter) == wanted
            assert in_force() == "mixed_float16"


def test_scopes_of_what_get_takes() -> None:
    """Dtypes and configs can be the policy of a scope; None is the policy in force."""
    with state():
        for value, name in (
            (np.float16, "float16"),
            ({"class_name": "DTypePolicy", "config": {"name": "bfloat16"}}, "bfloat16"),
            (None, "float32"),
        ):
            with config.dtype_policy_scope(value) as policy:
                assert config.dtype_policy() is policy
                assert in_force() == name


def test_scopes_of_tasks() -> None:
    """Each asyncio task has its own scopes, however the tasks take turns."""
    names = ["float16", "mixed_float16", "bfloat16", "mixed_bfloat16"]

    async def task(name: str, inner: str) -> list[str]:
        seen = [in_force()]
        with config.dtype_policy_scope(name):
            for _ in range(3):
                seen.append(in_force())
                await asyncio.sleep(0)
                with config.dtype_policy_scope(inner):
                    await asyncio.sleep(0)
                    seen.append(in_force())
            config.set_dtype_policy("float64")
            await asyncio.sleep(0)
            seen.append(in_force())
        await asyncio.sleep(0)
        return [*seen, in_force()]

    async def main() -> list[list[str]]:
        with config.dtype_policy_scope("int8_from_float32"):
            pairs = zip(names, reversed(names), strict=True)
            return await asyncio.gather(*(task(*pair) for pair in pairs))

    with state():
        seen = asyncio.run(main())
        assert in_force() == "float32"
    outer = "int8_from_float32"
    assert seen == [
        [outer, *[name, inner] * 3, "float64", outer]
        for name, inner in zip(names, reversed(names), strict=True)
    ]


def test_scopes_in_a_copied_context() -> None:
    """What runs in a copy of the context ends its scopes there, and leaves ours alone."""

    def inner() -> str:
        with config.dtype_policy_scope("float64"):
            return in_force()

    with state(), config.dtype_policy_scope("mixed_float16"):
        assert contextvars.copy_context().run(inner) == "float64"
        assert in_force() == "mixed_float16"
