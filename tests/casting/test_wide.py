"""32- and 64-bit sources are rounded once, from their exact value, to every format.

Tried: each target value, midpoint and limit with its neighbors in the source, every power of two
or sum of two for the integers, and random bits. Complex formats go component by component.
"""

from __future__ import annotations

from collections import Counter

import castwise
import numpy as np
import oracle
import pytest
from comparison import SOME, compare_options, first_wrong, options_of, wrong
from oracle import DETERMINISTIC, Format
from sources import sources_around
from support import AVAILABLE, COMPLEX, array_of, codes_of

WIDE = [row for row in AVAILABLE if row.bits > 16 and not row.part]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("target", AVAILABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("source", WIDE, ids=lambda row: row.name)
@SOME
def test_boundaries(
    source: Format, target: Format, some: bool, matrix: Counter[tuple[str, str]]
) -> None:
    codes = sources_around(source, target)
    options = options_of(WIDE.index(source) + AVAILABLE.index(target), some)
    matrix[source.name, target.name] += compare_options(codes, source, target, options)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("target", COMPLEX, ids=lambda row: row.name)
@pytest.mark.parametrize("source", COMPLEX, ids=lambda row: row.name)
def test_complex(source: Format, target: Format, level: str) -> None:
    codes, part = sources_around(source, target), oracle.component(source)
    codes = codes[:: max(1, codes.size // 20_000)]
    codes = np.append(codes, np.array([part.nan(False), part.nan(True)], part.codes))
    codes = np.stack([codes, np.roll(codes, 7)], axis=-1)
    cast = oracle.cast(codes, source, target)
    for rounding in DETERMINISTIC:
        for overflow in ("ieee", "saturate"):
            x = array_of(codes, source)
            result = castwise.cast(x, target.name, rounding=rounding, overflow=overflow)
            got, right = codes_of(result, target), cast.expected(rounding, overflow)
            bad = wrong(got, codes, source, target, right)
            assert not bad.any(), f"{rounding} {overflow}: {first_wrong(bad, codes, got, right)}"
    right = cast.expected("nearest-even", "ieee", "zero")
    got = codes_of(castwise.cast(array_of(codes, source), target.name, nan="zero"), target)
    bad = wrong(got, codes, source, target, right, nan="zero")
    assert not bad.any(), f"zero: {first_wrong(bad, codes, got, right)}"
    with pytest.raises(ValueError, match="nan"):
        castwise.cast(array_of(codes, source), target.name, nan="raise")


@pytest.mark.parametrize(
    "source", [row for row in AVAILABLE if row.bits < 8], ids=lambda row: row.name
)
def test_only_the_low_bits_of_a_byte_count(source: Format, level: str) -> None:
    """Higher bits of a byte are ignored; in a bool any bit means True."""
    noisy = np.arange(256).astype(np.uint8)
    clean = (
        (noisy > 0) * np.uint8(1)
        if source.kind == "bool"
        else noisy & np.uint8((1 << source.bits) - 1)
    )
    for target in AVAILABLE:
        if target is not source:  # a copy may copy the noise, as astype does
            got = castwise.cast(array_of(noisy, source), target.name)
            want = castwise.cast(array_of(clean, source), target.name)
            assert np.array_equal(codes_of(got, target), codes_of(want, target)), target.name


@pytest.mark.parametrize(
    ("value", "target", "want"),
    [
        (np.float64(1 + 2**-8 + 2**-40), "bfloat16", 1.0078125),
        (np.int64(2**33 + 2**25 + 1), "bfloat16", float(2**33 + 2**26)),
        (np.float64(1 + 2**-4 + 2**-30), "float8_e4m3fn", 1.125),
        (np.float64(65520 - 2**-30), "float16", 65504.0),
        (np.uint64(2**64 - 1), "float32", 2.0**64),
        (np.int64(2**53 + 1), "float64", 2.0**53),
    ],
)
def test_the_issue_s_examples(value: np.generic, target: str, want: float, level: str) -> None:
    assert float(castwise.cast(value, target)) == want
