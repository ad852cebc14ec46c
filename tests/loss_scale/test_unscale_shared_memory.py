"""Gradients that occur several times in a tree, and targets that interleave in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from castwise.loss_scale import unscale
from oracle import Array


def norms(grads: Any) -> list[float]:
    """The norm of a tree however its results are written; in place last, for it changes it."""
    targets = [np.empty_like(grad) for grad in grads]
    found = [
        unscale(grads, 4.0, norm=True)[2],
        unscale(grads, 4.0, targets, norm=True)[2],
        unscale(grads, 4.0, list(grads), norm=True)[2],
    ]
    for target, grad in zip(targets, grads, strict=True):
        np.testing.assert_array_equal(target, grad)
    return found


def test_each_leaf_counts_and_each_memory_is_divided_once() -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal(n).astype(np.float32) for n in (300, 70_000))
    once = unscale([one, other, one.copy(), other.copy()], 4.0, norm=True)[2]
    wanted = one / 4
    assert norms([one, other, one, other]) == [once] * 3
    np.testing.assert_array_equal(one, wanted)


def test_views_with_the_same_elements_are_divided_once() -> None:
    flat = np.arange(24, dtype=np.float32)
    views = [flat, flat[:], flat.reshape(4, 6), flat.reshape(2, 1, 12)]
    assert len(set(norms(views))) == 1
    np.testing.assert_array_equal(flat, np.arange(24) / 4)
    # Other elements of the same memory are other gradients.
    several = [flat[:12], flat[12:], flat[:0], flat[24:]]
    unscale(several, 0.25, several)
    np.testing.assert_array_equal(flat, np.arange(24))


@pytest.mark.parametrize(
    "view", [lambda x: x[1:], lambda x: x[::-1], lambda x: x[::2]], ids=["tail", "turned", "even"]
)
def test_views_that_overlap_otherwise_are_refused_in_place(view: Any) -> None:
    flat = np.arange(9, dtype=np.float32)
    grads = {"a": flat, "b": [view(flat)]}
    with pytest.raises(ValueError, match="grads at 'a' and at 'b/0' overlap, so in place"):
        unscale(grads, 2.0, grads)
    np.testing.assert_array_equal(flat, np.arange(9))
    got, _ = unscale(grads, 2.0)
    np.testing.assert_array_equal(got["b"][0], view(flat) / 2)


def parts(matrix: Array) -> dict[str, list[Array]]:
    """Arrays that interleave in memory and share none of it."""
    rows, columns = matrix.shape
    return {
        "columns": [matrix[:, j] for j in range(columns)],
        "columns turned": [matrix[::-1, j] for j in range(columns)],
        "halves of columns": [matrix[i::2, j] for j in range(columns) for i in (0, 1)],
        "blocks": [
            matrix[i : i + 3, j : j + 5] for i in range(0, rows, 3) for j in range(0, columns, 5)
        ],
        "every third": [matrix.reshape(-1)[i::3] for i in range(3)],
    }


@pytest.mark.parametrize("kind", parts(np.zeros((2, 2))))
def test_targets_that_interleave(kind: str) -> None:
    matrix = np.zeros((12, 2000), np.float32)
    targets = parts(matrix)[kind]
    grads = [np.full(target.shape, index + 1, np.float32) for index, target in enumerate(targets)]
    unscale(grads, 0.5, targets)
    for grad, target in zip(grads, targets, strict=True):
        np.testing.assert_array_equal(target, grad * 2)
    wanted = matrix / 4
    unscale(targets, 4.0, targets)
    np.testing.assert_array_equal(matrix, wanted)
    with pytest.raises(ValueError, match="out at '1' and at"):
        unscale([*grads, grads[1].copy()], 2.0, [*targets, targets[1]])
    np.testing.assert_array_equal(matrix, wanted)


def test_targets_that_only_an_exact_look_takes_apart() -> None:
    """Strides of 6 and 10 bytes, starting at even and odd multiples of 2: they share no byte."""
    memory = np.zeros(100, np.float16)
    threes, fives = memory[0:30:3], memory[1:60:15]
    assert not np.shares_memory(threes, fives)
    unscale([np.ones(10), np.ones(4)], 1.0, [threes, fives])
    assert memory.sum() == 14
    with pytest.raises(ValueError, match="share memory"):
        unscale([np.ones(10), np.ones(12)], 1.0, [threes, memory[1:60:5]])


def test_no_norm_but_of_something() -> None:
    for nothing in ([], None, [np.empty((0, 3))], {"a": None}):
        assert repr(unscale(nothing, 2.0, norm=True)[2]) == "0.0"
    assert repr(unscale([np.array([-0.0])], 2.0, norm=True)[2]) == "0.0"


def test_dtype_beside_out_must_be_that_of_out() -> None:
    grads = {"a": np.ones(2, np.float16)}
    out = {"a": np.empty(2, np.float32)}
    assert unscale(grads, 2.0, out, dtype=np.float32)[0] is out
    with pytest.raises(ValueError, match="dtype=float64 is not valid with out at 'a' of dtype fl"):
        unscale(grads, 2.0, out, dtype=np.float64)
    with pytest.raises(ValueError, match="leave dtype out"):
        unscale(grads, 2.0, grads, dtype=np.float32)
