"""Draw a record of `advise.py`: `python benches/advice_picture.py record/SOME.csv record/SOME.svg`.

A panel for each kind of network: the divergence by budget, with castwise's advice and other ways.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import drawing
import files
import numpy as np
from advise import ADVICE, Row
from matplotlib.figure import Figure

LINES = {
    ADVICE: ("castwise's advice", "#2f6db5", "-o"),
    "uniform": ("best single scheme that fits", "#c0392b", "-s"),
    "random": ("random, the median of 15", "#7f8c8d", ":"),
    "ends": ("first and last layers wide", "#e67e22", "--"),
    "NNCF": ("NNCF's criterion", "#8e44ad", "--"),
    "llm-compressor": ("llm-compressor's heuristic", "#27ae60", "--"),
    "bound": ("measured divergences, added up", "#222222", ":"),
}


def draw(rows: Sequence[Row]) -> Figure:
    """The picture; a point is the geometric mean over networks."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    figure = Figure(figsize=(3.6 * len(kinds), 4.2), layout="constrained")
    for number, kind in enumerate(kinds):
        axes = figure.add_subplot(1, len(kinds), number + 1)
        for way, (text, color, style) in LINES.items():
            logs: dict[float, list[float]] = {}
            for row in rows:
                if (row.kind, row.way) == (kind, way):
                    logs.setdefault(100 * row.share, []).append(np.log(row.divergence))
            means = [np.exp(np.mean(values)) for values in logs.values()]
            label = "" if number else text
            axes.plot(list(logs), means, style, color=color, markersize=4, label=label)
        axes.set_yscale("log")
        axes.set_title(kind)
        axes.set_xlabel("bytes, % of bfloat16")
    figure.axes[0].set_ylabel("divergence from float32, nats")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    sys.exit(drawing.carry_out(__doc__, lambda path: draw(files.read(path, Row)[1])))
