"""Show what a conversion lost: on standard output, and in the file of `--report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from castwise import checkpoint
from castwise.checkpoint import CastSummary
from castwise.cli._cast_output import ALL, GROUPS, TOTALS, json_lines, report_lines
from castwise.cli._output import abandon_output, show
from castwise.cli._paths import local_path_argument
from castwise.cli._plan_table import show_plan
from castwise.cli._report_file import open_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is shown."""
    parser.add_argument(
        "--report", metavar="FILE", type=local_path_argument, help="write the report as JSON"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    output.add_argument(
        "--all",
        action="store_true",
        help="a row for every tensor, not one for all layers (layers.*.weight)",
    )
    output.add_argument(
        "--summary", action="store_true", help="a row for each pair of formats, and the total"
    )
    output.add_argument(
        "--quiet", action="store_true", help="no table and no progress; losses are still said"
    )


def shown(
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
