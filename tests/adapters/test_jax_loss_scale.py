"""Loss scales under `jax.jit` take the steps of the machines in Rust, preset by preset."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import real_frameworks
from castwise import loss_scale as host
from castwise.adapters.jax import all_finite, loss_scale, select_tree, unscale
from castwise.loss_scale import DynamicLossScale, FixedLossScale
from hypothesis import given, settings
from hypothesis import strategies as st

jax = real_frameworks.jax()
jnp = jax.numpy

HUGE = 3.4028234663852886e38
normal = st.sampled_from([1.0, 1.5, 32768.0, 2.0**24, 2.0**127, HUGE, 2.0**-126]) | st.floats(
    2.0**-126, HUGE, width=32
)
odd = normal | st.sampled_from([0.0, -4.0, math.inf])
above_one = st.sampled_from([2.0, 3.0, 1.1, 1.0000001, 10.0]) | st.floats(1.001, 100.0)
below_one = st.sampled_from([0.5, 0.1, 0.9]) | st.floats(0.001, 0.999)
moderate = st.floats(1.0, 2.0**24, width=32)
PARAMETERS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "castwise": {
        "initial_scale": moderate,
        "growth_interval": st.integers(1, 4),
        "growth_factor": above_one,
        "backoff_factor": below_one,
        "minimum": st.sampled_from([2.0**-24, 1.0, 0.3]),
        "maximum": st.sampled_from([2.0**24, 1e30, HUGE]),
        "hysteresis": st.integers(1, 3),
    },
    "keras": {"initial_scale": odd, "growth_interval": st.integers(-1, 4)},
    "tf_keras": {"initial_scale": odd, "growth_interval": st.integers(-1, 4)},
    "tf": {
        "initial_scale": odd,
        "growth_interval": st.integers(-1, 4),
        "growth_factor": above_one | st.sampled_from([0.5, -2.0]),
    },
    "torch": {
        "initial_scale": odd,
        "growth_interval": st.integers(-1, 4),
        "growth_factor": above_one,
        "backoff_factor": below_one | st.just(-1.0),
    },
    "jmp": {
        "initial_scale": normal,
        "growth_interval": st.integers(-2, 4),
        "growth_factor": above_one,
        "minimum": st.sampled_from([1.0, 0.0, 16.0]),
    },
    "mpx": {
        "initial_scale": odd,
        "growth_interval": st.integers(-2, 4),
        "growth_factor": above_one,
        "minimum": st.sampled_from([1.0, 0.0, 16.0, 1e6]),
    },
    "megatron": {
        "initial_scale": st.floats(16.0, HUGE, width=32),
        "growth_interval": st.integers(1, 4),
        "growth_factor": above_one,
        "backoff_factor": below_one,
        "minimum": st.sampled_from([1.0, 0.25, 16.0]),
        "hysteresis": st.integers(1, 4),
    },
    "apex": {
        "initial_scale": odd,
        "growth_interval": st.integers(1, 4),
        "minimum": st.sampled_from([None, 1.0, 128.0]),
        "maximum": st.sampled_from([2.0**24, 65536.0]),
    },
}
flags = st.lists(st.booleans(), min_size=1, max_size=12)


def state(scale: Any) -> tuple[Any, ...]:
    return scale.scale, scale.counter, scale.hysteresis_left, scale.floor_steps


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def followed(machine: DynamicLossScale, outcomes: list[bool]) -> None:
    """All steps in one traced program, beside those of the machine."""

    @jax.jit
    def run(start: Any, flags: Any) -> Any:
        def step(current: Any, finite: Any) -> Any:
            following, applies = current.next(finite)
            return following, (state(following), applies)

        return jax.lax.scan(step, start, flags)

    last, (states, applied) = run(loss_scale(machine), jnp.asarray(outcomes))
    assert np.asarray(applied).tolist() == outcomes
    for index, finite in enumerate(outcomes):
        machine, _ = machine.next(finite)
        if 0 < abs(machine.scale) < 2.0**-126:
            return  # below it, the machine that runs the program may flush to zero
        seen = [np.asarray(values)[index].item() for values in states]
        assert same(seen[0], machine.scale), (machine, seen)
        assert tuple(seen[1:]) == state(machine)[1:], (machine, seen)
    assert last.to_machine() == machine or math.isnan(machine.scale)


@pytest.mark.parametrize("preset", [name for name in PARAMETERS if name != "apex"])
@settings(max_examples=25)
@given(data=st.data())
def test_every_step_is_the_machines(preset: str, data: st.DataObject) -> None:
    parameters = {name: data.draw(values, name) for name, values in PARAMETERS[preset].items()}
    followed(DynamicLossScale(**parameters, preset=preset), data.draw(flags, "flags"))


def with_x64(function: Any) -> Any:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        return function()
    finally:
        jax.config.update("jax_enable_x64", before)


@settings(max_examples=15)
@given(data=st.data())
def test_sixty_four_bits_where_jax_has_them(data: st.DataObject) -> None:
    values = PARAMETERS["apex"]
    parameters = {name: data.draw(value, name) for name, value in values.items()}
    machine = DynamicLossScale(**parameters, preset="apex")
    outcomes = data.draw(flags, "flags")
    with_x64(lambda: followed(machine, outcomes))
    with pytest.raises(ValueError, match=r"preset='apex' keeps its scale in 64 bits"):
        loss_scale(machine)


def test_it_goes_on_from_a_state_and_back() -> None:
    machine = DynamicLossScale(64.0, growth_interval=3, hysteresis=2)
    for finite in (True, True, False):
        machine, _ = machine.next(finite)
    traced = loss_scale(machine)
    assert traced.to_machine() == machine
    following, _ = jax.jit(lambda s: s.next(False))(traced)
    assert following.to_machine() == machine.next(False)[0]
    torchs = DynamicLossScale(preset="torch").with_state(
        {**DynamicLossScale(preset="torch").state_dict(), "growth_factor": 4.0, "scale": 8.0}
    )
    assert loss_scale(torchs).to_machine() == torchs


def test_one_program_for_all_states() -> None:
    traces = []

    @jax.jit
    def step(scale: Any, finite: Any) -> Any:
        traces.append(scale)
        return scale.next(finite)

    scale = loss_scale(DynamicLossScale(4.0, growth_interval=1))
    for finite in (True, False, True):
        scale, _ = step(scale, finite)
    step(loss_scale(scale.to_machine()), True)
    assert len(traces) == 1
    step(loss_scale(DynamicLossScale(4.0, growth_interval=2)), True)
    assert len(traces) == 2
    names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(scale)[0]]
    assert names == [".scale", ".counter", ".hysteresis_left", ".floor_steps"]


def test_fixed_scales() -> None:
    scale = loss_scale(8)
    following, applies = jax.jit(lambda s, f: s.next(f))(scale, False)
    assert (float(following.scale), bool(applies)) == (8, False)
    assert following.to_machine() == FixedLossScale(8.0)
    _, applies = loss_scale(FixedLossScale(8.0, skip_nonfinite=False)).next(False)
    assert bool(applies)
    assert float(loss_scale(None).scale) == 1
    assert loss_scale("dynamic").to_machine() == DynamicLossScale()


@pytest.mark.parametrize("finite", [1, 1.0, np.ones(2, bool), jnp.int32(1)])
def test_what_is_no_flag(finite: Any) -> None:
    with pytest.raises(TypeError, match="give one boolean"):
        loss_scale().next(finite)


def test_numbers_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"growth_interval=4294967296.*jax_enable_x64"):
        loss_scale(DynamicLossScale(growth_interval=2**32))
    with pytest.raises(ValueError, match="loss_scale='no'"):
        loss_scale("no")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("scale", [1024.0, 3.0])
def test_unscaling_is_that_of_the_host(dtype: str, scale: float) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((5, 7)).astype(dtype),
        "b": [None, rng.random(3).astype(dtype)],
    }
    wanted, finite = host.unscale(arrays, scale)
    divided, flag = jax.jit(unscale)(jax.tree_util.tree_map(jnp.asarray, arrays), scale)
    assert np.asarray(divided["a"]).tobytes() == wanted["a"].tobytes()
    assert divided["a"].dtype == jnp.float32
    assert divided["b"][0] is None
    assert (bool(flag), finite) == (True, True)
    arrays["b"][1][1] = np.inf
    assert not unscale(jax.tree_util.tree_map(jnp.asarray, arrays), loss_scale(scale))[1]
    with pytest.raises(TypeError, match=r"\['n'\] is not a floating array"):
        unscale({"n": jnp.ones(2, int)}, 2.0)


def test_finite_and_select() -> None:
    assert bool(all_finite({}))
    assert bool(all_finite([jnp.ones(2), jnp.int32(3), None]))
    assert not jax.jit(all_finite)([jnp.ones(2), jnp.array([1, jnp.nan])])
    old, new = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    assert jax.jit(select_tree)(True, new, old)["w"].tolist() == [1, 1]
    assert select_tree(jnp.asarray(False), new, old)["w"].tolist() == [0, 0]
    with pytest.raises(TypeError, match=r"differ at \['w'\]"):
        select_tree(True, new, {"w": jnp.zeros(3)})
    with pytest.raises(ValueError, match=r"structure|Dict|[Mm]ismatch"):
        select_tree(True, new, {"v": jnp.zeros(2)})


def test_float16_training_in_one_program() -> None:
    """Plain pytrees and functions, as flax and optax have them: overflowing steps are left out."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((64, 8)), jnp.float32)
    true = jnp.asarray(rng.standard_normal((8, 1)), jnp.float32)
    y = x @ true

    @jax.jit
    def step(params: Any, scale: Any) -> Any:
        def loss(params: Any) -> Any:
            low = jax.tree_util.tree_map(lambda p: p.astype(jnp.float16), params)
            error = (x.astype(jnp.float16) @ low["w"]).astype(jnp.float32) - y
            return (error**2).mean() * scale.scale

        grads, finite = unscale(jax.grad(loss)(params), scale)
        scale, applies = scale.next(finite)
        stepped = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads)
        return select_tree(applies, stepped, params), scale, finite

    params, scale = {"w": jnp.zeros((8, 1))}, loss_scale(DynamicLossScale(2.0**24))
    outcomes = []
    for _ in range(80):
        params, scale, finite = step(params, scale)
        outcomes.append(bool(finite))
    assert not all(outcomes)
    assert all(outcomes[-20:])
    np.testing.assert_allclose(params["w"], true, atol=5e-3)


def test_one_that_is_unpickled_is_a_pytree_wherever() -> None:
    program = """
        import pickle, sys
        scale = pickle.loads(sys.stdin.buffer.read())
        import jax
        assert jax.jit(lambda scale: scale.next(False)[0])(scale).scale == 4
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    pickled = pickle.dumps(loss_scale(DynamicLossScale(initial_scale=8.0)))
    subprocess.run(command, check=True, input=pickled)


def test_gradients_and_predicates_that_are_pythons() -> None:
    grads, finite = unscale({"a": 3.0, "b": None}, 2.0)
    assert (float(grads["a"]), grads["b"], bool(finite)) == (1.5, None, True)
    assert select_tree(False, {"a": 1.0}, {"a": 2.0})["a"] == 2
    with pytest.raises(TypeError, match=r"pred has shape \(2,\); give one boolean"):
        select_tree(jnp.ones(2, bool), {"a": 1.0}, {"a": 2.0})
    with pytest.raises(TypeError, match=r"at \['n'\] is not a floating array; give None there"):
        unscale({"n": np.zeros(2, jax.dtypes.float0)}, 2.0)
