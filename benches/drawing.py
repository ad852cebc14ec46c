"""The command line of a script that draws a record."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure


def carry_out(doc: str, draw: Callable[[Path], Figure]) -> int:
    """Read the record, draw it, and write the picture; returns the exit code.

    The first line of the docstring `doc` describes the script.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "castwise"  # the same picture for the same record
    try:
        draw(options.record).savefig(options.picture, metadata={"Date": None})
    except (OSError, ValueError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2
    return 0
