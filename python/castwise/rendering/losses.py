"""What a cast lost, or would lose: the decision first, then the counts, then their meanings."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from castwise._core import CastReport
from castwise.rendering.sheet import Lines, Section, Sheet, Table
from castwise.text.brief import counted

_LOSSES = ("overflowed", "saturated", "underflowed")
_OTHERS = ("count", "exact", "subnormal", "nan_in", "nan_out", "inf_in", "zero_in")
_MAGNITUDES = ("amax", "amin_nonzero", "max_abs_error", "max_rel_error", "sqnr_db")


def loss_sheet(fields: Mapping[str, Any], lines: Iterable[str] = ()) -> Sheet:
    """Return a verdict, tables of the fields, and the meaning of each field."""
    magnitudes = [(name, _value(name, fields[name])) for name in _MAGNITUDES if name in fields]
    names = [name for name in (*_LOSSES, *_OTHERS, *_MAGNITUDES) if name in fields]
    return [
        Lines((*lines, *_verdict(fields))),
        _counts("lost", _LOSSES, fields),
        _counts("counted", _OTHERS, fields),
        Table.of(("measured", "value"), magnitudes, 1),
        # The docstrings of the core are the one place for meanings.
        Section("what the rows mean", [Lines([f"{name}: {_meaning(name)}" for name in names])]),
    ]


def html_of_report(report: CastReport) -> str:
    """Return the HTML of a report, which the core calls for notebooks."""
    from castwise.rendering.html import html_of  # noqa: PLC0415  (3 milliseconds)

    return html_of(loss_sheet(report.to_dict()))


def _verdict(fields: Mapping[str, Any]) -> list[str]:
    if not fields["count"]:
        return ["no elements"]
    names = [name for name in _LOSSES if name in fields]
    losses = [f"{fields[name]:,} {name}" for name in names if fields[name]]
    losses = losses or [f"none {' or '.join(names)}"]
    if fields["nan_in"]:
        losses.append(f"{fields['nan_in']:,} NaN in the source")
    is_known = fields["sqnr_db"] is not None
    reason = "" if is_known else ", as few magnitudes, or magnitudes alike, carry the signal"
    return [
        f"of {counted(fields['count'], 'element')}: {', '.join(losses)}",
        f"signal to noise: {_value('sqnr_db', fields['sqnr_db'])}{reason}",
    ]


def _counts(title: str, names: Iterable[str], fields: Mapping[str, Any]) -> Table:
    share = 100 / max(fields["count"], 1)
    rows = [
        (name, f"{fields[name]:,}", f"{share * fields[name]:.3f} %")
        for name in names
        if name in fields
    ]
    losses = frozenset(("elements",)) if names is _LOSSES else frozenset[str]()
    return Table((title, "elements", "share"), lambda: rows, 1, losses=losses)


def _value(name: str, value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:.2f} dB" if name == "sqnr_db" and math.isfinite(value) else f"{value:.6g}"


def _meaning(name: str) -> str:
    return " ".join(getattr(CastReport, name).__doc__.split())
