"""Find the scheme, the producer and the rule of scales that make one matrix of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import block_amax, compare
from castwise.checkpoint.comparison._explanations import (
    CastExplanation,
    Pairs,
    Pieces,
    first_differing,
    most_failing,
)
from castwise.checkpoint.comparison._row_cutter import Matrices, RowCutter, joined
from castwise.checkpoint.comparison._scheme_recipes import MATRIX, SchemeRecipe, scheme_recipes
from castwise.quantization import QuantizedArray, QuantizedWeight

_SLAB_ELEMENTS = 1 << 20
_SAMPLE_ELEMENTS = 1 << 13
_SAMPLE_COLUMNS = 256
"""Of blocks of several rows: two of 128 columns."""
_PROVED = 6
"""How many recipes that agree on the sample are tried on all elements."""

Tried = tuple[int, int | None, int | None]
"""How many elements a recipe was tried on, for how many it is wrong, and the first of these."""

_Candidates = tuple[Sequence[SchemeRecipe], bool]
"""What is tried, and whether any of it needs the largest magnitude of a tensor."""

FirstRows = Callable[[int], Matrices | None]
"""Returns the first rows of two tensors, of so many elements or all."""


class SchemeProver:
    """Searches among schemes for what made tensors of others, those found before first.

    After some tensors of a scheme in a row that nothing explains, only what was found before is
    tried.
    """

    PATIENCE = 8

    def __init__(self, threads: int | None) -> None:
        self.threads = threads
        self.known: list[SchemeRecipe] = []
        self._in_vain: dict[str | None, int] = {}
        self._last: tuple[Sequence[SchemeRecipe], _Candidates] = (), ([], False)

    def search(
        self,
        lefts: Pieces,
        pairs: Pairs,
        *,
        shape: tuple[int, ...],
        to: str,
        weight: QuantizedWeight | None,
        form: Callable[[], QuantizedArray | None],
        shared_amax: Callable[[], float],
    ) -> SchemeSearch:
        """Prepare the search for what makes one tensor of another, whose pieces can be read.

        `form` returns some rows of the second one as they are stored, None if it is plain;
        `shared_amax` the largest magnitude of what engines fuse with the first one.
        """
        return SchemeSearch(
            self,
            lefts,
            pairs,
            shape=shape,
            to=to,
            weight=weight,
            form=form,
            shared_amax=shared_amax,
        )

    def candidates(self, weight: QuantizedWeight | None, axes: int) -> _Candidates:
        """Return what is tried for a weight, what was found before first."""
        scheme = None if weight is None else weight.scheme
        if self._in_vain.get(scheme, 0) >= self.PATIENCE:
            return _with_need(self.known)
        recipes = scheme_recipes(weight, axes)
        if recipes != self._last[0]:
            self._last = recipes, _with_need(dict.fromkeys([*self.known, *recipes]))
        return self._last[1]

    def remember(self, weight: QuantizedWeight | None, best: SchemeRecipe | None) -> None:
        """Take note of what was found of a weight."""
        scheme = None if weight is None else weight.scheme
        self._in_vain[scheme] = 0 if best is not None else self._in_vain.get(scheme, 0) + 1
        if best is not None and self.known[:1] != [best]:
            self.known = [best, *(recipe for recipe in self.known if recipe != best)]
            self._last = (), ([], False)


def _with_need(recipes: Iterable[SchemeRecipe]) -> _Candidates:
    return (candidates := [*recipes]), any(candidate.needs_amax for candidate in candidates)


class SchemeSearch:
    """The search for what makes a tensor of another one.

    A recipe that agrees on the first rows may be tried while the two are read for other reasons.
    """

    def __init__(
        self,
        prover: SchemeProver,
        lefts: Pieces,
        pairs: Pairs,
        *,
        shape: tuple[int, ...],
        to: str,
        weight: QuantizedWeight | None,
        form: Callable[[], QuantizedArray | None],
        shared_amax: Callable[[], float],
    ) -> None:
        self._prover, self._lefts, self._pairs, self._weight = prover, lefts, pairs, weight
        self.shape, self.to, self.threads = shape, to, prover.threads
        self._candidates: Sequence[SchemeRecipe] | None = None
        self._read_form, self._shared_amax = form, shared_amax
        self._form: list[QuantizedArray | None] = []  # when it was read, it alone
        self._amax: float | None = None
        self._amax_of_fused: float | None = None
        self._trial: SchemeTrial | None = None

    def candidates(self) -> Sequence[SchemeRecipe]:
        """Return what may be tried; reads the first tensor if that needs its largest magnitude."""
        if self._candidates is None:
            self._candidates, needs_amax = (), False
            axes = len(self.shape)
            if axes >= MATRIX and all(self.shape):
                self._candidates, needs_amax = self._prover.candidates(self._weight, axes)
            if needs_amax:
                self._amax = max(block_amax(left.reshape(1, -1)) for left in self._lefts())
                self._amax_of_fused = self._shared_amax()
                if not math.isfinite(self._amax_of_fused):
                    self._candidates = ()
                if self._amax_of_fused == self._amax:
                    self._candidates = [one for one in self._candidates if not one.shares]
        return self._candidates

    def sample_size(self) -> int:
        """Return of how many elements the first rows are by which a recipe is chosen."""
        if 2 * math.prod(self.shape) <= _SAMPLE_ELEMENTS:  # a sample of whole rows has more
            return math.prod(self.shape)
        steps = {candidate.row_step(self.shape) for candidate in self.candidates()}
        sizes = [_slab_size(self.shape, step) for step in steps if step is not None]
        return min(max(sizes, default=0), math.prod(self.shape))

    def trial(self) -> SchemeTrial | None:
        """Return the trial of the first recipe, which takes all pieces in their order."""
        self._trial = SchemeTrial(self) if self.candidates() else None
        return self._trial

    def proved(self) -> CastExplanation | None:
        """Return the recipe that is right for every element, if the trial has shown that."""
        trial = self._trial
        explanation = None if trial is None else trial.explanation()
        if trial is None or explanation is None or not explanation.every_element:
            return None
        self._prover.remember(self._weight, trial.recipe)
        return explanation

    def explanation(self) -> CastExplanation | None:
        """Return the recipe that is right, or right but for a few elements; None without."""
        if not self.candidates():
            return None
        if (proved := self.proved()) is not None:
            return proved
        chosen: SchemeRecipe | None = None
        best: CastExplanation | None = None
        for candidate in self.agreeing(self._first_rows)[:_PROVED]:
            trial = SchemeTrial(self, candidate)
            for left, right in self._pairs():
                trial.add(left, right)
                if trial.has_failed:
                    break
            proof = trial.explanation()
            if proof is not None and (best is None or proof.disagreeing < best.disagreeing):
                best, chosen = proof, candidate
                if proof.every_element:
                    break
        self._prover.remember(self._weight, chosen)
        return best

    def likely(self, first_rows: FirstRows) -> tuple[SchemeRecipe | None, int]:
        """Return the recipe that will be tried first: of those that agree on the first rows.

        The number says on how many elements it was tried and is right.
        A usual one that explained a tensor before, and agrees in all elements, comes before all.
        """
        for known in self._prover.known:
            if known in self.candidates() and known.cost == 1:
                sample = self._sample(known, first_rows)
                if sample is not None and self._different(known, *sample) == 0:
                    return known, sample[0].size
        return next(iter(self.agreeing(first_rows)), None), 0

    def agreeing(self, first_rows: FirstRows) -> list[SchemeRecipe]:
        """Return the recipes that agree on the first rows, the best first."""
        scores: dict[SchemeRecipe, int] = {}
        samples: dict[int | None, Matrices | None] = {}
        for candidate in self.candidates():
            step = candidate.row_step(self.shape)
            if step not in samples:
                samples[step] = self._sample(candidate, first_rows)
            if (sample := samples[step]) is None:
                continue
            different = self._different(candidate, *sample)
            if different is not None and different <= most_failing(sample[0].size):
                scores[candidate] = different
        return sorted(scores, key=lambda candidate: (scores[candidate], candidate.cost))

    def _sample(self, candidate: SchemeRecipe, first_rows: FirstRows) -> Matrices | None:
        step = candidate.row_step(self.shape)
        sample = None if step is None else first_rows(_slab_size(self.shape, step))
        if sample is None or step == 1:
            return sample
        return sample[0][:, :_SAMPLE_COLUMNS], sample[1][:, :_SAMPLE_COLUMNS]

    def _first_rows(self, size: int) -> Matrices | None:
        """Read rows of so many elements, or all."""
        rows = RowCutter(self.shape[-1], size, size)
        for left, right in self._pairs():
            for matrices in rows.add(left, right):
                return matrices
        return next(rows.end(), None)

    def _different(
        self, candidate: SchemeRecipe, left: NDArray[Any], right: NDArray[Any]
    ) -> int | None:
        result = self.applied(candidate, left)
        return None if result is None else compare(result, right, threads=self.threads).different

    def applied(self, candidate: SchemeRecipe, matrix: NDArray[Any]) -> NDArray[Any] | None:
        """Return what a recipe makes of some rows; None if its scheme cannot hold them."""
        amax = self._amax_of_fused if candidate.shares else self._amax
        weight = self._weight
        is_own = weight is None or (
            candidate.scheme == weight.scheme and candidate.producer in weight.recipes
        )
        if not (is_own or self._form):
            self._form.append(self._read_form())
        form = None if is_own else self._form[0]
        try:
            return candidate.applied(matrix, self.to, amax, shape=self.shape, form=form)
        except (ValueError, TypeError):
            return None


class SchemeTrial:
    """Tries a recipe on all elements of two tensors, which come in pieces.

    Without a recipe it is the likely one by the first rows.
    """

    def __init__(self, search: SchemeSearch, recipe: SchemeRecipe | None = None) -> None:
        self._search = search
        self._size = math.prod(search.shape)
        self._rows: RowCutter | None = None
        self._first: list[Matrices] = []
        self._count = self._disagreeing = self._explained = 0
        self._place: int | None = None
        self.has_failed = False
        self.recipe = recipe

    @property
    def explains_all(self) -> bool:
        """True if the first rows are all, and the recipe that explained others is right there."""
        return 0 < self._size == self._explained

    def add(self, left: NDArray[Any], right: NDArray[Any]) -> None:
        """Try it on the next piece."""
        self.take([self.tried(*matrices) for matrices in self.cut(left, right)])

    def cut(self, left: NDArray[Any], right: NDArray[Any]) -> list[Matrices]:
        """Return the whole rows that a piece completes."""
        if self.has_failed:
            return []
        if self._rows is None:
            self._first.append((left, right))
            if sum(part.size for part, _ in self._first) < self._search.sample_size():
                return []
            left, right = (joined([*parts]) for parts in zip(*self._first, strict=True))
            self._first = []
            self._begin(left, right)
        return [] if self._rows is None else [*self._rows.add(left, right)]

    def _begin(self, left: NDArray[Any], right: NDArray[Any]) -> None:
        search = self._search

        def first_rows(size: int) -> Matrices:
            shape = -1, search.shape[-1]
            return left[:size].reshape(shape), right[:size].reshape(shape)

        if self.recipe is None:
            self.recipe, self._explained = search.likely(first_rows)
        step = None if self.recipe is None else self.recipe.row_step(search.shape)
        if step is None:
            self.has_failed = True
        else:
            self._rows = RowCutter(search.shape[-1], _slab_size(search.shape, step), _SLAB_ELEMENTS)

    def tried(self, left: NDArray[Any], right: NDArray[Any]) -> Tried:
        """Try it on rows, and return what `take` takes."""
        if self.has_failed:
            return left.size, None, None
        if self.explains_all:
            return left.size, 0, None
        assert self.recipe is not None, "it has begun"  # noqa: S101
        result = self._search.applied(self.recipe, left)
        if result is None:
            return left.size, None, None
        different, place = compare(result, right, threads=1).different, None
        if different:
            place = first_differing(result.reshape(-1), right.reshape(-1))
        return left.size, different, place

    def take(self, results: Iterable[Tried]) -> None:
        """Take the results of `tried` in the order of the rows."""
        for count, different, place in results:
            if self.has_failed or different is None:
                self.has_failed = True
                return
            if place is not None and self._place is None:
                self._place = self._count + place
            self._count += count
            self._disagreeing += different
            self.has_failed = self._disagreeing > most_failing(self._size)

    def explanation(self) -> CastExplanation | None:
        """Return what was proved; None if the recipe does not explain the tensor."""
        if self._rows is not None and not self.has_failed:
            self.take([self.tried(*matrices) for matrices in self._rows.end()])
        if self.has_failed or self.recipe is None or self._count < self._size:
            return None
        place = self._place
        index = (
            None if place is None else tuple(map(int, np.unravel_index(place, self._search.shape)))
        )
        return CastExplanation(
            self.recipe.text(), self.recipe.to_dict(), self._count, self._disagreeing, index
        )


def _slab_size(shape: Sequence[int], step: int) -> int:
    """Return of how many elements the fewest whole rows are that make a sample."""
    rows = shape[-1] * step
    return max(_SAMPLE_ELEMENTS // rows, 1) * rows
