"""Run what writes a checkpoint: its options, progress, table and report, losses and exit code."""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from castwise import checkpoint
from castwise._core import finfo, formats
from castwise._options import SAFETENSORS
from castwise.checkpoint import CastPlan, CastSummary, CheckpointError, Finding
from castwise.checkpoint.planning.written_schemes import scheme_beside, written_schemes
from castwise.checkpoint.requests.options import REQUESTS, Options, Request, Run
from castwise.checkpoint.results.report import FINDINGS as KINDS
from castwise.checkpoint.results.report import LOSSES, DecodeReport
from castwise.checkpoint.results.sheets import ALL, GROUPS, TOTALS
from castwise.checkpoint.results.summary import preview_sheet, summary_dict, summary_sheet
from castwise.cli._arguments import NO_KINDS, add_arguments, add_option, add_output, check_top
from castwise.cli._output import FINDINGS, OK, json_text, say
from castwise.cli._parser import CommandParser, describe
from castwise.cli._results import Output, ProgressLine, page_of, shown_result
from castwise.rendering.sheet import Sheet
from castwise.rendering.text import unused_lines
from castwise.text.brief import counted

_WIDER = "a wider format"
# Of the formats of 16 bits the one of the least range, which bfloat16 does not share.
_NARROW = "float16"
# `castwise quantize` takes matrices; of stacks it depends on the producer.
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
    """Return the command that keeps most of the values that a cast lost; None if there is none."""
    # float16 has the least range of the formats of 16 bits; what has fewer bits needs a scale,
    # which weights have that are quantized.
    worst = max(findings, key=lambda finding: finding.count)
    row = next(row for row in summary.rows if (row.shard, row.name) == (worst.shard, worst.tensor))
    paths = f"{shlex.quote(summary.source)} {shlex.quote(summary.destination)}"
    if worst.kind == "scale":
        from castwise.quantization.arrays.scale_range import exceeds_float32, keeping_scheme  # noqa: PLC0415  (a cast has none)

        recipe, largest = str(summary.options["recipe"]), getattr(row.report, "amax", 1.0)
        nearest_scheme = keeping_scheme(row.target or "", recipe, written_schemes(recipe))
        if nearest_scheme is None or exceeds_float32(row.source, largest):
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


_EXIT_CODES = """\
exit codes:
  0  the checkpoint was written, or a part of it, or it is a dry run
{findings}{error}  129, 130, 143  hung up, interrupted, terminated; DST is as it was, or complete
  141  it was written, but whoever read standard output had gone
"""


def warn_of_unused(summary: CastSummary, options: argparse.Namespace) -> None:
    """Report the keys of a map, or of a policy, that had no effect."""
    origin = getattr(options, "dtype_map", None) or getattr(options, "policy", None)
    for line in unused_lines(summary.unused_patterns):
        say(f"warning: {origin}: " + line)


class ConversionCommand(NamedTuple):
    """A command that writes a checkpoint: its request, and the texts of its help."""

    request: type[Request]
    description: str
    # What exit code 1 tells.
    findings: str
    # What exit code 2 tells.
    error: str
    examples: Sequence[str]
    # Refuses options that do not go together, with the usage.
    check: Callable[[argparse.Namespace], None] = lambda options: None
    # Reports what else a person should know.
    warn: Callable[[CastSummary, argparse.Namespace], None] = warn_of_unused

    def define(self, parser: CommandParser) -> None:
        """Describe the command, and add the options of its request and of runs."""
        codes = _EXIT_CODES.format(findings=self.findings, error=self.error)
        describe(parser, self.description, codes, examples=self.examples)
        common = Request.options
        own = [each for name, each in self.request.options.items() if name not in common]
        options = [*own, *common.values(), *Run.options.values()]
        add_arguments(parser, "source", "destination")
        titles = dict.fromkeys(option.group for option in own)
        for title in (*titles, "losses", "output", "files", "run"):
            if title == "output":
                add_conversion_output(parser)
                continue
            group = parser.add_argument_group(title)
            for option in options:
                is_path = option.name in ("source", "destination")
                if option.group == title and option.help is not None and not is_path:
                    add_option(group, option, self.request.kinds)
            if title == "losses":
                add_arguments(group, "--exit-zero")
        parser.set_defaults(run=partial(convert, self), refuse=parser.error)


def convert(command: ConversionCommand, options: argparse.Namespace) -> int:
    """Convert with a line of progress, show the result, and return the exit code."""
    from castwise.checkpoint.requests.conversion import run_conversion  # noqa: PLC0415  (of containers)

    command.check(options)
    with (
        shown_conversion(options) as output,
        ProgressLine(sys.stderr, quiet=options.quiet) as progress,
    ):
        run = run_of(options, progress=progress.show if progress.visible else None)
        output.result = run_conversion(command.request(**_values(options, command.request)), run)
    summary = output.result
    command.warn(summary, options)
    if options.part is not None and not options.dry_run:
        target = shlex.quote(str(options.destination))
        say(f"part {options.part} is done; when all are: castwise finish {target}")
    is_unmeasured = options.dry_run and not options.measure
    is_partial = is_unmeasured or options.part is not None
    return OK if is_partial else say_findings(summary, options)


def run_of(options: argparse.Namespace, **others: Any) -> Run:  # noqa: ANN401  (of `Run`)
    values = _values(options, Run) | others
    return Run(**values | ({"fail_on": ()} if options.exit_zero else {}))


def _values(options: argparse.Namespace, kind: type[Options]) -> dict[str, Any]:
    return {name: getattr(options, name) for name in kind.options if hasattr(options, name)}


def add_conversion_output(parser: argparse.ArgumentParser) -> None:
    formats = ("--json", "--all", "--summary", "--quiet")
    add_output(parser, "--report", "--html", "--top", formats=formats)


def shown_conversion(options: argparse.Namespace) -> AbstractContextManager[Output[CastSummary]]:
    """Show the summary of a conversion, or of what it would do, after a block that makes it."""
    check_top(options)
    if options.dry_run and options.report is not None:
        raise checkpoint.CheckpointError(
            "--report is of a conversion, and --dry-run makes none; for what it would be use "
            "--json, or --html for a page"
        )
    part = "" if options.part is None else f"part {options.part} of "
    return shown_result(
        options,
        sheet_of=lambda summary: _sheet(summary, options),
        json_lines_of=_json_lines,
        files={
            "report": lambda summary: (f"{line}\n" for line in _json_lines(summary)),
            "html": lambda summary: page_of(options, _sheet(summary, options)),
        },
        destination_of=lambda summary: (
            None if isinstance(summary, CastPlan) else f"{part}{summary.destination}"
        ),
    )


def _sheet(summary: CastSummary, options: argparse.Namespace) -> Sheet:
    """Return what is shown of a conversion, or of a dry run and what that measured."""
    rows = ALL if options.all else TOTALS if options.summary else GROUPS
    if not isinstance(summary, CastPlan):
        return summary_sheet(summary, rows)
    measures = summary_sheet(summary, rows, "measured") if options.measure else ()
    return [*measures, *preview_sheet(summary, rows)]


def _json_lines(summary: CastSummary) -> Iterator[str]:
    """Make the JSON of a report row by row: as a whole it takes 8 KiB for each tensor."""
    if isinstance(summary, CastPlan):
        yield json_text(summary.to_dict)
        return
    # In a string of JSON a quote follows a backslash, so this stands once.
    start, _, end = json_text(lambda: summary_dict(summary, [])).partition('"tensors": []')
    if not summary.rows:
        yield f'{start}"tensors": []{end}'
        return
    yield f'{start}"tensors": ['
    last_index = len(summary.rows) - 1
    for index, row in enumerate(summary.rows):
        text = json_text(row.to_dict).replace("\n", "\n    ")
        yield f"    {text}{',' if index < last_index else ''}"
    yield f"  ]{end}"
