"""The classes of TensorFlow, tf_keras, Keras, jmp and torch against the real ones."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import castwise
import numpy as np
import pytest
from castwise.compat import jmp
from castwise.compat.keras.mixed_precision import LossScaleOptimizer as KerasOptimizer
from castwise.compat.tf_keras.mixed_precision import (
    LossScaleOptimizer as TFOptimizer,
)
from castwise.compat.tf_keras.mixed_precision import loss_scale as tf_scales
from castwise.compat.torch import GradScaler
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizers import SGD
from originals import library

flags = st.lists(st.sampled_from("ffffni"), max_size=10)
GRADIENT = {"f": 8.0, "n": math.nan, "i": math.inf}


# --- TensorFlow 2.4's loss scales -----------------------------------------------------------


def tf_originals() -> tuple[Any, Any]:
    tf = library("tensorflow")
    return tf, tf.compat.v1.mixed_precision


@settings(max_examples=40)
@given(
    seen=flags,
    initial=st.sampled_from([4, 0.5, 1.5, 0, -4.0, 2.0**15, 2.0**127]),
    period=st.sampled_from([0, 1, 2, 3, 2.9]),
    factor=st.sampled_from([2, 3.0, 0.5]),
)
def test_tf_dynamic(seen: list[str], initial: float, period: float, factor: float) -> None:
    tf, module = tf_originals()
    theirs = module.DynamicLossScale(initial, period, factor)
    ours = tf_scales.DynamicLossScale(initial, period, factor)  # type: ignore[arg-type]
    assert ours.get_config() == theirs.get_config()
    for flag in seen:
        value = np.array([1.0, GRADIENT[flag]], np.float32)
        _, wanted = theirs.update([None, {"a": tf.constant(value)}])
        assert ours.update([None, {"a": value}]) == (None, bool(wanted))
        assert ours() == theirs().numpy()
        assert ours().dtype == np.float32
        assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("value", [1, 8, 2.5, True, np.float64(4)])
def test_tf_fixed(value: float) -> None:
    tf, module = tf_originals()
    theirs, ours = module.FixedLossScale(value), tf_scales.FixedLossScale(value)
    assert ours.get_config() == theirs.get_config()
    assert repr(ours) == repr(theirs)
    assert ours() == theirs().numpy()
    assert ours.update([np.array([np.nan])]) == (None, True)
    assert bool(theirs.update([tf.constant([np.nan])])[1])


@pytest.mark.parametrize("value", ["8", None, 0, 0.5, -1, False, [8]])
def test_tf_fixed_refuses(value: Any) -> None:
    _, module = tf_originals()
    with pytest.raises(ValueError, match=r"at least 1|Python int or float"):
        module.FixedLossScale(value)
    with pytest.raises(ValueError, match=r"at least 1|Python int or float"):
        tf_scales.FixedLossScale(value)


def test_tf_where_castwise_differs() -> None:
    """A scale that float32 does not hold is refused; numpy's numbers are numbers."""
    _, module = tf_originals()
    with np.errstate(over="ignore"):
        assert math.isinf(float(module.DynamicLossScale(1e300)()))
    assert math.isnan(float(module.FixedLossScale(math.nan)()))
    for value in (1e300, math.inf, math.nan):
        with pytest.raises(ValueError, match="float32 holds"):
            tf_scales.DynamicLossScale(value)
        with pytest.raises(ValueError, match="float32 holds"):
            tf_scales.FixedLossScale(value)
    with pytest.raises(ValueError, match="int or float"):
        module.FixedLossScale(np.float32(8))
    assert tf_scales.FixedLossScale(np.float32(8))() == 8
    with pytest.raises(TypeError, match="holds integers"):
        tf_scales.DynamicLossScale().update([np.arange(3)])


def test_tf_get_serialize_deserialize() -> None:
    scale = tf_scales.DynamicLossScale(8.0, 3)
    scale.update([np.ones(2, np.float32)])
    config = tf_scales.serialize(scale)
    assert config == {"class_name": "DynamicLossScale", "config": scale.get_config()}
    again = tf_scales.get(config)
    assert isinstance(again, tf_scales.DynamicLossScale)
    assert again.get_config() == scale.get_config()
    again.load_state_dict(scale.state_dict())
    assert repr(again) == repr(scale)
    assert set(scale.state_dict()) == {"current_loss_scale", "good_steps"}
    assert tf_scales.get(None) is None is tf_scales.serialize(None)
    assert tf_scales.get(scale) is scale
    assert repr(tf_scales.get(8)) == "FixedLossScale(8.0)"
    assert tf_scales.get("dynamic").get_config()["initial_loss_scale"] == 32768.0  # type: ignore[union-attr]
    for wrong in ("fixed", "Dynamic", "auto", [8], object()):
        with pytest.raises(ValueError, match="could not be interpreted"):
            tf_scales.get(wrong)
    assert repr(copy.deepcopy(scale)) == repr(scale) == repr(pickle.loads(pickle.dumps(scale)))  # noqa: S301


# --- tf_keras' optimizer ---------------------------------------------------------------------


@settings(max_examples=15)
@given(seen=flags, scale=st.sampled_from([4.0, 3.0, 0.25, 2.0**15]), steps=st.integers(0, 3))
def test_tf_optimizer(seen: list[str], scale: float, steps: int) -> None:
    tf, tf_keras = library("tensorflow"), library("tf_keras")
    variable, array = tf.Variable([100.0, 1.0]), np.array([100.0, 1.0], np.float32)
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.legacy.SGD(1.0), initial_scale=scale, dynamic_growth_steps=steps
    )
    ours = TFOptimizer(SGD(), initial_scale=scale, dynamic_growth_steps=steps)
    for flag in seen:
        value = np.array([GRADIENT[flag], 0.3], np.float32)
        wanted = theirs.get_unscaled_gradients([tf.constant(value), None])
        got = ours.get_unscaled_gradients([value, None])
        assert got[1] is None is wanted[1]
        np.testing.assert_array_equal(got[0], wanted[0].numpy())
        assert ours.get_scaled_loss(np.float32(2)) == theirs.get_scaled_loss(tf.constant(2.0))
        theirs.apply_gradients([(wanted[0], variable)])
        ours.apply_gradients([(got[0], array)])
        np.testing.assert_array_equal(array, variable.numpy())
        assert ours.loss_scale == theirs.loss_scale.numpy()
        assert ours.dynamic_counter == int(theirs.dynamic_counter)
        assert ours.iterations == int(theirs.iterations)


@pytest.mark.parametrize("scale", [32768.0, 3.0, 1.0, 2.0**-3, 7e4])
def test_tf_scaling_is_in_the_dtype_of_what_is_scaled(scale: float) -> None:
    tf, tf_keras = library("tensorflow"), library("tf_keras")
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.legacy.SGD(1.0), initial_scale=scale
    )
    ours = TFOptimizer(SGD(), initial_scale=scale)
    rng = np.random.default_rng(0)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        value = castwise.cast(rng.standard_normal(500) * 1e3, dtype)
        tensor = tf.constant(value)
        pairs = [
            (ours.get_scaled_loss(value), theirs.get_scaled_loss(tensor)),
            (ours.get_unscaled_gradients([value])[0], theirs.get_unscaled_gradients([tensor])[0]),
            (ours.get_scaled_loss(lambda v=value: v)(), theirs.get_scaled_loss(tensor)),
        ]
        for got, wanted in pairs:
            assert got.dtype == value.dtype
            tiny = np.abs(got.astype(np.float64)) < 2.0**-126  # TensorFlow flushes these
            np.testing.assert_array_equal(
                np.where(tiny, 0, got.astype(np.float64)),
                np.where(tiny, 0, wanted.numpy().astype(np.float64)),
            )


def test_tf_optimizer_arguments(caplog: pytest.LogCaptureFixture) -> None:
    fixed = TFOptimizer(SGD(), dynamic=False, initial_scale=8)
    assert (fixed.loss_scale, fixed.dynamic_counter, fixed.dynamic_growth_steps) == (8, None, None)
    loaded = pickle.loads(pickle.dumps(fixed))  # noqa: S301
    assert (loaded.dynamic, loaded.state_dict()) == (False, {})
    array = np.zeros(1, np.float32)
    fixed.apply_gradients([(np.array([np.nan], np.float32), array)])
    assert math.isnan(array[0])
    assert "get_scaled_loss and get_unscaled_gradients" in caplog.text
    assert fixed.learning_rate == 1.0
    for arguments, error in (
        ({"dynamic": 8.0}, TypeError),
        ({"dynamic": "dynamic"}, TypeError),
        ({"dynamic": False}, ValueError),
        ({"dynamic": False, "initial_scale": 2, "dynamic_growth_steps": 3}, ValueError),
        ({"loss_scale": 2}, TypeError),
    ):
        with pytest.raises(error):
            TFOptimizer(SGD(), **arguments)
    inner = SGD()
    outer = TFOptimizer(inner)
    with pytest.raises(ValueError, match="wrapped"):
        TFOptimizer(inner)
    for wrong in (outer, 3):
        with pytest.raises(TypeError, match="apply_gradients"):
            TFOptimizer(wrong)
    for nothing in ([], [(None, array)]):
        with pytest.raises(ValueError, match="no gradient"):
            outer.apply_gradients(nothing)
    config = TFOptimizer(SGD(), initial_scale=2.7, dynamic_growth_steps=5).get_config()
    before = copy.deepcopy(config)
    again = TFOptimizer.from_config(config, {"SGD": SGD})
    assert again.get_config() == before == config
    old = {
        "optimizer": config["inner_optimizer"],
        "loss_scale": tf_scales.serialize(tf_scales.DynamicLossScale(16, 7)),
    }
    loaded = TFOptimizer.from_config(old, {"SGD": SGD})
    assert (loaded.initial_scale, loaded.dynamic_growth_steps) == (16.0, 7)
    old["loss_scale"] = tf_scales.serialize(tf_scales.DynamicLossScale(16, 7, 4))
    with pytest.raises(ValueError, match="multiplier is 2"):
        TFOptimizer.from_config(old, {"SGD": SGD})
    assert copy.deepcopy(loaded).initial_scale == 16.0


# --- Keras 3's optimizer ---------------------------------------------------------------------


@settings(max_examples=40)
@given(seen=flags, scale=st.sampled_from([4.0, 3.0, 0.25, 2.0**15]), steps=st.integers(1, 3))
def test_keras_optimizer(seen: list[str], scale: float, steps: int) -> None:
    keras = library("keras")
    variable = keras.Variable(np.array([100.0, 1.0], np.float32))
    array = np.array([100.0, 1.0], np.float32)
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), scale, steps)
    ours = KerasOptimizer(SGD(), scale, steps)
    for number, flag in enumerate(seen):
        loss = np.array([1.5], np.float16)
        wanted, got = np.asarray(theirs.scale_loss(loss)), ours.scale_loss(loss)
        assert (got.dtype, got[0]) == (wanted.dtype, wanted[0])
        dtype = np.float16 if number % 2 else np.float32
        value = np.array([GRADIENT[flag], 0.3], dtype)
        with np.errstate(all="ignore"):
            theirs.apply([keras.ops.convert_to_tensor(value), None][:1], [variable])
        ours.apply([value], [array])
        np.testing.assert_array_equal(array, np.asarray(variable))
        assert ours.dynamic_scale == np.asarray(theirs.dynamic_scale)
        assert ours.step_counter == int(np.asarray(theirs.step_counter))
        assert ours.iterations == int(np.asarray(theirs.iterations))


def test_keras_optimizer_arguments() -> None:
    for arguments in (
        {"dynamic": False},
        {"clipnorm": 1.0},
        {"use_ema": True},
        {"momentum": 0.9},
        {"initial_scale": 0.0},
        {"initial_scale": math.inf},
        {"dynamic_growth_steps": 0},
    ):
        with pytest.raises(ValueError, match="is not valid"):
            KerasOptimizer(SGD(), **arguments)
    with pytest.raises(TypeError, match="apply or apply_gradients"):
        KerasOptimizer(3)
    optimizer = KerasOptimizer(SGD(0.5), 8.0, 3, clipnorm=None, use_ema=False)
    config = optimizer.get_config()
    before = copy.deepcopy(config)
    again = KerasOptimizer.from_config(config, {"SGD": SGD})
    assert config == before == again.get_config()
    assert again.learning_rate == 0.5
    again.learning_rate = 0.25
    assert again.inner_optimizer.learning_rate == 0.25
    array = np.array([8.0], np.float32)
    again.apply_gradients([(np.array([16.0], np.float32), array), (None, array)])
    assert array[0] == 7.5
    amax = np.zeros(1).view(Overwritten)
    amax.overwrite_with_gradient = True
    kept = Recorder()
    KerasOptimizer(kept, 8.0).apply([np.full(1, 8.0)], [amax])
    assert kept.grads[0][0] == 8.0


class Overwritten(np.ndarray[Any, Any]):
    overwrite_with_gradient = False


class Recorder:
    def __init__(self) -> None:
        self.grads: list[Any] = []

    def apply(self, grads: list[Any], trainable_variables: list[Any]) -> None:
        self.grads = grads


# --- jmp -------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seen=st.lists(st.booleans(), max_size=10),
    scale=st.sampled_from([4.0, 1.0, 8.0, 2.0**127, 0.5]),
    counter=st.integers(0, 5),
    period=st.integers(1, 4),
    factor=st.sampled_from([2, 3, 1.5]),
    minimum=st.sampled_from([1.0, 0.0, 16.0]),
)
def test_jmp_dynamic(  # noqa: PLR0917
    seen: list[bool], scale: float, counter: int, period: int, factor: float, minimum: float
) -> None:
    jnp, original = library("jax.numpy"), library("jmp")
    arguments = (np.float32(scale), np.int32(counter), period, factor, np.float32(minimum))
    theirs = original.DynamicLossScale(*map(jnp.asarray, arguments[:2]), *arguments[2:])
    ours = jmp.DynamicLossScale(*arguments)
    for finite in seen:
        theirs = theirs.adjust(jnp.asarray(finite))
        ours = ours.adjust(np.asarray(finite))
        if 0 < float(ours.loss_scale) < 2.0**-126:  # which jax flushes
            return
        assert float(ours.loss_scale) == float(theirs.loss_scale)
        assert int(ours.counter) == int(theirs.counter)
        assert ours.loss_scale.dtype == np.asarray(theirs.loss_scale).dtype
        assert ours.counter.dtype == np.asarray(theirs.counter).dtype


@pytest.mark.parametrize("scale", [8.0, np.float32(8), np.float32(3)], ids=repr)
def test_jmp_scale_and_unscale(scale: Any) -> None:
    jnp, original = library("jax.numpy"), library("jmp")
    strong = isinstance(scale, np.float32)
    theirs = original.StaticLossScale(jnp.float32(scale) if strong else scale)
    ours = jmp.StaticLossScale(scale)
    for dtype in ("float16", "bfloat16", "float32"):
        x = castwise.cast(np.linspace(-5, 7, 50), dtype)
        for ours_of, theirs_of in ((ours.scale, theirs.scale), (ours.unscale, theirs.unscale)):
            got = ours_of({"a": x, "b": None})
            wanted = np.asarray(theirs_of({"a": jnp.asarray(x), "b": None})["a"])
            assert got["b"] is None
            assert got["a"].dtype == wanted.dtype
            np.testing.assert_array_equal(got["a"].astype(np.float32), wanted.astype(np.float32))
    assert jmp.NoOpLossScale().unscale("anything") == "anything"
    assert jmp.NoOpLossScale().loss_scale == 1
    with pytest.raises(ZeroDivisionError):
        jmp.StaticLossScale(0).unscale({"a": np.ones(1)})


def test_jmp_where_castwise_differs() -> None:
    """The documented float16 scale works, a bool is a flag, and the minimum survives a tree map."""
    jax, original = library("jax"), library("jmp")
    half = np.float16(2**15)
    with pytest.raises(TypeError):
        original.DynamicLossScale(jax.numpy.asarray(half)).adjust(jax.numpy.asarray(False))
    with pytest.raises(AttributeError):
        original.DynamicLossScale(jax.numpy.float32(8)).adjust(True)
    scale = jmp.DynamicLossScale(half, period=1)
    assert scale.adjust(True).loss_scale == half  # 2**16 is beyond float16
    lower = scale.adjust(False)
    assert (lower.loss_scale, lower.loss_scale.dtype) == (2.0**14, np.float16)
    jmp.register()
    for module, kept in ((original, 1.0), (jmp, 2.0)):
        made = module.DynamicLossScale(jax.numpy.float32(8), min_loss_scale=jax.numpy.float32(2))
        assert jax.tree_util.tree_map(lambda x: x, made).min_loss_scale == kept


def test_jmp_finite_select_and_errors() -> None:
    assert jmp.all_finite({"a": np.ones(2), "b": [3, None]}).dtype == np.bool_
    assert jmp.all_finite([]).shape == ()
    assert not jmp.all_finite(np.array([1 + math.inf * 1j]))
    a, b = {"x": np.ones(2)}, {"x": np.zeros(2)}
    assert jmp.select_tree(np.asarray(True), a, b) is a
    assert jmp.select_tree(False, a, b) is b
    with pytest.raises(AssertionError):
        jmp.select_tree(np.asarray(1), a, b)
    with pytest.raises(ValueError, match="structure"):
        jmp.select_tree(np.asarray(True), a, {"y": np.zeros(2)})
    with pytest.raises(TypeError, match="differ at"):
        jmp.select_tree(np.asarray(True), a, {"x": np.zeros(3)})
    with pytest.raises(TypeError, match="refused"):
        jmp.all_finite(["text"])
    with pytest.raises(AssertionError, match="boolean scalar"):
        jmp.DynamicLossScale(np.float32(8)).adjust(np.array([True]))
    with pytest.warns(UserWarning, match="use a float"):
        jmp.DynamicLossScale(np.int32(8))


# --- torch -----------------------------------------------------------------------------------


class Parameter:
    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        self.value, self.grad = value, None


class TensorSGD:
    """For torch's GradScaler; torch.optim's own would bring a compiler with it."""

    def __init__(self, parameter: Any) -> None:
        self.param_groups = [{"params": [parameter]}]

    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.detach().sub_(parameter.grad)


class TorchSGD:
    def __init__(self, parameters: list[Parameter]) -> None:
        self.param_groups = [{"params": parameters}]

    def step(self) -> str:
        for parameter in self.param_groups[0]["params"]:
            parameter.value -= parameter.grad
        return "stepped"


@settings(max_examples=40)
@given(
    seen=flags,
    scale=st.sampled_from([4.0, 3.0, 0.25, 65536.0]),
    interval=st.integers(0, 3),
    first=st.booleans(),
)
def test_torch_scaler(seen: list[str], scale: float, interval: int, first: bool) -> None:
    torch = library("torch")
    parameter, mine = torch.tensor([100.0, 1.0]), np.array([100.0, 1.0], np.float32)
    parameter.requires_grad_()
    optimizer = TensorSGD(parameter)
    own = Parameter(mine)
    own_optimizer = TorchSGD([own])
    numbers = {"init_scale": scale, "growth_interval": interval, "growth_factor": 3.0}
    theirs, ours = torch.amp.GradScaler("cpu", **numbers), GradScaler("cpu", **numbers)
    for flag in seen:
        loss = np.array([1.5, 60000], np.float16)
        wanted = theirs.scale([torch.from_numpy(loss), torch.tensor(2.0)])
        got = ours.scale([loss, np.float32(2)])
        np.testing.assert_array_equal(got[0], wanted[0].numpy())
        assert (got[0].dtype, got[1]) == (np.float16, wanted[1].item())
        value = np.array([GRADIENT[flag], 0.3], np.float32)
        parameter.grad, own.grad = torch.from_numpy(value.copy()), value.copy()
        if first:
            theirs.unscale_(optimizer)
            ours.unscale_(own_optimizer)
            np.testing.assert_array_equal(own.grad, parameter.grad.numpy())
        theirs.step(optimizer)
        assert ours.step(own_optimizer) == ("stepped" if flag == "f" else None)
        theirs.update()
        ours.update()
        np.testing.assert_array_equal(mine, parameter.detach().numpy())
        assert ours.state_dict() == theirs.state_dict()
    other, mirror = torch.amp.GradScaler("cpu"), GradScaler()
    other.load_state_dict(ours.state_dict())
    mirror.load_state_dict(theirs.state_dict())
    assert other.state_dict() == mirror.state_dict() == ours.state_dict()


def test_torch_scaler_refuses_in_torchs_manner() -> None:
    torch = library("torch")
    parameter = Parameter(np.ones(1, np.float32))
    optimizer = TorchSGD([parameter])
    scaler = GradScaler(init_scale=4.0)
    for call in (scaler.update, lambda: scaler.step(optimizer), lambda: scaler.unscale_(optimizer)):
        with pytest.raises(AssertionError):
            call()
    scaler.scale(np.float32(1))
    with pytest.raises(AssertionError):
        scaler.update()
    with pytest.raises(AssertionError, match="no gradient"):
        scaler.step(optimizer)
    scaler = GradScaler(init_scale=4.0)
    assert scaler.scale(np.float16(1.5)).dtype == np.float32
    parameter.grad = np.full(1, 8.0, np.float32)
    scaler.unscale_(optimizer)
    assert parameter.grad[0] == 2.0
    with pytest.raises(AssertionError, match="pickle"):
        pickle.dumps(scaler)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has been called .*; call update\(\) f"):
        scaler.unscale_(optimizer)
    assert parameter.grad[0] == 2.0
    scaler.step(optimizer)
    for call in (lambda: scaler.step(optimizer), lambda: scaler.unscale_(optimizer)):
        with pytest.raises(RuntimeError, match=r"step\(\)"):
            call()
    scaler.update(2.0)
    assert (scaler.get_scale(), scaler.state_dict()["_growth_tracker"]) == (2.0, 0)
    assert pickle.loads(pickle.dumps(scaler)).state_dict() == scaler.state_dict()  # noqa: S301
    assert type(scaler).__module__ == "castwise.compat.torch"  # the place that pickles name
    parameter.grad = np.ones(1, np.float16)
    with pytest.raises(ValueError, match="float16"):
        scaler.unscale_(optimizer)
    for value in (2.0, "text", None):
        with pytest.raises(ValueError, match="outputs="):
            scaler.scale(value)
    for arguments in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        for make in (GradScaler, lambda **given: torch.amp.GradScaler("cpu", **given)):
            with pytest.raises(AssertionError):
                make(**arguments)
    with pytest.raises(RuntimeError, match="empty"):
        scaler.load_state_dict({})
    with pytest.raises(KeyError, match="growth_factor"):
        scaler.load_state_dict({"scale": 1.0})
    scaler.set_growth_interval(5)
    scaler.set_growth_factor(3.0)
    scaler.set_backoff_factor(0.25)
    assert scaler.get_growth_interval() == 5
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (3.0, 0.25)


def test_torch_scaler_disabled() -> None:
    scaler = GradScaler(growth_factor=0.5, enabled=False)
    optimizer = TorchSGD([parameter := Parameter(np.ones(1, np.float32))])
    parameter.grad = np.full(1, np.nan, np.float32)
    assert scaler.scale("anything") == "anything"
    scaler.unscale_(optimizer)
    assert scaler.step(optimizer) == "stepped"
    scaler.update()
    scaler.load_state_dict({})
    assert (scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()) == (1.0, {}, False)


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jmp.StaticLossScale(np.float32(2**15)).scale(np.float16(3)).dtype == np.float32
        scaled = TFOptimizer(SGD()).get_scaled_loss(np.array([3.0], np.float16))
        assert math.isinf(scaled[0])
