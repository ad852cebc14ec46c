"""What a cast or a decoding lost, in words, and whether that is a finding for the exit code."""

import argparse
import shlex
from collections.abc import Mapping, Sequence

from castwise._core import finfo, formats
from castwise._options import SAFETENSORS
from castwise.checkpoint import CastPlan, CastSummary, CheckpointError, Finding
from castwise.checkpoint.planning.written_schemes import scheme_beside, written_schemes
from castwise.checkpoint.requests.options import REQUESTS
from castwise.checkpoint.results.report import FINDINGS as KINDS
from castwise.checkpoint.results.report import LOSSES, DecodeReport
from castwise.cli._arguments import NO_KINDS
from castwise.cli._output import FINDINGS, OK, say
from castwise.text.brief import counted

_WIDER = "a wider format"
# Of the formats of 16 bits the one of the least range, which bfloat16 does not share.
_NARROW = "float16"
_MATRIX_AXES = 2

# For each kind of finding: what one value did, what several did, and what to do about it; options
# only of those runs that have them.
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
    "scale": (
        "value has a scale beyond the range of its format",
        "values have scales beyond the range of their format",
        (_WIDER, 'or "keep" in a --map'),
    ),
    "saturated": (
        "value became the largest or smallest number",
        "values became the largest or smallest number",
        (_WIDER,),
    ),
    "inexact": ("value changed", "values changed", (_WIDER,)),
}


_AGAIN = "or, if its scales are damaged, fetch the checkpoint again"
# The same of weights that were decoded, or are when the checkpoint is used.
_DECODING_WORDS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "overflow": (
        "value is infinite",
        "values are infinite",
        ("--dtype with a wider range", _AGAIN),
    ),
    "nan": ("value is NaN", "values are NaN", ("its scales or codes are damaged: fetch it again",)),
    "underflow": (
        "code that is not zero became zero",
        "codes that are not zero became zero",
        ("--dtype with a wider range", _AGAIN, "or allow it: --max-zeros"),
    ),
}


def check_kinds(options: argparse.Namespace, command: str) -> None:
    """Refuse a kind of loss that the parts of a command do not count."""
    kinds = {request.command: request.kinds for request in REQUESTS}.get(command, KINDS)
    if lacking := sorted(set(options.fail_on).difference(kinds)):
        raise CheckpointError(
            f"--fail-on {','.join(lacking)}: castwise {command} does not count that; use "
            f"{NO_KINDS}, or of {', '.join(kinds)}"
        )


def say_findings(summary: CastSummary, options: argparse.Namespace) -> int:
    """Say what no number of the table may hide; returns the exit code."""
    kinds = [kind for kind in KINDS if kind in LOSSES or kind in options.fail_on]
    findings = summary.findings(kinds)
    decoded_rows = {
        (row.shard, row.name) for row in summary.rows if isinstance(row.report, DecodeReport)
    }
    for is_decoded, words in ((False, _WORDS), (True, _DECODING_WORDS)):
        losses = [
            finding
            for finding in findings
            if ((finding.shard, finding.tensor) in decoded_rows) == is_decoded
        ]
        by_kind = {kind: [finding for finding in losses if finding.kind == kind] for kind in kinds}
        if not is_decoded and _count(by_kind["nan"]) <= _count(by_kind["overflow"]):
            by_kind["nan"] = []  # they are the same values
        for kind, kind_losses in by_kind.items():
            if kind_losses:
                _say(summary, kind_losses, words[kind])
    fails = not options.exit_zero and any(finding.kind in options.fail_on for finding in findings)
    return FINDINGS if fails else OK


def _say(
    summary: CastSummary, findings: Sequence[Finding], words: tuple[str, str, Sequence[str]]
) -> None:
    """Say how many values were lost in one way, where, and what to do about it."""
    singular, plural, remedies = words
    remedy_texts = [text for text in remedies if _is_known(text, summary)]
    if _WIDER in remedy_texts and (command := _keeping_command(summary, findings)) is not None:
        remedy_texts[remedy_texts.index(_WIDER)] = command
    count = _count(findings)
    state = "would be written" if isinstance(summary, CastPlan) else "was written"
    say(
        f"{count:,} {singular if count == 1 else plural}{_where(findings)}; "
        f"{summary.destination} {state}. To avoid it: {', '.join(remedy_texts)}"
    )


def _keeping_command(summary: CastSummary, findings: Sequence[Finding]) -> str | None:
    """Return the command that keeps most of the values that a cast lost; None if there is none.

    float16 has the least range of the formats of 16 bits; what has fewer bits needs a scale, which
    weights have that are quantized.
    """
    worst = max(findings, key=lambda finding: finding.count)
    row = next(row for row in summary.rows if (row.shard, row.name) == (worst.shard, worst.tensor))
    paths = f"{shlex.quote(summary.source)} {shlex.quote(summary.destination)}"
    if worst.kind == "scale":
        from castwise.quantization.arrays.scale_range import keeping_scheme  # noqa: PLC0415  (a cast has none)

        recipe = str(summary.options["recipe"])
        nearest_scheme = keeping_scheme(row.target or "", recipe, written_schemes(recipe))
        if nearest_scheme is None:
            return None
        return (
            f"castwise quantize {paths} --scheme {nearest_scheme[0]} --recipe {recipe} --overwrite"
        )
    if "rounding" not in summary.options or worst.kind not in {"overflow", "nan", "underflow"}:
        return None
    if row.target == _NARROW:
        return f"castwise cast {paths} --dtype {_widest(finfo(_NARROW).bits)} --overwrite"
    is_written = summary.destination.endswith(SAFETENSORS) or row.shard is not None
    if row.target is None or len(row.shape) != _MATRIX_AXES or not is_written:
        return None
    scheme = scheme_beside(finfo(row.target).name)
    return None if scheme is None else f"castwise quantize {paths} --scheme {scheme} --overwrite"


def _widest(bits: int) -> str:
    """Return the name of the float of so many bits that has the largest range."""
    floats = [of for of in map(finfo, formats()) if of.bits == bits and of.kind == "float"]
    return max(floats, key=lambda of: float(of.max)).name


def _is_known(remedy: str, summary: CastSummary) -> bool:
    """Return False for an option that the run has not: castwise quantize casts plainly."""
    option = remedy.split(maxsplit=1)[0].removeprefix("--")
    return not remedy.startswith("--") or option in summary.options


def _count(findings: Sequence[Finding]) -> int:
    """Return how many values all findings together lost."""
    return sum(finding.count for finding in findings)


def _where(findings: Sequence[Finding]) -> str:
    """Write in which tensor, or in how many and in which of them most, values were lost."""
    worst = max(findings, key=lambda finding: finding.count).tensor
    if len(findings) == 1:
        return f" in {worst!r}"
    return f" in {counted(len(findings), 'tensor')}, most in {worst!r}"
