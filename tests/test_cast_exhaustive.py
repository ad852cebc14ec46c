"""Every code of every format of 16 bits or fewer, to every format, is cast as the oracle says.

Exhaustively under six roundings, three overflow rules and three NaN rules, on every CPU level of
this machine; by default under nearest-even and one other combination, each in its turn. The summary
prints the matrix.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from comparison import SOME, compare_options, options_of
from oracle import Format
from sources import all_codes
from support import AVAILABLE

PAIRS = list(product([row for row in AVAILABLE if row.bits <= 16], AVAILABLE))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].name}-{pair[1].name}")
@SOME
def test_every_code(
    pair: tuple[Format, Format], some: bool, matrix: Counter[tuple[str, str]]
) -> None:
    source, target = pair
    options = options_of(PAIRS.index(pair), some)
    matrix[source.name, target.name] += compare_options(all_codes(source), source, target, options)
