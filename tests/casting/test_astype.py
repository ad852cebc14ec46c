"""By default a cast gives the bits of `ndarray.astype`, but for the exceptions in astype.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import astype
import castwise
import numpy as np
import oracle
import pytest
from oracle import FORMATS, Array, Format
from sources import all_codes, random_codes, sources_around
from support import AVAILABLE, LEVELS, array_of, at_level, codes_of


def compared(source: Format, target: Format) -> tuple[Array, Array]:
    """Choose the codes to compare, and cast them with astype."""
    if source.part:
        codes = sources_around(source, target)
        codes = np.stack([codes, codes[::-1]], axis=-1)
    else:
        codes = all_codes(source) if source.bits <= 16 else sources_around(source, target)
    with np.errstate(all="ignore"):
        return codes, codes_of(array_of(codes, source).astype(target.dtype), target)


class Subclass(np.ndarray):
    pass


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_subclasses_of_ndarray(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "a", np.float32, "w+", shape=(2, 3))
    for x in (mapped, np.asmatrix(np.ones((2, 3), np.float32)), np.ones((2, 3)).view(Subclass)):
        assert type(x.astype("float16")) is type(x)
        assert type(castwise.cast(x, "float16")) is np.ndarray
        assert type(castwise.cast(x, x.dtype)) is np.ndarray
        assert type(castwise.cast_tree([x], "float16")[0]) is np.ndarray
        assert castwise.cast(x, x.dtype, copy=False) is x
        out = np.zeros_like(x)
        assert castwise.cast(np.ones((2, 3)), out=out) is out
        assert np.array_equal(out, np.ones((2, 3)))
    masked = np.ma.masked_array(np.ones(2), [False, True])
    for arguments in ({"x": masked}, {"x": np.ones(2), "out": masked}):
        with pytest.raises(TypeError, match="is a masked array"):
            castwise.cast(dtype="float16" if "out" not in arguments else None, **arguments)


@pytest.mark.thinned(23)
@pytest.mark.parametrize("target", AVAILABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("source", AVAILABLE, ids=lambda row: row.name)
def test_the_bits_of_astype(source: Format, target: Format) -> None:
    if not astype.supported(source, target):
        pytest.skip("astype does not support the pair, or drops the imaginary part")
    codes, theirs = compared(source, target)
    x = array_of(codes, source)
    for level in LEVELS:
        with at_level(level):
            ours = codes_of(castwise.cast(x, target.dtype), target)
        if target.part and not source.part:
            assert np.array_equal(ours[..., 1], theirs[..., 1])
            ours, first = ours[..., 0], theirs[..., 0]
        else:
            first = theirs
        bad = np.flatnonzero(astype.disagree(ours, first, source, target, codes))
        examples = [tuple(hex(each.ravel()[i]) for each in (codes, ours, first)) for i in bad[:5]]
        assert not examples, f"{level}: {bad.size} wrong; (source, ours, theirs): {examples}"


@pytest.mark.thinned(5)
@pytest.mark.parametrize("rule", astype.EXCEPTIONS, ids=lambda rule: rule.__name__)
def test_every_exception_occurs(rule: Callable[[astype.Case], Array]) -> None:
    """An exception without a case above would be superfluous."""
    pairs = (
        (source, target)
        for source in sorted(AVAILABLE, key=lambda row: -row.bits)
        for target in AVAILABLE
        if source is not target and astype.supported(source, target)
    )
    for source, target in pairs:
        codes, theirs = compared(source, target)
        theirs = theirs[..., 0] if target.part and not source.part else theirs
        case = astype.Case(source, target, codes, theirs)
        given = rule(case)
        if ((given != case.right) & (given == theirs)).any():
            return
    pytest.fail("astype agrees with one exact rounding everywhere that this exception is about")


@pytest.mark.parametrize(
    "source", [row for row in AVAILABLE if not row.part], ids=lambda row: row.name
)
def test_the_same_format_is_a_copy(source: Format, level: str) -> None:
    codes = all_codes(source) if source.bits <= 16 else random_codes(source, 4096)
    copy = castwise.cast(array_of(codes, source), source.dtype)
    assert np.array_equal(codes_of(copy, source), codes)


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float8_e5m2", "float64"])
def test_an_excepted_nan_is_the_quiet_nan_of_its_sign(target: str, level: str) -> None:
    """The payloads that astype keeps become one code for each sign."""
    row, source = FORMATS[target], FORMATS["float32"]
    codes = np.array([0x7F800001, 0x7FC12345, 0xFF800001, 0xFFFFFFFF], np.uint32)
    got = codes_of(castwise.cast(array_of(codes, source), target), row).tolist()
    assert got == [row.nan(negative=False)] * 2 + [row.nan(negative=True)] * 2


def test_a_double_rounding_of_astype_is_not_repeated(level: str) -> None:
    """Just beyond a midpoint of bfloat16, where float32 lands on the midpoint itself."""
    x = np.ldexp(1 + 2.0**-8 + 2.0**-40, np.arange(-100, 100))
    result = castwise.cast(x, "bfloat16").astype(np.float64)
    assert np.array_equal(result, np.ldexp(1 + 2.0**-7, np.arange(-100, 100)))
    assert oracle.cast(x.view(np.uint64), FORMATS["float64"], FORMATS["bfloat16"]).place.min() == 3


NARROW = [row for row in AVAILABLE if row.kind in ("int", "uint") and row.bits < 8]


@pytest.mark.parametrize("target", NARROW, ids=lambda row: row.name)
@pytest.mark.parametrize("source", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
def test_floats_keep_the_low_bits_in_narrow_integers(
    source: str, target: Format, level: str
) -> None:
    x = castwise.cast(np.arange(-40, 40.0, 0.25), source)
    beyond = castwise.cast([3e9, -3e9, np.inf, -np.inf, np.nan], source)
    low, high = (
        (-target.sign_bit, target.sign_bit - 1) if target.signed else (0, 2**target.bits - 1)
    )
    clamped = [high, low, high, low, 0]
    ours, report = castwise.cast(x, target.dtype, report=True)
    numbers = np.trunc(x.astype(np.float64))
    outside = int(((numbers < low) | (numbers > high)).sum())
    assert np.array_equal(ours.astype(int), np.mod(numbers - low, 2**target.bits) + low)
    if astype.IS_NEW:
        kept = np.where((numbers < low) | (numbers > high), 0, numbers)
        with np.errstate(invalid="ignore"):
            assert np.array_equal(x.astype(target.dtype).astype(int), kept)
    elif target.signed or astype.IS_X86:  # else C leaves it undefined, what is below zero too
        assert np.array_equal(ours.astype(int), x.astype(target.dtype).astype(int))
    assert (report.overflowed, report.saturated) == (outside, 0)
    kept, report = castwise.cast(x, target.dtype, overflow="saturate", report=True)
    assert np.array_equal(kept.astype(int), np.clip(numbers, low, high).astype(int))
    assert (report.overflowed, report.saturated) == (0, outside)
    if source != "float8_e5m2":  # whose largest value is 57344
        far, report = castwise.cast(beyond, target.dtype, report=True)
        assert far.astype(int).tolist() == clamped
        assert (report.overflowed, report.saturated) == (0, 4)
    with pytest.raises(OverflowError, match=target.name):
        castwise.cast(x, target.dtype, overflow="raise")
