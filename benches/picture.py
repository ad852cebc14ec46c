"""Draw a record: `python benches/picture.py record/SOME.csv record/SOME.svg`.

One row per pair of formats: castwise's speed as a bar, each peer's as a dot, memcpy as a line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import drawing
import record
from competitors import LIMIT, PEERS
from matplotlib.figure import Figure
from peers import CALLS, Castwise
from record import Record

SIZE = 65_536
PAIRS = (
    ("float32", "bfloat16"),
    ("bfloat16", "float32"),
    ("float32", "float16"),
    ("float16", "float32"),
    ("float32", "float8_e4m3fn"),
    ("float8_e4m3fn", "float32"),
    ("float32", "float8_e5m2"),
    ("float8_e5m2", "float32"),
    ("bfloat16", "float8_e4m3fn"),
    ("float8_e4m3fn", "bfloat16"),
    ("float64", "float32"),
    ("float64", "bfloat16"),
    ("float32", "float4_e2m1fn"),
    ("int8", "float32"),
    ("float32", "int8"),
    ("int64", "float32"),
)
COLORS = dict(
    zip(
        (peer.name for peer in PEERS),
        ("#2f6db5", "#c0392b", "#e67e22", "#8e44ad", "#27ae60", "#7f8c8d", "#222222"),
        strict=True,
    )
)


def best_speeds(measured: Record, source: str, target: str) -> dict[str, float]:
    """GB/s by peer, of the quicker of its calls; empty if the pair was not measured."""
    found: dict[str, float] = {}
    for (case, call), rows in measured.by_peer().items():
        here = (case.source, case.target, case.size, case.layout)
        if here == (source, target, SIZE, "contiguous") and call in CALLS:
            for name, row in rows.items():
                found[name] = max(found.get(name, 0.0), row.gb_per_s)
    return found


def draw(measured: Record, pairs: Iterable[tuple[str, str]]) -> Figure:
    """The picture."""
    rows = [(pair, speeds) for pair in pairs if (speeds := best_speeds(measured, *pair))]
    figure = Figure(figsize=(8, 0.5 + 0.32 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, (_, speeds) in enumerate(rows):
        for name, speed in speeds.items():
            color, label = COLORS[name], "" if place else name
            if name == Castwise.name:
                axes.barh(place, speed, color=color, height=0.7, label=label)
            elif name == LIMIT:
                axes.vlines(speed, place - 0.45, place + 0.45, color=color, label=label)
            else:
                axes.plot(speed, place, "o", color=color, markersize=6, label=label)
    for name, color in COLORS.items():
        if all(name != shown for shown in axes.get_legend_handles_labels()[1]):
            axes.plot([], [], "o", color=color, markersize=6, label=name)
    axes.set_yticks(range(len(rows)), [f"{source} → {target}" for (source, target), _ in rows])
    axes.invert_yaxis()
    facts = measured.environment
    axes.set_xlabel(f"GB/s read and written, {SIZE:,} elements, one thread ({facts['cpu']})")
    axes.set_xscale("log")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(drawing.carry_out(__doc__, lambda path: draw(record.read(path), PAIRS)))
