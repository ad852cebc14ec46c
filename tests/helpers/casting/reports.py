"""Reports of casts beside an independent recount in fractions."""

from __future__ import annotations

import math
from typing import Any

import astype
import castwise
import oracle
from oracle import Array, Format
from recount import recount
from support import array_of, codes_of

FIELDS = (
    "count", "exact", "overflowed", "saturated", "underflowed", "subnormal", "nan_in", "nan_out",
    "inf_in", "zero_in", "amax", "amin_nonzero", "max_abs_error", "max_rel_error", "sqnr_db",
)  # fmt: skip


def agree(report: castwise.CastReport, want: dict[str, Any]) -> None:
    """Compare counts exactly, maxima to the last bit but one, decibels to 1e-9."""
    got = report.to_dict()
    assert tuple(got) == FIELDS
    for field in FIELDS:
        assert getattr(report, field) == got[field] or math.isnan(got[field])
        if isinstance(want[field], int):
            assert (field, got[field]) == (field, want[field])
        else:
            near = math.isclose(got[field], want[field], rel_tol=2.0**-51, abs_tol=5e-324)
            near |= field == "sqnr_db" and math.isclose(got[field], want[field], abs_tol=1e-9)
            assert near or (math.isnan(got[field]) and math.isnan(want[field])), (field, got, want)


def identity(report: castwise.CastReport) -> str:
    """Everything the report says, to the last bit, NaN equal to NaN."""
    return repr({field: float(value).hex() for field, value in report.to_dict().items()})


def check(codes: Array, source: Format, target: Format, **options: Any) -> None:
    """Cast with a report, and compare it with a recount."""
    rounding = options.get("rounding") or astype.default_rounding(target)
    overflow, nan = options.get("overflow", "ieee"), options.get("nan", "keep")
    result, report = castwise.cast(array_of(codes, source), target.name, report=True, **options)
    cast = oracle.cast(codes, source, target)
    expected = cast.expected(rounding, overflow, nan)
    agree(report, recount(cast.value, codes_of(result, target), expected, target, nan=nan))
