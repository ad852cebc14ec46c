"""jax's arrays and pytrees, in and out of `jax.jit`; jmp's policies on them."""

from __future__ import annotations

import collections
import dataclasses
import os
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

import castwise
import numpy as np
import pytest
import real_frameworks
from castwise import DTypePolicyMap
from castwise.adapters.jax import cast, cast_tree, paths
from castwise.compat import jmp

jax = real_frameworks.jax()
jnp = jax.numpy

TARGETS = ["float32", "float16", "bfloat16", "float4_e2m1fn"]
TARGETS += [name for name in castwise.formats() if name.startswith("float8") and hasattr(jnp, name)]
VALUES = np.array(
    [0.0, -0.0, 1.0, -2.5, 448, 464, 464.1, 1e6, -1e6, 61440, 1e30, np.inf, -np.inf, np.nan, 0.01],
    np.float32,
)


@pytest.mark.parametrize("source", ["float32", "bfloat16", "float8_e5m2"])
def test_an_array_is_surveyed_as_numpys_is(source: str) -> None:
    array = castwise.cast(np.tile(VALUES, (2, 1)), source)
    assert castwise.survey(jnp.asarray(array)) == castwise.survey(array)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["float32", "bfloat16", "float8_e5m2", "int8"])
def test_an_array_is_cast_as_numpys_is(source: str, target: str) -> None:
    array = castwise.cast(np.tile(VALUES, (2, 1)), source)
    for options in ({}, {"overflow": "saturate"}, {"scale": 0.3, "rounding": "towards-zero"}):
        wanted, report = castwise.cast(array, target, report=True, **options)
        result, found = castwise.cast(jnp.asarray(array), target, report=True, **options)
        assert isinstance(result, jax.Array)
        assert np.asarray(result).tobytes() == wanted.tobytes()
        assert found == report


@pytest.mark.parametrize("target", ["int8", "float8_e4m3fn", "bfloat16"])
def test_an_array_is_cast_as_jax_casts_it(target: str) -> None:
    array = jnp.asarray(VALUES)
    wanted = np.asarray(array.astype(castwise.finfo(target).dtype))
    result = np.asarray(castwise.cast(array, target, like="jax"))
    numbers = ~np.isnan(wanted.astype(np.float32))
    assert result[numbers].tobytes() == wanted[numbers].tobytes()
    with pytest.raises(ValueError, match=r"^like='jax' is for arrays on one CPU device, "):
        jax.jit(lambda x: castwise.cast(x, "float16", like="jax"))(array)


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_traced_casts_are_xlas_with_the_same_overflow(target: str) -> None:
    array = jnp.asarray(VALUES)
    for options in ({}, {"overflow": "saturate"}, {"overflow": "ieee", "copy": False}):
        traced = jax.jit(lambda x, options=options: castwise.cast(x, target, **options))(array)
        here = castwise.cast(VALUES, target, **{**options, "copy": True})
        np.testing.assert_array_equal(
            np.asarray(traced).astype(np.float32), here.astype(np.float32)
        )
    gradient = jax.grad(lambda x: cast(x, target).astype(np.float32).sum())(array[:3])
    assert gradient.dtype == np.float32
    with pytest.raises(
        ValueError, match=r"rounding='towards-zero' is for arrays on one CPU device"
    ):
        jax.jit(lambda x: cast(x, target, rounding="towards-zero"))(array)
    with pytest.raises(ValueError, match=r"report=True is for"):
        jax.vmap(lambda x: cast(x, target, report=True))(array)
    with pytest.raises(ValueError, match=r"jax\.numpy\.clip"):
        jax.jit(lambda x: cast(x, "int8", overflow="saturate"))(array)


def test_no_copies_on_the_way() -> None:
    array = jnp.ones(100_000, jnp.float32)
    result = cast(array, "bfloat16")
    place = result.unsafe_buffer_pointer()
    assert np.asarray(result).ctypes.data == place
    assert cast(array, "float32", copy=False) is array
    assert cast(array, "float32") is not array
    # Whoever made the memory is gone; what stands in it stays.
    del array
    np.full(100_000, 7.0)
    assert float(result.astype(np.float32).sum()) == 100_000
    assert cast(jnp.zeros((0, 3)), "float16").shape == (0, 3)
    assert cast(jnp.float32(2), "float16").shape == ()


def test_bad_input() -> None:
    array = jnp.ones(2)
    for dtype in ("float64", "int64", "complex128"):
        with pytest.raises(TypeError, match=rf"dtype='{dtype}'.*jax_enable_x64"):
            castwise.cast(array, dtype)
    for options, error, words in (
        ({"dtype": "flaot16"}, TypeError, "flaot16"),
        ({"dtype": "complex32"}, TypeError, "not a dtype that jax has"),
        ({"dtype": "bcomplex32"}, TypeError, "not a dtype that jax has"),
        ({"dtype": None}, TypeError, "nothing to cast to"),
        (
            {"dtype": "float16", "out": np.ones(2)},
            TypeError,
            "out= is for numpy's arrays, and x is",
        ),
        ({"out": np.ones(2)}, TypeError, "out= is for numpy's arrays, and x is"),
        ({"dtype": "float16", "overflow": "wrap"}, ValueError, "overflow"),
    ):
        with pytest.raises(error, match=words):
            castwise.cast(array, **options)
    with pytest.raises(OverflowError, match="flat index 1"):
        castwise.cast(jnp.array([1.0, 1e9]), "float16", overflow="raise")
    with pytest.raises(TypeError, match=r"give a jax\.Array"):
        cast(np.ones(2), "float16")
    with pytest.raises(TypeError, match="key_data"):
        cast(jax.random.key(0), "float32")


class State(NamedTuple):
    count: Any
    mu: Any


@jax.tree_util.register_pytree_node_class
class Own:
    """A class that only jax can look into."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.kernel,), "static"

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Own:
        assert aux == "static"
        return cls(*children)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """In the shape of flax's: arrays, and functions beside them."""

    step: Any
    params: Any
    opt_state: Any
    key: Any
    apply_fn: Any = dataclasses.field(metadata={"static": True}, default=print)


def train_state() -> TrainState:
    params = {"dense": {"kernel": jnp.ones((2, 2)), "bias": np.zeros(2, np.float32)}}
    opt_state = (State(jnp.int32(0), jax.tree_util.tree_map(jnp.zeros_like, params)), None)
    return TrainState(jnp.int32(5), params, opt_state, jax.random.key(0))


def test_a_shape_without_elements_is_refused_by_name() -> None:
    shape = jax.eval_shape(lambda: jnp.ones(3))
    said = "jax.*ShapeDtypeStruct, which is not an array that numpy can read"
    with pytest.raises(TypeError, match=f"^x is of type {said}"):
        castwise.cast(shape, "bfloat16")
    for tree_cast in (castwise.cast_tree, cast_tree):
        with pytest.raises(TypeError, match=r"^'a/0': a jax.*ShapeDtypeStruct is not an array"):
            tree_cast({"a": [shape]}, "bfloat16")


def test_zero_for_nan_needs_a_zero() -> None:
    for array in (jnp.array([0.0, jnp.nan]), np.array([0.0, np.nan])):
        with pytest.raises(ValueError, match='nan="zero" is not for float8_e8m0fnu, which has no'):
            castwise.cast(array, "float8_e8m0fnu", nan="zero")


def test_a_key_that_matches_no_leaf_is_said() -> None:
    with pytest.warns(UserWarning, match=r"^unused pattern 'kernal'; nearest is 'kernel'$"):
        cast_tree({"kernel": jnp.ones(2)}, {"kernal": "bfloat16"})


def test_a_train_state_by_map() -> None:
    state = train_state()
    result = cast_tree(
        {"state": state, "own": Own(jnp.ones(2))},
        {r"state/params/.*kernel": "bfloat16", r".*/mu/.*": "float16", "own/0": "float16"},
    )
    inner = result["state"]
    assert inner.params["dense"]["kernel"].dtype == jnp.bfloat16
    assert inner.params["dense"]["bias"] is state.params["dense"]["bias"]
    assert inner.opt_state[0].mu["dense"]["bias"].dtype == jnp.float16
    assert (inner.step, inner.key, inner.apply_fn) == (state.step, state.key, print)
    assert isinstance(result["own"], Own)
    assert result["own"].kernel.dtype == jnp.float16
    named = paths(state)
    assert {"step", "params/dense/kernel", "opt_state/0/mu/dense/bias", "key"} < set(named)
    policies = DTypePolicyMap("float32", {"params/.*": "mixed_bfloat16", "parms/.*": "float16"})
    assert policies.explain(named).unused == {"parms/.*": "params/dense/bias"}
    lower = cast_tree(state, policies, role="compute")
    assert lower.params["dense"]["bias"].dtype == jnp.bfloat16
    assert isinstance(lower.params["dense"]["bias"], np.ndarray)


def test_trees_under_jit_and_grad() -> None:
    params = {"kernel": jnp.full((2, 2), 1.001), "norm": jnp.ones(2), "step": jnp.int32(1)}

    @jax.jit
    def loss(floats: Any, x: Any) -> Any:
        low = cast_tree(floats, {"norm": "keep", "default": "bfloat16"})
        assert (low["kernel"].dtype, low["norm"].dtype) == (jnp.bfloat16, jnp.float32)
        return ((x.astype(jnp.bfloat16) @ low["kernel"]) * low["norm"]).sum().astype(jnp.float32)

    floats = {name: params[name] for name in ("kernel", "norm")}
    gradient = jax.grad(loss)(floats, jnp.ones((3, 2)))
    assert gradient["kernel"].dtype == jnp.float32
    assert gradient["kernel"].tolist() == [[3, 3], [3, 3]]
    plain = jax.jit(lambda tree: castwise.cast_tree(tree, "float16"))(params)
    assert (plain["kernel"].dtype, plain["step"].dtype) == (jnp.float16, jnp.int32)


@pytest.mark.parametrize("shape", ["castwise", "jmp"])
def test_jmps_policies(shape: str) -> None:
    real = __import__("jmp")
    make = jmp.get_policy if shape == "castwise" else real.get_policy
    policy = make("params=float32,compute=bfloat16,output=float16")
    tree = {"w": jnp.ones(2), "n": jnp.int32(1)}
    for role, dtype in (("variable", "float32"), ("compute", "bfloat16"), ("output", "float16")):
        assert cast_tree(tree, policy, role=role)["w"].dtype == dtype
        assert (
            jax.jit(lambda t, role=role: cast_tree(t, policy, role=role))(tree)["w"].dtype == dtype
        )
    with pytest.raises(ValueError, match="role='params'"):
        cast_tree(tree, policy, role="params")

    @jax.jit
    def step(tree: Any) -> Any:
        low = policy.cast_to_compute(tree)
        assert low["w"].dtype == jnp.bfloat16
        return policy.cast_to_output(low)

    assert step(tree)["w"].dtype == jnp.float16
    gradient = jax.grad(lambda w: policy.cast_to_compute({"w": w})["w"].sum().astype(jnp.float32))
    assert gradient(jnp.ones(2)).dtype == jnp.float32


def test_trees_that_are_refused() -> None:
    tree = {"a": [jnp.ones(2), jnp.full(2, 1e9)]}
    with pytest.raises(OverflowError, match="'a/1'"):
        cast_tree(tree, "float16", overflow="raise")
    with pytest.raises(TypeError, match="copy= is about one array; cast_tree"):
        cast_tree(tree, "float16", copy=False)
    with pytest.raises(TypeError, match=r"'key'.*key_data"):
        cast_tree({"key": jax.random.key(0)}, {"key": "float16"})
    with pytest.raises(ValueError, match="matched by 2 keys"):
        cast_tree(tree, {"a/0": "float16", "a/.*": "bfloat16", ".*": "float16"})


def test_a_leaf_in_several_places_is_cast_once() -> None:
    array = jnp.ones(3)
    result = cast_tree(collections.OrderedDict(a=array, b=[array]), "float16")
    assert result["a"] is result["b"][0]


def test_arrays_that_may_go_to_any_device_may_still() -> None:
    program = """
        import castwise, jax
        first, second = jax.devices()
        there = jax.device_put(jax.numpy.ones(3), second)
        free = castwise.cast(jax.numpy.ones(3), "bfloat16")
        with jax.default_device(second):
            other = castwise.cast(there, "bfloat16")
            assert free.devices() == castwise.cast(free, "float32").devices() == {first}
        assert (free + there).devices() == other.devices() == {second}
        assert (free.committed, other.committed) == (False, True)
    """
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, env=environment)


def test_shards_are_told_what_they_lack() -> None:
    program = """
        import castwise, jax, numpy
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        mesh = Mesh(numpy.array(jax.devices()), ("d",))
        x = jax.device_put(jax.numpy.ones((4, 2)), NamedSharding(mesh, PartitionSpec("d")))
        assert castwise.cast(x, "float16").sharding == x.sharding
        for options, words in (
            ({"report": True}, "arrays on one CPU device, and x is on 2 devices (cpu); leave it"),
            ({"scale": 2.0}, "or cast numpy.asarray(x)"),
            ({"out": numpy.empty((4, 2), "f2")}, "out= is for numpy's arrays, and x is jax's"),
        ):
            try:
                castwise.cast(x, "float16", **options)
            except (TypeError, ValueError) as error:
                assert words in str(error), error
            else:
                raise AssertionError(options)
    """
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, env=environment)


def test_a_traced_cast_keeps_imaginary_parts_too() -> None:
    array = jnp.ones(2, "complex64")
    assert jax.jit(lambda x: cast(x, "complex64"))(array).dtype == "complex64"
    for function in (cast, jax.jit(cast, static_argnums=1)):
        with pytest.raises(TypeError, match="imaginary part would be lost"):
            function(array, "float32")
