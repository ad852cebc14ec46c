"""`castwise diff`: what differs between two checkpoints, and what explains it."""

import argparse
import sys
from functools import partial
from typing import Any

from castwise import checkpoint
from castwise.checkpoint import Diff
from castwise.checkpoint.comparison.results import diff_sheet
from castwise.cli._arguments import (
    add_arguments,
    add_compared,
    add_output,
    compared_options,
    path_argument,
)
from castwise.cli._output import FINDINGS, OK, json_text
from castwise.cli._parser import describe
from castwise.cli._results import ProgressLine, shown_result

_DIFF = """\
Compare two checkpoints, each unquantized or quantized in any way that castwise
dequantize reads: names, shapes, formats, metadata and values, the worst first. If
values or formats differ, castwise tries recipes that may have made B from A: roundings,
overflow, NaN, an intermediate format, zeros for subnormals, a factor, scales of blocks.
It tries the plainest recipe that fits on every element.
"""
_EXIT_CODES = """\
exit codes:
  0  nothing differs; with --rtol or --atol, all values are near
  1  something differs
  2  an error, such as a weight without its scale
"""

_EXAMPLES = (
    "diff model small --top 10",
    "diff small other --reference model",
    "diff model small --rtol 0.01",
)


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _DIFF, _EXIT_CODES, examples=_EXAMPLES)
    comparison = add_compared(
        parser, "compare B with what this map makes of A, as for castwise cast"
    )
    comparison.add_argument(
        "--rename", metavar="FILE", help="JSON or TOML: a table from names in A to names in B"
    )
    comparison.add_argument(
        "--reference",
        metavar="R",
        type=path_argument,
        help="a checkpoint from which the errors of A and B are measured, each divided by the "
        "error of R rounded once to its format",
    )
    for name, text in (("--rtol", "relative to A"), ("--atol", "absolute")):
        comparison.add_argument(
            name,
            metavar="X",
            type=float,
            help=f"the tolerance of values, {text}; differences of formats, names and metadata "
            "then do not count",
        )
    add_arguments(parser, "--threads")
    add_output(parser, "--html", "--top", formats=("--json", "--quiet"))
    parser.set_defaults(run=_diff)


def _diff(options: argparse.Namespace) -> int:
    """Run `castwise diff`; returns 1 if the checkpoints differ."""

    def worst(result: Diff) -> dict[str, Any]:
        values = result.to_dict()
        return {**values, "tensors": values["tensors"][: options.top]}

    def json_lines(result: Diff) -> list[str]:
        return [json_text(lambda: worst(result))]

    with (
        shown_result(
            options, partial(diff_sheet, top=options.top), json_lines_of=json_lines
        ) as output,
        ProgressLine(sys.stderr, quiet=options.quiet) as progress,
    ):
        output.result = checkpoint.diff(
            options.first,
            options.second,
            **compared_options(options),
            rename=options.rename,
            reference=options.reference,
            rtol=options.rtol,
            atol=options.atol,
            threads=options.threads,
            progress=progress.show if progress.visible else None,
        )
    return OK if output.result.same else FINDINGS
