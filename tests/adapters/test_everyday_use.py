"""What users do first with each adapter; `.ci/ends adapters` runs it with the oldest releases."""

from __future__ import annotations

import math
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import peers
import pytest
from castwise.loss_scale import DynamicLossScale

# Of numpy 2, in packages older than it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

VALUES = np.array([0.1, -1.5, 448.0, 1e6, 3e-5, 0.0, -0.0, np.inf], np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_torch_casts(dtype: str) -> None:
    torch = peers.torch()
    cast = castwise.cast(torch.from_numpy(VALUES.copy()), dtype, overflow="saturate")
    assert cast.dtype == getattr(torch, dtype)
    expected = castwise.cast(VALUES, dtype, overflow="saturate").astype(np.float32)
    np.testing.assert_array_equal(cast.to(torch.float32).numpy(), expected)
    back = castwise.cast(cast, "float32")
    np.testing.assert_array_equal(back.numpy(), expected)


def test_torch_trains_a_module_in_mixed_precision() -> None:
    torch = peers.torch()
    from castwise.adapters import torch as adapter  # noqa: PLC0415

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = adapter.GradScaler(init_scale=1024.0)
    x = torch.randn(16, 4)
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        with adapter.autocast(model, "mixed_bfloat16"):
            loss = (model(x) - x.sum(1, keepdim=True)).float().square().mean()
        scaler.scale(loss).backward()
        if step == 3:
            model[0].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 512.0

    cast = adapter.cast_module(model, {r"0\..*": "bfloat16"})
    assert "0.weight" in str(cast)
    assert model[0].weight.dtype == torch.bfloat16
    assert model(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_jax_casts(dtype: str) -> None:
    jax = peers.jax()
    expected = castwise.cast(VALUES, dtype, overflow="saturate")
    array = jax.numpy.asarray(VALUES)
    cast = castwise.cast(array, dtype, overflow="saturate")
    assert isinstance(cast, jax.Array)
    traced = jax.jit(lambda x: castwise.cast(x, dtype, overflow="saturate"))(array)
    for result in (cast, traced):
        assert np.asarray(result).dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(result).view(np.uint8), expected.view(np.uint8))


def test_jax_casts_a_tree_and_scales_a_loss() -> None:
    jax = peers.jax()
    from castwise.adapters.jax import all_finite, cast_tree, loss_scale, unscale  # noqa: PLC0415

    params = {"dense": {"kernel": jax.numpy.ones((4, 2)), "bias": jax.numpy.zeros(2)}}
    half = cast_tree(params, {".*kernel": "bfloat16"})
    assert half["dense"]["kernel"].dtype == ml_dtypes.bfloat16
    assert half["dense"]["bias"].dtype == np.float32

    @jax.jit
    def step(scale: Any, params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return scale.scale * (x @ params["dense"]["kernel"] + params["dense"]["bias"]).sum()

        grads = unscale(jax.grad(loss)(params), scale)[0]
        finite = all_finite(grads)
        return scale.next(finite)[0], finite, grads

    scale = loss_scale(DynamicLossScale(initial_scale=1024.0))
    scale, finite, grads = step(scale, params, jax.numpy.ones((3, 4)))
    assert finite
    np.testing.assert_array_equal(np.asarray(grads["dense"]["bias"]), [3.0, 3.0])
    scale, finite, _ = step(scale, params, jax.numpy.full((3, 4), np.inf))
    assert not finite
    assert float(scale.scale) == 512.0


def test_keras_obeys_policies() -> None:
    keras = peers.keras()
    from castwise import config, dtype_policies  # noqa: PLC0415
    from castwise.adapters.keras import apply_policy_map, install, to_keras  # noqa: PLC0415

    layers = [
        keras.Input((4,)),
        keras.layers.Dense(8, name="up"),
        keras.layers.Dense(2, name="head"),
    ]
    model = keras.Sequential(layers, name="net")
    applied = apply_policy_map(
        model, dtype_policies.DTypePolicyMap("mixed_bfloat16", {"net/head": "float16"})
    )
    assert "net/head" in str(applied)
    assert [layer.compute_dtype for layer in model.layers] == ["bfloat16", "float16"]
    assert [layer.kernel.dtype for layer in model.layers] == ["float32", "float16"]
    assert model(np.ones((3, 4), np.float32)).shape == (3, 2)
    assert to_keras("mixed_float16").compute_dtype == "float16"
    with install(), config.dtype_policy_scope("mixed_float16"):
        assert keras.layers.Dense(2).compute_dtype == "float16"
    assert keras.layers.Dense(2).compute_dtype == "float32"


def test_keras_quantizes_as_from_3_16_on() -> None:
    keras = peers.keras()
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 16):
        pytest.skip("it has no mode ternary, and takes quantized global policies")
    from castwise import config, dtype_policies  # noqa: PLC0415
    from castwise.adapters.keras import from_keras, install, to_keras  # noqa: PLC0415

    ternary = dtype_policies.get("ternary_from_mixed_bfloat16")
    theirs = keras.dtype_policies.get(ternary.name)
    assert to_keras(ternary) == theirs
    assert from_keras(theirs) == ternary
    assert keras.dtype_policies.deserialize(dtype_policies.serialize(ternary)) == theirs
    dense = keras.Sequential([keras.Input((10,)), keras.layers.Dense(5)])
    dense.quantize("ternary")
    assert from_keras(dense.layers[0].dtype_policy) == dtype_policies.get("ternary_from_float32")
    with install(), config.dtype_policy_scope("int8_from_float32"):
        with pytest.raises(
            ValueError, match=r"in force, 'int8_from_float32', is quantized, .*quan"
        ):
            keras.layers.Dense(2)
        assert keras.layers.Dense(2, dtype="int8_from_float32").quantization_mode == "int8"
    with install(), pytest.raises(ValueError, match="cannot be quantized"):
        keras.config.set_dtype_policy("int8_from_float32")
    assert config.dtype_policy() == dtype_policies.get("float32")


def test_tf_keras_copies_a_model_under_policies() -> None:
    keras = peers.tf_keras()
    from castwise.adapters.tf_keras import apply_policy_map, to_tf_keras  # noqa: PLC0415
    from castwise.dtype_policies import DTypePolicyMap  # noqa: PLC0415

    model = keras.Sequential(
        [keras.layers.Dense(8, name="up", input_shape=(4,)), keras.layers.Dense(2, name="head")],
        name="net",
    )
    copy, _ = apply_policy_map(model, DTypePolicyMap("mixed_bfloat16", {".*head": "float16"}))
    assert [layer.compute_dtype for layer in copy.layers] == ["bfloat16", "float16"]
    assert [layer.kernel.dtype.name for layer in copy.layers] == ["float32", "float16"]
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(np.asarray(copy(x)), np.asarray(model(x)), rtol=0.1, atol=0.05)
    assert to_tf_keras("mixed_float16").compute_dtype == "float16"
