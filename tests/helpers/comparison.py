"""One cast on every CPU level against the oracle."""

from __future__ import annotations

from collections.abc import Iterable

import castwise
import numpy as np
import oracle
import pytest
from oracle import DETERMINISTIC, OVERFLOWS, ROUNDINGS, Array, Cast, Expected, Format
from support import LEVELS, array_of, at_level, codes_of

SEED = 20


def wrong(
    got: Array, codes: Array, source: Format, target: Format, *right: Expected, nan: str = "keep"
) -> Array:
    """Find where `got` is wrong; a copy of the same parts may keep a NaN's payload."""
    bad = np.ones(got.shape, bool)
    for expected in right:
        bad &= got != expected.codes
    part = oracle.component(source)
    if nan == "keep" and part is oracle.component(target) and part.kind == "float":
        bad &= ~(oracle.decode(codes, part).nan & (got == codes))
    return bad


def first_wrong(bad: Array, codes: Array, got: Array, *right: Expected) -> str:
    """Describe the first wrong result for an assertion's message; give "" if all are right."""
    if not bad.any():
        return ""
    index = int(np.argmax(bad))
    wanted = " or ".join(hex(expected.codes.ravel()[index]) for expected in right)
    source = hex(codes.ravel()[index])
    return (
        f"{bad.sum()} wrong; at {index}: code {source} gave {hex(got.ravel()[index])}, not {wanted}"
    )


def compare(
    cast: Cast,
    codes: Array,
    source: Format,
    target: Format,
    *,
    rounding: str,
    overflow: str,
    nan: str = "keep",
) -> int:
    """Compare a cast of real codes with the oracle, on every level; return how many results.

    What overflow="raise" and nan="raise" must refuse is seen to be refused, then left out. A format
    without a zero must refuse nan="zero", whatever is cast.
    """
    if nan == "zero" and not oracle.component(target).has_zero:
        for level in LEVELS:
            with at_level(level), pytest.raises(ValueError, match=f"{target.name}, which has no z"):
                castwise.cast(array_of(codes, source), target.name, overflow=overflow, nan=nan)
        return len(LEVELS) * codes.size
    right: tuple[Expected, ...] = cast.candidates(overflow, nan)
    if rounding in DETERMINISTIC:
        right = (cast.expected(rounding, overflow, nan),)
    kept, errors = np.ones(codes.shape, bool), []
    if overflow == "raise":
        kept &= ~np.logical_or.reduce([each.overflows for each in right])
        if np.logical_and.reduce([each.overflows for each in right]).any():
            errors.append(OverflowError)
    if nan == "raise":
        kept &= ~cast.value.nan
        if cast.value.nan.any():
            errors.append(ValueError)
    right = tuple(Expected(*(column[kept] for column in each)) for each in right)
    x, accepted, chosen = array_of(codes, source), array_of(codes[kept], source), codes[kept]
    options = {"rounding": rounding, "overflow": overflow, "nan": nan}
    what = " ".join(options.values())
    if rounding == "stochastic":
        options["seed"] = SEED
    # Alone, those beside which something is accepted: among others, one is enough for an error.
    edges = np.flatnonzero(~kept & (np.roll(kept, 1) | np.roll(kept, -1)))
    alone = edges[:: edges.size // 16 + 1] if rounding in DETERMINISTIC else []
    first: Array | None = None
    for level in LEVELS:
        with at_level(level):
            if errors:
                with pytest.raises(tuple(errors)):
                    castwise.cast(x, target.name, **options)
            for place in alone:
                with pytest.raises(tuple(errors)):
                    castwise.cast(x[place : place + 1], target.name, **options)
            result = castwise.cast(accepted, target.name, **options)
        assert result.dtype == target.dtype
        got = codes_of(result, target)
        if target.part:
            assert not got[..., 1].any(), "the imaginary part of a real number is not +0"
            got = got[..., 0]
        bad = wrong(got, chosen, source, target, *right, nan=nan)
        assert not bad.any(), f"{level} {what}: {first_wrong(bad, chosen, got, *right)}"
        first = got if first is None else first
        assert np.array_equal(first, got), f"{LEVELS[0]} and {level} differ: {what}"
    return len(LEVELS) * codes.size


OPTIONS = (
    *((rounding, overflow, "keep") for overflow in OVERFLOWS for rounding in ROUNDINGS),
    *(("nearest-even", overflow, nan) for overflow in OVERFLOWS for nan in ("zero", "raise")),
)
"""Each rounding and overflow rule, and to nearest under each NaN rule."""


def options_of(number: int, some: bool) -> Iterable[tuple[str, str, str]]:
    """Give every combination; or the default and one other, which depends on this number."""
    return {OPTIONS[0], OPTIONS[number % len(OPTIONS)]} if some else OPTIONS


SOME = pytest.mark.parametrize(
    "some", [True, pytest.param(False, marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
"""A test under some combinations of options, by default, or under all."""


def compare_options(
    codes: Array, source: Format, target: Format, options: Iterable[tuple[str, str, str]]
) -> int:
    """Compare under some options; return how many results."""
    cast = oracle.cast(codes, source, target)
    return sum(
        compare(cast, codes, source, target, rounding=rounding, overflow=overflow, nan=nan)
        for rounding, overflow, nan in options
    )
