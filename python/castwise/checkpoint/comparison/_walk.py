"""Walk over the pieces of two tensors: measure them, and try what may have made B of A.

What takes long is computed ahead, several pieces at a time; what was learned of a piece decides on
the next one, and is taken in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from typing import Any

from numpy.typing import NDArray

from castwise._core import Comparison, have_same_bits
from castwise._measures import Measures
from castwise.checkpoint.comparison._explanations import Attempt, Prover
from castwise.checkpoint.comparison._row_cutter import Matrices
from castwise.checkpoint.comparison._schemes import SchemeTrial

Pair = tuple[NDArray[Any], NDArray[Any]]


class PieceWalk:
    """One walk over the pieces of two tensors.

    Parameters
    ----------
    measures, prover, trial
        What learns of the pieces.
    pool
        Where pieces are read and computed ahead; one thread more than `workers`.
    workers
        How many pieces are computed at a time.

    """

    def __init__(
        self,
        measures: Measures,
        prover: Prover,
        trial: SchemeTrial | None,
        *,
        pool: Executor,
        workers: int,
    ) -> None:
        self._measures, self._prover, self._trial = measures, prover, trial
        self._pool, self._workers = pool, workers

    def over(self, pairs: Iterator[Pair], moved: Callable[[], None]) -> set[int]:
        """Take all pieces; returns the places of the equal ones, which were not measured."""
        measures, prover = self._measures, self._prover
        unmeasured: set[int] = set()
        for place, piece in enumerate(self._computed(pairs)):
            moved()
            comparison = None
            if piece.is_equal_if_plain and prover.is_plain:
                measures.add_equal(piece.left.size)
                prover.equal_piece(piece.left.size)
                unmeasured.add(place)
            else:
                if piece.left.dtype == piece.right.dtype and prover.is_plain:
                    comparison = piece.compared()
                if self._trial is not None and self._trial.explains_all:
                    prover.end_search()
                report = prover.try_piece(
                    piece.left, piece.right, comparison and comparison.different, piece.attempt
                )
                if report is None:
                    measures.add(piece.left, piece.right, piece.compared())
                else:
                    measures.add_cast(piece.left, piece.right, report, prover.most_ulps)
            if self._trial is not None:
                self._trial.take(piece.tried)
        measures.locate()
        return unmeasured

    def _computed(self, pairs: Iterator[Pair]) -> Iterator[_Piece]:
        """Compute the pieces in their order, as many at a time as there are workers."""
        first = next(pairs, None)
        second = None if first is None else next(pairs, None)
        if first is None:
            return
        if second is None:
            yield self._prepared(first).computed()
            return
        waiting: deque[Future[_Piece]] = deque()
        following = self._read(pairs)
        try:
            waiting.extend(
                self._pool.submit(self._prepared(pair).computed) for pair in (first, second)
            )
            while True:
                while len(waiting) > self._workers:
                    yield waiting.popleft().result()
                pair = following.result()
                if pair is None:
                    break
                following = self._read(pairs)
                waiting.append(self._pool.submit(self._prepared(pair).computed))
            while waiting:
                yield waiting.popleft().result()
        finally:
            futures: list[Future[Any]] = [following, *waiting]
            for future in futures:
                future.cancel()
            wait(futures)  # they read what is closed next

    def _read(self, pairs: Iterator[Pair]) -> Future[Pair | None]:
        return self._pool.submit(lambda: next(pairs, None))

    def _prepared(self, pair: Pair) -> _Piece:
        matrices = [] if self._trial is None else self._trial.cut(*pair)
        return _Piece(pair, self._measures, self._prover.attempt(), self._trial, matrices)


class _Piece:
    """A pair of pieces, and what was computed of them.

    Attributes
    ----------
    is_equal_if_plain
        Whether they are equal, if no recipe but the plain one is tried: else False.
    attempt
        What the recipe gave that was tried when the piece came.
    tried
        What the trial of a scheme gave.

    """

    def __init__(
        self,
        pair: Pair,
        measures: Measures,
        attempt: Attempt,
        trial: SchemeTrial | None,
        matrices: list[Matrices],
    ) -> None:
        self.left, self.right = pair
        self._measures, self._trial, self._matrices = measures, trial, matrices
        self._comparison: Comparison | None = None
        self.attempt = attempt
        self.is_equal_if_plain = False
        self.tried: list[tuple[int, int | None, int | None]] = []

    def computed(self) -> _Piece:
        """Compute what will be asked, as far as it is known before."""
        left, right, attempt = self.left, self.right, self.attempt
        if left.dtype == right.dtype and attempt.is_plain:
            same = have_same_bits(left, right, threads=1)
            self.is_equal_if_plain = same or not self.compared().different
        elif attempt.is_due:
            attempt.make(left, right)
        if not self.is_equal_if_plain and attempt.has_failed:
            self.compared()
        if self._trial is not None:
            self.tried = [self._trial.tried(*matrices) for matrices in self._matrices]
        return self

    def compared(self) -> Comparison:
        """Compare and measure the two."""
        if self._comparison is None:
            self._comparison = self._measures.compared(self.left, self.right, threads=1)
        return self._comparison
