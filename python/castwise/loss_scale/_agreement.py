"""One decision for all ranks of a data-parallel run, from one MAX all-reduce of one vector.

    rank 0  [0, 3.5, 0.1]  \
    rank 1  [1, 2.0, 0.4]   >  MAX  >  [1, 3.5, 0.4]  >  on each: not finite; 3.5 and 0.4
    rank 2  [0, 0.0, 0.0]  /

The first number is 1 if a gradient was not finite; the others are largest magnitudes, for example
of the tensors with a DelayedScaling. The caller communicates, by `torch.distributed.all_reduce`,
`MPI.Allreduce`, `jax.lax.pmax`, ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from castwise._core import FixedLossScale, in_default_environment, read_array

Vector: TypeAlias = NDArray[np.float32]
Reduce: TypeAlias = Callable[[Vector], Any]
"""Takes a rank's vector; returns the elementwise maximum over all ranks, once it is complete."""


_ANY_SCALE = FixedLossScale(1.0)


def pack(finite: bool, amaxes: ArrayLike = ()) -> Vector:
    """Return one float32 vector for the MAX all-reduce.

    Parameters
    ----------
    finite : bool
        Whether all gradients of this rank were finite. A rank without gradients says True.
    amaxes : sequence of float
        Largest magnitudes, as many and in the same order on every rank; a rank that lacks a
        tensor gives 0.

    Returns
    -------
    ndarray
        float32, of shape (1 + amaxes,). NaN becomes infinity, because communication libraries
        differ in the maximum with NaN.

    Raises
    ------
    ValueError
        `amaxes` is not one-dimensional, or has a negative number.
    TypeError
        `finite` is not a flag that `next` of a loss scale accepts.

    Examples
    --------
    >>> from castwise import loss_scale
    >>> loss_scale.pack(True, [0.5, 3])
    array([0. , 0.5, 3. ], dtype=float32)

    """
    _, finite = _ANY_SCALE.next(finite)  # refuses other values than flags
    return in_default_environment(_pack, finite, amaxes)


def _pack(finite: bool, amaxes: ArrayLike) -> Vector:
    magnitudes = _numbers("amaxes", amaxes, "give one number per tensor")
    if magnitudes.ndim != 1:
        raise ValueError(f"amaxes has shape {magnitudes.shape}; give one number per tensor.")
    if (magnitudes < 0).any():
        raise ValueError(
            f"amaxes={magnitudes[magnitudes < 0][0]} is not valid; magnitudes are 0 or more."
        )
    vector = np.empty(1 + magnitudes.size, np.float32)
    vector[0] = 0 if finite else 1
    vector[1:] = np.where(np.isnan(magnitudes), np.float32(np.inf), magnitudes)
    return vector


def _numbers(argument: str, value: ArrayLike, remedy: str) -> Vector:
    """Return an argument as float32; errors have the remedy."""
    try:
        array = read_array(argument, value)
    except ValueError:  # lists of unequal lengths
        raise ValueError(f"{argument}={value!r} is not valid; {remedy}.") from None
    try:
        return np.asarray(array, np.float32)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}={value!r} is not valid; {remedy}.") from None


def merge(reduced: ArrayLike) -> tuple[bool, Vector]:
    """Return the result of all ranks, from the elementwise maximum of their vectors.

    Parameters
    ----------
    reduced : array_like
        The result of the all-reduce of `pack`'s vectors.

    Returns
    -------
    (bool, ndarray)
        Whether the gradients of every rank were finite, and the largest magnitudes.

    Raises
    ------
    ValueError
        `reduced` is not a maximum of such vectors: it has another shape, NaN, negative numbers, or
        a first number that is neither 0 nor 1 (as of a SUM).

    Examples
    --------
    >>> from castwise import loss_scale
    >>> ranks = [loss_scale.pack(True, [0.5]), loss_scale.pack(False, [3])]
    >>> loss_scale.merge(np.maximum.reduce(ranks))
    (False, array([3.], dtype=float32))

    """
    return in_default_environment(_merge, reduced)


def _merge(reduced: ArrayLike) -> tuple[bool, Vector]:
    vector = _numbers("reduced", reduced, "give the vector that pack() made")
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"reduced has shape {vector.shape}; give the vector that pack() made.")
    if vector[0] not in (0, 1) or not (vector >= 0).all():
        raise ValueError(
            f"reduced={vector!r} is not a maximum of vectors that pack() made; reduce them with "
            "MAX, and wait until that is complete."
        )
    return bool(vector[0] == 0), vector[1:].copy()


def agree(
    finite: bool, amaxes: Sequence[float] | Vector = (), *, reduce: Reduce
) -> tuple[bool, Vector]:
    """Return `merge(reduce(pack(finite, amaxes)))`, with the length checked.

    Parameters
    ----------
    finite, amaxes
        As in `pack`.
    reduce : callable
        The MAX all-reduce: takes this rank's vector and returns the maximum of all ranks'. It may
        work in place and return None. Every rank must call it, also one without gradients.
        It returns when the reduction is complete.

    Returns
    -------
    (bool, ndarray)
        As `merge`; the same on every rank.

    Raises
    ------
    TypeError
        `reduce` returned neither None nor an array (but a handle of an unfinished reduction, say).
    ValueError
        `reduce` returned another length; what `pack` and `merge` refuse.

    Examples
    --------
    >>> def reduce(vector):  # with torch.distributed
    ...     torch.distributed.all_reduce(torch.from_numpy(vector), torch.distributed.ReduceOp.MAX)
    >>> finite, amaxes = agree(finite, amaxes, reduce=reduce)  # doctest: +SKIP

    """
    vector = pack(finite, amaxes)
    answer = reduce(vector)
    maxima = vector if answer is None else answer
    if not _is_vector(maxima):
        raise TypeError(
            f"reduce returned {maxima!r}, which is not a vector; let it wait until the reduction "
            "is complete (torch.distributed: with async_op=False), and return None or the vector."
        )
    if np.shape(maxima) != vector.shape:
        raise ValueError(
            f"reduce returned shape {np.shape(maxima)} for a vector of shape {vector.shape}; "
            "every rank must give as many amaxes."
        )
    return merge(maxima)


def _is_vector(answer: object) -> bool:
    """Tell whether a value holds numbers; numpy makes an object array of a handle."""
    try:
        return np.asarray(answer).dtype.kind not in "OSU"
    except (TypeError, ValueError):
        return False
