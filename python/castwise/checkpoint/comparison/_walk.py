"""Walk over the pieces of two tensors: measure them, and try what may have made B of A.

What takes long is computed ahead, several pieces at a time; what was learned of a piece decides on
the next one, and is taken in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from castwise._core import Comparison, cast, have_same_bits
from castwise._options import Arithmetic
from castwise.arrays.measures import Elements, Measures
from castwise.checkpoint.comparison._schemes import SchemeTrial, Tried
from castwise.checkpoint.comparison._sides import StoredRows
from castwise.checkpoint.comparison.explanations import Attempt, Prover
from castwise.quantization import dequantize
from castwise.quantization.arrays.comparison import compare_rows

Pair = tuple[NDArray[Any], NDArray[Any]]


class _Piece(Protocol):
    def compute(self) -> None: ...


_AnyPiece = TypeVar("_AnyPiece", bound=_Piece)


@dataclass(frozen=True, slots=True)
class PieceWalk:
    """Walks over the pieces of two tensors."""

    # What adds up how they differ.
    measures: Measures
    # Where pieces are read and computed ahead; one thread more than `workers`.
    pool: Executor
    # How many pieces are computed at a time.
    workers: int
    # Called when a piece was taken.
    moved: Callable[[], None]

    def over(self, pairs: Iterator[Pair], prover: Prover | None) -> set[int]:
        """Take all pieces; returns the places of the equal ones, which were not measured."""
        measures = self.measures
        unmeasured: set[int] = set()
        pieces = self._computed(
            _PlainPiece(*pair, measures, None if prover is None else prover.attempt())
            for pair in pairs
        )
        for place, piece in enumerate(pieces):
            self.moved()
            if prover is None:
                measures.add(piece.left, piece.right, piece.compared())
                continue
            comparison = None
            if piece.is_equal_if_plain and prover.is_plain:
                measures.add_equal(piece.left.size)
                prover.equal_piece(piece.left.size)
                unmeasured.add(place)
                continue
            if piece.left.dtype == piece.right.dtype and prover.is_plain:
                comparison = piece.compared()
            report = prover.try_piece(
                piece.left, piece.right, comparison and comparison.different, piece.attempt
            )
            if report is None:
                measures.add(piece.left, piece.right, piece.compared())
            else:
                measures.add_cast(piece.left, piece.right, report, prover.most_ulps)
        measures.locate()
        return unmeasured

    def over_stored(
        self,
        rows: Iterator[tuple[NDArray[Any], StoredRows]],
        arithmetic: Arithmetic,
        trial: SchemeTrial | None,
    ) -> None:
        """Take rows of a plain tensor beside stored ones, which a scheme may have made of them."""
        for piece in self._computed(
            _StoredPiece(*pair, arithmetic, self.measures, trial) for pair in rows
        ):
            self.moved()
            assert piece.comparison is not None, "it was computed"  # noqa: S101
            self.measures.add(piece.left, piece.right, piece.comparison)
            if trial is not None:
                trial.take(*piece.tried)

    def _computed(self, pieces: Iterator[_AnyPiece]) -> Iterator[_AnyPiece]:
        """Compute the pieces in their order, as many at a time as there are workers."""
        first = next(pieces, None)
        second = None if first is None else next(pieces, None)
        if first is None:
            return
        if second is None:
            first.compute()
            yield first
            return
        waiting: deque[tuple[_AnyPiece, Future[None]]] = deque()
        following = self.pool.submit(next, pieces, None)
        try:
            waiting.extend((piece, self.pool.submit(piece.compute)) for piece in (first, second))
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


class _PlainPiece:
    """A pair of pieces, and what was computed of them.

    `attempt`: what the recipe gave that was tried when the piece came; None if none is.
    """

    def __init__(
        self,
        left: NDArray[Any],
        right: NDArray[Any],
        measures: Measures,
        attempt: Attempt | None,
    ) -> None:
        self.left, self.right = left, right
        self._measures, self.attempt = measures, attempt
        self._comparison: Comparison | None = None
        # Whether they are equal, if no recipe but the plain one is tried: else False.
        self.is_equal_if_plain = False

    def compute(self) -> None:
        """Compute what will be asked, as far as it is known before."""
        left, right, attempt = self.left, self.right, self.attempt
        if attempt is None:
            self.compared()
            return
        if left.dtype == right.dtype and attempt.is_plain:
            same = have_same_bits(left, right, threads=1)
            self.is_equal_if_plain = same or not self.compared().different
        elif attempt.is_due:
            attempt.make(left, right)
        if not self.is_equal_if_plain and attempt.has_failed:
            self.compared()

    def compared(self) -> Comparison:
        """Compare and measure the two."""
        if self._comparison is None:
            self._comparison = self._measures.compare_pieces(self.left, self.right, threads=1)
        return self._comparison


class _StoredPiece:
    """Rows of a plain tensor beside stored ones, and what was computed of them."""

    def __init__(
        self,
        left: NDArray[Any],
        rows: StoredRows,
        arithmetic: Arithmetic,
        measures: Measures,
        trial: SchemeTrial | None,
    ) -> None:
        self.left = left
        # The decoded elements, or those of them that differ most.
        self.right: Elements = {}
        self.comparison: Comparison | None = None
        # What the trial of a scheme gave.
        self.tried: Tried = left.size, 0, None
        self._rows, self._arithmetic = rows, arithmetic
        self._measures, self._trial = measures, trial

    def compute(self) -> None:
        """Compare the two, and try the scheme."""
        decoding, slab = self._rows
        plain = self.left.reshape(-1, decoding.matrix_shape[-1])
        found = values = None
        trial = self._trial if self._trial is not None and not self._trial.has_failed else None
        if decoding.values is not None:
            values = cast(decoding.values(slab), plain.dtype, threads=1)
        else:
            q = decoding.rows(slab)
            options = (None, None) if trial is None else trial.quantize_options(plain.size)
            measure = not self._measures.is_counted
            found = compare_rows(plain, q, self._arithmetic, *options, measure=measure)
            if found is None or not (found.is_made or trial is None):
                values = dequantize(q, plain.dtype, arithmetic=self._arithmetic, threads=1)
        if found is not None:
            self.comparison, is_made, self.right = found
        else:
            assert values is not None, "it was decoded"  # noqa: S101
            self.right, is_made = values.reshape(-1), False
            self.comparison = self._measures.compare_pieces(self.left, self.right, threads=1)
        if trial is not None and not is_made:
            assert values is not None, "it was decoded"  # noqa: S101
            self.tried = trial.tried(plain, values)
