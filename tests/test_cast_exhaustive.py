"""Every code of every format of 16 bits or fewer, to every format, is cast as the oracle says.

Six roundings, three overflow rules, three NaN rules, every CPU level of this machine; the summary
prints the matrix.
"""

from __future__ import annotations

from collections import Counter

import pytest
from comparison import compare_every_option
from oracle import Format
from sources import all_codes
from support import AVAILABLE

SMALL = [row for row in AVAILABLE if row.bits <= 16]


@pytest.mark.parametrize("target", AVAILABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("source", SMALL, ids=lambda row: row.name)
def test_every_code(source: Format, target: Format, matrix: Counter[tuple[str, str]]) -> None:
    codes = all_codes(source)
    matrix[source.name, target.name] += compare_every_option(codes, source, target)
