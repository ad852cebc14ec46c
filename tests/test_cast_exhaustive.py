"""Every code of every format of 16 bits or fewer, to every format, is cast as the oracle says.

Exhaustively under six roundings, three overflow rules and three NaN rules, on every CPU level of
this machine; by default under nearest-even and one other combination, each in its turn. The summary
prints the matrix.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from comparison import OPTIONS, compare_options
from oracle import Format
from sources import all_codes
from support import AVAILABLE

PAIRS = list(product([row for row in AVAILABLE if row.bits <= 16], AVAILABLE))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].name}-{pair[1].name}")
@pytest.mark.parametrize(
    "some", [True, pytest.param(False, marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
def test_every_code(
    pair: tuple[Format, Format], some: bool, matrix: Counter[tuple[str, str]]
) -> None:
    source, target = pair
    options = {OPTIONS[0], OPTIONS[PAIRS.index(pair) % len(OPTIONS)]} if some else OPTIONS
    matrix[source.name, target.name] += compare_options(all_codes(source), source, target, options)
