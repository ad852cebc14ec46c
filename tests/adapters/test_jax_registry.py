"""Trees of classes that are registered with jax: `cast_tree` takes them apart as jax does."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import castwise
import numpy as np
import pytest
import real_frameworks
from castwise import loss_scale
from castwise.adapters import jax as jax_adapter
from castwise.compat import jmp

jax = real_frameworks.jax()
jnp = jax.numpy

ONES, TABLE = jnp.ones(2), np.ones(3)


@jax.tree_util.register_pytree_node_class
class Registered:
    def __init__(self, a: Any, table: Any) -> None:
        self.a, self.table = a, table

    def tree_flatten(self) -> Any:
        return (self.a, None), self.table

    @classmethod
    def tree_unflatten(cls, table: Any, children: Any) -> Any:
        return cls(children[0], table)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a"], meta_fields=["table"])
@dataclasses.dataclass(frozen=True)
class Data:
    a: Any
    table: Any


class Keyed(dict[str, Any]):
    """A mapping with a static part, which a copy of its items would lose."""


jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda node: ([(jax.tree_util.DictKey("a"), node["a"])], node["table"]),
    lambda table, children: Keyed(a=children[0], table=table),
)


class Named(NamedTuple):
    a: Any
    table: Any = None


class Late:
    """A class that is registered after it was a leaf."""

    a = ONES


def children_of(node: Any) -> tuple[Any, Any]:
    table = node["table"] if isinstance(node, dict) else node.table
    return (node["a"] if isinstance(node, dict) else node.a), table


NODES = [Registered(ONES, TABLE), Data(ONES, TABLE), Keyed(a=ONES, table=TABLE)]


@pytest.mark.parametrize("node", NODES, ids=lambda node: type(node).__name__)
def test_registered_classes_keep_their_type_and_what_is_static(node: Any) -> None:
    for cast in (
        castwise.cast_tree(node, "float16"),
        castwise.cast_tree({"b": [node, TABLE]}, "float16")["b"][0],
    ):
        a, table = children_of(cast)
        assert type(cast) is type(node)
        assert (a.dtype, table is TABLE) == (jnp.float16, True)
    assert children_of(node)[0].dtype == jnp.float32
    path = jax_adapter.paths({"b": node})[0]
    mapped = castwise.cast_tree({"b": node}, {path: "bfloat16"})
    assert children_of(mapped["b"])[0].dtype == jnp.bfloat16
    traced = jax.jit(lambda tree: castwise.cast_tree(tree, "float16"))
    if not isinstance(node, Keyed):  # an array as a static part has no hash
        node = type(node)(ONES, "table")
        assert traced(node).a.dtype == jnp.float16


@pytest.mark.parametrize("node", NODES, ids=lambda node: type(node).__name__)
def test_other_trees_follow_the_registry_too(node: Any) -> None:
    grads, finite = loss_scale.unscale({"w": node}, 2.0)
    a, table = children_of(grads["w"])
    assert (a.tolist(), table is TABLE, finite) == ([0.5, 0.5], True, True)
    assert isinstance(a, jax.Array)
    assert loss_scale.all_finite(node)
    lowered = jmp.get_policy("half").cast_to_compute({"w": node})["w"]
    assert children_of(lowered)[0].dtype == jnp.float16


def test_a_class_may_be_registered_at_any_time() -> None:
    late = Late()
    assert castwise.cast_tree([late], "float16")[0] is late
    jax.tree_util.register_pytree_node(Late, lambda node: ((node.a,), None), lambda _, a: a[0])
    assert castwise.cast_tree([late], "float16")[0].dtype == jnp.float16


@jax.tree_util.register_pytree_node_class
class Itself:
    def tree_flatten(self) -> Any:
        return (self,), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return children[0]


def test_a_registered_container_may_hold_itself() -> None:
    for tree in (Itself(), {"a": [Itself()]}):
        with pytest.raises(ValueError, match="the tree contains itself"):
            castwise.cast_tree(tree, "float16")
    assert castwise.cast_tree({"a": ONES}, "float16")["a"].dtype == jnp.float16


def test_pythons_own_containers_are_as_without_jax() -> None:
    tree = OrderedDict(z=ONES, a=Named(ONES, TABLE), n=None)
    cast = castwise.cast_tree(tree, "float16")
    assert list(cast) == ["z", "a", "n"]
    assert (type(cast["a"]), cast["a"].table.dtype) == (Named, np.float16)
    assert list(castwise.cast_tree({"z": ONES, "a": 1}, "float16")) == ["z", "a"]
    with pytest.raises(TypeError, match="deque of arrays is not a node of a tree"):
        castwise.cast_tree({"d": deque([ONES])}, "float16")


def test_random_keys_stay() -> None:
    for key in (jax.random.key(0), jax.random.split(jax.random.key(1), 3)):
        for options in ({}, {"only_floating": False}):
            tree = {"rng": key, "n": jnp.arange(2)}
            for cast_tree in (castwise.cast_tree, jax_adapter.cast_tree):
                cast = cast_tree(tree, "float16", **options)
                assert cast["rng"] is key
                assert (cast["n"].dtype == jnp.float16) == bool(options)
    with pytest.raises(TypeError, match="'rng': array has dtype key"):
        castwise.cast_tree({"rng": jax.random.key(0)}, {"rng": "float16"})


def test_sparse_arrays() -> None:
    sparse = pytest.importorskip("jax.experimental.sparse")
    cast = castwise.cast_tree({"a": sparse.BCOO.fromdense(jnp.eye(2))}, "float16")["a"]
    assert type(cast) is sparse.BCOO
    assert (cast.data.dtype, cast.indices.dtype) == (jnp.float16, jnp.int32)


def test_modules_of_equinox() -> None:
    equinox = pytest.importorskip("equinox", reason="pip install equinox, to run this")
    net = equinox.nn.MLP(2, 2, 4, 2, key=jax.random.key(0))
    cast = castwise.cast_tree({"net": net}, {r"net/layers/\d/weight": "bfloat16"})["net"]
    assert type(cast) is type(net)
    assert {layer.weight.dtype for layer in cast.layers} == {jnp.dtype("bfloat16")}
    assert {layer.bias.dtype for layer in cast.layers} == {jnp.dtype("float32")}
    half = castwise.cast_tree(net, "float16")
    assert half(jnp.ones(2, jnp.float16)).dtype == jnp.float16

    class WithTable(equinox.Module):
        a: Any
        table: Any = equinox.field(static=True)

    with pytest.warns(UserWarning, match="set as static"):  # of equinox, that a table is unusual
        node = WithTable(ONES, TABLE)
    found = castwise.cast_tree(node, "float16")
    assert (found.a.dtype, found.table is TABLE) == (jnp.float16, True)


def test_modules_and_states_of_flax() -> None:
    nnx = pytest.importorskip("flax.nnx", reason="pip install flax, to run this")
    struct = pytest.importorskip("flax.struct")

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up, self.drop = nnx.Linear(2, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.drop(self.up(x))

    net = Net(nnx.Rngs(0))
    cast = castwise.cast_tree(net, "bfloat16")
    assert type(cast) is Net
    assert type(cast.up.kernel) is nnx.Param
    assert (cast.up.kernel[...].dtype, net.up.kernel[...].dtype) == (jnp.bfloat16, jnp.float32)
    assert cast.up(jnp.ones((1, 2), jnp.bfloat16)).dtype == jnp.bfloat16
    _, state = nnx.split(net)
    for only_floating in (True, False):
        found = castwise.cast_tree(state, "float16", only_floating=only_floating)
        assert type(found) is type(state)
        dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(found)}
        assert dtypes == {"float16", "key<fry>", *(["uint32"] if only_floating else [])}
    param = castwise.cast_tree(net.up.kernel, "float16")
    assert (type(param), param[...].dtype) == (nnx.Param, jnp.float16)

    @struct.dataclass
    class State:
        a: Any
        table: Any = struct.field(pytree_node=False)

    found = castwise.cast_tree([State(ONES, TABLE)], "float16")[0]
    assert (type(found), found.a.dtype, found.table is TABLE) == (State, jnp.float16, True)
