"""Policy scopes end however and wherever their blocks are left, and are for one block each."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from castwise import config
from castwise.autocast import AutocastScope, get_autocast_scope

WITHIN = "mixed_float16"


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    assert in_force() == "float32"
    config.clear_dtype_policy()


def in_force() -> str:
    return config.dtype_policy().name


def elsewhere(function: Callable[[], Any]) -> None:
    """Call a function in another thread; raise what it raises."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    for error in errors:
        raise error


async def numbers() -> AsyncIterator[int]:
    with config.dtype_policy_scope(WITHIN):
        for number in range(5):
            yield number


async def left_early() -> None:
    async for _ in numbers():
        break
    gc.collect()
    await asyncio.sleep(0.001)  # the loop closes the generator in a task of its own


async def closed_by_a_task() -> None:
    generator = numbers()
    await generator.__anext__()
    await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]


async def ended_by_an_error() -> None:
    with suppress(KeyError):
        async for _ in numbers():
            raise KeyError
    gc.collect()
    await asyncio.sleep(0.001)


async def left_inside_another_scope() -> None:
    with config.dtype_policy_scope("bfloat16"):
        await left_early()
        assert in_force() == "bfloat16"


async def with_a_scope_around_the_rest() -> None:
    generator = numbers()
    await generator.__anext__()
    with config.dtype_policy_scope("float64"):
        await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
        assert in_force() == "float64"


@pytest.mark.parametrize(
    "run",
    [
        left_early,
        closed_by_a_task,
        ended_by_an_error,
        left_inside_another_scope,
        with_a_scope_around_the_rest,
    ],
    ids=lambda run: run.__name__,
)
def test_an_asynchronous_generator_ends_its_scope(run: Callable[[], Any]) -> None:
    said: list[dict[str, Any]] = []

    async def main() -> str:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        await run()
        return in_force()

    assert asyncio.run(main()) == "float32"
    assert said == []


def test_a_task_keeps_the_scope_in_which_it_was_made() -> None:
    async def later() -> str:
        await asyncio.sleep(0.001)
        return in_force()

    async def main() -> tuple[str, str]:
        with config.dtype_policy_scope(WITHIN):
            task = asyncio.create_task(later())
        return in_force(), await task

    assert asyncio.run(main()) == ("float32", WITHIN)


def test_a_scope_that_another_thread_closes_has_ended() -> None:
    scope = config.dtype_policy_scope(WITHIN)
    scope.__enter__()
    assert in_force() == WITHIN
    elsewhere(lambda: scope.__exit__(None, None, None))
    assert in_force() == "float32"
    begun = config.dtype_policy_scope(WITHIN)
    elsewhere(begun.__enter__)
    assert in_force() == "float32"
    begun.__exit__(None, None, None)


def test_a_scope_that_another_context_closes_has_ended() -> None:
    scope = config.dtype_policy_scope(WITHIN)
    first, second = contextvars.copy_context(), contextvars.copy_context()
    first.run(scope.__enter__)
    assert first.run(in_force) == WITHIN
    second.run(scope.__exit__, None, None, None)
    assert (first.run(in_force), second.run(in_force)) == ("float32", "float32")


def test_generators_may_be_closed_in_any_order() -> None:
    def opened(name: str) -> Iterator[None]:
        with config.dtype_policy_scope(name):
            yield

    first, second, third = (opened(name) for name in ("float16", "bfloat16", "float64"))
    for generator in (first, second, third):
        next(generator)
    first.close()  # type: ignore[attr-defined]
    assert in_force() == "float64"
    third.close()  # type: ignore[attr-defined]
    assert in_force() == "bfloat16"
    config.set_dtype_policy("float32")
    second.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["mixed_float16", "float64"])
def test_a_scope_is_for_one_block(policy: str) -> None:
    scope = config.dtype_policy_scope(policy)
    with scope:
        with pytest.raises(RuntimeError, match=f"'{policy}'.*make a new one"), scope:
            pytest.fail("entered twice")
        assert in_force() == policy
    with pytest.raises(RuntimeError, match="a second time"), scope:
        pytest.fail("entered again")


def test_a_decorated_function_has_a_scope_at_each_call() -> None:
    @config.dtype_policy_scope(WITHIN)
    def seen() -> str:
        return in_force()

    assert (seen(), in_force(), seen()) == (WITHIN, "float32", WITHIN)


def test_what_runs_after_its_call_cannot_be_decorated() -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    for function in (coroutine, generator, numbers):
        with pytest.raises(TypeError, match=f"cannot decorate {function.__name__}"):
            config.dtype_policy_scope(WITHIN)(function)


@pytest.mark.parametrize("is_shared", [False, True])
def test_scopes_of_variables_end_with_an_asynchronous_generator(is_shared: bool) -> None:
    shared = AutocastScope("float16")

    def seen() -> str | None:
        scope = get_autocast_scope()
        return None if scope is None else scope.dtype

    async def opened() -> AsyncIterator[None]:
        with shared if is_shared else AutocastScope("float16"):
            yield
            yield

    async def main() -> list[str | None]:
        first, second = opened(), opened()
        await first.__anext__()
        with AutocastScope("bfloat16"):
            await second.__anext__()
            found = [seen()]
            await asyncio.create_task(second.aclose())  # type: ignore[attr-defined]
            found.append(seen())
            await asyncio.create_task(first.aclose())  # type: ignore[attr-defined]
            found.append(seen())
        return [*found, seen()]

    assert asyncio.run(main()) == ["float16", "bfloat16", "bfloat16", None]
