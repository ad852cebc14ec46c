"""Surveys of gradients while jax trains, in and out of jit."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import castwise
import numpy as np
import pytest
import real_frameworks
from castwise.adapters.jax import loss_scale, survey_gradients, unscale
from castwise.loss_scale import DynamicLossScale
from castwise.surveys import GradientLog

jax = real_frameworks.jax()
jnp = jax.numpy

SMALL = 1e-6
"""The loss is so small that most gradients are below float16's smallest number."""


def net() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "up": [jnp.asarray(0.2 * rng.standard_normal((32, 64)), jnp.float32), None],
        "head": {"kernel": jnp.asarray(0.1 * rng.standard_normal((64, 1)), jnp.float32)},
    }


def batch(number: int) -> Any:
    return jnp.asarray(np.random.default_rng(number).standard_normal((16, 32)), jnp.float32)


def loss(params: Any, x: Any, scale: Any, dtype: Any = jnp.float32) -> Any:
    params = jax.tree_util.tree_map(lambda leaf: leaf.astype(dtype), params)
    hidden = jnp.tanh(x.astype(dtype) @ params["up"][0])
    error = (hidden @ params["head"]["kernel"]).astype(jnp.float32) - x.sum(1, keepdims=True)
    return SMALL * scale * (error**2).mean()


def train(log: GradientLog, steps: int, jit: bool = True) -> list[Any]:
    """Take steps without a loss scale; return the gradients of all."""

    def train_step(step: Any, params: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x, 1.0)
        survey_gradients(log, step, grads)
        return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads), grads

    train_step = jax.jit(train_step) if jit else train_step
    params, taken = net(), []
    for step in range(steps):
        params, grads = train_step(step, params, batch(step))
        taken.append(grads)
    jax.effects_barrier()
    return taken


@pytest.mark.parametrize("jit", [True, False])
def test_the_log_has_the_gradients_of_the_steps_that_are_due(jit: bool) -> None:
    log = GradientLog(every=4, by_name=True)
    taken = train(log, 10, jit)
    assert log.steps == (0, 4, 8)
    for recorded in log:
        grads = taken[recorded.step]
        assert recorded.by_name == {
            "up/0": castwise.survey(grads["up"][0]),
            "head/kernel": castwise.survey(grads["head"]["kernel"]),
        }
        assert recorded.loss_scale == 1.0


def test_the_log_says_what_float16_loses_and_what_saves_it() -> None:
    log = GradientLog(every=5)
    taken = train(log, 11)
    grads = np.concatenate([np.ravel(leaf) for leaf in jax.tree_util.tree_leaves(taken[10])])
    prediction = log.at(10).predict()
    _, report = castwise.cast(grads, "float16", report=True)
    assert prediction.underflowed == pytest.approx(report.underflowed, rel=0.1)
    assert report.underflowed > 0.05 * report.count
    scales = log.loss_scales()
    assert scales is not None
    for scale in scales:
        _, report = castwise.cast(grads, "float16", scale=scale, report=True)
        assert report.overflowed == 0
        assert report.underflowed <= 0.001 * report.count

    # Computed in float16: without a loss scale gradients are zero; with the log's they are not.
    zeros = {}
    for scale in (1.0, scales.lowest):
        half = jax.grad(loss)(net(), batch(0), scale, jnp.float16)
        recorded = GradientLog().record(0, half, loss_scale=scale)
        assert recorded is not None
        zeros[scale] = recorded.total.zeros / recorded.total.count
    assert zeros[1.0] > 0.2
    assert zeros[scales.lowest] < 0.01


@pytest.mark.parametrize("unscaled", [False, True])
def test_loss_scales_that_step(unscaled: bool) -> None:
    log = GradientLog(every=2)

    @jax.jit
    def train_step(step: Any, scale: Any, params: Any) -> Any:
        grads = jax.grad(loss)(params, batch(0), scale.scale)
        divided, finite = unscale(grads, scale)
        survey_gradients(
            log, step, divided if unscaled else grads, loss_scale=scale, unscaled=unscaled
        )
        return scale.next(finite)[0]

    scale = loss_scale(DynamicLossScale(1024.0, 2))
    for step in range(5):
        scale = train_step(step, scale, net())
    jax.effects_barrier()
    assert [recorded.loss_scale for recorded in log] == [1024.0, 2048.0, 4096.0]
    assert len({recorded.loss_scales() for recorded in log}) == 1
    assert len({recorded.amax for recorded in log}) == 1
    assert {recorded.unscaled for recorded in log} == {unscaled}


def test_a_function_of_its_own_for_steps_that_are_due() -> None:
    log = GradientLog(every=3)

    @partial(jax.jit, static_argnames="due")
    def train_step(step: Any, weight: Any, due: bool) -> Any:
        grads = jax.grad(lambda weight: (weight**2).sum())(weight)
        if due:
            survey_gradients(log, step, grads)
        return weight - 0.1 * grads

    weight = jnp.ones((1 << 10, 1 << 11))
    for step in range(7):
        weight = train_step(step, weight, due=log.is_due(step))
    jax.effects_barrier()
    assert log.steps == (0, 3, 6)
    assert {recorded.total.count for recorded in log} == {1 << 21}
    assert "callback" not in train_step.lower(0, weight, due=False).as_text()


def test_gradients_that_a_step_returns() -> None:
    """Without calls to the host: no adapter is needed."""
    log = GradientLog(every=2)

    @partial(jax.jit, static_argnames="due")
    def train_step(params: Any, x: Any, due: bool) -> Any:
        grads = jax.grad(loss)(params, x, 1.0)
        updated = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads)
        return updated, grads if due else None

    params = net()
    for step in range(5):
        params, grads = train_step(params, batch(step), due=log.is_due(step))
        log.record(step, grads)
    expected = GradientLog(every=2)
    train(expected, 5)
    assert log.steps == expected.steps
    for recorded, other in zip(log, expected, strict=True):
        assert recorded.amax == pytest.approx(other.amax, rel=1e-4)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux has affinities")
def test_one_core_is_refused() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with pytest.raises(RuntimeError, match=r"single core; return the gradients .* log\.record"):
            jax.jit(lambda grads: survey_gradients(GradientLog(), 0, grads))(jnp.ones(3))
        survey_gradients(GradientLog(), 0, jnp.ones(3))
    finally:
        os.sched_setaffinity(0, cores)


def test_a_step_that_is_static_and_maps() -> None:
    """Under vmap, `jax.lax.cond` takes both branches; the log has only steps that are due."""
    log = GradientLog(every=2)
    jax.jit(lambda grads: survey_gradients(log, 4, grads))(jnp.ones(3))
    jax.vmap(lambda step, grads: survey_gradients(log, step, grads))(
        jnp.arange(3), jnp.ones((3, 5))
    )
    jax.effects_barrier()
    assert log.steps == (0, 2, 4)
    assert [recorded.total.count for recorded in log] == [5, 5, 3]


def test_refused_arguments() -> None:
    with pytest.raises(TypeError, match=r"log=3 is not valid; give a castwise\.surveys"):
        survey_gradients(3, 0, jnp.ones(3))
    with pytest.raises(ValueError, match="step=-1 is not valid"):
        survey_gradients(GradientLog(), -1, jnp.ones(3))
