"""Unscale gradients: check, divide and measure them in one pass over memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, MappingView, Set
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike

from castwise import _trees as trees
from castwise._core import arrays_finite, unscale_arrays
from castwise.arrays.adapter_registry import moved_as
from castwise.loss_scale._arithmetic import is_usable, reciprocal, times

Tree = TypeVar("Tree")


@overload
def unscale(
    grads: Tree,
    scale: object,
    out: object = None,
    *,
    norm: Literal[False] = False,
    dtype: DTypeLike | None = None,
    threads: int | None = None,
) -> tuple[Tree, bool]: ...
@overload
def unscale(
    grads: Tree,
    scale: object,
    out: object = None,
    *,
    norm: Literal[True],
    dtype: DTypeLike | None = None,
    threads: int | None = None,
) -> tuple[Tree, bool, float]: ...
def unscale(
    grads: object,
    scale: object,
    out: object = None,
    *,
    norm: bool = False,
    dtype: DTypeLike | None = None,
    threads: int | None = None,
) -> Any:
    """Divide gradients by the loss scale, tell whether all are finite, and take their norm.

    Each gradient is read once.

    Parameters
    ----------
    grads : array or nested mapping, list, tuple or dataclass of arrays
        float16, bfloat16, float32, float64, float8, ...: any real float, any shape, strides and
        byte order; also of a library with an adapter. None is a missing gradient, and stays None.
    scale : float or loss scale
        A finite real scalar whose reciprocal a float32 holds. Of a FixedLossScale, DynamicLossScale
        or LossScaler the ``scale`` is used.
    out : array or tree of arrays, optional
        Written in place and returned; structure and shapes of ``grads``, any float dtypes. May be
        ``grads`` itself.
    norm : bool
        Also return the norm: the root of the sum of squares of all gradients, each leaf counted,
        as by `torch.nn.utils.clip_grad_norm_`.
    dtype : dtype, optional
        Of new arrays; default float32. With ``out`` that of its arrays, or None.
    threads : int, optional
        At most this many threads; default get_num_threads().

    Returns
    -------
    tuple
        ``(grads, finite)`` or ``(grads, finite, norm)``: a tree of the same structure, of arrays of
        the same libraries; whether
        every gradient is finite, both as given and as written; a float, infinite or NaN if they
        are not.

    Raises
    ------
    TypeError
        A gradient is not a real float (the message has its path); a scale is not a real scalar;
        ``norm`` is not a bool.
    ValueError
        A scale without a usable reciprocal; an ``out`` with another structure, shape or dtype,
        read-only, or with arrays that share memory; a tree that contains itself.

    Notes
    -----
    A result is the float32 product of the gradient and of the reciprocal of the scale rounded to
    float32, then rounded to the dtype of ``out``: exact for every scale that is a power of two,
    unless the result is subnormal. torch.amp.GradScaler and TensorFlow compute the same of a scale
    that a float32 holds, as that of each loss scale here is. Another scale, as 0.001, they round
    to float32 before they take its reciprocal. If a gradient or its target is float64, the
    reciprocal and the product are of float64, rounded once.
    torch and tf_keras multiply float64 gradients, too, by the reciprocal that is rounded to
    float32: results differ by up to 2**-24 of their size, unless the scale is a power of two.
    The norm is that of the results before they are rounded to a narrower dtype. Squares are added
    in float64: in the order of the elements within runs of 1,024, as 32 interleaved sums, then run
    by run. So the norm has the same bits for any strides, threads and CPU, unless it is NaN. (With
    float64 results beyond 1e154 it is infinite.)

    An array that occurs several times in ``grads`` counts in the norm each time, but is divided
    once, and without ``out`` the occurrences share their result. In place the same holds for views
    with the same elements in the same order (reshaped ones, for example); views that overlap in
    another way are refused.

    Examples
    --------
    >>> grads = {"kernel": np.array([512.0, 1024.0], np.float16), "bias": None}
    >>> unscale(grads, 1024.0)
    ({'kernel': array([0.5, 1. ], dtype=float32), 'bias': None}, True)
    >>> unscale([np.array([3.0, 4.0])], 1.0, norm=True)[2]
    5.0

    """
    if not isinstance(norm, bool | np.bool_):
        raise TypeError(f"norm={norm!r} is not valid; use True or False.")
    number = scale.scale if hasattr(scale, "scale") else scale
    tree, finite, total_norm = _unscale(
        grads, number, out, dtype=dtype, squares=norm, threads=threads
    )
    return (tree, finite, total_norm) if norm else (tree, finite)


def unscale_in_place(grads: list[list[Any]], scale: float) -> bool:
    """Divide as torch.amp.GradScaler: also float64 gradients by the reciprocal in float32."""
    # Tells whether all were finite. 0 and infinity have IEEE's reciprocals.
    if is_usable(scale):
        _, finite, _ = _unscale(grads, scale, grads, single=True)
        return finite
    finite = all_finite(grads)
    for grad in trees.values(grads):
        grad[...] = times(grad, reciprocal(scale))
    return finite


def _unscale(
    grads: object, scale: object, out: object, *, dtype: DTypeLike | None = None, **options: Any
) -> tuple[Any, bool, float]:
    _refuse_one_way("grads", grads)
    sources = trees.values(grads)
    targets = None if out is None else sources
    if out is not None and out is not grads:
        targets = [target for _, _, target in trees.zip_leaves(grads, out, ("grads", "out"))]
    results, finite, norm = unscale_arrays(
        lambda index: _path(grads, index), sources, targets, dtype, scale, **options
    )
    if out is not None:
        return out, finite, norm
    arrays = map(moved_as, results, sources)
    return trees.replace(grads, arrays), finite, norm


def _refuse_one_way(argument: str, tree: object) -> None:
    """Refuse objects that can be read once only, or have no order: generators, views, sets."""
    if isinstance(tree, Iterator | Set | MappingView):
        kind = type(tree).__name__
        raise TypeError(f"{argument} is of type {kind}; give a list of its arrays.")


def _path(tree: object, index: int) -> str:
    return next(itertools.islice(trees.leaves(tree), index, None))[0]


def all_finite(tree: object, *, threads: int | None = None) -> bool:
    """Tell whether every element of every array is finite; nothing is written.

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
    """Return `on_true` if `pred`, else `on_false`: trees of the same structure.

    Nothing is copied.

    Parameters
    ----------
    pred : bool
        Python's, numpy's, or a boolean scalar of another library.
    on_true, on_false : array or nested mapping, list, tuple or dataclass of arrays
        Trees of equal structure, with equal shapes and dtypes leaf by leaf.

    Raises
    ------
    TypeError
        `pred` is not a boolean; shapes or dtypes differ.
    ValueError
        Structures differ.

    Examples
    --------
    >>> from castwise import loss_scale
    >>> loss_scale.select_tree(False, {"kernel": np.ones(2)}, {"kernel": np.zeros(2)})
    {'kernel': array([0., 0.])}

    """
    require_alike(on_true, on_false, ("on_true", "on_false"))
    if not isinstance(pred, bool | np.bool_):
        pred = pred.item() if np.ndim(pred) == 0 and hasattr(pred, "item") else pred
        if not isinstance(pred, bool):
            raise TypeError(f"pred={pred!r} is not valid; use True or False.")
    return on_true if pred else on_false


def require_alike(tree: object, counterpart: object, names: tuple[str, str]) -> None:
    """Compare two trees, which errors call by `names`."""
    for path, *leaves in trees.zip_leaves(tree, counterpart, names):
        kinds = [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]
        if kinds[0] != kinds[1]:
            raise TypeError(
                f"{names[0]} and {names[1]} differ{f' at {path!r}' if path else ''}: {kinds[0]} "
                f"and {kinds[1]}; give leaves of equal shapes and dtypes."
            )
