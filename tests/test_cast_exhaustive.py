"""Every code of every format of 16 bits or fewer, to every format, is cast as the oracle says.

Exhaustively under six roundings, three overflow rules and three NaN rules, on every CPU level of
this machine; by default under nearest-even and one other combination, each in its turn. The summary
prints the matrix.
"""

from __future__ import annotations

from collections import Counter

import pytest
from comparison import SOME, compare_options, options_of
from oracle import Format
from sources import all_codes
from support import AVAILABLE

SOURCES = [row for row in AVAILABLE if row.bits <= 16]


@pytest.mark.parametrize("source", SOURCES, ids=lambda row: row.name)
@SOME
def test_every_code(source: Format, some: bool, matrix: Counter[tuple[str, str]]) -> None:
    codes, turn = all_codes(source), SOURCES.index(source) * len(AVAILABLE)
    for number, target in enumerate(AVAILABLE, turn):
        options = options_of(number, some)
        matrix[source.name, target.name] += compare_options(codes, source, target, options)
