"""The dialects' states, setters and error texts, scales at the edge of float32, and tracing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from castwise.compat import jmp
from castwise.compat.keras.mixed_precision import LossScaleOptimizer as KerasOptimizer
from castwise.compat.tf_keras.mixed_precision import (
    LossScaleOptimizer as TFOptimizer,
)
from castwise.compat.torch import GradScaler
from optimizers import SGD
from originals import library
from processes import run_python

FINITE = np.array([1.0], np.float32)
NAN = np.array([np.nan], np.float32)
EDGES = [0.0, 1e-40, 2.0**-130, math.inf, math.nan]


class Momentum(SGD):
    momentum = 0.0


# --- setters and states ----------------------------------------------------------------------


def test_tf_setters_reach_the_inner_optimizer() -> None:
    tf, tf_keras = library("tensorflow"), library("tf_keras")
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.legacy.SGD(1.0))
    ours = TFOptimizer(Momentum())
    for name, value in (("learning_rate", 0.5), ("lr", 0.25), ("momentum", 0.75)):
        for optimizer in (theirs, ours):
            setattr(optimizer, name, value)
            assert float(getattr(optimizer, name)) == value
            inner = "learning_rate" if name == "lr" else name
            assert float(getattr(optimizer.inner_optimizer, inner)) == value
    theirs.iterations = tf.Variable(7, dtype=tf.int64)
    ours.iterations = 7
    assert ours.inner_optimizer.iterations == ours.iterations == 7
    assert int(theirs.inner_optimizer.iterations) == 7
    ours.mine = theirs.mine = 3
    assert not hasattr(ours.inner_optimizer, "mine")
    assert not hasattr(theirs.inner_optimizer, "mine")
    array = np.zeros(1, np.float32)
    ours.apply_gradients([(FINITE, array)])
    assert (array[0], ours.iterations) == (-0.25, 8)


@pytest.mark.parametrize("cls", [KerasOptimizer, TFOptimizer])
def test_states_are_saved_and_restored(cls: Any) -> None:
    def run(optimizer: Any, grads: list[np.ndarray[Any, Any]]) -> list[Any]:
        seen = []
        for grad in grads:
            optimizer.apply_gradients([(grad, np.zeros(1, np.float32))])
            seen.append(optimizer.state_dict())
        return seen

    first = cls(SGD(), initial_scale=64.0, dynamic_growth_steps=3)
    state = run(first, [NAN, FINITE])[-1]
    assert sorted(state.values()) == [1, 32.0]
    again = cls(SGD(), initial_scale=64.0, dynamic_growth_steps=3)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert run(again, [FINITE, FINITE, NAN]) == run(first, [FINITE, FINITE, NAN])
    before = again.state_dict()
    for wrong, error in (
        ({}, ValueError),
        ({**state, "other": 1}, ValueError),
        ({"scale": 1.0, "_growth_tracker": 0}, ValueError),
        (dict.fromkeys(state, "x"), TypeError),
    ):
        with pytest.raises(error):
            again.load_state_dict(wrong)
    assert again.state_dict() == before


def test_keras_restored_scale_is_used_before_the_first_step() -> None:
    optimizer = KerasOptimizer(SGD(), initial_scale=64.0)
    optimizer.load_state_dict({"dynamic_scale": 8.0, "step_counter": 5})
    assert optimizer.scale_loss(np.float32(1)) == 8.0
    assert (optimizer.dynamic_scale, optimizer.step_counter) == (8.0, 5)


def test_tf_fixed_scale_has_no_state() -> None:
    fixed = TFOptimizer(SGD(), dynamic=False, initial_scale=8.0)
    assert fixed.state_dict() == {}
    fixed.load_state_dict({})
    with pytest.raises(ValueError, match=r"unknown key 'current_loss_scale'.*dynamic=True"):
        fixed.load_state_dict(TFOptimizer(SGD()).state_dict())
    assert fixed.loss_scale == 8.0
    with pytest.raises(ValueError, match="lacks the key"):
        TFOptimizer(SGD()).load_state_dict(fixed.state_dict())


# --- scales without a reciprocal -------------------------------------------------------------


def test_keras_goes_on_where_the_scale_has_no_reciprocal() -> None:
    keras = library("keras")
    variable, array = keras.Variable(FINITE), FINITE.copy()
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 2.0**-120)
    ours = KerasOptimizer(SGD(), 2.0**-120)
    for step in range(32):
        value = NAN if step % 4 else np.array([2.0**-149], np.float32)
        with np.errstate(all="ignore"):
            theirs.apply([keras.ops.convert_to_tensor(value)], [variable])
        with np.errstate(all="raise"):
            ours.apply([value], [array])
        assert ours.dynamic_scale == np.asarray(theirs.dynamic_scale)
        np.testing.assert_array_equal(array, np.asarray(variable))
    for _ in range(10):
        ours.apply([NAN], [array])
    assert ours.dynamic_scale == 0.0
    ours.apply([FINITE], [array])
    assert array[0] == -math.inf


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("scale", EDGES)
def test_tf_unscales_where_the_scale_has_no_reciprocal(scale: float, dynamic: bool) -> None:
    tf, tf_keras = library("tensorflow"), library("tf_keras")
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.legacy.SGD(1.0), dynamic, scale
    )
    ours = TFOptimizer(SGD(), dynamic, scale)
    for dtype in ("float16", "float32", "float64"):
        value = np.array([1.0, 0.0, -3.0], dtype)
        (wanted,), (got,) = (
            theirs.get_unscaled_gradients([tf.constant(value)]),
            ours.get_unscaled_gradients([value]),
        )
        np.testing.assert_array_equal(got, wanted.numpy())
        assert got.dtype == value.dtype
    assert ours.get_unscaled_gradients([np.float32(1)])[0].shape == ()
    assert ours.get_unscaled_gradients([None]) == [None]


@pytest.mark.parametrize("scale", [1e-5, 1e9])
def test_tf_reciprocal_beyond_the_gradients_dtype(scale: float) -> None:
    tf, tf_keras = library("tensorflow"), library("tf_keras")
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.legacy.SGD(1.0), True, scale
    )
    value = np.array([1.0, 0.0, -3.0], np.float16)
    wanted = theirs.get_unscaled_gradients([tf.constant(value)])[0].numpy()
    got = TFOptimizer(SGD(), True, scale).get_unscaled_gradients([value])[0]
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("scale", EDGES)
@pytest.mark.parametrize("cls", ["StaticLossScale", "DynamicLossScale"])
def test_jmp_unscales_where_the_scale_has_no_reciprocal(cls: str, scale: float) -> None:
    original = library("jmp")
    value = np.array([1.0, 0.0, -3.0], np.float32)
    with np.errstate(all="ignore"):
        wanted = getattr(original, cls)(np.float32(scale)).unscale({"a": value})
    with np.errstate(all="raise"):
        got = getattr(jmp, cls)(np.float32(scale)).unscale({"a": value})
    np.testing.assert_array_equal(got["a"], np.asarray(wanted["a"]))


@pytest.mark.parametrize("scale", EDGES)
def test_torch_steps_where_the_scale_has_no_reciprocal(scale: float) -> None:
    torch = library("torch")
    value = np.array([1.0, 0.0, -3.0], np.float32)
    results = []
    for scaler, make in (
        (torch.amp.GradScaler("cpu", init_scale=scale), torch.tensor),
        (GradScaler(init_scale=scale), np.array),
    ):
        scaler.scale(make([1.0, 2.0]))
        parameter = torch.ones(3) if make is torch.tensor else Holder()
        parameter.grad = make(value)
        optimizer = Optimizer(parameter)
        scaler.unscale_(optimizer)
        stepped = scaler.step(optimizer)
        scaler.update()
        results.append((stepped, np.asarray(parameter.grad)))
    assert results[0][0] == results[1][0] == "stepped"
    np.testing.assert_array_equal(results[0][1], results[1][1])


class Holder:
    grad: Any = None


class Optimizer:
    def __init__(self, parameter: Any) -> None:
        self.param_groups = [{"params": [parameter]}]

    def step(self) -> str:
        return "stepped"


# --- torch's products of integers ------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2,), ()])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float64", "complex64"])
def test_torch_scales_integers_in_float32(dtype: str, shape: tuple[int, ...]) -> None:
    torch = library("torch")
    value = np.resize(np.array([1, 2**24 + 1]), shape).astype(dtype)
    theirs, ours = torch.amp.GradScaler("cpu", init_scale=3.5), GradScaler(init_scale=3.5)
    wanted, got = theirs.scale(torch.tensor(value)).numpy(), ours.scale(value)
    np.testing.assert_array_equal(got, wanted)
    if shape or dtype not in {"float64", "complex64"}:
        assert got.dtype == wanted.dtype


# --- jmp under jax.jit -----------------------------------------------------------------------


@pytest.fixture(name="jax")
def jax_that_knows_jmp() -> Any:
    jax = library("jax")
    jmp.register()
    jmp.register()  # nothing happens
    return jax


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("factor", [2, 3])
def test_jmp_steps_in_jit_as_outside(jax: Any, dtype: str, factor: int) -> None:
    jnp = jax.numpy

    @jax.jit
    def step(scale: Any, grads: Any, params: Any) -> Any:
        grads = scale.unscale(scale.scale(grads))
        finite = jmp.all_finite(grads)
        return scale.adjust(finite), jmp.select_tree(finite, grads, params), finite

    start = np.array(2.0**14, dtype)
    inside: Any = jmp.DynamicLossScale(jnp.asarray(start), jnp.int32(0), 2, factor, jnp.float32(2))
    outside = jmp.DynamicLossScale(start, period=2, factor=factor, min_loss_scale=np.float32(2))
    params = {"a": jnp.zeros(2, jnp.float32), "b": None}
    # XLA divides by a constant through its reciprocal, which is exact for powers of two only.
    rtol = 0 if factor == 2 else 4 * float(np.finfo(dtype).eps)
    for flag in [True, True, True, True, False, False, True, *[False] * 14]:
        grads = {"a": jnp.array([1.0, 2.0 if flag else jnp.nan]), "b": None}
        inside, chosen, finite = step(inside, grads, params)
        outside = outside.adjust(flag)
        assert bool(finite) == flag
        np.testing.assert_allclose(chosen["a"], [1, 2] if flag else [0, 0], rtol=rtol)
        assert chosen["b"] is None
        np.testing.assert_allclose(inside.loss_scale, outside.loss_scale, rtol=rtol)
        assert (inside.counter, inside.loss_scale.dtype) == (outside.counter, np.dtype(dtype))
    assert outside.loss_scale == 2


def test_jmp_in_jit_as_the_original(jax: Any) -> None:
    jnp, original = jax.numpy, library("jmp")
    grads = {"a": jnp.arange(3, dtype=jnp.float16)}
    results = [
        jax.jit(lambda scale, x, m=module: (scale.scale(x), scale.unscale(x), m.all_finite(x)))(
            module.DynamicLossScale(jnp.float32(8)), grads
        )
        for module in (original, jmp)
    ]
    leaves = [jax.tree_util.tree_leaves(result) for result in results]
    for wanted, got in zip(*leaves, strict=True):
        assert wanted.dtype == got.dtype
        np.testing.assert_array_equal(wanted, got)
    static = jmp.StaticLossScale(8.0)
    assert jax.jit(lambda scale, x: scale.scale(x))(static, jnp.ones(1)).tolist() == [8.0]
    with pytest.raises(TypeError, match="differ at 'a'"):
        jax.jit(lambda f, x: jmp.select_tree(f, x, {"a": jnp.ones(2)}))(True, grads)
    assert isinstance(jmp.all_finite([np.ones(1)]), np.ndarray)
    assert not jmp.all_finite([jnp.ones(1), np.array([np.inf], np.float32)])


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e39, 1e-50, 0.0, -1.0, math.nan, math.inf])
def test_keras_scale_must_be_held_by_float32(scale: float) -> None:
    with pytest.raises(ValueError, match=r"initial_scale=.*float32 holds"):
        KerasOptimizer(SGD(), initial_scale=scale)
    assert KerasOptimizer(SGD(), initial_scale=1e-40).dynamic_scale > 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"initial_scale": "x"}, ValueError, "initial_scale='x' is not valid; use a number"),
        ({"initial_scale": []}, TypeError, r"initial_scale=\[\] is not valid; use a number"),
        ({"dynamic_growth_steps": "3"}, TypeError, "dynamic_growth_steps='3' is not valid; use"),
        ({"dynamic_growth_steps": 2.5}, TypeError, "dynamic_growth_steps=2.5 is not valid; use"),
        ({"dynamic": None}, ValueError, "dynamic=None is not valid; leave it out"),
    ],
)
def test_keras_errors_name_the_argument(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        KerasOptimizer(SGD(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"initial_scale": "x"}, ValueError, "initial_scale='x' is not valid; use a number"),
        (
            {"initial_scale": "x", "dynamic": False},
            ValueError,
            "initial_scale='x' is not valid; use a number",
        ),
        ({"dynamic_growth_steps": "x"}, ValueError, "dynamic_growth_steps='x' is not valid; use"),
        ({"dynamic": None}, TypeError, "dynamic=None must be a bool; use True or False"),
    ],
)
def test_tf_errors_name_the_argument(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        TFOptimizer(SGD(), **arguments)


def test_keras_gradients_and_variables_must_pair_up() -> None:
    inner = SGD()
    optimizer = KerasOptimizer(inner, 8.0)
    array = np.zeros(1, np.float32)
    for grads in ([FINITE] * 2, [NAN] * 2):
        with pytest.raises(ValueError, match="2 gradients and trainable_variables 1 variables"):
            optimizer.apply(grads, [array])
    assert (inner.iterations, optimizer.dynamic_scale, array[0]) == (0, 8.0, 0.0)


@pytest.mark.parametrize("cls", [KerasOptimizer, TFOptimizer])
def test_configs_without_an_optimizer(cls: Any) -> None:
    with pytest.raises(KeyError, match="lacks 'inner_optimizer'; give an optimizer"):
        cls.from_config({})


def test_tf_old_configs_have_defaults() -> None:
    tf_keras = library("tf_keras")
    original = library("tf_keras.src.mixed_precision.loss_scale_optimizer").LossScaleOptimizer
    config = {"class_name": "DynamicLossScale", "config": {"initial_loss_scale": 16.0}}
    theirs = original.from_config(
        {"optimizer": tf_keras.optimizers.legacy.SGD(1.0), "loss_scale": config}
    )
    ours = TFOptimizer.from_config({"optimizer": SGD(), "loss_scale": config})
    for name in ("dynamic", "initial_scale", "dynamic_growth_steps"):
        assert getattr(ours, name) == getattr(theirs, name)
    with pytest.raises(KeyError, match="lacks 'optimizer'"):
        TFOptimizer.from_config({"loss_scale": config})
    with pytest.raises(ValueError, match="'class_name' and 'config'"):
        TFOptimizer.from_config({"optimizer": SGD(), "loss_scale": {}})


def test_jmp_in_jit_needs_no_registration() -> None:
    run_python(
        """
        import jax, pickle
        from castwise.compat import jmp
        for scale in (jmp.DynamicLossScale(jax.numpy.float32(8)), jmp.NoOpLossScale()):
            assert type(jax.jit(lambda s: s.adjust(True))(scale)) is type(scale)
        assert jax.jit(lambda s: s.scale(2.0))(jmp.StaticLossScale(4.0)) == 8
        """
    )


def test_jmp_registers_with_jax_only() -> None:
    run_python(
        """
        from castwise.compat import jmp
        try:
            jmp.register()
        except RuntimeError as error:
            assert "jax is not imported" in str(error)
        else:
            raise AssertionError
        """
    )
