"""A TrainState of flax with an optimizer of optax: run where both are installed (opt in)."""

from __future__ import annotations

from typing import Any

import castwise
import pytest
import real_frameworks
from castwise.adapters.jax import cast_tree, loss_scale, paths, select_tree, unscale
from castwise.loss_scale import DynamicLossScale

jax = real_frameworks.jax()
jnp = jax.numpy
optax = pytest.importorskip("optax", reason="pip install optax flax, to run this")
linen = pytest.importorskip("flax.linen", reason="pip install optax flax, to run this")
train_state = pytest.importorskip("flax.training.train_state")
frozen = pytest.importorskip("flax.core.frozen_dict")


class Net(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(1)(linen.relu(linen.Dense(8)(x)))


def made() -> tuple[Any, Any, Any]:
    net = Net()
    x = jax.random.normal(jax.random.key(1), (32, 4))
    params = net.init(jax.random.key(0), x)["params"]
    state = train_state.TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-2))
    return state, x, x.sum(1, keepdims=True)


def test_a_train_state_is_cast_by_map() -> None:
    state, _, _ = made()
    keys = {r"params/.*kernel": "bfloat16", r"opt_state/.*/mu/.*": "float16"}
    for result in (cast_tree(state, keys), castwise.cast_tree(state, keys)):
        assert isinstance(result, train_state.TrainState)
        assert result.params["Dense_0"]["kernel"].dtype == jnp.bfloat16
        assert result.params["Dense_0"]["bias"] is state.params["Dense_0"]["bias"]
        assert result.opt_state[0].mu["Dense_1"]["kernel"].dtype == jnp.float16
        assert result.opt_state[0].nu["Dense_1"]["kernel"].dtype == jnp.float32
        assert (result.step, result.tx) == (state.step, state.tx)
    assert "params/Dense_0/kernel" in paths(state)
    params = frozen.freeze(state.params)
    assert isinstance(cast_tree(params, "bfloat16"), frozen.FrozenDict)


def test_training_in_float16_with_a_loss_scale_in_the_step() -> None:
    state, x, y = made()

    @jax.jit
    def step(state: Any, scale: Any) -> Any:
        def loss(params: Any) -> Any:
            low = cast_tree(params, "float16")
            out = state.apply_fn({"params": low}, x.astype(jnp.float16)).astype(jnp.float32)
            error = ((out - y) ** 2).mean()
            return error * scale.scale, error

        grads, error = jax.grad(loss, has_aux=True)(state.params)
        grads, finite = unscale(grads, scale)
        scale, applies = scale.next(finite)
        return select_tree(applies, state.apply_gradients(grads=grads), state), scale, error

    scale = loss_scale(DynamicLossScale(2.0**24))
    errors = []
    for _ in range(300):
        state, scale, error = step(state, scale)
        errors.append(float(error))
    assert float(scale.scale) < 2.0**24
    assert 0 < int(state.step) < 300
    assert errors[-1] < 0.05 * errors[0]
