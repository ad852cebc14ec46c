"""Every code of every format of 16 bits or fewer, to every format, is cast as the oracle says.

Exhaustively under six roundings, three overflow rules and three NaN rules, on every CPU level of
this machine. By default under nearest-even and one other combination, each in its turn, and of 16
bits every third code, with another beginning for each target. The summary prints the matrix.
"""

from __future__ import annotations

from collections import Counter

import pytest
import support
from comparison import SOME, compare_options, options_of
from oracle import Format
from sources import all_codes
from support import AVAILABLE

SOURCES = [row for row in AVAILABLE if row.bits <= 16]


@pytest.mark.parametrize("source", SOURCES, ids=lambda row: row.name)
@SOME
def test_every_code(source: Format, some: bool, matrix: Counter[tuple[str, str]]) -> None:
    codes, turn = all_codes(source), SOURCES.index(source) * len(AVAILABLE)
    every = support.FEWER if some and source.bits == 16 else 1
    for number, target in enumerate(AVAILABLE, turn):
        options, part = options_of(number, some), codes[number % every :: every]
        matrix[source.name, target.name] += compare_options(part, source, target, options)
