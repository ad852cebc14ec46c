"""GradScaler.unscale_ against torch's, where gradients are float64 or share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer
from castwise.compat.torch import GradScaler
from castwise.loss_scale import DynamicLossScale, FixedLossScale, unscale
from optimizers import SGD
from oracle import Array
from originals import library


class Parameter:
    def __init__(self, grad: Array | None) -> None:
        self.grad = grad


class Groups:
    """Groups of parameters, as torch's optimizers hold them."""

    def __init__(self, *groups: list[Any]) -> None:
        self.param_groups = [
            {"params": [grad if hasattr(grad, "grad") else Parameter(grad) for grad in group]}
            for group in groups
        ]

    def step(self) -> None: ...


def unscaled(scale: float, *groups: list[Array | None]) -> GradScaler:
    scaler = GradScaler(init_scale=scale)
    scaler.scale(np.float32(1))
    scaler.unscale_(Groups(*groups))
    return scaler


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [3.0, 65536.0, 1e-3, 7e20])
def test_reciprocals_are_torchs(dtype: str, scale: float) -> None:
    torch = library("torch")
    values = np.random.default_rng(0).standard_normal(1000).astype(dtype)
    parameter = torch.zeros(1000, dtype=getattr(torch, dtype))
    parameter.grad = torch.from_numpy(values.copy())
    theirs = torch.amp.GradScaler("cpu", init_scale=scale)
    theirs.scale(torch.ones(1))
    theirs.unscale_(Groups([parameter]))
    ours = values.copy()
    unscaled(scale, [ours])
    np.testing.assert_array_equal(ours, parameter.grad.numpy())


@pytest.mark.parametrize("kind", [float, np.float64, np.float32])
@pytest.mark.parametrize("scale", [3.0, 65536.0, 1e-3, 0.1, 7e20])
def test_scales_that_torch_rounds(scale: float, kind: Any) -> None:
    """`unscale` takes the scale as it is, and torch the float32 next to it."""
    torch = library("torch")
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    parameter = torch.zeros(1000)
    parameter.grad = torch.from_numpy(values.copy())
    theirs = torch.amp.GradScaler("cpu", init_scale=scale)
    theirs.scale(torch.ones(1))
    theirs.unscale_(Groups([parameter]))
    machine = DynamicLossScale(scale, maximum=2.0**127)
    for same in (np.float32(scale), FixedLossScale(scale), machine):
        np.testing.assert_array_equal(unscale(values, same)[0], parameter.grad.numpy())
    ours, _ = unscale(values, kind(scale))
    np.testing.assert_array_equal(ours, values * np.float32(1 / np.float64(kind(scale))))
    np.testing.assert_allclose(ours, parameter.grad.numpy(), rtol=3 * 2.0**-24)


@pytest.mark.parametrize("scale", [3.0, 0.0])
def test_one_gradient_of_several_parameters_is_divided_once(scale: float) -> None:
    grad = np.full((2, 3), 6.0, np.float32)
    with np.errstate(divide="ignore"):
        wanted = grad * (np.float32(1) / np.float32(scale))
    unscaled(scale, [grad, grad], [None, grad[:], grad.reshape(-1)])
    np.testing.assert_array_equal(grad, wanted)


def test_gradients_that_overlap_are_named() -> None:
    grad = np.ones((3, 3), np.float32)
    with pytest.raises(ValueError, match="grads at '0/1' and at '1/0' overlap"):
        unscaled(2.0, [None, grad], [grad.T])
    with pytest.raises(TypeError, match="grads at '1/2' is int64"):
        unscaled(2.0, [grad], [None, None, np.arange(3)])
    np.testing.assert_array_equal(grad, np.ones((3, 3)))


@pytest.mark.parametrize("scale", [3.0, 2.0**15])
def test_tensorflow_multiplies_float64_by_the_same_reciprocal(scale: float) -> None:
    tf, tf_keras = library("tensorflow"), library("tf_keras")
    grads = [np.array([1.0, 7.0], dtype) for dtype in (np.float64, np.float32)]
    inner = tf_keras.optimizers.legacy.SGD(1.0)
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=scale)
    wanted = theirs.get_unscaled_gradients([tf.constant(grad) for grad in grads])
    got = LossScaleOptimizer(SGD(), initial_scale=scale).get_unscaled_gradients(grads)
    for result, tensor in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(result, tensor.numpy())
