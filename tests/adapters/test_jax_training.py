"""Loss scales of compat.jmp and adapters.jax in training runs beside jmp's, in and out of jit."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import real_frameworks
from castwise.adapters import jax as adapter
from castwise.compat import jmp
from castwise.loss_scale import DynamicLossScale

jax = real_frameworks.jax()
jnp = jax.numpy
original: Any = importlib.import_module("jmp")

STEPS = 200
NUMBERS = [{"period": 4}, {"period": 5.0, "factor": 3}, {"period": 3, "factor": 1.5}]


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    jmp.register()


def dialect(module: Any, numbers: dict[str, Any]) -> SimpleNamespace:
    """jmp, or castwise's: how to start, to scale, to unscale and to take the next scale."""
    return SimpleNamespace(
        start=module.DynamicLossScale(jnp.float32(1024), jnp.int32(0), **numbers),
        policy=module.get_policy("params=float32,compute=float16,output=float32"),
        scaled=lambda scale, loss: scale.scale(loss),
        unscaled=lambda scale, grads: scale.unscale(grads),
        finite=module.all_finite,
        next=lambda scale, finite: scale.adjust(finite),
        select=module.select_tree,
        numbers=lambda scale: (scale.loss_scale, scale.counter),
    )


def machines(numbers: dict[str, Any]) -> SimpleNamespace:
    """castwise.adapters.jax, with the machine that takes jmp's steps."""
    machine = DynamicLossScale(1024.0, numbers["period"], numbers["factor"], preset="jmp")
    return SimpleNamespace(
        start=adapter.loss_scale(machine),
        policy=jmp.get_policy("params=float32,compute=float16,output=float32"),
        scaled=lambda scale, loss: loss * scale.scale,
        unscaled=lambda scale, grads: adapter.unscale(grads, scale)[0],
        finite=adapter.all_finite,
        next=lambda scale, finite: scale.next(finite)[0],
        select=adapter.select_tree,
        numbers=lambda scale: (scale.scale, scale.counter),
    )


def step_of(ways: SimpleNamespace) -> Callable[..., Any]:
    def loss(params: Any, x: Any, scale: Any) -> Any:
        half = ways.policy.cast_to_compute({**params, "x": x})
        hidden = jnp.tanh(half["x"] @ half["w"] + half["b"])
        error = ways.policy.cast_to_output(hidden) - x.sum(1, keepdims=True)
        return ways.scaled(scale, (error**2).mean())

    def step(scale: Any, params: Any, x: Any, planted: Any) -> Any:
        grads = jax.grad(loss)(params, x, scale)
        grads["w"] = grads["w"].at[0, 0].add(planted)
        grads = ways.unscaled(scale, grads)
        finite = ways.finite(grads)
        updated = jax.tree_util.tree_map(lambda p, g: p - 0.05 * g, params, grads)
        return ways.next(scale, finite), ways.select(finite, updated, params)

    return step


def runs(ways: SimpleNamespace, jit: bool) -> list[list[Any]]:
    """The parameters, the scale and the counter after each step."""
    step = jax.jit(step_of(ways)) if jit else step_of(ways)
    rng = np.random.default_rng(0)
    params = {"w": jnp.full((4, 2), 0.1, jnp.float32), "b": jnp.zeros(2, jnp.float32)}
    scale, seen = ways.start, []
    for number in range(STEPS):
        x = jnp.asarray(rng.standard_normal((8, 4)), jnp.float32)
        planted = (np.inf, np.nan, -np.inf)[number % 3] if number % 7 == 6 else 0.0
        scale, params = step(scale, params, x, jnp.float32(planted))
        values = (params["w"], params["b"], *ways.numbers(scale))
        seen.append([np.asarray(value).tolist() for value in values])
    assert np.isfinite(np.concatenate([np.ravel(value) for value in seen[-1]])).all()
    return seen


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_jmp_trains_as_the_original(numbers: dict[str, Any]) -> None:
    theirs, ours = (runs(dialect(module, numbers), jit=True) for module in (original, jmp))
    assert ours == theirs
    assert len({values[2] for values in theirs}) > 1


def test_jmp_trains_as_the_original_outside_of_jit() -> None:
    theirs, ours = (runs(dialect(module, NUMBERS[1]), jit=False) for module in (original, jmp))
    assert ours == theirs


@pytest.mark.parametrize("factor", [2, 4])  # XLA divides by others through their reciprocals
def test_machines_train_as_jmp(factor: int) -> None:
    numbers = {"period": 4, "factor": factor}
    theirs, ours = runs(dialect(original, numbers), jit=True), runs(machines(numbers), jit=True)
    assert ours == theirs
