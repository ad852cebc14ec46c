"""Find the scheme, the producer and the rule of scales that make one matrix of another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import block_amax, cast, compare, finfo, formats
from castwise._options import Recipe as Producer
from castwise._options import ScaleRule, SchemeName
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.comparison._explanations import CastExplanation, Pairs, most_failing
from castwise.quantization import (
    QuantizedArray,
    QuantizedWeight,
    Scheme,
    dequantize,
    quantize,
    schemes,
)

_MATRIX = 2
_SLAB_ELEMENTS = 1 << 18
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

    After some tensors in a row that nothing explains, only what was found before is tried.
    """

    _PATIENCE = 8

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._known: list[SchemeRecipe] = []
        self._in_vain = 0

    def explanation(
        self, pairs: Pairs, shape: Sequence[int], to: str, weight: QuantizedWeight | None
    ) -> CastExplanation | None:
        """Return the recipe that is right, or right but for a few elements; None without."""
        if len(shape) < _MATRIX or not math.prod(shape):
            return None
        candidates = [*self._known]
        if weight is not None or self._in_vain < self._PATIENCE:
            candidates = [*dict.fromkeys([*self._known, *scheme_recipes(weight)])]
        if not candidates:
            return None
        amax = None
        if any(candidate.needs_amax for candidate in candidates):
            amax = max(block_amax(left.reshape(1, -1)) for left, _ in pairs())
            if not math.isfinite(amax):
                return None
        alive = self._agreeing(pairs, candidates, shape, to, amax)
        best: CastExplanation | None = None
        for candidate in alive[:_PROVED]:
            proof = self._proof(pairs, candidate, shape, to, amax)
            if proof is not None and (best is None or proof.disagreeing < best.disagreeing):
                best = proof
                if candidate in self._known:
                    self._known.remove(candidate)
                self._known.insert(0, candidate)
                if proof.every_element:
                    break
        self._in_vain = 0 if best is not None else self._in_vain + 1
        return best

    def _agreeing(
        self,
        pairs: Pairs,
        candidates: Iterable[SchemeRecipe],
        shape: Sequence[int],
        to: str,
        amax: float | None,
    ) -> list[SchemeRecipe]:
        """Return the recipes that agree on the first rows, the best first."""
        samples: dict[int, tuple[NDArray[Any], NDArray[Any]] | None] = {}
        scores: dict[SchemeRecipe, int] = {}
        for candidate in candidates:
            step = _row_step(candidate, shape)
            if step is None:
                continue
            if step not in samples:
                sample = next(_row_slabs(pairs(), shape, step, _SAMPLE_ELEMENTS), None)
                if step > 1 and sample is not None:
                    sample = sample[0][:, :_SAMPLE_COLUMNS], sample[1][:, :_SAMPLE_COLUMNS]
                samples[step] = sample
            sample = samples[step]
            if sample is None:
                continue
            different = self._different(candidate, *sample, to, amax)
            if different is not None and different <= most_failing(sample[0].size):
                scores[candidate] = different
        return sorted(scores, key=lambda candidate: (scores[candidate], candidate.cost))

    def _different(
        self,
        candidate: SchemeRecipe,
        left: NDArray[Any],
        right: NDArray[Any],
        to: str,
        amax: float | None,
    ) -> int | None:
        try:
            result = candidate.applied(left, to, amax)
        except (ValueError, TypeError):  # the scheme cannot hold this matrix
            return None
        return compare(result, right, threads=self._threads).different

    def _proof(
        self,
        pairs: Pairs,
        candidate: SchemeRecipe,
        shape: Sequence[int],
        to: str,
        amax: float | None,
    ) -> CastExplanation | None:
        step = _row_step(candidate, shape)
        assert step is not None, "it agreed on a sample"  # noqa: S101
        count = disagreeing = 0
        place: int | None = None
        for left, right in _row_slabs(pairs(), shape, step, _SLAB_ELEMENTS):
            try:
                result = candidate.applied(left, to, amax)
            except (ValueError, TypeError):
                return None
            different = compare(result, right, threads=self._threads).different
            if different and place is None:
                with np.errstate(all="ignore"):
                    places = np.flatnonzero(result != right)
                place = count + int(places[0]) if places.size else count
            count += left.size
            disagreeing += different
            if disagreeing > most_failing(math.prod(shape)):
                return None
        index = None if place is None else tuple(map(int, np.unravel_index(place, shape)))
        return CastExplanation(candidate.text(), candidate.to_dict(), count, disagreeing, index)


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


def _row_slabs(
    pairs: Iterator[tuple[NDArray[Any], NDArray[Any]]],
    shape: Sequence[int],
    step: int,
    elements: int,
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Cut two streams into matrices of whole rows, a multiple of `step` but for the last."""
    columns = shape[-1]
    size = max(elements // (columns * step), 1) * columns * step
    lefts: list[NDArray[Any]] = []
    rights: list[NDArray[Any]] = []
    waiting = 0
    for left, right in pairs:
        lefts.append(left)
        rights.append(right)
        waiting += left.size
        if waiting < size:
            continue
        ahead, behind = np.concatenate(lefts), np.concatenate(rights)
        end = waiting // size * size
        for begin in range(0, end, size):
            cut = slice(begin, begin + size)
            yield ahead[cut].reshape(-1, columns), behind[cut].reshape(-1, columns)
        lefts, rights, waiting = [ahead[end:]], [behind[end:]], waiting - end
    if waiting:
        yield (
            np.concatenate(lefts).reshape(-1, columns),
            np.concatenate(rights).reshape(-1, columns),
        )


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
