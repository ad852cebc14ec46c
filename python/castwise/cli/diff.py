"""`castwise diff`: what differs between two checkpoints, and what explains it."""

from __future__ import annotations

import argparse
import sys

from castwise import checkpoint
from castwise._spelling import typed_format
from castwise.checkpoint.planning import ARITHMETIC, FORMATS
from castwise.cli._arguments import add_arguments, describe
from castwise.cli._output import FINDINGS, OK, json_text, show
from castwise.cli._paths import path_argument
from castwise.cli._progress import ProgressLine

_DIFF = """\
Compare two checkpoints, each unquantised or quantised in any way that castwise
dequantize reads: names, shapes, formats, metadata and values, the worst first. Where
values or formats differ, recipes are tried that may have made B of A: roundings,
overflow, NaN, a format between, zeros for subnormals, a factor, scales of blocks. The
plainest that fits is tried on every element.
"""
_EXIT_CODES = """\
exit codes:
  0  nothing differs; with --rtol or --atol, all values are near
  1  something differs
  2  an error, such as a weight without its scale
"""


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _DIFF, _EXIT_CODES)
    parser.add_argument("first", metavar="A", type=path_argument, help="a file or a folder")
    parser.add_argument("second", metavar="B", type=path_argument, help="another")
    parser.add_argument(
        "--map",
        metavar="M",
        dest="dtype_map",
        help="compare B with what this map makes of A, as for castwise cast",
    )
    parser.add_argument(
        "--rename",
        metavar="FILE",
        help="JSON or TOML: names of tensors of A, each with its name in B",
    )
    parser.add_argument(
        "--reference",
        metavar="R",
        type=path_argument,
        help="a checkpoint from which the errors of A and B are measured, each over the error of "
        "R rounded once to its format",
    )
    for name, text in (("--rtol", "relative to A"), ("--atol", "absolute")):
        parser.add_argument(
            name,
            metavar="X",
            type=float,
            help=f"the tolerance of values, {text}; other formats, names and metadata are then no "
            "differences",
        )
    parser.add_argument(
        "--dtype",
        metavar="D",
        help=f"what quantised weights are decoded to: {', '.join(FORMATS)} (default: the format "
        f"of the other one if that is plain, else {FORMATS[0]}); with --map its default",
    )
    parser.add_argument(
        "--arithmetic",
        choices=ARITHMETIC,
        default=ARITHMETIC[0],
        help="as for castwise verify",
    )
    parser.add_argument(
        "--top", metavar="N", type=_count_argument, help="show the worst N tensors alone"
    )
    add_arguments(parser, "--threads")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--quiet", action="store_true", help="no output but errors")
    parser.set_defaults(run=_diff)


def _count_argument(text: str) -> int:
    """Parse a number of tensors."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tensors, such as 10")
    return int(text)


def _diff(options: argparse.Namespace) -> int:
    """Run `castwise diff`; returns 1 if the checkpoints differ."""
    with ProgressLine(sys.stderr, quiet=options.quiet) as progress:
        result = checkpoint.diff(
            options.first,
            options.second,
            dtype_map=options.dtype_map,
            rename=options.rename,
            reference=options.reference,
            rtol=options.rtol,
            atol=options.atol,
            dtype=typed_format(options.dtype, "--dtype"),
            arithmetic=options.arithmetic,
            threads=options.threads,
            progress=progress.show if progress.visible else None,
        )
    if options.json:
        values = result.to_dict()
        if options.top is not None:
            values["tensors"] = values["tensors"][: options.top]
        show([json_text(values)])
    elif not options.quiet:
        show(result.lines(options.top))
    return OK if result.same else FINDINGS
