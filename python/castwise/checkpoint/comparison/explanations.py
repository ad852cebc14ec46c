"""Find the recipe that makes one tensor of another, and prove it on every element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, compare
from castwise.arrays.recipe import Recipe
from castwise.checkpoint._tensors import format_info
from castwise.checkpoint.comparison._recipes import Sample
from castwise.checkpoint.comparison._scheme_recipes import is_power
from castwise.text.brief import brief_fields


def scale_shifts(original: NDArray[Any], copy: NDArray[Any]) -> dict[int, int] | None:
    """Count by how many codes the scales of B are above those of A; None if they are not E8M0."""
    for scales in (original, copy):
        if scales.dtype != np.uint8 and not is_power(scales.dtype.name):
            return None
    if original.shape != copy.shape:
        return None
    first_codes, second_codes = (
        scales.view(np.uint8).astype(np.int16) for scales in (original, copy)
    )
    values, counts = np.unique(second_codes - first_codes, return_counts=True)
    return {int(value): int(count) for value, count in zip(values, counts, strict=True)}


def shifts_text(shifts: Mapping[int, int]) -> str:
    """Say by how many codes block scales differ."""
    total = sum(shifts.values())
    parts = []
    for shift, count in sorted(shifts.items(), key=lambda item: -item[1]):
        if shift:
            codes = "one code" if abs(shift) == 1 else f"{abs(shift)} codes"
            share = (
                "every block scale" if count == total else f"{count:,} of {total:,} block scales"
            )
            parts.append(f"{share} {codes} {'higher' if shift > 0 else 'lower'}")
    return ", ".join(parts)


Pairs = Callable[[int], Iterator[tuple[NDArray[Any], NDArray[Any]]]]
"""Reads two tensors again, in flat pieces of so many elements; 0 leaves that open."""

# Elements of a piece that are spread evenly over it.
_SPREAD = 1 << 14
# Of these, those that say whether a larger number of A became a smaller one of B.
_FEW = 1 << 10
# No cast is searched for if it is certain to be wrong for one in so many elements.
_REVERSED = 16
# Elements that are searched at a time for the first that differs.
_CHUNK = 1 << 16
# The largest integer by which numpy compares bits.
_WORD_BYTES = 8
# A sample also takes of a piece: elements beyond the range of B, or below its normal numbers.
_NOTABLE = 1 << 10
# And those for which the recipe is wrong that was tried before.
_FAILING = 1 << 12
# In one tensor: each search tries all recipes on a sample.
_SEARCHES = 3
# Searches that find nothing, one after the other, after which only known recipes are tried.
_PATIENCE = 8
# How often pieces before the one where a recipe was found are read again, as it may fail there.
_WALKS = 3
# A recipe explains nothing if it is wrong for more than one in so many elements, and for two.
_MOST_FAILING = 64


def most_failing(count: int) -> int:
    """Return for how many of so many elements a recipe may be wrong that explains the others."""
    return max(count // _MOST_FAILING, 1)


@dataclass(frozen=True, slots=True)
class CastExplanation:
    """What makes B of A, as far as it was proved.

    Attributes
    ----------
    text
        The statement, in words.
    options
        The options of `castwise.cast` that make B of A, and beside them "through", the format that
        A was cast to before, or None, with "through_rounding" and "through_overflow" of that cast;
        "flushed", where subnormals were made 0: "source", "result" or "both". Of quantized weights
        what says how they were made.
    count
        How many elements it was tried on: all.
    disagreeing
        For how many it is wrong.
    index
        The first of these; None if there is none.

    """

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)
    count: int = 0
    disagreeing: int = 0
    index: tuple[int, ...] | None = None

    __repr__ = brief_fields

    @property
    def every_element(self) -> bool:
        """True if B is that in every element."""
        return not self.disagreeing

    def __str__(self) -> str:
        """Return the statement and how far it holds."""
        if self.every_element:
            return f"{self.text} (every element)"
        place = ",".join(map(str, self.index or ()))
        return (
            f"{self.text} (all but {self.disagreeing:,} of {self.count:,} elements, "
            f"the first at {place})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "text": self.text,
            "options": dict(self.options),
            "every_element": self.every_element,
            "count": self.count,
            "disagreeing": self.disagreeing,
            "first_disagreement": None if self.index is None else list(self.index),
        }


class KnownRecipes:
    """The recipes that explained tensors before, which are tried before a search."""

    def __init__(self) -> None:
        self._recipes: dict[tuple[str, str], list[Recipe]] = {}
        self._in_vain: dict[tuple[str, str], int] = {}

    def of(self, source: str, target: str) -> Sequence[Recipe]:
        """Return the recipes that explained tensors of two formats."""
        return self._recipes.get((source, target), ())

    def best(self, sample: Sample, recipe: Recipe) -> Recipe:
        """Return the best recipe on a sample, where `recipe` fails."""
        pair = sample.source, sample.target
        recipes = self._recipes.setdefault(pair, [])
        candidates = [recipe, *(other for other in recipes if other != recipe)]
        best_recipe, score = sample.best_of(candidates)
        in_vain = self._in_vain.get(pair, 0)
        if not score or in_vain >= _PATIENCE:
            return best_recipe
        best_recipe, score = sample.best()
        explains = score <= most_failing(sample.size)
        self._in_vain[pair] = 0 if explains else in_vain + 1
        if explains and best_recipe not in recipes:
            recipes.append(best_recipe)
        return best_recipe


class Attempt:
    """What a recipe made of a piece, computed before it is asked for."""

    def __init__(self, recipe: Recipe, target: str, *, is_due: bool) -> None:
        self.recipe, self._target = recipe, target
        self.is_due = is_due  # whether a recipe is tried at all
        # In how many elements the result is not B; None if it was not tried.
        self.different: int | None = None
        # Of the cast, if that says all.
        self.report: CastReport | None = None
        # What is not B.
        self.result: NDArray[Any] | None = None

    @property
    def has_failed(self) -> bool:
        """True if the piece will be measured, as no recipe explains it."""
        return not self.is_due or bool(self.different)

    def make(self, original: NDArray[Any], copy: NDArray[Any]) -> None:
        """Try the recipe."""
        result, self.report = self.recipe.applied_fully(original, self._target, 1)
        self.different = compare(result, copy, threads=1).different
        self.result = result if self.different else None


# A recipe that was found in the middle holds from there on; what came before is read again.
class Prover:
    """Tries the plainest recipe on pieces as they come, and searches for others where it fails."""

    def __init__(
        self, source: str, target: str, size: int, recipes_found: KnownRecipes, threads: int | None
    ) -> None:
        self._source, self._target, self._threads = source, target, threads
        self._size = size
        self._recipes_found = recipes_found
        self._sample: Sample | None = None
        self._searches = _SEARCHES
        self._recipe = Recipe()
        self._begin = 0
        self._count = 0
        self._disagreeing = 0
        self._place: int | None = None

    @property
    def is_plain(self) -> bool:
        """True while the recipe is one cast to the nearest, or none between equal formats."""
        return self._recipe.is_plain

    @property
    def most_ulps(self) -> int | None:
        """How far its results are at most from the nearest number; None if that is not known."""
        return self._recipe.most_ulps

    @property
    def has_failed(self) -> bool:
        """True if no recipe is right for every element."""
        return self.is_hopeless or (self._disagreeing > 0 and not self._begin)

    @property
    def is_hopeless(self) -> bool:
        """True if no recipe will explain the tensor, whatever the other pieces are."""
        return not self._searches and self._disagreeing > most_failing(self._size)

    def attempt(self) -> Attempt:
        """Return the attempt at the next piece."""
        return Attempt(self._recipe, self._target, is_due=not self.is_hopeless)

    def try_piece(
        self,
        original: NDArray[Any],
        copy: NDArray[Any],
        different: int | None = None,
        attempt: Attempt | None = None,
    ) -> CastReport | None:
        """Try the recipe on a piece; its report if it is a cast that makes this of that."""
        # `different` says how many elements of the piece are, if the recipe changes none; `attempt`
        # is one that was made before, with this recipe or another.
        start = self._count
        self._count += original.size
        if self.is_hopeless:
            return None
        result, report = original, None
        if different is None:
            if attempt is None or attempt.different is None or attempt.recipe != self._recipe:
                attempt = self.attempt()
                attempt.make(original, copy)
            different, report = attempt.different, attempt.report
            result = original if attempt.result is None else attempt.result
        if not different:
            return report
        if self._searches:
            self._searches -= 1
            recipe = self._search(original, copy, result)
            if recipe != self._recipe:
                self._recipe, self._begin = recipe, start
                self._disagreeing, self._place = 0, None
                result, report = recipe.applied_fully(original, self._target, self._threads)
                different = compare(result, copy, threads=self._threads).different
                if not different:
                    return report
        self._disagreeing += different
        if different and self._place is None and not self.is_hopeless:
            self._place = start + first_differing(result, copy)
        return None

    def try_all(self, pairs: Pairs) -> None:
        """Try the recipe on all pieces."""
        for original, copy in pairs(0):
            self.try_piece(original, copy)

    def equal_piece(self, count: int) -> None:
        """Count a piece that is the same in both."""
        self._count += count

    def _search(self, original: NDArray[Any], copy: NDArray[Any], result: NDArray[Any]) -> Recipe:
        """Take a sample of a piece where the recipe fails, and return the best one on all."""
        if self._is_reversed(original, copy):
            return self._recipe
        if self._sample is None:
            for recipe in self._recipes_found.of(self._source, self._target):
                values = recipe.applied(original, self._target, self._threads)
                if not compare(values, copy, threads=self._threads).different:
                    return recipe
            self._sample = Sample(self._source, self._target)
        failing = _differing(result, copy)
        regular = np.linspace(0, original.size - 1, min(_SPREAD, original.size)).astype(np.intp)
        places = [_thin_out(failing, _FAILING), regular, self._notable(original)]
        self._sample.add(original, copy, np.concatenate(places))
        return self._recipes_found.best(self._sample, self._recipe)

    def _is_reversed(self, first_piece: NDArray[Any], second_piece: NDArray[Any]) -> bool:
        """Return True if larger numbers became smaller ones too often, which no cast does."""
        kinds = {format_info(name).kind for name in (self._source, self._target)}
        if kinds != {"float"}:
            return False
        regular = np.linspace(0, first_piece.size - 1, min(_FEW, first_piece.size)).astype(np.intp)
        with np.errstate(all="ignore"):
            sources, results = (
                first_piece[regular].astype(np.float64),
                second_piece[regular].astype(np.float64),
            )
        finite = np.isfinite(sources) & np.isfinite(results)
        sources, results = sources[finite], results[finite]
        order = np.lexsort((results, sources))
        # Of each pair of neighbors in this order, a cast is wrong for one at least.
        pairs = order[: order.size // 2 * 2].reshape(-1, 2)
        lower, upper = sources[pairs].T
        lower_result, upper_result = results[pairs].T
        reversed_pairs = np.where(
            lower == upper, lower_result != upper_result, lower_result > upper_result
        )
        return int(np.count_nonzero(reversed_pairs)) * _REVERSED > regular.size

    def _notable(self, original: NDArray[Any]) -> NDArray[np.intp]:
        """Return where elements are beyond the range of B, or below its normal numbers."""
        source, target = format_info(self._source), format_info(self._target)
        if source.kind != "float" or target.kind != "float":
            return np.empty(0, np.intp)
        with np.errstate(all="ignore"):
            magnitudes = np.abs(original.astype(np.float32))
            usual = (magnitudes >= max(target.smallest_normal, source.smallest_normal)) & (
                magnitudes <= target.max
            )
        largest = np.array([np.argmax(magnitudes)], np.intp)
        return np.concatenate([_thin_out(np.flatnonzero(~usual), _NOTABLE), largest])

    def explanation(self, pairs: Pairs, shape: tuple[int, ...]) -> CastExplanation | None:
        """Return what was proved; reads again what the recipe was not tried on."""
        if self.is_hopeless:
            return self._between_neighbors(pairs)
        for _ in range(_WALKS):
            if not self._begin:
                break
            recipe, end = self._recipe, self._begin
            self._walk_again(pairs, end)
            if self._recipe == recipe:
                break
        if self._begin or self._disagreeing > most_failing(self._count):
            return self._between_neighbors(pairs)
        return CastExplanation(
            self._recipe.text(self._source, self._target),
            self._recipe.to_dict(),
            self._count,
            self._disagreeing,
            index_of(self._place, shape),
        )

    def _between_neighbors(self, pairs: Pairs) -> CastExplanation | None:
        """Say that B is what stochastic rounding may make of A, if it is that in every element."""
        kinds = {format_info(name).kind for name in (self._source, self._target)}
        if self._source == self._target or kinds != {"float"}:
            return None
        ends = [Recipe("towards-negative"), Recipe("towards-positive")]
        for original, copy in pairs(0):
            lower, upper = (end.applied(original, self._target, self._threads) for end in ends)
            others = _differing(lower, copy)
            if _differing(upper[others], copy[others]).size:
                return None
        return CastExplanation(
            "B is A rounded down or up, as by stochastic rounding of a seed that is not known",
            {"rounding": "stochastic", "seed": None},
            self._count,
        )

    def _walk_again(self, pairs: Pairs, end: int) -> None:
        """Try the recipe on the elements before `end`; on all if another is found there."""
        total, rest = self._count, (self._disagreeing, self._place)
        recipe = self._recipe
        self._count = self._begin = self._disagreeing = 0
        self._place = None
        for original, copy in pairs(0):
            if self._recipe == recipe and self._count >= end:
                break
            self.try_piece(original, copy)
        if self._recipe == recipe:
            self._disagreeing += rest[0]
            self._place = rest[1] if self._place is None else self._place
            self._begin = 0
        self._count = total


def index_of(place: int | None, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the index of an element by its place in C order; None of none."""
    if place is None:
        return None
    index: list[int] = []
    for count in reversed(shape):  # in less time than numpy's `unravel_index`
        place, rest = divmod(place, count)
        index.append(rest)
    return tuple(reversed(index))


def first_differing(original: NDArray[Any], copy: NDArray[Any]) -> int:
    """Return the first place of `_differing`, of which there is one."""
    for start in range(0, original.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        if (places := _differing(original[part], copy[part])).size:
            return start + int(places[0])
    raise AssertionError("nothing differs")


def _thin_out(places: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return some places, or as many of them as are wanted, spread evenly."""
    if places.size <= most:
        return places
    return places[np.linspace(0, places.size - 1, most).astype(np.intp)]


def _differing(original: NDArray[Any], copy: NDArray[Any]) -> NDArray[np.intp]:
    """Return where two arrays of a format differ in other bits than those of NaN."""
    width = min(original.dtype.itemsize, _WORD_BYTES)  # complex128 has two words
    first_words, second_words = (
        np.ascontiguousarray(array).view(f"u{width}").reshape(array.size, -1)
        for array in (original, copy)
    )
    differ = (
        (first_words != second_words).any(axis=1)
        if first_words.shape[1] > 1
        else (first_words != second_words)[:, 0]
    )
    places = np.flatnonzero(differ)
    with np.errstate(all="ignore"):
        both_nan = (original[places] != original[places]) & (copy[places] != copy[places])
    numbers: NDArray[np.intp] = places[~both_nan]
    return numbers
