"""Scopes belong to a place in a program: a thread, a task, a call; and end however they end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from castwise import config
from castwise.autocast import (
    AutocastScope,
    AutoCastVariable,
    Layer,
    enable_auto_cast_variables,
    get_autocast_scope,
    get_layer_policy,
)
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap
from layer_systems import outcome, peers


def held() -> str | None:
    scope = get_autocast_scope()
    return "none" if scope is None else scope.dtype


def test_scopes_nest_and_end() -> None:
    scope = AutocastScope("float16")
    with scope as entered:
        assert entered is scope
        with AutocastScope("bfloat16"), scope, scope:
            assert held() == "float16"
        with AutocastScope(None):
            assert held() is None
        assert held() == "float16"
    assert held() == "none"


def opened(dtype: str) -> Any:
    """A generator that is in a scope."""

    def scoped() -> Any:
        with AutocastScope(dtype):
            yield

    generator = scoped()
    next(generator)
    return generator


def test_scopes_may_end_in_another_order() -> None:
    """As those of generators do, which are closed when nobody needs them any more."""
    first = opened("float16")
    with AutocastScope("bfloat16"):
        second = opened("float64")
        first.close()
        assert held() == "float64"
        second.close()
        assert held() == "bfloat16"
    assert held() == "none"


def test_a_scope_that_outlives_a_call_does_not_keep_the_calls() -> None:
    class Opens(Layer):
        def call(self, x: Any) -> Any:
            self.open = opened("float64")
            assert held() == "float64"
            return x

    layer = Opens(dtype="mixed_float16")
    with enable_auto_cast_variables("bfloat16"):
        layer(np.ones(1))
        assert held() == "bfloat16"
        layer.open.close()
        assert held() == "bfloat16"
    assert held() == "none"


def test_a_scope_is_not_left_from_another_thread() -> None:
    generator, seen = opened("float16"), []

    def close() -> None:
        with AutocastScope("bfloat16"):
            generator.close()
            seen.append(held())
        seen.append(held())

    def inside() -> None:
        opened_here = contextvars.copy_context()
        thread = threading.Thread(target=opened_here.run, args=(close,))
        with AutocastScope("float32"):
            thread.start()
            thread.join()
            assert held() == "float32"

    try:
        inside()
        assert seen == ["bfloat16", "none"]
        assert held() == "float16"  # entered in this thread, and left in none
    finally:
        AutocastScope.__exit__(get_autocast_scope())
    assert held() == "none"


def test_scopes_end_with_exceptions() -> None:
    class Broken(Layer):
        def call(self, x: Any) -> Any:
            assert held() == "float16"
            raise KeyError

    with AutocastScope("bfloat16"):
        for failing in (Broken(dtype="mixed_float16"), Broken(dtype="mixed_float16")):
            for _ in range(2):
                with pytest.raises(KeyError):
                    failing(np.ones(1))
                assert held() == "bfloat16"
        with pytest.raises(ZeroDivisionError), AutocastScope("float32"):
            _ = 1 / 0
        assert held() == "bfloat16"
    assert held() == "none"


@pytest.mark.parametrize("dtype", ["int32", "mixed_float16", "abc", 3, None, "float64", float, []])
def test_dtypes_of_scopes_as_in_keras(dtype: Any) -> None:
    original = peers.keras().src.backend.common.variables.AutocastScope
    ours, theirs = (
        outcome(scope, dtype).map(lambda s: s.dtype) for scope in (AutocastScope, original)
    )
    assert ours == theirs


@pytest.mark.parametrize("dtype", ["int32", "complex64", "bool", None])
def test_tfs_scope_of_no_float_disables(dtype: Any) -> None:
    variable = AutoCastVariable(np.ones(1, np.float64))
    with AutocastScope("float16"), enable_auto_cast_variables(dtype):
        assert variable.dtype == variable.value.dtype.name == "float64"


def test_another_thread_is_not_in_the_scope() -> None:
    variable = AutoCastVariable(np.ones(1, np.float32))
    seen: list[str] = []
    with AutocastScope("float16"):
        target = lambda: seen.append(variable.dtype)  # noqa: E731
        copied = contextvars.copy_context()
        # As interpreters start threads that inherit the context.
        for run in (target, lambda: copied.run(target)):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        assert variable.dtype == "float16"
    assert seen == ["float32", "float32"]


def test_tasks_have_scopes_of_their_own() -> None:
    variable = AutoCastVariable(np.ones(1, np.float32))

    async def inside(dtype: str) -> bool:
        with AutocastScope(dtype):
            for _ in range(20):
                await asyncio.sleep(0)
                if variable.dtype != dtype:
                    return False
        return variable.dtype == "float32"

    async def together() -> list[bool]:
        return await asyncio.gather(*map(inside, ("float16", "bfloat16", "float64", "float32")))

    assert asyncio.run(together()) == [True] * 4


class Dense(Layer):
    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight((input_shape[-1], 2), "ones", name="kernel")

    def call(self, x: Any) -> Any:
        return x @ self.kernel


def test_threads_share_a_layer() -> None:
    """Built once, called by all of them at once, each in its own scope."""

    class Slow(Dense):
        builds = 0

        def build(self, input_shape: Any) -> None:
            Slow.builds += 1
            threading.Event().wait(0.01)
            super().build(input_shape)

    layers = [Slow(dtype=dtype) for dtype in ("mixed_float16", "mixed_bfloat16", "float32")]
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(
            lambda place: (place % 3, layers[place % 3](np.ones((1, 3))).dtype.name), range(300)
        )
    assert set(results) == {(0, "float16"), (1, "bfloat16"), (2, "float32")}
    assert Slow.builds == 3
    assert [len(layer.variables) for layer in layers] == [1, 1, 1]


def test_a_policy_of_the_path() -> None:
    """From the first call on, whose inputs are cast by it too."""
    policies = DTypePolicyMap(
        "float32", {"model/first": "mixed_float16", ".*/second": "mixed_bfloat16"}
    )

    class Model(Layer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.first = Dense(dtype=self.dtype_policy, name="first")
            self.second = Dense(dtype=self.dtype_policy, name="second")

        def call(self, x: Any) -> Any:
            first = self.first(x)
            return first, self.second(first)

    model = Model(dtype=policies, name="model")
    assert (model.path, model.first.path, model.first.compute_dtype) == (None, None, "float32")
    for _ in range(2):
        first, second = model(np.ones((1, 2)))
        assert (first.dtype.name, second.dtype.name) == ("float16", "bfloat16")
    assert model.second.path == "model/second"
    assert get_layer_policy(model.first) is policies

    # Setting the policy of such a layer sets that of its path.
    model.first.dtype_policy = "float64"
    assert (model.first.compute_dtype, model.second.compute_dtype) == ("float64", "bfloat16")
    assert policies["model/first"] == DTypePolicy("float64")


def test_a_map_in_force_is_for_all_layers() -> None:
    with config.dtype_policy_scope(DTypePolicyMap("float32", {"a": "float16", "b": "float64"})):
        layers = [Dense(name=name) for name in "abc"]
    dtypes = [layer(np.ones((1, 1))).dtype.name for layer in layers]
    assert dtypes == ["float16", "float64", "float32"]
