"""What a cast lost, in words, and whether that is a finding for the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from castwise.checkpoint import CastSummary, Finding
from castwise.checkpoint.report import FINDINGS as KINDS
from castwise.checkpoint.report import LOSSES, MAX_ZEROS
from castwise.cli._output import FINDINGS, OK, say, tensors_text

_NONE = "none"
_PERCENT = 100
_WIDER = "a wider format"

_WORDS = {
    "overflow": (
        "value became infinite or NaN",
        "values became infinite or NaN",
        ("--overflow saturate", _WIDER),
    ),
    "nan": ("value became NaN", "values became NaN", ("--overflow saturate", _WIDER)),
    "wrapped": ("integer wrapped", "integers wrapped", ("--overflow saturate", _WIDER)),
    "nan-lost": ("NaN became a number", "NaN became numbers", ("--nan raise", "a format with NaN")),
    "underflow": (
        "nonzero value became zero",
        "nonzero values became zero",
        (_WIDER, 'or "keep" in a --map; to allow it: --max-zeros'),
    ),
    "saturated": (
        "value became the largest or smallest number",
        "values became the largest or smallest number",
        (_WIDER,),
    ),
    "inexact": ("value changed", "values changed", (_WIDER,)),
}
"""For each kind of finding: what one value did, what several did, and what to do about it; options
only of those runs that have them."""


def add_arguments(
    parser: argparse.ArgumentParser, max_zeros: float | None = MAX_ZEROS, zeros: str = "1%%"
) -> None:
    """Add the options that say which losses are findings."""
    parser.add_argument(
        "--fail-on",
        metavar="KINDS",
        type=_kinds_argument,
        default=LOSSES,
        help=f"which losses give exit code 1: {_NONE}, or of {', '.join(KINDS)}, separated by "
        f"commas (default: {','.join(LOSSES)})",
    )
    parser.add_argument(
        "--max-zeros",
        metavar="SHARE",
        type=_share_argument,
        default=max_zeros,
        help="the share of a tensor's nonzero values that may become zero before that is an "
        f"underflow: 0.05 or 5%% (default: {zeros})",
    )
    parser.add_argument(
        "--exit-zero", action="store_true", help="exit code 0 whatever was lost; errors stay 2"
    )


def say_findings(summary: CastSummary, options: argparse.Namespace) -> int:
    """Say what no number of the table may hide; returns the exit code."""
    kinds = [kind for kind in KINDS if kind in LOSSES or kind in options.fail_on]
    findings = summary.findings(kinds, max_zeros=options.max_zeros)
    found = {kind: [one for one in findings if one.kind == kind] for kind in kinds}
    if _count(found["nan"]) <= _count(found["overflow"]):
        found["nan"] = []  # they are the same values
    for kind, here in found.items():
        if here:
            one, many, remedies = _WORDS[kind]
            known = (text for text in remedies if _is_known(text, summary))
            count = _count(here)
            say(
                f"{count:,} {one if count == 1 else many}{_where(here)}; "
                f"{summary.destination} was written. To avoid it: {', '.join(known)}"
            )
    fails = not options.exit_zero and any(one.kind in options.fail_on for one in findings)
    return FINDINGS if fails else OK


def _is_known(remedy: str, summary: CastSummary) -> bool:
    """Return False for an option that the run has not: castwise quantize casts plainly."""
    option = remedy.split(maxsplit=1)[0].removeprefix("--")
    return not remedy.startswith("--") or option in summary.options


def _count(findings: Sequence[Finding]) -> int:
    return sum(one.count for one in findings)


def _where(findings: Sequence[Finding]) -> str:
    most = max(findings, key=lambda one: one.count).tensor
    if len(findings) == 1:
        return f" in {most!r}"
    return f" in {tensors_text(len(findings))}, most in {most!r}"


def _kinds_argument(text: str) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in text.split(","))
    if kinds == (_NONE,):
        return ()
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(
                f"{kind!r} is not a kind of loss; use {_NONE}, or of {', '.join(KINDS)}"
            )
    return kinds


def _share_argument(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (_PERCENT if text.endswith("%") else 1)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, such as 0.01 or 1%")
    return share
