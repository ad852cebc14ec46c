"""Time numpy's casts with `castwise.accelerate()` and without: `python benches/accelerate.py`.

One line per pair: nanoseconds per element of `np.copyto(out, x, casting="unsafe")` on normal
values, without and with, and their ratio. Within each turn both are timed, one after the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import castwise
import numpy as np
from castwise.environment.acceleration import CastPair
from measure import block, calibrate
from numpy.typing import NDArray

DEFAULT = "float32,bfloat16"
"""Pairs of these with any narrow float are shown, unless others are asked for."""


def copy_call(pair: CastPair, size: int) -> Callable[[], object]:
    """Make the call for one pair: existing code."""
    normal = np.random.default_rng(0).standard_normal(size, np.float32)
    x: NDArray[Any] = castwise.cast(normal, pair.source)
    out = castwise.cast(normal, pair.target)
    return lambda: np.copyto(out, x, casting="unsafe")


def compare(call: Callable[[], object], turns: int) -> tuple[float, float, float]:
    """Nanoseconds without and with, and the median ratio of a turn."""
    castwise.restore()
    slow_count = calibrate(call)
    with castwise.accelerate():
        fast_count = calibrate(call)
    slow, fast = [], []
    for _ in range(turns):
        slow.append(block(call, slow_count) / slow_count)
        with castwise.accelerate():
            fast.append(block(call, fast_count) / fast_count)
    gains = [one / other for one, other in zip(slow, fast, strict=True)]
    return median(slow), median(fast), median(gains)


def main() -> None:
    """Time the pairs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 16, help="elements (65536)")
    parser.add_argument("--turns", type=int, default=7, help="(7)")
    parser.add_argument("--formats", default=DEFAULT, help=f"or all ({DEFAULT})")
    arguments = parser.parse_args()
    wanted = None if arguments.formats == "all" else set(arguments.formats.split(","))
    with castwise.accelerate() as acceleration:
        pairs = acceleration.pairs
    print(f"{arguments.size} elements, {castwise.cpu_level()}, 1 thread; ns without, with; ratio")
    gains = []
    for pair in pairs:
        narrow = all(castwise.finfo(name).bits <= 32 for name in pair)
        if wanted is not None and not (wanted.intersection(pair) and narrow):
            continue
        slow, fast, gain = compare(copy_call(pair, arguments.size), arguments.turns)
        gains.append(gain)
        slow, fast = slow / arguments.size, fast / arguments.size
        print(f"{pair.source:>20} {pair.target:<20} {slow:7.3f} {fast:7.3f} {gain:6.1f}x")
    print(f"median of {len(gains)}: {median(gains):.1f}x; least {min(gains):.2f}x")


if __name__ == "__main__":
    main()
