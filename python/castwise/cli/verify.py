"""`castwise verify`: compare the values of two checkpoints."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from typing import get_args

from castwise import checkpoint
from castwise._core import finfo
from castwise._options import Nan, Overflow, Rounding
from castwise._spelling import typed_format
from castwise.checkpoint import Difference, Verification
from castwise.checkpoint.planning import ARITHMETIC, FORMATS
from castwise.cli._arguments import add_arguments, describe
from castwise.cli._output import FINDINGS, OK, json_text, shape_text, show, table, tensors_text
from castwise.cli._paths import path_argument
from castwise.cli._progress import ProgressLine

_VERIFY = """\
Compare the values of two checkpoints, each unquantised or quantised in any way that
castwise dequantize reads. Quantised weights are decoded in slabs, and tensors are
compared by the names that they have in an unquantised model. Values are the same if
all their bits are; NaN is like any other NaN.
"""
_DIGITS_OF_FLOAT64 = 17
_EXIT_CODES = """\
exit codes:
  0  all values are the same
  1  some differ, or a tensor is in one of them alone
  2  an error, such as a weight without its scale
"""


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _VERIFY, _EXIT_CODES)
    parser.add_argument("first", metavar="A", type=path_argument, help="a file or a folder")
    parser.add_argument("second", metavar="B", type=path_argument, help="another")
    parser.add_argument(
        "--map",
        metavar="M",
        dest="dtype_map",
        help="is B exactly what this map makes of A, by castwise cast, or quantize if it names "
        "schemes? Prints one line, with digests, that can be kept",
    )
    cast = parser.add_argument_group("options of the cast, with --map")
    cast.add_argument("--rounding", choices=get_args(Rounding), help="as for castwise cast")
    cast.add_argument("--overflow", choices=get_args(Overflow), default="ieee")
    cast.add_argument("--nan", choices=get_args(Nan), default="keep")
    cast.add_argument("--seed", metavar="S", type=int)
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
        help="as for castwise dequantize (peer, the default), or what both store, whoever decodes "
        "it (exact)",
    )
    add_arguments(parser, "--threads")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--quiet", action="store_true", help="no output but errors")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    """Run `castwise verify`; returns 1 if the checkpoints differ."""
    with ProgressLine(sys.stderr, quiet=options.quiet) as progress:
        verification = checkpoint.verify(
            options.first,
            options.second,
            dtype_map=options.dtype_map,
            rounding=options.rounding,
            overflow=options.overflow,
            nan=options.nan,
            seed=options.seed,
            dtype=typed_format(options.dtype, "--dtype"),
            arithmetic=options.arithmetic,
            threads=options.threads,
            progress=progress.show if progress.visible else None,
        )
    if options.json:
        show([json_text(verification.to_dict())])
    elif not options.quiet:
        show(_lines(verification))
    return OK if verification.equal else FINDINGS


def _lines(verification: Verification) -> Iterator[str]:
    """Show the tensors that differ, and a total."""
    compared = [
        difference for difference in verification.differences if difference.reason == "values"
    ]
    if compared:
        yield from table(
            ("tensor", "as", "at", "first", "second", "different", "of", "max abs", "max ulp"),
            lambda: map(_cells, compared),
            text_columns=3,
            spare=("as", "of", "max ulp", "at", ("first", "second")),
        )
    for difference in verification.differences:
        if difference.reason != "values":
            yield f"{difference.name}: {_reason_text(difference)}"
    if verification.statement is not None:
        yield verification.statement
        return
    total = f"{tensors_text(verification.tensors)} compared, {verification.values:,} values"
    count = len(verification.differences)
    differing = f"{tensors_text(count)} differ{'s' if count == 1 else ''}"
    yield f"{total}: {'all the same' if verification.equal else differing}"


def _reason_text(difference: Difference) -> str:
    """Say why no values of two tensors were compared."""
    if difference.shapes is not None:
        first_shape, second_shape = map(shape_text, difference.shapes)
        return f"the shapes differ: {first_shape} and {second_shape}"
    if difference.formats is not None:
        first_format, second_format = difference.formats
        return (
            "the formats differ, and their values cannot be compared: "
            f"{first_format} and {second_format}"
        )
    return difference.reason


def _cells(difference: Difference) -> tuple[str, ...]:
    """Return a row of the table: where two tensors differ first, and by how much at most."""
    first_value, second_value = (
        f"{value:.{_digits(difference.format)}g}" for value in difference.values or (0.0, 0.0)
    )
    return (
        difference.name,
        difference.format or "bytes",
        ",".join(map(str, difference.index or ())),
        first_value,
        second_value,
        f"{difference.different:,}",
        f"{difference.count:,}",
        f"{difference.max_abs:.3g}",
        "-" if difference.max_ulp is None else f"{difference.max_ulp:,}",
    )


def _digits(name: str | None) -> int:
    """Return how many decimal digits tell the numbers of a format apart: 9 for float32."""
    row = None if name is None else finfo(name)
    if row is None or row.kind not in {"float", "complex"}:
        return _DIGITS_OF_FLOAT64
    return math.ceil(1 + (row.mantissa_bits + 1) * math.log10(2))
