"""Timing that survives a shared machine: calibrated blocks, interleaved, medians of ratios.

All competitors of one case are timed in turn, A B C A B C ..., each turn a block of calls that
lasts a millisecond or more. Slow drifts of the machine (clock, neighbors) then meet all of them
alike, and the ratio is taken within each turn before the median over the turns. A block begins with
a call that is not timed: else whoever comes first would fetch into the caches what those after it
find there, and pay for what the one before it left to be written. (Not so a call of 50 ms.)
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

Call = Callable[[], object]

BLOCK_NS = 1_000_000
LONG_NS = 50_000_000
"""A call that takes so long is not preceded by one that is not timed."""


def block(call: Call, count: int) -> int:
    """Nanoseconds for `count` calls; the loop is the cheapest that Python has, as in timeit."""
    turns = itertools.repeat(None, count)
    start = perf_counter_ns()
    for _ in turns:
        call()
    return perf_counter_ns() - start


def calibrate(call: Call) -> int:
    """Find how many calls last BLOCK_NS; doubles as the warm-up."""
    count = 1
    while (elapsed := block(call, count)) < BLOCK_NS:
        # Aim a little beyond, but never by more than tenfold: the first calls are cold and slow.
        count = min(10 * count, int(count * 1.2 * BLOCK_NS / max(elapsed, 1)) + 1)
    return count


def interleave(calls: Sequence[Call], repeats: int, least: int = 1) -> NDArray[np.float64]:
    """Nanoseconds per call, one row per competitor and one column per turn.

    A block has `least` calls or more.
    """
    counts = [max(calibrate(call), least) for call in calls]
    times = np.empty((len(calls), repeats))
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(repeats):
            for row, (call, count) in enumerate(zip(calls, counts, strict=True)):
                if turn == 0 or times[row, turn - 1] < LONG_NS:
                    call()
                times[row, turn] = block(call, count) / count
    finally:
        if collecting:
            gc.enable()
    return times


def ratios(times: NDArray[np.float64], reference: int) -> NDArray[np.float64]:
    """How many times longer than row `reference` each row took: median of the ratios per turn."""
    return np.asarray(np.median(times / times[reference], axis=1))
