"""gfloat (Graphcore) decodes and rounds every format of 8 bits or fewer as castwise does.

It describes formats by their parameters and rounds in float64, by whole arrays here: of numbers
just below a midpoint its scalar `round_float` adds a half, which rounds up.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import castwise
import numpy as np
import peers
import pytest
from examination import Record, differing, differing_values, examine
from oracle import FORMATS, Array, Format
from sources import all_codes, sources_around
from support import FLOATS, array_of, codes_of

NARROW = [row for row in FLOATS if row.bits <= 8]
MODES = {
    "nearest-even": "TiesToEven",
    "nearest-away": "TiesToAway",
    "towards-zero": "TowardZero",
    "towards-positive": "TowardPositive",
    "towards-negative": "TowardNegative",
}
STOCHASTIC = ("Stochastic", "StochasticOdd", "StochasticFast", "StochasticFastest")
DRAWS = 1 << 14
SOURCES = ("float64", "float16", "bfloat16")
NAMED = {
    "float8_e5m2": "format_info_ocp_e5m2",
    "float8_e4m3fn": "format_info_ocp_e4m3",
    "float8_e8m0fnu": "format_info_ocp_e8m0",
    "float6_e2m3fn": "format_info_ocp_e2m3",
    "float6_e3m2fn": "format_info_ocp_e3m2",
    "float4_e2m1fn": "format_info_ocp_e2m1",
}
"""The formats that gfloat has itself."""
P3109 = {"float8_e5m2fnuz": 3, "float8_e4m3fnuz": 4}
"""The precision of those of IEEE P3109: the finite ones of 8 bits with a sign."""


def gfloat() -> Any:
    peers.framework("gfloat.formats")
    return peers.framework("gfloat")


@cache
def description(row: Format) -> Any:
    """Describe a format to gfloat, or find its description there."""
    library = gfloat()
    if row.name in NAMED:
        return getattr(library.formats, NAMED[row.name])
    if row.name in P3109:
        kind = (library.Signedness.Signed, library.Domain.Finite)
        return library.formats.format_info_p3109(8, P3109[row.name], *kind)
    has_infinities = row.specials == "ieee"
    nans = {"ieee": 2**row.mantissa_bits - 1, "finite-nan": 1}  # that have the highest codes
    return library.FormatInfo(
        row.name,
        row.bits,
        row.mantissa_bits + 1,
        bias=row.bias,
        is_signed=row.signed,
        domain=library.Domain.Extended if has_infinities else library.Domain.Finite,
        has_nz=row.specials != "fnuz",
        num_high_nans=nans.get(row.specials, 0),
        has_subnormals=True,
        is_twos_complement=False,
    )


def rounded(x: Array, row: Format, mode: str, *, saturates: bool, **draws: Any) -> Array:
    """Round float64 by gfloat, and give the codes."""
    library, format_info = gfloat(), description(row)
    rounding = library.RoundMode[mode]
    with np.errstate(over="ignore", invalid="ignore"):
        values = library.round_ndarray(format_info, x, rounding, saturates, **draws)
        return library.encode_ndarray(format_info, values).astype(row.codes)


def numbers(source: str, target: Format) -> tuple[Array, Array]:
    """List what is cast, and as float64: around each change of a result, or all of 16 bits."""
    row = FORMATS[source]
    x = array_of(sources_around(row, target) if row.bits > 16 else all_codes(row), row)
    with np.errstate(invalid="ignore"):  # signaling NaN
        wide = x.astype(np.float64)
    kept = np.ones(x.shape, bool)
    if target.specials == "finite":  # gfloat refuses NaN
        kept = ~np.isnan(wide)
    elif not target.has_zero:  # below the smallest value gfloat's codes are of nothing
        kept = ~(wide < 2.0**-target.bias)
    elif not target.signed:  # as those of negative numbers
        kept = ~np.signbit(wide)
    return x[kept], wide[kept]


@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_every_code_is_decoded_as_by_gfloat(row: Format, record_property: Record) -> None:
    codes = all_codes(row)
    values = castwise.cast(array_of(codes, row), "float64")
    decode, format_info = gfloat().decode_float, description(row)
    others = np.array([decode(format_info, code).fval for code in codes.tolist()])
    examine(record_property, codes, differing_values(values, others))


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("target", NARROW, ids=lambda row: row.name)
def test_numbers_are_rounded_as_by_gfloat(
    target: Format, rounding: str, overflow: str, record_property: Record
) -> None:
    """A format without infinity and NaN saturates in any case: gfloat refuses to do otherwise."""
    saturates = overflow == "saturate" or target.specials == "finite"
    for source in SOURCES:
        x, wide = numbers(source, target)
        others = rounded(wide, target, MODES[rounding], saturates=saturates)
        result = castwise.cast(x, target.name, rounding=rounding, overflow=overflow)
        different = differing(codes_of(result, target), others, target)
        explained: dict[str, Array] = {}
        if not target.has_zero and rounding == "nearest-even":
            with np.errstate(invalid="ignore"):  # of NaN, on AVX2
                fraction, exponent = np.frexp(wide)
            is_down = (exponent + target.bias) % 2 == 1
            is_same = saturates & (wide > castwise.finfo(target.name).max)
            explained["ties of E8M0, gfloat"] = (fraction == 0.75) & is_down & ~is_same
        examine(record_property, x, different, explained)


@pytest.mark.parametrize("name", ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"])
@pytest.mark.parametrize("value", [1e3, -np.inf, np.nan])
def test_what_gfloat_refuses(name: str, value: float) -> None:
    """The largest value in castwise, and a zero for NaN, as ml_dtypes does."""
    library = gfloat()
    with pytest.raises(ValueError, match=r"No (NaN|Infs or NaNs) in format"):
        library.round_float(description(FORMATS[name]), value)
    largest = 0.0 if np.isnan(value) else np.copysign(castwise.finfo(name).max, value)
    assert castwise.cast(value, name).astype(np.float64) == largest


@pytest.mark.parametrize("rounding", MODES)
def test_fixed_point_numbers_of_mx(rounding: str, record_property: Record) -> None:
    """MXINT8 is int8 in units of 1/64."""
    x = sources_around(FORMATS["float64"], FORMATS["int8"]).view(np.float64)
    x = x[~np.isnan(x)] / 64
    library = gfloat()
    format_info = library.formats.format_info_ocp_int8
    with np.errstate(over="ignore", invalid="ignore"):
        values = library.round_ndarray(format_info, x, library.RoundMode[MODES[rounding]], sat=True)
    result = castwise.cast(x, "int8", scale=64.0, rounding=rounding, overflow="saturate")
    different = result.astype(np.float64) != values * 64
    examine(record_property, x, different)


@pytest.mark.parametrize("mode", STOCHASTIC)
@pytest.mark.parametrize("target", [row for row in NARROW if row.has_zero], ids=lambda r: r.name)
def test_stochastic_odds_are_those_of_gfloat(target: Format, mode: str) -> None:
    """Given each draw of 14 bits once, gfloat moves as often as castwise, within five sigmas."""
    values = castwise.cast(array_of(np.arange(4, dtype=target.codes), target), "float64")
    draws = np.arange(DRAWS)
    for low, high in pairwise(values[1:]):
        for odds in (0.125, 0.5, 0.8125):
            x = np.full(DRAWS, low + (high - low) * odds)
            others = rounded(x, target, mode, saturates=False, srbits=draws, srnumbits=14)
            result = castwise.cast(x, target.name, rounding="stochastic", seed=34)
            codes = codes_of(result, target)
            assert set(codes.tolist()) == set(others.tolist())
            moved = [int((each == codes.max()).sum()) for each in (codes, others)]
            assert abs(moved[0] - moved[1]) < 5 * (DRAWS * odds * (1 - odds)) ** 0.5
