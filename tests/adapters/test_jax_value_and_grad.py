"""Losses and gradients under a loss scale: those of float32, of mpx, and of steps that overflow."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import real_frameworks
from castwise import DTypePolicyMap
from castwise.adapters.jax import loss_scale, select_tree, value_and_grad
from castwise.loss_scale import DynamicLossScale, FixedLossScale

jax = real_frameworks.jax()
jnp = jax.numpy


def squares(weights: Any, x: Any, target: Any) -> Any:
    hidden = jnp.tanh(x @ weights["up"]) @ weights["down"]
    return ((hidden - target) ** 2).mean()


def problem() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    weights = {
        "up": jnp.asarray(rng.standard_normal((4, 8)), jnp.float32),
        "down": jnp.asarray(rng.standard_normal((8, 1)), jnp.float32),
    }
    x, target = rng.standard_normal((2, 16, 4)).astype(np.float32)
    return weights, jnp.asarray(x), jnp.asarray(target[:, :1])


def close(tree: Any, other: Any, tolerance: float = 0.0) -> None:
    for left, right in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("jit", [False, True])
def test_a_power_of_two_changes_no_bit(jit: bool) -> None:
    weights, x, target = problem()
    wanted = jax.value_and_grad(squares)(weights, x, target)

    def step(weights: Any, scaling: Any) -> Any:
        return value_and_grad(squares, scaling)(weights, x, target=target)

    scaling = loss_scale(DynamicLossScale(2.0**15, growth_interval=2))
    value, following, applies, grads = (jax.jit(step) if jit else step)(weights, scaling)
    close((value, grads), wanted, 1e-6 if jit else 0.0)
    assert applies.tolist() is True
    assert (following.counter, following.scale) == (1, 2.0**15)
    _, following, _, grown = step(weights, following)
    assert following.scale == 2.0**16
    # Divided by what the loss was multiplied by, also in the step that changes it.
    close(grown, wanted[1])


def test_small_gradients_survive_in_float16() -> None:
    weights = {"w": jnp.full(3, 2.0**-10), "name": "dense", "count": jnp.arange(3), "none": None}

    def loss(weights: Any, x: Any) -> Any:
        assert weights["w"].dtype == x.dtype == jnp.float16
        assert (weights["name"], weights["count"].dtype) == ("dense", jnp.int32)
        return ((weights["w"] * x).sum() * jnp.float16(2.0**-20)).astype(jnp.float32), weights["w"]

    x = np.full(3, 2.0**-8, np.float32)
    for scale, wanted in ((1.0, 0.0), (2.0**15, 2.0**-28)):
        call = value_and_grad(loss, loss_scale(scale), has_aux=True, policy="mixed_float16")
        (value, aux), _, applies, grads = call(weights, x)
        assert (value.dtype, aux.dtype, bool(applies)) == (jnp.float32, jnp.float16, True)
        assert grads["w"].tolist() == [wanted] * 3
        assert grads["w"].dtype == jnp.float32
        assert (grads["name"], grads["count"], grads["none"]) == (None, None, None)


def test_an_overflow_backs_off_and_spares_the_value() -> None:
    weights = jnp.ones(2, jnp.float16)

    def loss(weights: Any) -> Any:
        return (weights * 100).sum()

    scaling = loss_scale(DynamicLossScale(2.0**12))
    call = value_and_grad(loss, scaling)
    value, following, applies, grads = call(weights)
    assert (float(value), bool(applies), float(following.scale)) == (200.0, False, 2.0**11)
    assert not np.isfinite(np.asarray(grads)).any()
    assert select_tree(applies, grads.astype(jnp.float16), weights).tolist() == [1, 1]
    fixed = loss_scale(FixedLossScale(2.0**12, skip_nonfinite=False))
    _, same, applies, _ = value_and_grad(loss, fixed)(weights)
    assert (same.scale, bool(applies)) == (fixed.scale, True)


def test_several_arguments() -> None:
    def loss(a: Any, b: Any, c: Any) -> Any:
        return (a * b["x"]).sum() * c

    call = value_and_grad(loss, loss_scale(4.0), argnums=(2, 1))
    _, _, _, (by_c, by_b) = call(jnp.ones(2), {"x": jnp.full(2, 3.0)}, jnp.float32(5))
    assert (float(by_c), by_b["x"].tolist()) == (6.0, [5.0, 5.0])
    assert call.__name__ == "loss"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: value_and_grad(squares, DynamicLossScale()), r"give castwise.*loss_scale\("),
        (lambda: value_and_grad(squares, 2.0), "scaling=2.0 is not a LossScale"),
        (lambda: mapped({"up": "float16"}), r"policy is a map.*cast_tree"),
        (lambda: mapped(DTypePolicyMap("float32")), "policy is a map"),
        (lambda: run(lambda w: w), r"loss gave shape \(2,\) and dtype float32"),
        (lambda: run(lambda w: (w.sum(), 1)), "loss gave a tree; .*has_aux=True"),
        (lambda: run(lambda w: w.sum().astype(int)), "dtype int32"),
        (lambda: run(lambda w: w.sum(), jnp.ones(2, "complex64")), "no real gradient"),
    ],
)
def test_refusals(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        call()


def mapped(policy: Any) -> Any:
    return value_and_grad(squares, loss_scale(2.0), policy=policy)


def run(loss: Any, weights: Any = np.ones(2, np.float32)) -> Any:  # noqa: B008
    return value_and_grad(loss, loss_scale(2.0))(weights)


def test_what_mpx_gives(framework: Callable[[str], ModuleType]) -> None:
    mpx = framework("mpx")
    weights, x, target = problem()
    theirs = mpx.DynamicLossScaling(jnp.float32(1024), jnp.float32(1), 2, 3)
    ours = loss_scale(DynamicLossScale(1024, growth_interval=3, minimum=1.0, preset="mpx"))
    huge = {**weights, "down": weights["down"].at[0, 0].set(jnp.inf)}
    for step in range(8):
        given = huge if step == 4 else weights
        wanted = mpx.filter_value_and_grad(squares, theirs)(given, x, target)
        before, theirs = theirs, wanted[1]
        value, ours, applies, grads = value_and_grad(squares, ours, policy="float16")(
            given, x, target
        )
        assert bool(applies) == bool(wanted[2]) == (step != 4)
        assert (float(ours.scale), int(ours.counter)) == (
            float(theirs.loss_scaling),
            int(theirs.counter),
        )
        if step == 4:
            continue
        # mpx divides by the scale of the next step.
        slip = float(before.loss_scaling / theirs.loss_scaling)
        close(jax.tree.map(lambda grad: grad * slip, grads), wanted[3])  # noqa: B023
        np.testing.assert_allclose(float(value) * slip, float(wanted[0]), rtol=2e-3)
