"""Compare small tensors that differ in names and places alone in stacks of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import block_amax
from castwise.checkpoint.comparison._scheme_recipes import SchemeRecipe
from castwise.checkpoint.comparison.results import TensorDiff
from castwise.quantization import QuantizedArray
from castwise.quantization.arrays.comparison import are_made


class TensorPair(NamedTuple):
    """A tensor of A and one of B, by what their headers state."""

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    # None of one that castwise does not know, of which bytes are compared.
    formats: tuple[str | None, str | None]
    labels: tuple[str, str]
    quantized: tuple[bool, bool]
    nbytes: int  # of that of A, as stored
    names: tuple[str, str] = ("", "")

    def of(self, names: tuple[str, str]) -> TensorPair:
        return TensorPair(*self[:-1], names)  # in less time than `_replace`


class StackedDiff(NamedTuple):
    """What was found of a pair in a stack."""

    tensor: TensorDiff
    # The recipe that makes the one of the other; None if they are not told to differ.
    recipe: SchemeRecipe | None


@dataclass(slots=True, eq=False)
class PairKind:
    """Pairs that differ in names and places alone."""

    facts: TensorPair  # what they have in common
    # The most of them that are compared at once; 1 if each is by itself.
    count: int
    # How many the next stack has: the first pair tells which recipe is likely for the others.
    size: int = 1
    # How many pairs are compared by themselves before the next stack, and after one in vain.
    wait: int = 0
    distance: int = 1
    names: deque[tuple[str, str]] = field(default_factory=deque)  # of those that are not compared
    # What was found of the first of them; None of one that is to be compared by itself.
    results: deque[StackedDiff | None] = field(default_factory=deque)
    likely: SchemeRecipe | None = None  # what was tried first of them


def recipes_of(
    # Matrices of A.
    x: NDArray[Any],
    # Those of B, as they are stored.
    q: QuantizedArray,
    # What may have made them, the likely recipe first.
    likely: Sequence[SchemeRecipe],
    # Returns of each matrix of A, given its largest magnitude, that of all fused with it.
    amaxes_of_fused: Callable[[Sequence[float]], Sequence[float]],
) -> Sequence[SchemeRecipe | None]:
    """Return of each pair the likely recipe if that makes the codes and scales of B."""
    options = likely[0].quantize_options if likely else None
    if options is None or likely[0].needs_amax != likely[0].has_global_scale:
        return [None] * len(x)
    own: Sequence[float] = [block_amax(matrix) for matrix in x]
    fused = own
    # Any recipe makes zeros: which of them is named must not depend on other weights.
    chosen: list[SchemeRecipe | None] = [likely[0] if size else None for size in own]
    if likely[0].needs_amax:
        fused = amaxes_of_fused(own)
        alike = [recipe for recipe in likely if recipe.quantize_options == options]
        usual = next((recipe for recipe in alike if not recipe.shares), None)
        # A recipe that shares a scale is that of weights fused with larger ones.
        chosen = [
            (usual if size == largest else alike[0]) if size else None
            for size, largest in zip(own, fused, strict=True)
        ]
    are_finite = [math.isfinite(size + largest) for size, largest in zip(own, fused, strict=True)]
    if not all(are_finite):  # the core refuses these
        x = x.copy()
        x[np.logical_not(are_finite)] = 0
    amaxes = [
        (largest if recipe is not None and recipe.shares else size) if is_finite else 0
        for recipe, size, largest, is_finite in zip(chosen, own, fused, are_finite, strict=True)
    ]
    made = are_made(x, q, options, amaxes if likely[0].needs_amax else None).tolist()
    return [
        recipe if is_finite and is_made else None
        for recipe, is_finite, is_made in zip(chosen, are_finite, made, strict=True)
    ]
