"""Find the scheme, the producer and the rule of scales that make one matrix of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from castwise._core import UnfitError, compare
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.comparison._scheme_recipes import MATRIX, SchemeRecipe, scheme_recipes
from castwise.checkpoint.comparison.explanations import (
    CastExplanation,
    Pairs,
    first_differing,
    index_of,
    most_failing,
)
from castwise.quantization import QuantizedArray, QuantizedWeight
from castwise.quantization.arrays.comparison import can_keep_level
from castwise.quantization.arrays.quantize import has_level_of

# Elements of whole rows on which a recipe is tried at a time.
_SLAB_ELEMENTS = 1 << 20
# A sample is as many whole rows as so many elements make, or one block of rows.
_SAMPLE_ELEMENTS = 1 << 13
# Of blocks of several rows: two of 128 columns.
_SAMPLE_COLUMNS = 256
# How many recipes that agree on the sample are tried on all elements.
_PROVED = 6

Tried = tuple[int, int | None, int | None]
"""How many elements a recipe was tried on, for how many it is wrong, and the first of these."""

# What is tried, and whether any of it needs the largest magnitude of a tensor.
_Candidates = tuple[Sequence[SchemeRecipe], bool]

Matrices = tuple[NDArray[Any], NDArray[Any]]
"""Some whole rows of two tensors."""


# After some tensors of a scheme in a row that nothing explains, only what was found before is
# tried.
class SchemeProver:
    """Searches among schemes for what made tensors of others, those found before first."""

    PATIENCE = 8

    def __init__(self, threads: int | None) -> None:
        self.threads = threads
        self.recipes_found: list[SchemeRecipe] = []
        self._in_vain: dict[str | None, int] = {}
        self._last: tuple[Sequence[SchemeRecipe], _Candidates] = (), ([], False)

    def candidates(self, weight: QuantizedWeight | None, axes: int) -> _Candidates:
        """Return what is tried for a weight, what was found before first."""
        scheme = None if weight is None else weight.scheme
        if self._in_vain.get(scheme, 0) >= self.PATIENCE:
            return _with_need(self.recipes_found)
        recipes = scheme_recipes(weight, axes)
        if recipes != self._last[0]:
            self._last = recipes, _with_need(dict.fromkeys([*self.recipes_found, *recipes]))
        return self._last[1]

    def likely(self, weight: QuantizedWeight | None) -> list[SchemeRecipe]:
        """Return the usual recipes that explained tensors before."""
        # Recipes of the weight's scheme come first; among equals, recipes of its producers, and
        # then recipes with shared scales.
        scheme, producers = (None, ()) if weight is None else (weight.scheme, weight.recipes)
        recipes = [recipe for recipe in self.recipes_found if recipe.cost == 1]
        return sorted(
            recipes,
            key=lambda recipe: (
                recipe.scheme != scheme,
                recipe.producer not in producers,
                not recipe.shares,
            ),
        )

    def remember(self, weight: QuantizedWeight | None, best: SchemeRecipe | None) -> None:
        scheme = None if weight is None else weight.scheme
        self._in_vain[scheme] = 0 if best is not None else self._in_vain.get(scheme, 0) + 1
        if best is not None and self.recipes_found[:1] != [best]:
            self.recipes_found = [
                best,
                *(recipe for recipe in self.recipes_found if recipe != best),
            ]
            self._last = (), ([], False)


def _with_need(recipes: Iterable[SchemeRecipe]) -> _Candidates:
    return (candidates := [*recipes]), any(candidate.needs_amax for candidate in candidates)


# A recipe that agrees on the first rows may be tried while the two are read for other reasons.
class SchemeSearch:
    """The search for what makes a tensor of another one."""

    def __init__(
        self,
        # What was found of other tensors.
        prover: SchemeProver,
        # Reads the pieces of both.
        pairs: Pairs,
        *,
        # The shape of both, and the format of the second one.
        shape: tuple[int, ...],
        to: str,
        # The second one if it is quantized.
        weight: QuantizedWeight | None,
        # Returns some rows of it as they are stored; None if it is plain.
        form: Callable[[], QuantizedArray | None],
        # Returns the largest magnitude of the first one, and of that with what engines fuse with
        # it.
        amaxes: Callable[[], tuple[float, float]],
    ) -> None:
        self._prover, self._pairs, self._weight = prover, pairs, weight
        self.shape, self.to, self.threads = shape, to, prover.threads
        self._candidates: Sequence[SchemeRecipe] | None = None
        self._read_form, self._read_amaxes = form, amaxes
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
                self._amax, self._amax_of_fused = self._read_amaxes()
                if not math.isfinite(self._amax_of_fused):
                    self._candidates = ()
                if self._amax_of_fused == self._amax:
                    self._candidates = [recipe for recipe in self._candidates if not recipe.shares]
        return self._candidates

    def trial(self) -> SchemeTrial | None:
        """Return the trial of the likely recipe; None if there is none."""
        # A usual one that explained a tensor before, and agrees on the first rows, comes before
        # all: if there is one alone, with a scale of its own or a shared one, it is tried without
        # these.
        likely = self._prover.likely(self._weight)
        if self._candidates is None and likely and self._may_keep_level(likely):
            self._trial = SchemeTrial(self, likely[0], keeps_level=True)
            return self._trial
        candidates = self.candidates()
        likely = [recipe for recipe in likely if recipe in candidates]
        are_several = (
            len(likely) > 1 and len({replace(recipe, shares=False) for recipe in likely}) > 1
        )
        for recipe in likely:
            if are_several:
                sample = self._sample(recipe)
                if sample is None or self._different(recipe, *sample) != 0:
                    continue
            self._trial = SchemeTrial(self, recipe)
            return self._trial
        for recipe in self.agreeing(is_one_enough=True):
            self._trial = SchemeTrial(self, recipe)
            break
        return self._trial

    def _may_keep_level(self, likely: Sequence[SchemeRecipe]) -> bool:
        """Return True if the likely recipe is tried with the global scale that is stored."""
        # The largest magnitude that it is of is then found while the two are compared.
        recipe, weight = likely[0], self._weight
        if weight is None or not recipe.has_global_scale or len(self.shape) != MATRIX:
            return False
        is_alone = all(replace(other, shares=recipe.shares) == recipe for other in likely)
        options = recipe.quantize_options
        if not is_alone or recipe.scheme != weight.scheme or options is None:
            return False
        form = self._stored_form()
        return form is not None and can_keep_level(form, numpy_dtype(self.to), options)

    def _stored_form(self) -> QuantizedArray | None:
        """Return some rows of the second tensor as they are stored, which are read once."""
        if not self._form:
            self._form.append(self._read_form())
        return self._form[0]

    def settle(self) -> None:
        """Decide on a trial with the stored global scale, after all elements were compared."""
        trial, self._trial = self._trial, None
        form = self._stored_form()
        if trial is None or trial.has_failed or form is None:
            return
        amax, amax_of_fused = self._read_amaxes()
        recipe = replace(trial.recipe, shares=amax_of_fused != amax)
        options, dtype = recipe.quantize_options, numpy_dtype(self.to)
        if options is not None and has_level_of(amax_of_fused, form, dtype, options):
            trial.recipe, self._trial = recipe, trial

    def proof(self, *, of_zeros: bool = False) -> CastExplanation | None:
        """Return the recipe that is right for every element, if the trial has shown that."""
        # Any recipe makes zeros: which of them is named does not depend on other tensors.
        if of_zeros:
            self._prover, self._candidates, self._trial = SchemeProver(self.threads), None, None
            return self.explanation()
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
        if (proof_of_trial := self.proof()) is not None:
            return proof_of_trial
        best_recipe: SchemeRecipe | None = None
        best: CastExplanation | None = None
        for candidate in self.agreeing()[:_PROVED]:
            trial = SchemeTrial(self, candidate)
            for matrices in self._matrices(trial.most_elements):
                trial.take(*trial.try_rows(*matrices))
                if trial.has_failed:
                    break
            proof = trial.explanation()
            if proof is not None and (best is None or proof.disagreeing < best.disagreeing):
                best, best_recipe = proof, candidate
                if proof.every_element:
                    break
        self._prover.remember(self._weight, best_recipe)
        return best

    def agreeing(self, *, is_one_enough: bool = False) -> list[SchemeRecipe]:
        """Return the recipes that agree on the first rows, the best first, or that alone."""
        scores: dict[SchemeRecipe, int] = {}
        samples: dict[int | None, Matrices | None] = {}
        for candidate in self.candidates():
            step = candidate.row_step(self.shape)
            if step not in samples:
                samples[step] = self._sample(candidate)
            if (sample := samples[step]) is None:
                continue
            different = self._different(candidate, *sample)
            if is_one_enough and different == 0 and candidate.cost == 1:
                return [candidate]  # no later one is better
            if different is not None and different <= most_failing(sample[0].size):
                scores[candidate] = different
        return sorted(scores, key=lambda candidate: (scores[candidate], candidate.cost))

    def _sample(self, candidate: SchemeRecipe) -> Matrices | None:
        step = candidate.row_step(self.shape)
        sample = None if step is None else next(self._matrices(_slab_size(self.shape, step)), None)
        if sample is None or step == 1:
            return sample
        return sample[0][:, :_SAMPLE_COLUMNS], sample[1][:, :_SAMPLE_COLUMNS]

    def _matrices(self, size: int) -> Iterator[Matrices]:
        """Read rows of so many elements at a time."""
        shape = -1, self.shape[-1]
        return (
            (original.reshape(shape), copy.reshape(shape)) for original, copy in self._pairs(size)
        )

    def _different(
        self, candidate: SchemeRecipe, original: NDArray[Any], copy: NDArray[Any]
    ) -> int | None:
        result = self.apply(candidate, original)
        return None if result is None else compare(result, copy, threads=self.threads).different

    def amax(self, candidate: SchemeRecipe) -> float | None:
        """Return the largest magnitude that scales of the whole are for; None if none are."""
        if not candidate.needs_amax:
            return None
        return self._amax_of_fused if candidate.shares else self._amax

    def apply(self, candidate: SchemeRecipe, matrix: NDArray[Any]) -> NDArray[Any] | None:
        """Return what a recipe makes of some rows; None if its scheme cannot hold them."""
        weight = self._weight
        is_own = weight is None or (
            candidate.scheme == weight.scheme and candidate.producer in weight.recipes
        )
        form = None if is_own else self._stored_form()
        try:
            amax = self.amax(candidate)
            return candidate.apply(matrix, self.to, amax, shape=self.shape, form=form)
        except UnfitError:
            return None


class SchemeTrial:
    """Tries a recipe on all elements of two tensors, which come in pieces."""

    def __init__(
        self, search: SchemeSearch, recipe: SchemeRecipe, *, keeps_level: bool = False
    ) -> None:
        self._search = search
        # Whether the global scale is the stored one, until `SchemeSearch.settle`.
        self.keeps_level = keeps_level
        self._size = math.prod(search.shape)
        self._count = self._disagreeing = 0
        self._place: int | None = None
        self.recipe = recipe
        self.step = recipe.row_step(search.shape)
        self.has_failed = self.step is None
        size = _slab_size(search.shape, self.step or 1)
        self.most_elements = max(_SLAB_ELEMENTS // size, 1) * size

    def quantize_options(self, count: int) -> tuple[dict[str, Any] | None, float | None]:
        """Return those of `quantize_slab` of so many elements, and the largest magnitude."""
        # The options are None if they alone are not the recipe; the magnitude is None if it is that
        # of the elements, or not known yet.
        is_own = self.keeps_level or (count == self._size and not self.recipe.shares)
        return self.recipe.quantize_options, None if is_own else self._search.amax(self.recipe)

    def try_rows(self, original: NDArray[Any], copy: NDArray[Any]) -> Tried:
        original, copy = (array.reshape(-1, self._search.shape[-1]) for array in (original, copy))
        is_known = not (self.has_failed or self.keeps_level)
        result = self._search.apply(self.recipe, original) if is_known else None
        if result is None:
            return original.size, None, None
        different, place = compare(result, copy, threads=1).different, None
        if different:
            place = first_differing(result.reshape(-1), copy.reshape(-1))
        return original.size, different, place

    def take(self, count: int, different: int | None, place: int | None) -> None:
        """Take the results of `try_rows` in the order of the rows."""
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
        if self.has_failed or self._count < self._size:
            return None
        index = index_of(self._place, self._search.shape)
        return explanation_of(self.recipe, self._count, self._disagreeing, index)


def explanation_of(
    recipe: SchemeRecipe, count: int, disagreeing: int = 0, index: tuple[int, ...] | None = None
) -> CastExplanation:
    """Say that a recipe makes so many elements but some, of which `index` is the first."""
    text, options = _described(recipe)
    return CastExplanation(text, dict(options), count, disagreeing, index)


@lru_cache(1 << 7)
def _described(recipe: SchemeRecipe) -> tuple[str, Mapping[str, object]]:
    """Return the text and the options of a recipe, which explains many weights."""
    return recipe.text(), recipe.to_dict()


def _slab_size(shape: Sequence[int], step: int) -> int:
    """Return of how many elements the fewest whole rows are that make a sample."""
    rows = shape[-1] * step
    return max(_SAMPLE_ELEMENTS // rows, 1) * rows
