"""Run what writes a checkpoint: its progress, table and report, its losses, its exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from castwise import checkpoint
from castwise.checkpoint import CastSummary
from castwise.cli._arguments import folder_options
from castwise.cli._cast_output import ALL, GROUPS, TOTALS, json_lines, report_lines
from castwise.cli._findings import say_findings
from castwise.cli._output import OK, abandon_output, say, show
from castwise.cli._plan_table import show_plan
from castwise.cli._progress import ProgressLine
from castwise.cli._report_file import open_report


def run_conversion(
    options: argparse.Namespace,
    convert: Callable[[argparse.Namespace, dict[str, Any]], CastSummary],
    lines: Callable[..., Iterator[str]] = report_lines,
    warn: Callable[[CastSummary, argparse.Namespace], None] | None = None,
) -> int:
    """Convert with a line of progress, show the result, and return the exit code.

    `convert` gets the options, and the arguments of `castwise.checkpoint` that all commands share;
    `lines` are those of the table; `warn` says what else a person should know.
    """

    def convert_visibly() -> CastSummary:
        with ProgressLine(sys.stderr, quiet=options.quiet) as progress:
            shown = progress.show if progress.visible else None
            shared = {**folder_options(options), "threads": options.threads, "progress": shown}
            return convert(options, shared)

    summary = show_conversion(options, convert_visibly, lines)
    if warn is not None:
        warn(summary, options)
    if options.part is not None and not options.dry_run:
        say(f"part {options.part} is done; when all are: castwise finish {options.destination}")
    is_unmeasured = options.dry_run and not options.measure
    is_partial = is_unmeasured or options.part is not None
    return OK if is_partial else say_findings(summary, options)


def show_conversion(
    options: argparse.Namespace,
    convert: Callable[[], CastSummary],
    lines: Callable[..., Iterator[str]] = report_lines,
) -> CastSummary:
    """Convert, and show what became of the tensors; for a dry run, what would become of them."""
    rows = ALL if options.all else TOTALS if options.summary else GROUPS
    if options.dry_run:
        return show_plan(options, convert, rows)
    with ExitStack() as stack:
        # Before the work, so that what can only fail does so while nothing is written.
        file = open_report(options, stack)
        summary = convert()
        with _written(summary, f"the report {options.report}"):
            if file is not None:
                file.writelines(
                    f"{line}\n".encode() for line in json_lines(summary, options.max_zeros)
                )
            stack.close()
    with _written(summary, "standard output"):
        if options.json:
            show(json_lines(summary, options.max_zeros))
        elif not options.quiet:
            show(lines(summary, rows=rows))
        sys.stdout.flush()
    return summary


@contextmanager
def _written(summary: CastSummary, target: str) -> Iterator[None]:
    """Say in the errors of the block that the checkpoint itself is complete."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if target == "standard output":
            abandon_output()
        raise checkpoint.CheckpointError(
            f"{summary.destination} was written, but not {target}: {error.strerror or error}"
        ) from error
