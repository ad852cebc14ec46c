"""Gradients out of the scaled ones: checked, divided and measured in one pass over memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, MappingView, Set
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike

from castwise import _trees as trees
from castwise._core import arrays_finite, unscale_arrays

Tree = TypeVar("Tree")


@overload
def unscale(
    grads: Tree,
    scale: Any,
    out: Any = None,
    *,
    norm: Literal[False] = False,
    dtype: DTypeLike | None = None,
    threads: int | None = None,
) -> tuple[Tree, bool]: ...
@overload
def unscale(
    grads: Tree,
    scale: Any,
    out: Any = None,
    *,
    norm: Literal[True],
    dtype: DTypeLike | None = None,
    threads: int | None = None,
) -> tuple[Tree, bool, float]: ...
def unscale(
    grads: Any,
    scale: Any,
    out: Any = None,
    *,
    norm: bool = False,
    dtype: DTypeLike | None = None,
    threads: int | None = None,
) -> Any:
    """Divide gradients by the loss scale, tell whether all are finite, and take their norm.

    Each gradient is read once, all of them in one call.

    Parameters
    ----------
    grads : array or nested mapping, list, tuple or dataclass of arrays
        float16, bfloat16, float32, float64, float8, ...: any real float, any shape, strides and
        byte order. None stands for a missing gradient, and stays.
    scale : float or loss scale
        Any real scalar that is finite, with a reciprocal that a float32 holds. Of a
        FixedLossScale, DynamicLossScale or LossScaler its ``scale`` is taken.
    out : array or tree of arrays, optional
        Written in place and returned; structure and shapes of ``grads``, any float dtypes. May be
        ``grads`` itself.
    norm : bool
        Also return the norm: the root of the sum of squares of all gradients, each leaf counted,
        as by torch.nn.utils.clip_grad_norm_.
    dtype : dtype, optional
        Of new arrays; default float32. With ``out`` that of its arrays, or None.
    threads : int, optional
        At most this many threads; default get_num_threads().

    Returns
    -------
    tuple
        ``(grads, finite)`` or ``(grads, finite, norm)``: a tree of the same structure; whether
        every gradient is finite, both as given and as written; a float, infinite or NaN if they
        are not.

    Raises
    ------
    TypeError
        A gradient that is no real float, with its path; a scale that is no real scalar.
    ValueError
        A scale without a usable reciprocal; an ``out`` of another structure, shape or dtype than
        asked for, read-only, or with arrays that share memory; a tree that contains itself.

    Notes
    -----
    A result is the float32 product of the gradient and of the reciprocal of the scale rounded to
    float32, as torch.amp.GradScaler and TensorFlow compute it, then rounded to the dtype of
    ``out``: exact for every scale that is a power of two, as long as the result is no subnormal.
    If a gradient or its target is float64 the product is float64's, rounded once.
    The squares are those of the results before they are rounded to a dtype narrower than that,
    added in float64: in the order of the elements within runs of 1,024, as 32 interleaved sums,
    then run by run. So the norm has the same bits for any strides, threads and CPU. (With float64
    results beyond 1e154 it is infinite.)

    An array that stands in several places of ``grads`` counts in the norm at each of them, and is
    read and divided once: in place its memory holds the gradient, not the gradient divided twice;
    without ``out`` the places share their result again. In place the same goes for views with the
    same elements in the same order (reshaped ones, say); views that overlap in another way are
    refused.

    Examples
    --------
    >>> grads = {"kernel": np.array([512.0, 1024.0], np.float16), "bias": None}
    >>> unscale(grads, 1024.0)
    ({'kernel': array([0.5, 1. ], dtype=float32), 'bias': None}, True)
    >>> unscale([np.array([3.0, 4.0])], 1.0, norm=True)[2]
    5.0

    """
    number = scale.scale if hasattr(scale, "scale") else scale
    tree, finite, found = _unscale(grads, number, out, dtype=dtype, squares=norm, threads=threads)
    return (tree, finite, found) if norm else (tree, finite)


def unscale_as_originals(grads: Tree, scale: float, out: Any) -> tuple[Tree, bool]:
    """`unscale`, with float64 gradients multiplied by the reciprocal in float32, too.

    So do torch.amp.GradScaler and TensorFlow's LossScaleOptimizer.
    """
    tree, finite, _ = _unscale(grads, scale, out, single=True)
    return tree, finite


def _unscale(
    grads: Any, scale: Any, out: Any, *, dtype: DTypeLike | None = None, **options: Any
) -> tuple[Any, bool, float]:
    _refuse_one_way("grads", grads)
    sources = trees.values(grads)
    targets = sources if out is grads else None if out is None else _targets(grads, out)
    results, finite, norm = unscale_arrays(
        lambda index: _path(grads, index), sources, targets, dtype, scale, **options
    )
    return trees.replace(grads, iter(results)) if out is None else out, finite, norm


def _targets(grads: Any, out: Any) -> list[Any]:
    return [target for _, _, target in trees.zip_leaves(grads, out, ("grads", "out"))]


def _refuse_one_way(argument: str, tree: Any) -> None:
    """Refuse what can be read only once, or has no order: a generator, a view of a dict, a set."""
    if isinstance(tree, Iterator | Set | MappingView):
        kind = type(tree).__name__
        raise TypeError(f"{argument} is of type {kind}; give a list of its arrays.")


def _path(tree: Any, index: int) -> str:
    return next(itertools.islice(trees.leaves(tree), index, None))[0]


def all_finite(tree: Any, *, threads: int | None = None) -> bool:
    """Whether every element of every array is finite; nothing is written.

    Parameters
    ----------
    tree : array or nested mapping, list, tuple or dataclass of arrays
        Of any dtype that castwise casts, complex ones too; integers are finite. None is skipped,
        and a tree without leaves is finite.
    threads : int, optional
        At most this many threads; default get_num_threads().

    Examples
    --------
    >>> all_finite({"a": np.ones(3), "b": [None, np.array([1.0, np.inf])]})
    False

    """
    _refuse_one_way("tree", tree)
    return arrays_finite(lambda index: _path(tree, index), trees.values(tree), threads)


def select_tree(pred: Any, on_true: Tree, on_false: Tree) -> Tree:
    """One of two trees of the same structure: `on_true` if `pred`, else `on_false`.

    Nothing is copied: on the host a choice between trees is a choice between references.

    Parameters
    ----------
    pred : bool
        Python's, numpy's, or a boolean scalar of another library.
    on_true, on_false : array or nested mapping, list, tuple or dataclass of arrays
        Equal structure, and equal shapes and dtypes leaf by leaf, so that the choice cannot
        change what follows it.

    Raises
    ------
    TypeError
        `pred` is no boolean; shapes or dtypes differ.
    ValueError
        Structures differ.

    """
    require_alike(on_true, on_false, ("on_true", "on_false"))
    if not isinstance(pred, bool | np.bool_):
        pred = pred.item() if np.ndim(pred) == 0 and hasattr(pred, "item") else pred
        if not isinstance(pred, bool):
            raise TypeError(f"pred={pred!r} is not valid; use True or False.")
    return on_true if pred else on_false


def require_alike(first: Any, second: Any, names: tuple[str, str]) -> None:
    """Compare two trees, which errors call by `names`.

    Raises
    ------
    TypeError
        Shapes or dtypes differ.
    ValueError
        Structures differ.

    """
    for path, *leaves in trees.zip_leaves(first, second, names):
        kinds = [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]
        if kinds[0] != kinds[1]:
            raise TypeError(
                f"{names[0]} and {names[1]} differ{f' at {path!r}' if path else ''}: {kinds[0]} "
                f"and {kinds[1]}; give leaves of equal shapes and dtypes."
            )
