"""Compare a tensor of one checkpoint with one of another: measure, and explain what differs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import block_amax, cast, have_same_bits
from castwise._options import Arithmetic
from castwise.arrays.comparison import Measures
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.comparison._scheme_recipes import SchemeRecipe
from castwise.checkpoint.comparison._schemes import (
    SchemeProver,
    SchemeSearch,
    SchemeTrial,
    explanation_of,
)
from castwise.checkpoint.comparison._sides import Side, StoredRows, common_format, piece_elements
from castwise.checkpoint.comparison._stacks import PairKind, StackedDiff, TensorPair, recipes_of
from castwise.checkpoint.comparison._transcodings import first_rows, have_same_parts, same_bytes
from castwise.checkpoint.comparison._walk import PieceWalk
from castwise.checkpoint.comparison.explanations import (
    CastExplanation,
    KnownRecipes,
    Pairs,
    Prover,
    index_of,
    scale_shifts,
    shifts_text,
)
from castwise.checkpoint.comparison.results import TensorDiff
from castwise.checkpoint.planning.decode.options import checked_threads
from castwise.checkpoint.planning.derived_reader import STACK_ELEMENTS
from castwise.checkpoint.results.report import Progress, ProgressMeter
from castwise.quantization import QuantizedArray, dequantize

PIECES_BYTES = 2 << 20
"""Of A, in all pieces that are compared at a time. What is computed of them is several times that,
so that the memory of a comparison does not grow with the threads."""
# Of A, in all rows that are compared with stored ones at a time, of which nothing is computed.
_SLABS_BYTES = 12 << 20
# Of a tensor that is compared with stored rows, the most elements of one piece.
_SLAB_ELEMENTS = 1 << 20
# Pieces in memory at a time; all of them share a bound, so that more threads mean smaller ones.
_MOST_WORKERS = 8
_TURNED = "B has the experts of A, stored the other way round"
_TRANSCODED = "B has the codes and scales of A, which its producer multiplies in another order"
_LEAST_DECIBELS, _MOST_DECIBELS = 1.0, 60.0
"""Codes of at most 8 bits lose more than the second, and no recipe as much as the first."""
BYTES = np.dtype(np.uint8).name
"""As which tensors of formats that castwise does not know are compared."""


def worker_count(threads: int | None) -> int:
    """Return how many pieces are computed at a time."""
    return min(checked_threads(threads), _MOST_WORKERS)


class Comparing:
    """Compares pairs of tensors of two checkpoints."""

    def __init__(
        self,
        # The two checkpoints.
        original: Side,
        copy: Side,
        # How quantized weights are decoded.
        arithmetic: Arithmetic,
        *,
        # How many threads may compare.
        threads: int | None,
        # As of `diff`.
        reference: Side | None = None,
        tolerances: tuple[float, float] | None = None,
        # Whether what differs is measured and explained; else it is counted, in a format of both.
        explains: bool = True,
        # Whether other formats are a difference that nothing is compared of.
        is_exact: bool = False,
    ) -> None:
        self._workers, self._arithmetic = worker_count(threads), arithmetic
        self._original, self._copy, self._reference = original, copy, reference
        self._schemes = SchemeProver(threads)
        self._amaxes: dict[str, float] = {}
        self._recipes_found = KnownRecipes()
        self._tolerances, self._threads = tolerances, threads
        self._explains, self._is_exact = explains, is_exact

    def compare_all(
        self, pairs: Mapping[str, str], progress: Callable[[Progress], None] | None
    ) -> list[TensorDiff]:
        """Compare tensors of A with those of B, and see that no file changed meanwhile."""
        sides = [self._original, self._copy, *([self._reference] if self._reference else [])]
        meter = ProgressMeter(sum(self._original.info(name).nbytes for name in pairs), progress)
        tensors: list[TensorDiff] = []
        # One thread reads what the others compute.
        kinds = self._kinds(pairs)
        with ThreadPoolExecutor(self._workers + 1) as self._pool:
            for name, kind in zip(pairs, kinds, strict=True):
                meter.starts(name)
                tensor = self._stacked(kind) if kind.count > 1 else None
                pair = kind.facts.of(kind.names.popleft())
                tensors.append(tensor or self._compare(pair, meter))
                meter.finish(pair.nbytes)
        meter.starts(None)
        for side in sides:
            side.check_unchanged()
        return tensors

    def _kinds(self, pairs: Mapping[str, str]) -> list[PairKind]:
        """Return the kind of each pair, with the names of all that are of it."""
        kinds: dict[object, PairKind] = {}
        kinds_of_pairs = []
        for names in pairs.items():
            key = self._original.kind(names[0]), self._copy.kind(names[1])
            if (kind := kinds.get(key)) is None:
                facts = self._facts(*names)
                kind = kinds[key] = PairKind(facts, self._stack_count(facts, *names))
            kind.names.append(names)
            kinds_of_pairs.append(kind)
        return kinds_of_pairs

    def _facts(self, name: str, other: str) -> TensorPair:
        original, copy = self._original, self._copy
        info, other_info = original.info(name), copy.info(other)
        formats = original.format(name, other_info.format), copy.format(other, info.format)
        return TensorPair(
            (original.shape(name), copy.shape(other)),
            formats,
            (formats[0] or info.stored, formats[1] or other_info.stored),
            (original.is_decoded(name), copy.is_decoded(other)),
            info.nbytes,
        )

    def _stack_count(self, facts: TensorPair, name: str, other: str) -> int:
        """Return how many pairs like this one are compared at once; 1 if each is by itself."""
        (shape, other_shape), (source, target) = facts.shapes, facts.formats
        if shape != other_shape or source is None or target is None or self._reference is not None:
            return 1
        is_compared = common_format(source, target) is not None
        if not is_compared or (source != target and (self._explains or self._is_exact)):
            return 1
        count = STACK_ELEMENTS // max(math.prod(shape), 1) if all(shape) else 1
        are_stacked = self._original.is_stacked(name) and self._copy.is_stacked(other)
        return count if count > 1 and are_stacked else 1

    def _stacked(self, kind: PairKind) -> TensorDiff | None:
        """Compare the next pair with others of its kind; None if it is to be by itself."""
        if not kind.results:
            if kind.wait:
                kind.wait -= 1
                return None
            kind.results.extend(self._compare_stack(kind))
            if any(kind.results):
                kind.distance = 1
            elif len(kind.results) > 1:
                # A stack whose pairs are all compared again is work for nothing: of n pairs that
                # nothing explains, at most log2(n) stacks of two are.
                kind.size, kind.wait, kind.distance = 2, kind.distance, 2 * kind.distance
        result = kind.results.popleft()
        if result is None or result.recipe is None:
            return None if result is None else result.tensor
        weight = self._copy.weights[kind.names[0][1]]
        if self._schemes.likely(weight)[0] != kind.likely:  # since others were compared
            return None
        self._schemes.remember(weight, result.recipe)
        return result.tensor

    def _compare_stack(self, kind: PairKind) -> Iterator[StackedDiff | None]:
        names = [*islice(kind.names, kind.size)]
        kind.size = min(2 * kind.size, kind.count)
        stacks = (
            side.stack([pair[place] for pair in names])
            for place, side in enumerate((self._original, self._copy))
        )
        stored = [stack for stack in stacks if stack is not None]
        if len(stored) < len(names[0]):
            yield from repeat(None, len(names))
            return
        x, y = (
            dequantize(stack, numpy_dtype(name or ""), arithmetic=self._arithmetic, threads=1)
            if isinstance(stack, QuantizedArray)
            else stack
            for stack, name in zip(stored, kind.facts.formats, strict=True)
        )
        recipes: Sequence[SchemeRecipe | None] = [None] * len(names)
        q, is_plain = stored[1], not isinstance(stored[0], QuantizedArray)
        is_tried = is_plain and self._explains and self._tolerances is None
        if isinstance(q, QuantizedArray) and is_tried and not have_same_bits(x, y, threads=1):
            likely = self._schemes.likely(self._copy.weights[names[0][1]])
            kind.likely = likely[0] if likely else None
            recipes = recipes_of(
                x, q, likely, partial(self._amaxes_of_fused, [name for name, _ in names])
            )
        x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
        for place, names_of_pair in enumerate(names):
            pair = kind.facts.of(names_of_pair)
            measures = self._measures(pair)
            measures.add(x[place], y[place], measures.compare_pieces(x[place], y[place], threads=1))
            recipe = recipes[place] if measures.different else None
            if self._explains and measures.different and recipe is None:
                yield None
                continue
            explanation = None if recipe is None else explanation_of(recipe, measures.count)
            yield StackedDiff(self._values_result(pair, measures, explanation), recipe)

    def _measures(self, pair: TensorPair) -> Measures:
        source, target = (name or BYTES for name in pair.formats)
        is_counted = not self._explains
        return Measures(source, target, self._tolerances, self._threads, is_counted=is_counted)

    def _result(self, pair: TensorPair, reason: str, beyond: int, **fields: Any) -> TensorDiff:  # noqa: ANN401
        """Return how a pair differs; `beyond` counts if there are tolerances."""
        name, other = pair.names
        return TensorDiff(
            name,
            reason,
            None if name == other else other,
            formats=pair.labels,
            quantized=pair.quantized,
            shapes=pair.shapes,
            beyond=None if self._tolerances is None else beyond,
            **fields,
        )

    def _compare(self, pair: TensorPair, meter: ProgressMeter) -> TensorDiff:
        formats = pair.formats
        if pair.shapes[0] != pair.shapes[1]:
            return self._result(pair, "shapes", 1)
        if formats == (None, None) and len({*pair.labels}) == 1:
            if self._explains:
                return self._compare_bytes(pair)
        elif common_format(*formats) is None or (self._is_exact and formats[0] != formats[1]):
            return self._result(pair, "formats", 1)
        return self._compare_values(pair, meter)

    def _pairs(
        self, pair: TensorPair, count: int = 0
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Read two tensors in pieces of so many elements, by default as memory allows."""
        (name, other), (source, target) = pair.names, pair.formats
        count = count or piece_elements(source, PIECES_BYTES // max(self._workers, 2))
        original = self._original.pieces(name, source, repeat(count))
        return zip(original, self._copy.pieces(other, target, repeat(count)), strict=True)

    def _compare_bytes(self, pair: TensorPair) -> TensorDiff:
        """Compare tensors in a format that castwise does not know, byte by byte."""
        different, count, place = 0, 0, None
        for original, copy in self._pairs(pair):
            places = np.flatnonzero(original != copy)
            if places.size and place is None:
                place = count + int(places[0])
            different += places.size
            count += original.size
        return self._result(
            pair,
            "values" if different else "equal",
            different,
            count=count,
            different=different,
            max_abs_index=None if place is None else (place,),
        )

    def _compare_values(self, pair: TensorPair, meter: ProgressMeter) -> TensorDiff:
        (name, other), (shape, _), nbytes = pair.names, pair.shapes, pair.nbytes
        size = max(math.prod(shape), 1)
        source, target = pair.formats[0] or BYTES, pair.formats[1] or BYTES
        measures = self._measures(pair)
        pairs = partial(self._pairs, pair)

        same_bytes = 0

        def report_progress() -> None:
            meter.reaches(max(round(measures.count / size * nbytes), same_bytes), name)

        search = prover = None
        if self._explains and measures.are_floats:
            search = SchemeSearch(
                self._schemes,
                pairs,
                shape=shape,
                to=target,
                weight=self._copy.weights.get(other) if pair.quantized[1] else None,
                form=partial(self._form, other),
                amaxes=partial(self._amaxes_of, name),
            )
        walk = PieceWalk(measures, self._pool, self._workers, report_progress)
        is_stored = measures.are_floats and source == target and pair.quantized == (False, True)
        is_stored &= self._tolerances is None and other not in self._copy.transposed_names
        same_bytes = self._count_same_bytes(pair, walk, meter)
        if 0 < same_bytes == nbytes:
            measures.add_equal(size)
        elif is_stored:
            self._walk_stored(pair, walk, search)
        else:
            if self._explains:
                prover = Prover(source, target, size, self._recipes_found, self._threads)
            self._walk_plain(walk, pairs, prover)
        explanation = None
        if other in self._copy.transposed_names and not measures.different:
            explanation = CastExplanation(_TURNED, {"transposed": True}, measures.count)
        elif self._explains and (measures.different or source != target):
            of_zeros = is_stored and measures.are_zeros
            explanation = None if search is None else search.proof(of_zeros=of_zeros)
            if prover is None and explanation is None:
                prover = Prover(source, target, size, self._recipes_found, self._threads)
                prover.try_all(pairs)
            if prover is not None:
                explanation = self._explain(pair, prover, pairs, search, measures=measures)
        ratios = None
        if self._reference is not None and name in self._reference.names:
            ratios = (
                self._error_ratio(self._original, name, name, source),
                self._error_ratio(self._copy, other, name, target),
            )
        result = self._values_result(pair, measures, explanation, ratios)
        return self._with_scales(result, name, other) if self._explains else result

    def _walk_stored(self, pair: TensorPair, walk: PieceWalk, search: SchemeSearch | None) -> None:
        """Compare a plain tensor with a quantized one, as it is stored, and try what made it."""
        # Of other recipes it is not likely that they explain them.
        trial = None if search is None else search.trial()
        rows = self._stored_rows(pair, pair.formats[0] or BYTES, trial)
        walk.over_stored(rows, self._arithmetic, trial)
        if search is not None and trial is not None and trial.keeps_level:
            if not trial.has_failed:  # so all elements are finite
                self._amaxes[pair.names[0]] = walk.measures.amax
            search.settle()

    @staticmethod
    def _walk_plain(walk: PieceWalk, pairs: Pairs, prover: Prover | None) -> None:
        """Compare two tensors piece by piece, and try what may have made B of A."""
        equal_places = walk.over(pairs(0), prover)
        if walk.measures.different and equal_places:
            read_again = zip(pairs(0), range(max(equal_places) + 1), strict=False)
            for (original, _), place in read_again:
                if place in equal_places:
                    walk.measures.add_signal(original)

    def _count_same_bytes(self, pair: TensorPair, walk: PieceWalk, meter: ProgressMeter) -> int:
        """Return how many bytes of tensors in files are the same; 0 if they do not stand alike."""
        place = self._original.read_into(pair.names[0])
        other_place = self._copy.read_into(pair.names[1])
        if place is None or other_place is None or place[0] != other_place[0]:
            return 0
        reads = [place[1], other_place[1]]
        report = partial(meter.reaches, name=pair.names[0])
        return walk.count_same_bytes(reads, pair.nbytes, report)

    def _values_result(
        self,
        pair: TensorPair,
        measures: Measures,
        explanation: CastExplanation | None,
        ratios: tuple[float | None, float | None] | None = None,
    ) -> TensorDiff:
        (shape, _), (source, target), is_equal = pair.shapes, pair.labels, not measures.different
        most, place = measures.gap, measures.rel_place
        return self._result(
            pair,
            "values" if not is_equal else "equal" if source == target else "dtype",
            measures.beyond,
            count=measures.count,
            different=measures.different,
            max_ulp=measures.max_ulp,
            max_abs=most.size,
            max_abs_index=index_of(None if most.values is None else most.place, shape),
            max_abs_values=most.values,
            max_rel=measures.max_rel,
            max_rel_index=index_of(None if measures.rel_values is None else place, shape),
            max_rel_values=measures.rel_values,
            sqnr_db=None if is_equal else measures.sqnr_db,
            error_ratios=ratios,
            explanation=explanation,
        )

    def _stored_rows(
        self, pair: TensorPair, to: str, trial: SchemeTrial | None
    ) -> Iterator[tuple[NDArray[Any], StoredRows]]:
        """Read a plain tensor in as many rows at a time as slabs of the other one have."""
        name, other = pair.names
        decoding = self._copy.decoding(other)
        assert decoding is not None, "it is quantized"  # noqa: S101
        columns = max(decoding.matrix_shape[-1], 1)
        step, most = decoding.step * columns, _SLABS_BYTES // (self._workers + 2)
        if trial is not None and trial.step is not None:
            step = math.lcm(step, trial.step * pair.shapes[0][-1])
        most = min(piece_elements(to, most), _SLAB_ELEMENTS)
        if (step := max(step // columns, 1)) != decoding.step:
            decoding = decoding._replace(step=step)
        slabs = [*decoding.slabs(most)]
        counts = [(slab.stop - slab.start) * columns for slab in slabs]
        lefts = self._original.pieces(name, to, counts)
        return ((original, (decoding, slab)) for original, slab in zip(lefts, slabs, strict=True))

    def _explain(
        self,
        pair: TensorPair,
        prover: Prover,
        pairs: Pairs,
        search: SchemeSearch | None,
        *,
        measures: Measures,
    ) -> CastExplanation | None:
        """Return what makes B of A: of what fits alike a scheme if B is quantized, else a cast."""
        is_quantized, sqnr_db = pair.quantized[1], measures.sqnr_db
        is_likely = is_quantized or (
            sqnr_db is not None and _LEAST_DECIBELS < sqnr_db < _MOST_DECIBELS
        )
        if sqnr_db is None or not is_likely:
            search = None
        if search is not None and (is_quantized or prover.has_failed):
            proof = search.proof()
            if proof is not None:
                return proof
        if all(pair.quantized) and self._is_transcoded(*pair.names):
            return CastExplanation(_TRANSCODED, {"transcoded": True})
        cast_explanation = prover.explanation(pairs, pair.shapes[0])
        if cast_explanation is not None and cast_explanation.every_element and not is_quantized:
            return cast_explanation
        scheme_explanation = None if search is None else search.explanation()
        both = (
            (scheme_explanation, cast_explanation)
            if is_quantized
            else (cast_explanation, scheme_explanation)
        )
        fitting = [explanation for explanation in both if explanation is not None]
        return min(fitting, key=lambda explanation: explanation.disagreeing, default=None)

    def _is_transcoded(self, name: str, other: str) -> bool:
        """Return True if both are quantized with the same codes and scales."""
        original, copy = self._original.decoding(name), self._copy.decoding(other)
        return original is not None and copy is not None and have_same_parts(original, copy)

    def _form(self, name: str) -> QuantizedArray | None:
        """Return some rows of a weight of B as they are stored; None if it is plain."""
        decoding = self._copy.decoding(name)
        return None if decoding is None else first_rows(decoding)

    def _amaxes_of(self, name: str) -> tuple[float, float]:
        """Return the largest magnitude of a tensor of A, and that of all fused with it."""
        partners = self._original.model.partners(name)
        partner_amaxes = (
            self._amax(partner) for partner in partners if partner in self._original.names
        )
        return self._amax(name), max(partner_amaxes, default=self._amax(name))

    def _amaxes_of_fused(self, names: Sequence[str], magnitudes: Sequence[float]) -> list[float]:
        """Return the largest magnitudes of all that is fused with tensors of A, given theirs."""
        self._amaxes |= zip(names, magnitudes, strict=True)
        return [self._amaxes_of(name)[1] for name in names]

    def _amax(self, name: str) -> float:
        if name not in self._amaxes:
            pieces = self._original.pieces(name, self._original.format(name, None))
            self._amaxes[name] = max(
                (block_amax(piece.reshape(1, -1)) for piece in pieces), default=0
            )
        return self._amaxes[name]

    def _with_scales(self, tensor: TensorDiff, name: str, other: str) -> TensorDiff:
        """Add how the stored scales of two quantized weights differ, and whether that is all."""
        original, copy = self._original.weights.get(name), self._copy.weights.get(other)
        if (
            original is None
            or copy is None
            or original.scheme != copy.scheme
            or not tensor.different
        ):
            return tensor
        scales = self._stored_arrays(original.scale, copy.scale)
        shifts = None if scales is None else scale_shifts(*scales)
        if shifts is None or set(shifts) == {0}:
            return tensor
        tensor = replace(tensor, scale_shifts=shifts)
        codes = self._stored_arrays(original.payload, copy.payload) if len(shifts) == 1 else None
        if codes is None or codes[0].shape != codes[1].shape or not same_bytes(*codes):
            return tensor
        text = f"B has the codes of A, and {shifts_text(shifts)}"
        options = {"scale_shift": next(iter(shifts))}
        return replace(tensor, explanation=CastExplanation(text, options, tensor.count))

    def _stored_arrays(
        self, original: str | None, copy: str | None
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Read a tensor of each of the two as it is stored; None if one has none of that name."""
        first_array, second_array = (
            None if part is None else side.stored_array(part)
            for side, part in ((self._original, original), (self._copy, copy))
        )
        return None if first_array is None or second_array is None else (first_array, second_array)

    def _error_ratio(self, side: Side, name: str, origin: str, to: str) -> float | None:
        """Return the error of a tensor over that of the reference, rounded once to its format."""
        reference = self._reference
        if reference is None or side.is_decoded(name):
            return None
        source = reference.format(origin, to)
        if source is None or common_format(source, to) is None:
            return None
        if reference.shape(origin) != side.shape(name):
            return None
        noise = least = 0.0
        counts = repeat(piece_elements(source, PIECES_BYTES))
        pieces = zip(
            reference.pieces(origin, source, counts), side.pieces(name, to, counts), strict=True
        )
        with np.errstate(all="ignore"):
            for exact, values in pieces:
                wide = exact.astype(np.float64)
                best = cast(exact, numpy_dtype(to), threads=self._threads).astype(np.float64)
                noise += _energy(wide - values.astype(np.float64))
                least += _energy(wide - best)
        if not least:
            return 1.0 if not noise else math.inf
        return math.sqrt(noise / least)


def _energy(errors: NDArray[np.float64]) -> float:
    """Return the sum of squares of the errors that are finite."""
    finite = errors[np.isfinite(errors)]
    return float(np.dot(finite, finite))
