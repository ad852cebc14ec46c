"""Run what writes a checkpoint: its progress, table and report, its losses, its exit code."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

from castwise import checkpoint
from castwise.checkpoint import CastPlan, CastSummary
from castwise.checkpoint.preview import preview_sheet
from castwise.checkpoint.summary import ALL, GROUPS, TOTALS, summary_dict, summary_sheet
from castwise.cli._arguments import check_top, file_options
from castwise.cli._findings import say_findings
from castwise.cli._output import OK, json_text, say, show, show_sheet
from castwise.cli._progress import ProgressLine
from castwise.cli._written_files import page_of, pending_file, show_and_check
from castwise.rendering import Sheet


def run_conversion(
    options: argparse.Namespace,
    convert: Callable[[argparse.Namespace, dict[str, Any]], CastSummary],
    warn: Callable[[CastSummary, argparse.Namespace], None] | None = None,
) -> int:
    """Convert with a line of progress, show the result, and return the exit code.

    `convert` gets the options, and the arguments of `castwise.checkpoint` that all commands share;
    `warn` says what else a person should know.
    """

    def convert_visibly() -> CastSummary:
        with ProgressLine(sys.stderr, quiet=options.quiet) as progress:
            shown = progress.show if progress.visible else None
            shared = {**file_options(options), "progress": shown}
            return convert(options, shared)

    summary = show_conversion(options, convert_visibly)
    if warn is not None:
        warn(summary, options)
    if options.part is not None and not options.dry_run:
        target = shlex.quote(str(options.destination))
        say(f"part {options.part} is done; when all are: castwise finish {target}")
    is_unmeasured = options.dry_run and not options.measure
    is_partial = is_unmeasured or options.part is not None
    return OK if is_partial else say_findings(summary, options)


def show_conversion(options: argparse.Namespace, convert: Callable[[], CastSummary]) -> CastSummary:
    """Convert, and show what became of the tensors; for a dry run, what would become of them."""
    check_top(options)
    if options.dry_run and options.report is not None:
        raise checkpoint.CheckpointError(
            "--report is of a conversion, and --dry-run makes none; for what it would be use "
            "--json, or --html for a page"
        )
    failures: list[str] = []
    with (
        pending_file(options, "report", failures) as report,
        pending_file(options, "html", failures) as page,
    ):
        summary = convert()
        report.make_lines = lambda: (f"{line}\n" for line in _json_lines(summary))
        page.make_lines = lambda: page_of(options, _sheet(summary, options))

    def show_summary() -> None:
        if options.json:
            show(_json_lines(summary))
        elif not options.quiet:
            show_sheet(_sheet(summary, options), options)

    part = "" if options.part is None else f"part {options.part} of "
    written = None if isinstance(summary, CastPlan) else f"{part}{summary.destination}"
    show_and_check(show_summary, failures, written)
    return summary


def _sheet(summary: CastSummary, options: argparse.Namespace) -> Sheet:
    """Return what is shown of a conversion, or of a dry run and what that measured."""
    shown = ALL if options.all else TOTALS if options.summary else GROUPS
    if not isinstance(summary, CastPlan):
        return summary_sheet(summary, shown)
    measured = summary_sheet(summary, shown, "measured") if options.measure else ()
    return [*measured, *preview_sheet(summary, shown)]


def _json_lines(summary: CastSummary) -> Iterator[str]:
    """Make the JSON of a report row by row: as a whole it takes 8 KiB for each tensor."""
    if isinstance(summary, CastPlan):
        yield json_text(summary.to_dict())
        return
    values = summary_dict(summary, [])
    # In a string of JSON a quote follows a backslash, so this stands once.
    before, _, after = json_text(values).partition('"tensors": []')
    if not summary.rows:
        yield f'{before}"tensors": []{after}'
        return
    yield f'{before}"tensors": ['
    last_index = len(summary.rows) - 1
    for index, row in enumerate(summary.rows):
        text = json_text(row.to_dict()).replace("\n", "\n    ")
        yield f"    {text}{',' if index < last_index else ''}"
    yield f"  ]{after}"
