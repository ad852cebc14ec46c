"""Policies, maps and the global policy, used and changed from many threads at once.

Nothing here needs another framework: these tests run without the GIL too, where there is such an
interpreter.
"""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import castwise.dtype_policies as policies
import pytest
import support
from castwise import config
from threads import THREADS, short_turns, together

STEPS = 400 // support.FEWER


@pytest.fixture(autouse=True)
def _short_turns() -> Iterator[None]:
    with short_turns():
        yield
    config.clear_dtype_policy()
    config.set_floatx("float32")


def tagged(number: int) -> Any:
    """Make a policy that holds this number."""
    return policies.QuantizedFloat8DTypePolicy("float8", "float32", number + 1)


def number_of(policy: Any) -> int:
    """Tell which of the tagged policies this is, -1 for any other."""
    return getattr(policy, "amax_history_length", 0) - 1


NAMES = (
    *("float32", "mixed_float16", "mixed_bfloat16", "int8_from_float32", "int4/128_from_bfloat16"),
    *("gptq/4/64_from_float32", "awq/4/-1_from_mixed_bfloat16", "float8_from_float16", "int8"),
)


def test_policies_are_values() -> None:
    """Making, reading, hashing, comparing, copying and writing policies, some of them shared."""
    shared = {name: policies.get(name) for name in NAMES}
    wanted = {name: (policy.compute_dtype, hash(policy)) for name, policy in shared.items()}

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(STEPS):
            name = chance.choice(NAMES)
            policy = policies.get(name)
            assert policy == shared[name]
            assert shared[policy.name] is shared[name]
            assert (policy.compute_dtype, hash(policy)) == wanted[name]
            assert policies.deserialize(policies.serialize(shared[name])) == policy
            assert pickle.loads(pickle.dumps(shared[name])) == policy  # noqa: S301 - made here
            with pytest.raises(ValueError, match="abc"):
                policies.get("int8_from_abc")

    together(work)


def test_each_thread_has_its_own_policy() -> None:
    """A policy that one thread sets is invisible to the others; floatx is shared."""

    def work(number: int) -> None:
        chance = random.Random(number)
        own = policies.get(NAMES[number])
        config.set_dtype_policy(own)
        for _ in range(STEPS):
            assert config.dtype_policy() is own
            name = chance.choice(NAMES)
            with config.dtype_policy_scope(name):
                assert config.dtype_policy().name == name
                config.set_dtype_policy("bfloat16")
                assert policies.get(None).name == "bfloat16"
            assert policies.DTypePolicy().name == own.name.rpartition("_from_")[2]
            if chance.random() < 0.1:
                config.clear_dtype_policy()
                assert config.dtype_policy().name in ("float16", "float32")
                config.set_dtype_policy(own)
            config.set_floatx(chance.choice(("float16", "float32")))
            assert config.standardize_dtype(None) in ("float16", "float32")

    together(work)


def test_a_policy_is_latched_once() -> None:
    """Threads that read for the first time while floatx changes keep what they read."""

    def work(number: int) -> None:
        if number == 0:
            for step in range(STEPS):
                config.set_floatx(("float16", "float32", "float64")[step % 3])
            return
        for _ in range(STEPS // 8):
            config.clear_dtype_policy()
            first = config.dtype_policy()
            assert first.name in ("float16", "float32", "float64")
            assert all(config.dtype_policy() is first for _ in range(5))

    together(work)


@pytest.mark.parametrize("steps", [STEPS // 8, pytest.param(STEPS, marks=pytest.mark.exhaustive)])
def test_lookups_while_keys_come_and_go(steps: int) -> None:
    """Every lookup gives the policy of a key that matches, and stable keys always decide."""
    policy_map = policies.DTypePolicyMap("int32", on_overlap="first")
    for number in range(20):
        policy_map[f"stable_{number}/.*"] = tagged(number)
        policy_map[f"(?!x)ahead_{number}/.*"] = tagged(100 + number)  # one that only `re` can take
    stop = threading.Event()

    def change(number: int) -> None:
        chance = random.Random(number)
        try:
            for _ in range(steps):
                which = 1000 * (number + 1) + chance.randrange(20)
                forms = ("moving_{}", "moving_{}/.*", "(?=m)moving_{}.*")
                key = chance.choice(forms).format(which)
                if chance.random() < 0.6:
                    policy_map.setdefault(key, tagged(which))
                else:
                    policy_map.pop(key, None)
        finally:
            stop.set()

    def look(number: int) -> int:
        chance, looked = random.Random(number), 0
        while looked < steps or not stop.is_set():
            stable = chance.randrange(20)
            moving = 1000 * chance.randint(1, 3) + chance.randrange(20)
            assert number_of(policy_map[f"stable_{stable}/a"]) == stable
            assert number_of(policy_map[f"ahead_{stable}/a"]) == 100 + stable
            assert number_of(policy_map[f"moving_{moving}/a"]) in (-1, moving)
            assert number_of(policy_map.get(f"moving_{moving}", None)) in (-1, moving)
            assert policy_map["none"].name == "int32"
            explained = policy_map.explain([f"stable_{stable}/a"]).paths.values()
            assert [number_of(match.policy) for match in explained] == [stable]
            looked += 1
            if looked % 20 == 0:
                check(policy_map)
        return looked

    def check(policy_map: Any) -> None:
        copies = (
            *(dict(policy_map.items()), dict(copy.copy(policy_map)), copy.deepcopy(policy_map)),
            pickle.loads(pickle.dumps(policy_map)),  # noqa: S301 - made here
            policies.deserialize(policies.serialize(policy_map)),
        )
        for items in copies:
            assert len(items) >= 40
            for key, policy in items.items():
                number = number_of(policy)
                assert str(number if number < 100 or number >= 1000 else number - 100) in key
        assert len(policy_map.keys()) >= 40
        assert repr(policy_map).startswith("<DTypePolicyMap")

    looked = together(lambda number: change(number) if number < 3 else look(number))
    assert sum(count or 0 for count in looked) >= 5 * steps


def test_each_key_is_taken_once() -> None:
    """A key that many threads set, pop, delete or popitem goes to exactly one of them."""
    keys = [f"key_{number}" for number in range(STEPS)]
    policy_map = policies.DTypePolicyMap("int32")

    def succeed(attempt: Callable[[Any, str], Any], expected: type[Exception]) -> list[str]:
        """Try every key in every thread, in orders of their own; give those that worked."""

        def work(number: int) -> list[str]:
            order = random.Random(number).sample(keys, len(keys))
            done = []
            for key in order:
                try:
                    attempt(policy_map, key)
                except expected:
                    continue
                done.append(key)
            return done

        return sorted(key for done in together(work) for key in done)

    def insert(to: Any, key: str) -> None:
        to[key] = "float16"

    def remove(to: Any, key: str) -> None:
        del to[key]

    assert succeed(insert, ValueError) == sorted(keys)
    assert sorted(policy_map) == sorted(keys)
    assert succeed(remove, KeyError) == sorted(keys)
    assert len(policy_map) == 0
    assert succeed(insert, ValueError) == sorted(keys)
    assert succeed(lambda to, key: to.pop(key), KeyError) == sorted(keys)

    policy_map.update(dict.fromkeys(keys, "float16"))

    def pop_items(number: int) -> list[str]:
        return [policy_map.popitem()[0] for _ in range(STEPS // THREADS)]

    assert sorted(key for popped in together(pop_items) for key in popped) == sorted(keys)
    assert len(policy_map) == 0


def test_setdefault_gives_all_the_same() -> None:
    """Of threads that set a missing key's default, one wins, and all are given its policy."""
    policy_map = policies.DTypePolicyMap("int32")

    def work(number: int) -> list[Any]:
        return [policy_map.setdefault(f"key_{step}", tagged(number)) for step in range(STEPS)]

    for step, policies_given in enumerate(zip(*together(work), strict=True)):
        kept = policy_map[f"key_{step}"]
        assert all(policy is kept for policy in policies_given)


def test_setdefault_while_keys_go() -> None:
    """Whatever other threads take out, `setdefault` and `pop` give a policy of the key's."""
    policy_map = policies.DTypePolicyMap("int32")

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(STEPS):
            which = chance.randrange(3)
            if number % 2:
                assert number_of(policy_map.setdefault(f"key_{which}", tagged(which))) == which
            else:
                gone = policy_map.pop(f"key_{which}", None)
                assert gone is None or number_of(gone) == which

    together(work)


def test_iteration_and_clear() -> None:
    """Iterating, clearing and setting at the same time: no thread sees half a map."""
    policy_map = policies.DTypePolicyMap("int32")
    content = {f"key_{number}": tagged(number) for number in range(20)}

    def work(number: int) -> None:
        for step in range(STEPS // 4):
            if number == 0:
                policy_map.clear()
            elif number == 1:
                for key, policy in content.items():
                    policy_map.setdefault(key, policy)
            elif step % 2:
                for key, policy in policy_map.items():
                    assert content[key] == policy
            else:
                assert {number_of(policy) for policy in policy_map.values()} <= set(range(20))
                assert set(policy_map) <= set(content)

    together(work)


class _LooksBack(policies.DTypePolicy):
    """A policy that uses the map it was in when it is dropped."""

    owner: Any = None
    dropped: list[str] | None = None

    def __del__(self) -> None:
        if self.owner is not None and self.dropped is not None:
            self.dropped.append(self.owner["none"].name)


def test_a_policy_may_use_the_map_while_it_is_dropped() -> None:
    """A finalizer that runs while the map changes may use the map."""
    policy_map = policies.DTypePolicyMap("int32")
    dropped: list[str] = []

    def fill() -> None:
        for number in range(10):
            policy = _LooksBack("float16")
            policy.owner, policy.dropped = policy_map, dropped
            policy_map[f"key_{number}/.*"] = policy

    def work(number: int) -> None:
        fill()
        for key in list(policy_map):
            del policy_map[key]
        fill()
        policy_map.clear()

    together(work, threads=1)
    assert dropped == ["int32"] * 20


def test_scopes_do_not_reach_other_threads() -> None:
    """A thread that starts inside a scope has a policy of its own, made from floatx."""
    with ThreadPoolExecutor(1) as before:
        before.submit(config.set_dtype_policy, "bfloat16").result()
        seen: list[str] = []
        with config.dtype_policy_scope("mixed_float16"):

            def inside() -> None:
                seen.append(config.dtype_policy().name)
                config.set_dtype_policy("float64")
                seen.append(config.dtype_policy().name)

            thread = threading.Thread(target=inside)
            thread.start()
            thread.join()
            assert before.submit(lambda: config.dtype_policy().name).result() == "bfloat16"
            assert config.dtype_policy().name == "mixed_float16"
        assert seen == ["float32", "float64"]
        assert config.dtype_policy().name == "float32"


def test_scopes_in_a_pool() -> None:
    """A thread of a pool forgets the scope of one job before the next."""
    with ThreadPoolExecutor(THREADS) as pool:

        def job(name: str) -> str:
            with config.dtype_policy_scope(name):
                return config.dtype_policy().name

        asked = [NAMES[number % len(NAMES)] for number in range(STEPS)]
        assert list(pool.map(job, asked)) == asked
        after = pool.map(lambda _: config.dtype_policy().name, range(STEPS))
        assert set(after) == {"float32"}
