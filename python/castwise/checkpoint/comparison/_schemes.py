"""Find the scheme, the producer and the rule of scales that make one matrix of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import block_amax, cast, compare, finfo, formats
from castwise._options import Recipe as Producer
from castwise._options import ScaleRule, SchemeName
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.comparison._explanations import (
    CastExplanation,
    Pairs,
    Pieces,
    first_differing,
    most_failing,
)
from castwise.quantization import (
    QuantizedArray,
    QuantizedWeight,
    Scheme,
    dequantize,
    quantize,
    schemes,
)

_MATRIX = 2
_SLAB_ELEMENTS = 1 << 20
_SAMPLE_ELEMENTS = 1 << 13
_SAMPLE_COLUMNS = 256
"""Of blocks of several rows: two of 128 columns."""
_PROVED = 6
"""How many recipes that agree on the sample are tried on all elements."""
_RULES: tuple[ScaleRule, ...] = ("floor", "rceil", "ceil", "even", "ct")
_LATE = ("ceil", "floor", "nearest")
_LATE_COLUMNS = (128,)
"""Blocks of activations in DeepSeek's files, beside those of 128x128."""
_TRIED = ("fp8_", "mx", "nvfp4", "int8_", "int4_", "bnb_")
"""What schemes begin with of which a plain tensor may be the decoding."""

Matrices = tuple[NDArray[Any], NDArray[Any]]
"""Some whole rows of two tensors."""

Tried = tuple[int, int | None, int | None]
"""How many elements a recipe was tried on, for how many it is wrong, and the first of these."""

FirstRows = Callable[[int], tuple[NDArray[Any], NDArray[Any]] | None]
"""Returns the first rows of two tensors, of so many elements or all."""


@dataclass(frozen=True, slots=True)
class SchemeRecipe:
    """How a matrix is quantised and decoded.

    Attributes
    ----------
    scheme, producer, block, scale_rule
        As in `castwise.quantization.quantize`.
    passes
        How often it is quantised, decoded to its own format between.
    late
        How scales became powers of two after the codes were computed; None if they did not.

    """

    scheme: str
    producer: str
    block: tuple[int, int] | None = None
    scale_rule: str | None = None
    passes: int = 1
    late: str | None = None

    @property
    def cost(self) -> int:
        """How unusual it is: of recipes that agree the most usual one is taken."""
        is_rounded = self.scheme.startswith("fp8_") and self.scale_rule is not None
        return 2 * is_rounded + 3 * (self.late is not None) + self.passes

    @property
    def needs_amax(self) -> bool:
        """True if a scale is that of the whole matrix."""
        return self.scheme == "nvfp4" or self.scheme.endswith("_tensor")

    def applied(self, matrix: NDArray[Any], to: str, amax: float | None) -> NDArray[Any]:
        """Return the decoded values of a matrix of whole blocks.

        Raises
        ------
        ValueError
            The scheme cannot hold it.

        """
        for _ in range(self.passes - 1):
            matrix = dequantize(self._quantized(matrix, amax), matrix.dtype)
        quantized = self._quantized(matrix, amax)
        if self.late is None:
            return dequantize(quantized, numpy_dtype(to))
        return _with_late_scales(quantized, matrix.shape, self.late, to)

    def _quantized(self, matrix: NDArray[Any], amax: float | None) -> QuantizedArray:
        scheme: SchemeName = self.scheme  # type: ignore[assignment]
        producer: Producer = self.producer  # type: ignore[assignment]
        rule: ScaleRule | None = self.scale_rule  # type: ignore[assignment]
        return quantize(
            matrix,
            scheme,
            recipe=producer,
            block=self.block,
            scale_rule=rule,
            amax=amax if self.needs_amax else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the options of `castwise.quantization.quantize`, and what was done around it."""
        return {
            "scheme": self.scheme,
            "recipe": self.producer,
            "block": None if self.block is None else list(self.block),
            "scale_rule": self.scale_rule,
            "passes": self.passes,
            "late_scale": self.late,
        }

    def text(self) -> str:
        """Say in words what B is."""
        parts = [f"B is A quantised as {self.scheme} by the recipe of {self.producer}"]
        if self.scale_rule is not None:
            parts.append(f"scale rule {self.scale_rule}")
        if self.late is not None:
            parts.append(f"scales rounded to E8M0 ({self.late}) after the codes were computed")
        if self.passes > 1:
            parts.append("twice")
        return ", ".join(parts)


def _with_late_scales(
    quantized: QuantizedArray, shape: Sequence[int], late: str, to: str
) -> NDArray[Any]:
    """Decode codes with scales that were rounded to powers of two after they were used."""
    parts = quantized.parts()
    codes = parts["weight"].astype(np.float32)
    scale = next(array for name, array in parts.items() if name != "weight").astype(np.float64)
    exponents = np.log2(scale)
    rounding = {"ceil": np.ceil, "floor": np.floor, "nearest": np.rint}[late]
    factors = np.exp2(rounding(exponents)).astype(np.float32)
    factors = factors.reshape(-1, scale.shape[-1] if scale.ndim else 1)
    for axis in range(_MATRIX):
        length = -(-shape[axis] // factors.shape[axis])
        factors = np.repeat(factors, length, axis)[tuple(slice(size) for size in shape)]
    result: NDArray[Any] = cast(codes * factors, numpy_dtype(to))
    return result


def scheme_recipes(weight: QuantizedWeight | None) -> Iterator[SchemeRecipe]:
    """List what may have made a weight; of a plain tensor all that castwise knows."""
    for row in schemes():
        if weight is not None and weight.scheme != row.name:
            continue
        if weight is None and not row.name.startswith(_TRIED):
            continue
        block = _pair(weight.block) if weight is not None else None
        if block == row.block or not min(row.block):
            block = None
        likely = () if weight is None else weight.recipes
        producers = sorted(row.recipes, key=lambda producer: producer not in likely)
        yield from _of_scheme(row, block, producers, twice=weight is not None)


def _pair(block: tuple[int, ...] | None) -> tuple[int, int] | None:
    return None if block is None or len(block) != _MATRIX else (block[0], block[1])


def _of_scheme(
    row: Scheme, block: tuple[int, int] | None, producers: Sequence[str], *, twice: bool
) -> Iterator[SchemeRecipe]:
    rules: Sequence[str | None] = (None,)
    if _is_power(row.scale):
        rules = [row.rule, *(rule for rule in _RULES if rule != row.rule)]
    elif row.element.startswith("float8"):
        rules = (None, "ceil", "floor")
    for passes in (1, 2) if twice and _is_power(row.scale) else (1,):
        for rule in rules:
            for producer in producers:
                yield SchemeRecipe(row.name, producer, block, rule, passes)
    late_scheme = row.name if row.name.startswith("fp8_") else None
    if row.name.startswith("mxfp8_e4m3"):
        late_scheme, block = "fp8_block", block or row.block
    if late_scheme is not None:
        late_producer = next(row for row in schemes() if row.name == late_scheme).recipes[0]
        blocks = [block, *((1, size) for size in _LATE_COLUMNS if row.name == "fp8_block")]
        for late_block, late in product(blocks, _LATE):
            yield SchemeRecipe(late_scheme, late_producer, late_block, None, 1, late)


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

    def search(
        self,
        lefts: Pieces,
        pairs: Pairs,
        *,
        shape: tuple[int, ...],
        to: str,
        weight: QuantizedWeight | None,
    ) -> SchemeSearch:
        """Prepare the search for what makes one tensor of another, whose pieces can be read."""
        return SchemeSearch(self, lefts, pairs, shape=shape, to=to, weight=weight)

    def candidates(self, weight: QuantizedWeight | None) -> Sequence[SchemeRecipe]:
        """Return what is tried for a weight, what was found before first."""
        scheme = None if weight is None else weight.scheme
        if self._in_vain.get(scheme, 0) >= self.PATIENCE:
            return [*self.known]
        return [*dict.fromkeys([*self.known, *scheme_recipes(weight)])]

    def remember(self, weight: QuantizedWeight | None, best: SchemeRecipe | None) -> None:
        """Take note of what was found of a weight."""
        scheme = None if weight is None else weight.scheme
        self._in_vain[scheme] = 0 if best is not None else self._in_vain.get(scheme, 0) + 1
        if best is not None:
            self.known = [best, *(recipe for recipe in self.known if recipe != best)]


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
    ) -> None:
        self._prover, self._lefts, self._pairs, self._weight = prover, lefts, pairs, weight
        self.shape, self.to, self.threads = shape, to, prover.threads
        self._candidates: Sequence[SchemeRecipe] | None = None
        self._amax: float | None = None
        self._trial: SchemeTrial | None = None

    def candidates(self) -> Sequence[SchemeRecipe]:
        """Return what may be tried; reads the first tensor if that needs its largest magnitude."""
        if self._candidates is None:
            self._candidates = ()
            if len(self.shape) >= _MATRIX and all(self.shape):
                self._candidates = self._prover.candidates(self._weight)
            if any(candidate.needs_amax for candidate in self._candidates):
                self._amax = max(block_amax(left.reshape(1, -1)) for left in self._lefts())
                if not math.isfinite(self._amax):
                    self._candidates = ()
        return self._candidates

    def sample_size(self) -> int:
        """Return of how many elements the first rows are by which a recipe is chosen."""
        steps = {_row_step(candidate, self.shape) for candidate in self.candidates()}
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

    def likely(self, first_rows: FirstRows) -> SchemeRecipe | None:
        """Return the recipe that will be tried first: of those that agree on the first rows.

        A usual one that explained a tensor before, and agrees in all elements, comes before all.
        """
        for known in self._prover.known:
            if known in self.candidates() and known.cost == 1:
                sample = self._sample(known, first_rows)
                if sample is not None and self._different(known, *sample) == 0:
                    return known
        return next(iter(self.agreeing(first_rows)), None)

    def agreeing(self, first_rows: FirstRows) -> list[SchemeRecipe]:
        """Return the recipes that agree on the first rows, the best first."""
        scores: dict[SchemeRecipe, int] = {}
        samples: dict[int | None, tuple[NDArray[Any], NDArray[Any]] | None] = {}
        for candidate in self.candidates():
            step = _row_step(candidate, self.shape)
            if step not in samples:
                samples[step] = self._sample(candidate, first_rows)
            if (sample := samples[step]) is None:
                continue
            different = self._different(candidate, *sample)
            if different is not None and different <= most_failing(sample[0].size):
                scores[candidate] = different
        return sorted(scores, key=lambda candidate: (scores[candidate], candidate.cost))

    def _sample(
        self, candidate: SchemeRecipe, first_rows: FirstRows
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        step = _row_step(candidate, self.shape)
        sample = None if step is None else first_rows(_slab_size(self.shape, step))
        if sample is None or step == 1:
            return sample
        return sample[0][:, :_SAMPLE_COLUMNS], sample[1][:, :_SAMPLE_COLUMNS]

    def _first_rows(self, size: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Read rows of so many elements, or all."""
        rows = _RowCutter(self.shape[-1], size, size)
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
        try:
            return candidate.applied(matrix, self.to, self._amax)
        except (ValueError, TypeError):
            return None


class SchemeTrial:
    """Tries a recipe on all elements of two tensors, which come in pieces.

    Without a recipe it is the likely one by the first rows.
    """

    def __init__(self, search: SchemeSearch, recipe: SchemeRecipe | None = None) -> None:
        self._search = search
        self._size = math.prod(search.shape)
        self._rows: _RowCutter | None = None
        self._first: list[Matrices] = []
        self._count = self._disagreeing = 0
        self._place: int | None = None
        self.has_failed = False
        self.recipe = recipe

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
            left, right = (_joined([*parts]) for parts in zip(*self._first, strict=True))
            self._first = []
            self._begin(left, right)
        return [] if self._rows is None else [*self._rows.add(left, right)]

    def _begin(self, left: NDArray[Any], right: NDArray[Any]) -> None:
        search = self._search

        def first_rows(size: int) -> Matrices:
            shape = -1, search.shape[-1]
            return left[:size].reshape(shape), right[:size].reshape(shape)

        if self.recipe is None:
            self.recipe = search.likely(first_rows)
        step = None if self.recipe is None else _row_step(self.recipe, search.shape)
        if step is None:
            self.has_failed = True
        else:
            self._rows = _RowCutter(
                search.shape[-1], _slab_size(search.shape, step), _SLAB_ELEMENTS
            )

    def tried(self, left: NDArray[Any], right: NDArray[Any]) -> Tried:
        """Try it on rows, and return what `take` takes."""
        if self.has_failed:
            return left.size, None, None
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


def _row_step(candidate: SchemeRecipe, shape: Sequence[int]) -> int | None:
    """Return of how many rows whole blocks are; None where rows of matrices cannot be cut so."""
    rows = candidate.block[0] if candidate.block is not None else 0
    if candidate.block is None:
        row = next(row for row in schemes() if row.name == candidate.scheme)
        rows = 1 if row.block == (0, 0) else row.block[0]
    is_stack = len(shape) > _MATRIX
    if is_stack and (candidate.needs_amax or rows != 1):
        return None
    return rows


def _slab_size(shape: Sequence[int], step: int) -> int:
    """Return of how many elements the fewest whole rows are that make a sample."""
    rows = shape[-1] * step
    return max(_SAMPLE_ELEMENTS // rows, 1) * rows


class _RowCutter:
    """Cuts two streams of flat arrays into matrices of whole rows.

    Each has a multiple of `size` elements, and as many as `most` has; the last one what is left.
    """

    def __init__(self, columns: int, size: int, most: int) -> None:
        self._columns, self._size = columns, size
        self._most = max(most // size, 1) * size
        self._lefts: list[NDArray[Any]] = []
        self._rights: list[NDArray[Any]] = []
        self._waiting = 0

    def add(
        self, left: NDArray[Any], right: NDArray[Any]
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Take two arrays, and return the rows that are complete."""
        self._lefts.append(left)
        self._rights.append(right)
        self._waiting += left.size
        if self._waiting < self._size:
            return
        ahead, behind = _joined(self._lefts), _joined(self._rights)
        end = self._waiting // self._size * self._size
        self._lefts, self._rights = [ahead[end:]], [behind[end:]]
        self._waiting -= end
        for begin in range(0, end, self._most):
            cut = slice(begin, min(begin + self._most, end))
            yield ahead[cut].reshape(-1, self._columns), behind[cut].reshape(-1, self._columns)

    def end(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the rows that are left."""
        if self._waiting:
            shape = -1, self._columns
            yield _joined(self._lefts).reshape(shape), _joined(self._rights).reshape(shape)
        self._lefts, self._rights, self._waiting = [], [], 0


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    arrays = [array for array in arrays if array.size]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _is_power(name: str) -> bool:
    """Return True for a format of powers of two."""
    return name in formats() and finfo(name).specials == "exponent-only"


def scale_shifts(left: NDArray[Any], right: NDArray[Any]) -> dict[int, int] | None:
    """Count by how many codes the scales of B are above those of A; None if they are not E8M0."""
    for scales in (left, right):
        if scales.dtype != np.uint8 and not _is_power(scales.dtype.name):
            return None
    if left.shape != right.shape:
        return None
    ahead, behind = (scales.view(np.uint8).astype(np.int16) for scales in (left, right))
    values, counts = np.unique(behind - ahead, return_counts=True)
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
