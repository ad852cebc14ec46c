"""jmp's loss scales: frozen values with `scale`, `unscale` and `adjust`, for numpy and jax.

Where jax is imported, making a loss scale makes the three classes pytrees; after unpickling one, or
importing jax later, `register` does. They, `all_finite` and `select_tree` work inside `jax.jit`,
where XLA may divide by a factor other than a power of two through its reciprocal. As in jmp, the
number of a `StaticLossScale` is not a leaf: as an argument of a jitted function it must hash, as
Python's and numpy's scalars do.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import warnings
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from castwise import _trees as trees
from castwise._core import DynamicLossScale as Machine
from castwise._numbers import is_floating
from castwise.loss_scale import _unscaling as unscaling
from castwise.loss_scale._arithmetic import is_usable, times
from castwise.loss_scale._array_steps import next_scale

Tree = TypeVar("Tree")

_MODULE = "castwise.compat.jmp"  # where users find the classes, and pickles


@dataclasses.dataclass(frozen=True)
class NoOpLossScale:
    """A scale of 1, by which nothing is multiplied."""

    __module__ = _MODULE

    def __post_init__(self) -> None:
        _register_if_imported()

    @property
    def loss_scale(self) -> int:
        """The factor 1, an int as in jmp."""
        return 1

    def scale(self, tree: Tree) -> Tree:
        """Return the tree itself."""
        return tree

    def unscale(self, tree: Tree) -> Tree:
        """Return the tree itself."""
        return tree

    def adjust(self, grads_finite: Any) -> NoOpLossScale:
        """Return itself, whatever the gradients are."""
        del grads_finite
        return self


class _Scaling:
    """A scale by which trees are multiplied and divided."""

    loss_scale: Any

    def scale(self, tree: Tree) -> Tree:
        """Return every array times the scale, in numpy's promotion."""
        return _times(tree, self.loss_scale)

    def unscale(self, tree: Tree) -> Tree:
        """Return every array times the reciprocal of the scale."""
        return _unscale(tree, self.loss_scale)


@dataclasses.dataclass(frozen=True)
class StaticLossScale(_Scaling):
    """A scale that never changes; TypeError if it is not a real number."""

    __module__ = _MODULE

    loss_scale: Any

    def __post_init__(self) -> None:
        _register_if_imported()
        _check_number("loss_scale", self.loss_scale)

    def adjust(self, grads_finite: Any) -> StaticLossScale:
        """Return itself, whatever the gradients are."""
        del grads_finite
        return self


@dataclasses.dataclass(frozen=True)
class DynamicLossScale(_Scaling):
    """A scale that is multiplied after `period` finite steps, and divided after any other step.

    Parameters
    ----------
    loss_scale : float or float array of rank 0
        It does not grow beyond its dtype's range.
    counter : int or float, or array of rank 0
        Finite steps since the last change; taken modulo `period`.
    period : int or float, or array of rank 0
        Steps between growths: the scale grows where the counter is ``period - 1``. With a float
        the counter becomes a float32.
    factor : int or float, or array of rank 0
        The factor by which it is multiplied and divided.
    min_loss_scale : float or float array of rank 0
        It is not divided below this.

    Raises
    ------
    TypeError
        One of them is not a real number.

    """

    __module__ = _MODULE

    loss_scale: Any
    counter: Any = dataclasses.field(default_factory=lambda: np.zeros([], np.int32))
    period: Any = 2000
    factor: Any = 2
    min_loss_scale: Any = dataclasses.field(default_factory=lambda: np.ones([], np.float32))

    def __post_init__(self) -> None:
        _register_if_imported()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is object:
                continue  # jax makes one of placeholder objects to learn the structure
            _check_number(field.name, value)
            if field.name.endswith("loss_scale") and not is_floating(dtype := _dtype(value)):
                warnings.warn(f"{field.name} has dtype {dtype}; use a float", stacklevel=3)

    def adjust(self, grads_finite: Any) -> DynamicLossScale:
        """Return the scale for the next step.

        Parameters
        ----------
        grads_finite : bool or bool array of rank 0
            As `all_finite` gives it.

        Raises
        ------
        AssertionError
            `grads_finite` has axes, as in jmp.
        TypeError
            It is not a bool (or an int, as 0 or 1), or a number of the loss scale has axes.

        """
        if np.ndim(grads_finite) != 0:
            raise AssertionError(f"grads_finite={grads_finite!r} must be a boolean scalar.")
        if _dtype(grads_finite).kind not in "biu":
            raise TypeError(f"grads_finite={grads_finite!r} is not valid; use True or False.")
        numbers = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in numbers.items():
            if np.ndim(value) != 0:
                raise TypeError(f"{name}={value!r} is not valid; use a number without axes.")
        is_traced = any(map(_is_traced, (grads_finite, *numbers.values())))
        xp = sys.modules["jax"].numpy if is_traced else np
        with np.errstate(all="ignore"):
            scale, counter = self._step(xp, xp.asarray(grads_finite).astype(bool))
        return dataclasses.replace(self, loss_scale=scale, counter=counter)

    def _step(self, xp: Any, finite: Any) -> tuple[Any, Any]:
        """Return the scale and the counter after a step, in the dtypes that jmp gives them."""
        counter, period = xp.asarray(self.counter), xp.asarray(self.period)
        if is_floating(counter.dtype) or is_floating(period.dtype):
            counter, period = counter.astype(np.float32), period.astype(np.float32)
        dtype = _dtype(self.loss_scale)
        if not is_floating(dtype) or (xp is np and dtype == np.float64):
            dtype = np.float32
        numbers = (self.loss_scale, self.factor, self.min_loss_scale)
        scale, factor, minimum = (xp.asarray(number).astype(dtype) for number in numbers)
        machine: Any = SimpleNamespace(
            _rules=_RULES,
            growth_interval=period,
            growth_factor=factor,
            minimum=minimum,
            maximum=None,
        )
        scale, count = next_scale(xp, scale, counter, machine, finite)
        return scale, count.astype(np.int32 if counter.dtype == np.bool_ else counter.dtype)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the leaves and the static data, for jax. The minimum is a leaf, unlike in jmp."""
        return (self.loss_scale, self.counter, self.min_loss_scale), (self.period, self.factor)

    @classmethod
    def tree_unflatten(cls, meta: tuple[Any, ...], data: tuple[Any, ...]) -> DynamicLossScale:
        """Return the inverse of `tree_flatten`."""
        loss_scale, counter, min_loss_scale = data
        period, factor = meta
        return cls(loss_scale, counter, period, factor, min_loss_scale)


_RULES = {**Machine(preset="jmp")._rules, "arithmetic": "that of the scale's dtype"}

LossScale = NoOpLossScale | StaticLossScale | DynamicLossScale


def all_finite(tree: Any) -> Any:
    """Tell, by a boolean array of rank 0 (jax's for jax's arrays), whether all elements are finite.

    A tree without leaves is finite; TypeError for leaves other than numbers.
    """
    leaves = trees.values(tree)
    if any(map(_is_jax, leaves)):
        jnp = sys.modules["jax"].numpy
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
    return np.asarray(unscaling.all_finite(tree))


def select_tree(pred: Any, a: Tree, b: Tree) -> Tree:
    """Return `a` if `pred`, else `b`; inside `jax.jit`, leaf by leaf.

    Raises
    ------
    AssertionError
        `pred` is not a boolean of rank 0.
    ValueError, TypeError
        Structures, shapes or dtypes differ.

    """
    if np.ndim(pred) != 0 or _dtype(pred) != np.bool_:
        raise AssertionError(f"pred={pred!r} must be a boolean scalar.")
    unscaling.require_alike(a, b, ("a", "b"))
    if _is_traced(pred):
        where = sys.modules["jax"].numpy.where
        pairs = zip(trees.values(a), trees.values(b), strict=True)
        selection: Tree = trees.replace(a, (where(pred, *pair) for pair in pairs))
        return selection
    return a if pred else b


def register() -> None:
    """Register the three classes as pytrees of jax, which must be imported.

    Making a loss scale does it, too, if jax is imported by then.

    Raises
    ------
    RuntimeError
        jax is not imported.

    """
    if "jax" not in sys.modules:
        raise RuntimeError("jax is not imported; import it before register().")
    _register_if_imported()


# The module of jax in which the classes are registered; a process may import another.
_REGISTERED: list[Any] = []
_REGISTERING = threading.Lock()


def _register_if_imported() -> None:
    if "jax" not in sys.modules:
        return
    tree_util = getattr(sys.modules["jax"], "tree_util", None)
    if tree_util is None or tree_util in _REGISTERED:
        return  # its import is under way, or this is done
    with _REGISTERING:
        if tree_util in _REGISTERED:
            return
        for cls in (NoOpLossScale, StaticLossScale):
            tree_util.register_pytree_node(cls, lambda x: ((), x), lambda x, _: x)
        tree_util.register_pytree_node_class(DynamicLossScale)
        _REGISTERED.append(tree_util)


def _is_jax(value: Any) -> bool:
    return "jax" in sys.modules and isinstance(value, sys.modules["jax"].Array)


def _is_traced(value: Any) -> bool:
    return "jax" in sys.modules and isinstance(value, sys.modules["jax"].core.Tracer)


def _dtype(value: Any) -> Any:
    """Return the dtype of an array or scalar, also a traced one."""
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


def _check_number(name: str, value: Any) -> None:
    """Raise TypeError unless a value is a real number or array; jax may be tracing it."""
    dtype = _dtype(value)
    if not is_floating(dtype) and getattr(dtype, "kind", "O") not in "biu":
        raise TypeError(f"{name}={value!r} is not valid; use a number of at most 64 bits, as 2.0.")


def _times(tree: Tree, factor: Any) -> Tree:
    products = (times(leaf, _as_array_like(factor, leaf)) for leaf in trees.values(tree))
    result: Tree = trees.replace(tree, products)
    return result


def _as_array_like(factor: Any, leaf: Any) -> Any:
    """Return the factor; a Python number gets the dtype of a float array, also of ml_dtypes."""
    if isinstance(factor, int | float) and isinstance(leaf, np.ndarray) and is_floating(leaf.dtype):
        return np.asarray(factor).astype(leaf.dtype)
    return factor


def _unscale(tree: Tree, scale: Any) -> Tree:
    leaves = trees.values(tree)
    strong = isinstance(scale, np.ndarray | np.generic) and scale.dtype == np.float32
    if strong and is_usable(scale) and all(map(_becomes_single, leaves)):
        result, _ = unscaling.unscale(tree, float(scale))
        return result
    with np.errstate(all="ignore"):
        inverse = 1 / scale
    return _times(tree, inverse)


def _becomes_single(leaf: Any) -> bool:
    """Tell whether numpy's product with a float32 is a float32."""
    is_array = type(leaf) is np.ndarray and leaf.ndim > 0
    return is_array and is_floating(leaf.dtype) and np.result_type(leaf, np.float32) == np.float32
