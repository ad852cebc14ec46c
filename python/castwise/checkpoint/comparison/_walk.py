"""Walk over the pieces of two tensors: measure them, and try what may have made B of A.

What takes long is computed ahead, several pieces at a time; what was learned of a piece decides on
the next one, and is taken in their order.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from castwise._core import Comparison, cast, have_same_bits
from castwise._options import Arithmetic
from castwise.arrays.comparison import Elements, Measures
from castwise.checkpoint.comparison._schemes import SchemeTrial, Tried
from castwise.checkpoint.comparison._sides import ReadInto, StoredRows
from castwise.checkpoint.comparison.explanations import Attempt, Prover
from castwise.quantization import dequantize
from castwise.quantization.arrays.comparison import compare_rows

Pair = tuple[NDArray[Any], NDArray[Any]]

# Bytes of a tensor that a thread compares at a time, and those that it reads: both stay in caches.
_RANGE_BYTES, _READ_BYTES = 2 << 20, 1 << 18


class _Piece(Protocol):
    def compute(self) -> None: ...


_AnyPiece = TypeVar("_AnyPiece", bound=_Piece)


class PieceWalk(NamedTuple):
    """Walks over the pieces of two tensors."""

    # What adds up how they differ.
    measures: Measures
    # Where pieces are read and computed ahead; one thread more than `workers`.
    pool: Executor
    # How many pieces are computed at a time.
    workers: int
    # Called when a piece was taken.
    report_progress: Callable[[], None]

    def over(self, pairs: Iterator[Pair], prover: Prover | None) -> set[int]:
        """Take all pieces; returns the places of the equal ones, which were not measured."""
        measures = self.measures
        equal_places: set[int] = set()
        pieces = self._compute_ahead(
            _PlainPiece(*pair, measures, None if prover is None else prover.attempt())
            for pair in pairs
        )
        for place, piece in enumerate(pieces):
            self.report_progress()
            if prover is None:
                measures.add(piece.original, piece.copy, piece.comparison_of())
                continue
            comparison = None
            if piece.is_equal_if_plain and prover.is_plain:
                measures.add_equal(piece.original.size)
                prover.equal_piece(piece.original.size)
                equal_places.add(place)
                continue
            if piece.original.dtype == piece.copy.dtype and prover.is_plain:
                comparison = piece.comparison_of()
            report = prover.try_piece(
                piece.original, piece.copy, comparison and comparison.different, piece.attempt
            )
            if report is None:
                measures.add(piece.original, piece.copy, piece.comparison_of())
            else:
                measures.add_cast(piece.original, piece.copy, report, prover.most_ulps)
        measures.locate()
        return equal_places

    def count_same_bytes(
        self, reads: Sequence[ReadInto], nbytes: int, report: Callable[[int], None]
    ) -> int:
        """Return how many bytes of two tensors, of so many, are the same up to some that differ."""
        # The last range comes first: of tensors that begin alike and differ late little is read.
        begins = range(0, nbytes, _RANGE_BYTES)
        order = (*begins[-1:], *begins[:-1])
        ranges = (_ByteRange(reads, begin, min(begin + _RANGE_BYTES, nbytes)) for begin in order)
        same_bytes = 0
        for byte_range in self._compute_ahead(ranges):
            if not byte_range.are_same:
                break
            same_bytes += byte_range.end - byte_range.begin
            report(same_bytes)
        return same_bytes

    def over_stored(
        self,
        rows: Iterator[tuple[NDArray[Any], StoredRows]],
        arithmetic: Arithmetic,
        trial: SchemeTrial | None,
    ) -> None:
        """Take rows of a plain tensor beside stored ones, which a scheme may have made of them."""
        for piece in self._compute_ahead(
            _StoredPiece(*pair, arithmetic, self.measures, trial) for pair in rows
        ):
            self.report_progress()
            assert piece.comparison is not None, "it was computed"  # noqa: S101
            self.measures.add(piece.original, piece.copy, piece.comparison)
            if trial is not None:
                trial.take(*piece.trial_result)

    def _compute_ahead(self, pieces: Iterator[_AnyPiece]) -> Iterator[_AnyPiece]:
        """Compute the pieces in their order, as many at a time as there are workers."""
        opening = next(pieces, None)
        next_piece = None if opening is None else next(pieces, None)
        if opening is None:
            return
        if next_piece is None:
            opening.compute()
            yield opening
            return
        waiting: deque[tuple[_AnyPiece, Future[None]]] = deque()
        following = self.pool.submit(next, pieces, None)
        try:
            waiting.extend(
                (piece, self.pool.submit(piece.compute)) for piece in (opening, next_piece)
            )
            while True:
                while len(waiting) > self.workers:
                    yield _result(*waiting.popleft())
                piece = following.result()
                if piece is None:
                    break
                following = self.pool.submit(next, pieces, None)
                waiting.append((piece, self.pool.submit(piece.compute)))
            while waiting:
                yield _result(*waiting.popleft())
        finally:
            futures: list[Future[Any]] = [following, *(future for _, future in waiting)]
            for future in futures:
                future.cancel()
            wait(futures)  # they read what is closed next


def _result(piece: _AnyPiece, future: Future[None]) -> _AnyPiece:
    future.result()
    return piece


class _ByteRange:
    """Bytes of two tensors, which each thread reads for itself, and whether they are the same."""

    def __init__(self, reads: Sequence[ReadInto], begin: int, end: int) -> None:
        self.begin, self.end, self.are_same = begin, end, True
        self._reads = reads

    def compute(self) -> None:
        """Read and compare the bytes, up to some that differ."""
        room = np.empty((2, min(_READ_BYTES, self.end - self.begin)), np.uint8)
        for begin in range(self.begin, self.end, _READ_BYTES):
            parts = room[:, : self.end - begin]
            for read, part in zip(self._reads, parts, strict=True):
                read(begin, part.data)
            if not have_same_bits(*parts, threads=1):
                self.are_same = False
                return


class _PlainPiece:
    """A pair of pieces, and what was computed of them."""

    def __init__(
        self,
        original: NDArray[Any],
        copy: NDArray[Any],
        measures: Measures,
        attempt: Attempt | None,  # of the recipe that is tried when the piece comes, if one is
    ) -> None:
        self.original, self.copy = original, copy
        self._measures, self.attempt = measures, attempt
        self._comparison: Comparison | None = None
        # Whether they are equal, if no recipe but the plain one is tried: else False.
        self.is_equal_if_plain = False

    def compute(self) -> None:
        """Compute what will be asked, as far as it is known before."""
        original, copy, attempt = self.original, self.copy, self.attempt
        if attempt is None:
            self.comparison_of()
            return
        if original.dtype == copy.dtype and attempt.recipe.is_plain:
            same = have_same_bits(original, copy, threads=1)
            self.is_equal_if_plain = same or not self.comparison_of().different
        elif attempt.is_due:
            attempt.make(original, copy)
        if not self.is_equal_if_plain and attempt.has_failed:
            self.comparison_of()

    def comparison_of(self) -> Comparison:
        """Compare and measure the two."""
        if self._comparison is None:
            self._comparison = self._measures.compare_pieces(self.original, self.copy, threads=1)
        return self._comparison


class _StoredPiece:
    """Rows of a plain tensor beside stored ones, and what was computed of them."""

    def __init__(
        self,
        original: NDArray[Any],
        rows: StoredRows,
        arithmetic: Arithmetic,
        measures: Measures,
        trial: SchemeTrial | None,
    ) -> None:
        self.original = original
        # The decoded elements, or those of them that differ most.
        self.copy: Elements = {}
        self.comparison: Comparison | None = None
        # What the trial of a scheme gave.
        self.trial_result: Tried = original.size, 0, None
        self._rows, self._arithmetic = rows, arithmetic
        self._measures, self._trial = measures, trial

    def compute(self) -> None:
        """Compare the two, and try the scheme."""
        decoding, slab = self._rows
        plain = self.original.reshape(-1, decoding.matrix_shape[-1])
        row_comparison = values = None
        trial = self._trial if self._trial is not None and not self._trial.has_failed else None
        if decoding.values is not None:
            values = cast(decoding.values(slab), plain.dtype, threads=1)
        else:
            q = decoding.rows(slab)
            options = (None, None) if trial is None else trial.quantize_options(plain.size)
            row_comparison = compare_rows(
                plain,
                q,
                self._arithmetic,
                *options,
                keeps_level=trial is not None and trial.keeps_level,
                measure=not self._measures.is_counted,
            )
            if row_comparison is None or not (row_comparison.is_made or trial is None):
                values = dequantize(q, plain.dtype, arithmetic=self._arithmetic, threads=1)
        if row_comparison is not None:
            self.comparison, is_made, self.copy = row_comparison
        else:
            assert values is not None, "it was decoded"  # noqa: S101
            self.copy, is_made = values.reshape(-1), False
            self.comparison = self._measures.compare_pieces(self.original, self.copy, threads=1)
        if trial is not None and not is_made:
            assert values is not None, "it was decoded"  # noqa: S101
            self.trial_result = trial.try_rows(plain, values)
