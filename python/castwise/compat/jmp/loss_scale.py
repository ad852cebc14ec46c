"""jmp's loss scales: frozen values with `scale`, `unscale` and `adjust`, on arrays of numpy's kind.

They are pytrees for jax, where it is in use: `register` says so to it. `adjust` takes concrete
values: inside `jax.jit` use jmp's own, whose steps are the same.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Any, TypeVar

import numpy as np

from castwise import trees
from castwise._core import DynamicLossScale as Machine
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
            if type(value) is not object and not is_floating(np.asarray(value).dtype):
                warnings.warn(
                    f"{name} has dtype {np.asarray(value).dtype}; use a float", stacklevel=3
                )

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


def all_finite(tree: Any) -> np.ndarray[tuple[()], np.dtype[np.bool_]]:
    """Whether every element of every array is finite: a boolean array of rank 0.

    A tree without leaves is finite; TypeError for leaves that are no numbers.
    """
    return np.asarray(unscaling.all_finite(tree))


def select_tree(pred: Any, a: Tree, b: Tree) -> Tree:
    """`a` if `pred`, else `b`.

    Raises
    ------
    AssertionError
        `pred` is no boolean of rank 0.
    ValueError, TypeError
        Structures, shapes or dtypes differ.

    """
    if np.ndim(pred) != 0 or np.asarray(pred).dtype != np.bool_:
        raise AssertionError(f"pred={pred!r} must be a boolean scalar.")
    return unscaling.select_tree(bool(pred), a, b)


def register() -> None:
    """Tell jax, which must be imported, that the three are pytrees."""
    jax = sys.modules["jax"]
    for cls in (NoOpLossScale, StaticLossScale):
        jax.tree_util.register_pytree_node(cls, lambda x: ((), x), lambda x, _: x)
    jax.tree_util.register_pytree_node_class(DynamicLossScale)


def _times(tree: Tree, factor: Any) -> Tree:
    with np.errstate(over="ignore", invalid="ignore"):
        products = (leaf * _beside(factor, leaf) for leaf in trees.values(tree))
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
    if strong and np.isfinite(scale) and all(map(_becomes_single, leaves)):
        result, _ = unscaling.unscale(tree, float(scale))
        return result
    return _times(tree, 1 / scale)


def _becomes_single(leaf: Any) -> bool:
    """Whether its product with a float32 is a float32."""
    is_array = type(leaf) is np.ndarray and leaf.ndim > 0
    return is_array and is_floating(leaf.dtype) and np.result_type(leaf, np.float32) == np.float32
