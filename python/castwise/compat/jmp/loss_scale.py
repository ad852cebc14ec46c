"""jmp's loss scales: frozen values with `scale`, `unscale` and `adjust`, on arrays of numpy's kind.

They are pytrees for jax, where it is in use: `register` says so to it. All of them, `all_finite`
and `select_tree` then work inside `jax.jit`, where XLA may divide by a factor that is no power of
two through its reciprocal. As in jmp, the number of a `StaticLossScale` is no leaf: to enter
`jax.jit` as an argument it must hash, as Python's and numpy's scalars do.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Any, TypeVar

import numpy as np

from castwise import trees
from castwise._core import DynamicLossScale as Machine
from castwise.compat import scaling
from castwise.floating import is_floating
from castwise.loss_scale import unscaling

__all__ = [
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "StaticLossScale",
    "all_finite",
    "register",
    "select_tree",
]

Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class NoOpLossScale:
    """A scale of 1 that nothing is multiplied by."""

    @property
    def loss_scale(self) -> int:
        """1."""
        return 1

    def scale(self, tree: Tree) -> Tree:
        """The tree itself."""
        return tree

    def unscale(self, tree: Tree) -> Tree:
        """The tree itself."""
        return tree

    def adjust(self, grads_finite: Any) -> NoOpLossScale:
        """Itself."""
        del grads_finite
        return self


@dataclasses.dataclass(frozen=True)
class StaticLossScale:
    """A scale that never changes."""

    loss_scale: Any

    def scale(self, tree: Tree) -> Tree:
        """Every array times the scale, in numpy's promotion."""
        return _times(tree, self.loss_scale)

    def unscale(self, tree: Tree) -> Tree:
        """Every array times the reciprocal of the scale."""
        return _unscale(tree, self.loss_scale)

    def adjust(self, grads_finite: Any) -> StaticLossScale:
        """Itself."""
        del grads_finite
        return self


@dataclasses.dataclass(frozen=True)
class DynamicLossScale:
    """A scale that is multiplied after `period` finite steps and divided after any other.

    Parameters
    ----------
    loss_scale : float array of rank 0
        A growth beyond its dtype's range does not take place.
    counter : int array of rank 0
        Finite steps since the last change.
    period : int
        Steps between growths.
    factor : int or float
        What it is multiplied and divided by.
    min_loss_scale : float array of rank 0
        Division stops here.

    """

    loss_scale: Any
    counter: Any = dataclasses.field(default_factory=lambda: np.zeros([], np.int32))
    period: int = 2000
    factor: float = 2
    min_loss_scale: Any = dataclasses.field(default_factory=lambda: np.ones([], np.float32))

    def __post_init__(self) -> None:
        for name in ("loss_scale", "min_loss_scale"):
            value = getattr(self, name)
            # jax makes one of bare objects to learn the structure.
            if type(value) is not object and not is_floating(dtype := _dtype(value)):
                warnings.warn(f"{name} has dtype {dtype}; use a float", stacklevel=3)

    def scale(self, tree: Tree) -> Tree:
        """Every array times the scale, in numpy's promotion."""
        return _times(tree, self.loss_scale)

    def unscale(self, tree: Tree) -> Tree:
        """Every array times the reciprocal of the scale."""
        return _unscale(tree, self.loss_scale)

    def adjust(self, grads_finite: Any) -> DynamicLossScale:
        """The scale for the next step.

        Parameters
        ----------
        grads_finite : bool or bool array of rank 0
            As `all_finite` gives it.

        Raises
        ------
        AssertionError
            An array of another rank, as in jmp.

        """
        if np.ndim(grads_finite) != 0:
            raise AssertionError(f"grads_finite={grads_finite!r} must be a boolean scalar.")
        if any(map(_is_traced, (grads_finite, self.loss_scale, self.counter, self.min_loss_scale))):
            return self._adjust_traced(grads_finite)
        finite = bool(grads_finite)
        scale, counter = np.asarray(self.loss_scale), np.asarray(self.counter)
        machine = Machine(
            float(scale),
            self.period,
            float(self.factor),
            minimum=float(np.asarray(self.min_loss_scale)),
            preset="jmp",
        )
        state = {"loss_scale": float(scale), "counter": int(counter)}
        machine, _ = machine.with_state(state).next(finite)
        with np.errstate(over="ignore"):
            result = np.asarray(machine.scale, np.float32)
            if is_floating(scale.dtype) and scale.dtype.itemsize < result.dtype.itemsize:
                result = result.astype(scale.dtype)
        if finite and not np.isfinite(result):
            result = scale
        new_counter = np.asarray(machine.counter, counter.dtype)
        return dataclasses.replace(self, loss_scale=result, counter=new_counter)

    def _adjust_traced(self, grads_finite: Any) -> DynamicLossScale:
        jnp = sys.modules["jax"].numpy
        scale, counter = jnp.asarray(self.loss_scale), jnp.asarray(self.counter)
        grown = (scale * self.factor).astype(scale.dtype)
        grows = (counter == self.period - 1) & jnp.isfinite(grown)
        reduced = jnp.maximum(self.min_loss_scale, scale / self.factor).astype(scale.dtype)
        result = jnp.where(grads_finite, jnp.where(grows, grown, scale), reduced)
        counter = jnp.where(grads_finite, (counter + 1) % self.period, 0).astype(counter.dtype)
        return dataclasses.replace(self, loss_scale=result, counter=counter)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Arrays, and what is none, for jax; the minimum is among the arrays, and so is kept."""
        return (self.loss_scale, self.counter, self.min_loss_scale), (self.period, self.factor)

    @classmethod
    def tree_unflatten(cls, meta: tuple[Any, ...], data: tuple[Any, ...]) -> DynamicLossScale:
        """The inverse of `tree_flatten`."""
        loss_scale, counter, min_loss_scale = data
        period, factor = meta
        return cls(loss_scale, counter, period, factor, min_loss_scale)


LossScale = NoOpLossScale | StaticLossScale | DynamicLossScale


def all_finite(tree: Any) -> Any:
    """Whether every element of every array is finite: a boolean array of rank 0, jax's for jax's.

    A tree without leaves is finite; TypeError for leaves that are no numbers.
    """
    leaves = trees.values(tree)
    if any(map(_is_jax, leaves)):
        jnp = sys.modules["jax"].numpy
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
    return np.asarray(unscaling.all_finite(tree))


def select_tree(pred: Any, a: Tree, b: Tree) -> Tree:
    """`a` if `pred`, else `b`; inside `jax.jit`, leaf by leaf.

    Raises
    ------
    AssertionError
        `pred` is no boolean of rank 0.
    ValueError, TypeError
        Structures, shapes or dtypes differ.

    """
    if np.ndim(pred) != 0 or _dtype(pred) != np.bool_:
        raise AssertionError(f"pred={pred!r} must be a boolean scalar.")
    if _is_traced(pred):
        unscaling.select_tree(True, a, b)  # for its errors
        where = sys.modules["jax"].numpy.where
        pairs = zip(trees.values(a), trees.values(b), strict=True)
        chosen: Tree = trees.replace(a, (where(pred, *pair) for pair in pairs))
        return chosen
    return unscaling.select_tree(bool(pred), a, b)


def register() -> None:
    """Tell jax, which must be imported, that the three are pytrees; once is enough."""
    jax = sys.modules["jax"]
    if not jax.tree_util.tree_leaves(NoOpLossScale()):
        return  # jax knows them
    for cls in (NoOpLossScale, StaticLossScale):
        jax.tree_util.register_pytree_node(cls, lambda x: ((), x), lambda x, _: x)
    jax.tree_util.register_pytree_node_class(DynamicLossScale)


def _is_jax(value: Any) -> bool:
    return "jax" in sys.modules and isinstance(value, sys.modules["jax"].Array)


def _is_traced(value: Any) -> bool:
    return "jax" in sys.modules and isinstance(value, sys.modules["jax"].core.Tracer)


def _dtype(value: Any) -> Any:
    """Of what jax traces too, which is no array yet."""
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


def _times(tree: Tree, factor: Any) -> Tree:
    products = (scaling.times(leaf, _beside(factor, leaf)) for leaf in trees.values(tree))
    result: Tree = trees.replace(tree, products)
    return result


def _beside(factor: Any, leaf: Any) -> Any:
    """The factor; one of Python's takes the dtype of a float beside it, of ml_dtypes' too."""
    if isinstance(factor, int | float) and isinstance(leaf, np.ndarray) and is_floating(leaf.dtype):
        return np.asarray(factor).astype(leaf.dtype)
    return factor


def _unscale(tree: Tree, scale: Any) -> Tree:
    leaves = trees.values(tree)
    strong = isinstance(scale, np.ndarray | np.generic) and scale.dtype == np.float32
    if strong and scaling.is_usable(scale) and all(map(_becomes_single, leaves)):
        result, _ = unscaling.unscale(tree, float(scale))
        return result
    with np.errstate(all="ignore"):
        inverse = 1 / scale
    return _times(tree, inverse)


def _becomes_single(leaf: Any) -> bool:
    """Whether its product with a float32 is a float32."""
    is_array = type(leaf) is np.ndarray and leaf.ndim > 0
    return is_array and is_floating(leaf.dtype) and np.result_type(leaf, np.float32) == np.float32
