"""`castwise verify`: compare the values of two checkpoints."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator

from castwise import checkpoint
from castwise._core import finfo
from castwise._spelling import typed_format
from castwise.checkpoint import Difference, Verification
from castwise.checkpoint.decoding._decode import ARITHMETIC, FORMATS
from castwise.cli._output import FINDINGS, OK, json_text, shape_text, show, table, tensors_text
from castwise.cli._paths import path_argument
from castwise.cli._progress import ProgressLine

_VERIFY = """\
Compare the values of two checkpoints, each plain or quantised in any way that castwise
dequantize reads. Quantised weights are decoded in slabs, and tensors are compared by
the names that they have in a plain model. Values are the same if all their bits are;
NaN is like any other NaN.
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
    parser.description, parser.epilog = _VERIFY, _EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("first", metavar="A", type=path_argument, help="a file or a folder")
    parser.add_argument("second", metavar="B", type=path_argument, help="another")
    parser.add_argument(
        "--dtype",
        metavar="D",
        help=f"what quantised weights are decoded to: {', '.join(FORMATS)} (default: the format "
        f"of the other one if that is plain, else {FORMATS[0]})",
    )
    parser.add_argument(
        "--arithmetic",
        choices=ARITHMETIC,
        default=ARITHMETIC[0],
        help="as for castwise dequantize (peer, the default), or what both store, whoever decodes "
        "it (exact)",
    )
    parser.add_argument("--threads", metavar="N", type=int, help="default: all cores")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print JSON")
    what.add_argument("--quiet", action="store_true", help="no output but errors")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    with ProgressLine(sys.stderr, quiet=options.quiet) as progress:
        found = checkpoint.verify(
            options.first,
            options.second,
            dtype=typed_format(options.dtype, "--dtype"),
            arithmetic=options.arithmetic,
            threads=options.threads,
            progress=progress.show if progress.visible else None,
        )
    if options.json:
        show([json_text(found.to_dict())])
    elif not options.quiet:
        show(_lines(found))
    return OK if found.equal else FINDINGS


def _lines(found: Verification) -> Iterator[str]:
    """Show the tensors that differ, and a total."""
    compared = [one for one in found.differences if one.reason == "values"]
    if compared:
        yield from table(
            ("tensor", "as", "at", "first", "second", "different", "of", "max abs", "max ulp"),
            lambda: map(_cells, compared),
            text_columns=3,
            spare=("as", "of", "max ulp", "at", ("first", "second")),
        )
    for one in found.differences:
        if one.reason != "values":
            yield f"{one.name}: {_reason_text(one)}"
    total = f"{tensors_text(found.tensors)} compared, {found.values:,} values"
    count = len(found.differences)
    differing = f"{tensors_text(count)} differ{'s' if count == 1 else ''}"
    yield f"{total}: {'all the same' if found.equal else differing}"


def _reason_text(one: Difference) -> str:
    """Say why no values of two tensors were compared."""
    if one.shapes is not None:
        first, second = map(shape_text, one.shapes)
        return f"the shapes differ: {first} and {second}"
    if one.formats is not None:
        first, second = one.formats
        return f"the formats differ, and their values cannot be compared: {first} and {second}"
    return one.reason


def _cells(one: Difference) -> tuple[str, ...]:
    first, second = (f"{value:.{_digits(one.format)}g}" for value in one.values or (0.0, 0.0))
    return (
        one.name,
        one.format or "bytes",
        ",".join(map(str, one.index or ())),
        first,
        second,
        f"{one.different:,}",
        f"{one.count:,}",
        f"{one.max_abs:.3g}",
        "-" if one.max_ulp is None else f"{one.max_ulp:,}",
    )


def _digits(name: str | None) -> int:
    """Return how many decimal digits tell the numbers of a format apart: 9 for float32."""
    row = None if name is None else finfo(name)
    if row is None or row.kind not in {"float", "complex"}:
        return _DIGITS_OF_FLOAT64
    return math.ceil(1 + (row.mantissa_bits + 1) * math.log10(2))
