"""The oracle itself is right: it agrees with ml_dtypes, numpy, fractions, and with itself."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

import astype
import ml_dtypes
import numpy as np
import oracle
import pytest
import support
from oracle import DETERMINISTIC, FORMATS, Array, Exact, Format

KNOWN = [row for row in FORMATS.values() if row.dtype is not None]
SMALL = [row for row in KNOWN if row.bits <= 16]
FLOATS = [row for row in KNOWN if row.kind == "float"]
NARROW = [row for row in FORMATS.values() if row.kind == "float" and row.bits <= 8]


def values(codes: Array, row: Format) -> list[Fraction]:
    """Read finite codes by the specification's own formula, with nothing of the oracle's."""
    found = []
    for code in codes.tolist():
        magnitude = code & row.magnitude_mask
        biased, fraction = magnitude >> row.mantissa_bits, magnitude % (1 << row.mantissa_bits)
        if row.specials == "exponent-only":
            value = Fraction(2) ** (biased - row.bias)
        elif biased:
            value = (1 + Fraction(fraction, 1 << row.mantissa_bits)) * Fraction(2) ** (
                biased - row.bias
            )
        else:
            value = Fraction(fraction, 1 << row.mantissa_bits) * Fraction(2) ** (1 - row.bias)
        found.append(-value if code & row.sign_bit else value)
    return found


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_the_table_agrees_with_finfo(row: Format) -> None:
    info = np.finfo(row.dtype) if hasattr(np, row.name) else ml_dtypes.finfo(row.dtype)
    codes = np.array(
        [row.largest, 1 << row.mantissa_bits, row.specials != "exponent-only"], row.codes
    )
    largest, normal, smallest = (float(value) for value in codes.view(row.dtype))
    assert largest == float(info.max)
    if row.specials != "exponent-only":
        assert (normal, smallest) == (float(info.smallest_normal), float(info.smallest_subnormal))
    assert row.bits == info.bits
    assert row.mantissa_bits == info.nmant


@pytest.mark.parametrize("row", [row for row in FLOATS if row.bits <= 16], ids=lambda row: row.name)
def test_decoding_agrees_with_numpy(row: Format) -> None:
    codes = np.arange(1 << row.bits).astype(row.codes)
    exact = oracle.decode(codes, row)
    with np.errstate(invalid="ignore"):
        numpy = codes.view(row.dtype).astype(np.float64)
    assert np.array_equal(exact.nan, np.isnan(numpy))
    assert np.array_equal(exact.infinite, np.isinf(numpy))
    assert np.array_equal(exact.negative, np.signbit(numpy))
    finite = exact.finite
    magnitude = np.ldexp(exact.significand.astype(np.float64), exact.exponent.astype(np.int32))
    assert np.array_equal(magnitude[finite], np.abs(numpy[finite]))


@pytest.mark.thinned(23)
@pytest.mark.parametrize("target", KNOWN, ids=lambda row: row.name)
@pytest.mark.parametrize("source", SMALL, ids=lambda row: row.name)
def test_defaults_agree_with_astype(source: Format, target: Format) -> None:
    """Every code of 16 bits or fewer, to whatever astype supports, but the listed exceptions."""
    if source is target or not astype.supported(source, target):
        pytest.skip("astype does not support the pair, or copies it")
    codes = np.arange(2 if source.kind == "bool" else 1 << source.bits).astype(source.codes)
    with np.errstate(all="ignore"):
        theirs = codes.view(source.dtype).astype(target.dtype).view(target.codes)
    theirs = theirs.reshape(len(codes), -1)[:, 0]
    ours = (
        oracle.cast(codes, source, target).expected(astype.default_rounding(target), "ieee").codes
    )
    bad = np.flatnonzero(astype.disagree(ours, theirs, source, target, codes))
    assert not bad.size, [(hex(codes[i]), hex(ours[i]), hex(theirs[i])) for i in bad[:5]]


@pytest.mark.thinned(71)
@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("target", NARROW, ids=lambda row: row.name)
def test_roundings_agree_with_fractions(target: Format, rounding: str) -> None:
    """In range, each rounding chooses the right one of two values, as fractions."""
    source = FORMATS["bfloat16"]
    codes = np.arange(0, 1 << 16, support.FEWER).astype(source.codes)
    codes = codes[oracle.decode(codes, source).finite]
    codes = codes[~oracle.cast(codes, source, target).expected(rounding, "ieee").overflows]
    listed = np.arange(target.largest + 1)
    listed = listed if not target.signed else np.append(listed, listed[1:] | target.sign_bit)
    ladder = sorted(zip(values(listed, target), listed.tolist(), strict=True))
    rungs = [value for value, _ in ladder]
    expected = oracle.cast(codes, source, target).expected(rounding, "ieee")
    negative = (codes >> 15) * (target.signed and target.specials != "fnuz")
    for value, code, minus in zip(
        values(codes, source), expected.codes.tolist(), negative, strict=True
    ):
        if not rungs[0] <= value <= rungs[-1]:
            continue
        above = bisect_left(rungs, value)
        (high, high_code), (low, low_code) = ladder[above], ladder[above - (rungs[above] != value)]
        want = {
            "towards-positive": high_code,
            "towards-negative": low_code,
            "towards-zero": low_code if value > 0 else high_code,
        }.get(rounding)
        if want is None and high - value != value - low:
            want = high_code if high - value < value - low else low_code
        elif want is None and rounding == "nearest-away":
            want = high_code if value > 0 else low_code
        elif want is None and target.mantissa_bits:
            want = low_code if low_code % 2 == 0 else high_code
        elif want is None:  # e8m0 has no even significand: up
            want = high_code
        want = target.sign_bit if want == 0 and minus else want
        assert code == want, f"{value} gave {code:#x}, not {want:#x}"


def test_both_splits_agree() -> None:
    """Words of 64 bits and Python integers give the same neighbors."""
    rng, count = np.random.default_rng(1), 20_000 // support.FEWER
    words = rng.integers(0, 2**64, count, np.uint64, endpoint=False)
    words >>= rng.integers(0, 64, count).astype(np.uint64)
    words[::7] &= ~(
        (np.uint64(1) << rng.integers(0, 64, words[::7].size).astype(np.uint64)) - np.uint64(1)
    )
    never, negative = np.zeros(words.shape, bool), rng.integers(0, 2, count) == 1
    exponents = rng.integers(-80, 20, count)
    for target in FORMATS.values():
        if target.part or target.kind == "bool":
            continue
        one = oracle.Cast(Exact(negative, words, exponents, never, never), target)
        other = oracle.Cast(Exact(negative, words.astype(object), exponents, never, never), target)
        for rounding in DETERMINISTIC:
            first, second = one.expected(rounding, "saturate"), other.expected(rounding, "saturate")
            assert np.array_equal(first.codes, second.codes), target.name
            assert np.array_equal(first.overflows, second.overflows), target.name
