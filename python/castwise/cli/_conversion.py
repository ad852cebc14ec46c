"""Run what writes a checkpoint: its options, progress, table and report, losses and exit code."""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from castwise import checkpoint
from castwise.checkpoint import CastPlan, CastSummary
from castwise.checkpoint.requests.options import Request, Run, description_of, fields_of
from castwise.checkpoint.results.sheets import ALL, GROUPS, TOTALS
from castwise.checkpoint.results.summary import preview_sheet, summary_dict, summary_sheet
from castwise.cli._arguments import add_arguments, add_option, add_output, check_top
from castwise.cli._findings import say_findings
from castwise.cli._output import OK, json_text, say
from castwise.cli._parser import CommandParser, describe
from castwise.cli._progress import ProgressLine
from castwise.cli._results import Output, page_of, shown_result
from castwise.rendering.sheet import Sheet
from castwise.rendering.text import unused_lines

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionCommand:
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
        request_names = {field.name for field in fields_of(Request)}
        own = [field for field in fields_of(self.request) if field.name not in request_names]
        options = [*own, *fields_of(Request), *fields_of(Run)]
        add_arguments(parser, "source", "destination")
        titles = dict.fromkeys(description_of(field).group for field in own)
        for title in (*titles, "losses", "output", "files", "run"):
            if title == "output":
                add_conversion_output(parser)
                continue
            group = parser.add_argument_group(title)
            for field in options:
                option = description_of(field)
                is_path = field.name in ("source", "destination")
                if option.group == title and option.help is not None and not is_path:
                    add_option(group, field, self.request.kinds)
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
    """Return the run that the options describe."""
    values = _values(options, Run) | others
    return Run(**values | ({"fail_on": ()} if options.exit_zero else {}))


def _values(options: argparse.Namespace, kind: type[Request | Run]) -> dict[str, Any]:
    """Return the options that are fields of a request or a run."""
    names = (field.name for field in fields_of(kind))
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def add_conversion_output(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that decide what is shown of a conversion."""
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
