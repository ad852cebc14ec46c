"""Compare calling castwise's layers with Keras' on numpy: `python benches/layers.py --help`.

README.md in this folder says what is measured and how. Exit code 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import castwise
import numpy as np
from castwise.autocast import Layer
from measure import interleave, ratios

os.environ.setdefault("KERAS_BACKEND", "numpy")
keras = importlib.import_module("keras")

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
VERDICTS = {True: "correct", False: "WRONG"}


def classes(base: Any) -> dict[str, Any]:
    """The layers that are timed, over either base class: the same code for both."""

    class Echo(base):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x

    class Two(base):  # type: ignore[misc]
        def call(self, x: Any, other: Any = None) -> Any:
            return other

    class Weight(base):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight(shape=(4,), initializer="ones")

        def call(self, x: Any) -> Any:
            return self.kernel.value

    class Nested(base):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.parts = [Echo(**options) for _ in range(3)]

        def call(self, x: Any) -> Any:
            for part in self.parts:
                x = part(x)
            return x

    return {kind.__name__: kind for kind in (Echo, Two, Weight, Nested)}


class Case(NamedTuple):
    """One way to call a layer of a class of `classes`."""

    title: str
    layer: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def cases(policy: str) -> Iterator[Case]:
    """Small arrays: the call is timed, not the work in it."""
    x = np.ones((2, 4), np.float32)
    ready = castwise.cast(x, castwise.DTypePolicy(policy).compute_dtype)
    yield Case("array as it is computed in", "Echo", (ready,), {})
    yield Case("float32 array", "Echo", (x,), {})
    yield Case("array and keyword", "Two", (x,), {"other": x})
    yield Case("dict of 4 arrays", "Echo", (dict.fromkeys("abcd", x),), {})
    yield Case("reads a weight", "Weight", (x,), {})
    yield Case("three layers in a layer", "Nested", (x,), {})


def rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Measure everything."""
    sides = [classes(Layer), classes(keras.layers.Layer)]
    for policy in POLICIES:
        for case in cases(policy):
            layers = [side[case.layer](dtype=policy) for side in sides]
            calls: list[Callable[[], Any]] = [
                partial(layer, *case.args, **case.kwargs) for layer in layers
            ]
            own, other = (described(call()) for call in calls)
            times = interleave(calls, repeats)
            yield {
                "policy": policy,
                "call": case.title,
                "castwise_us": round(float(np.median(times[0])) / 1e3, 2),
                "keras_us": round(float(np.median(times[1])) / 1e3, 2),
                "ratio": round(float(ratios(times, reference=0)[1]), 2),
                "correct": own == other,
            }


def described(outputs: Any) -> Any:
    """What both sides must agree on."""
    if isinstance(outputs, dict):
        return {key: described(value) for key, value in outputs.items()}
    return type(outputs), outputs.dtype, outputs.tobytes()


def main() -> int:
    """Measure and print; --csv records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="few turns: does it work at all")
    add("--repeats", type=int, default=15, help="turns per case (default 15)")
    add("--csv", type=Path, help="also write the rows to FILE")
    options = parser.parse_args()
    print(f"# keras {keras.__version__} on {keras.backend.backend()}, numpy {np.__version__}")
    print("# us per call; ratio: Keras' time over castwise's")
    found = []
    for row in rows(2 if options.quick else options.repeats):
        found.append(row)
        print(
            f"{row['policy']:<15} {row['call']:<27} {row['castwise_us']:>7.2f} "
            f"{row['keras_us']:>7.2f}  ratio {row['ratio']:>6.2f}  {VERDICTS[row['correct']]}",
            flush=True,
        )
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, found[0].keys())
            writer.writeheader()
            writer.writerows(found)
    return int(any(not row["correct"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
