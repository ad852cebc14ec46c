"""`castwise formats`: every format of the table."""

import argparse
from collections.abc import Sequence
from typing import Any

import castwise
from castwise.cli._output import COLOR_OPTION, OK, json_text, show, show_sheet
from castwise.cli._parser import describe
from castwise.rendering.sheet import Table

_FORMATS = """\
List the formats, their ranges, and whether numpy and safetensors have a dtype for them.
"""
_EXAMPLES = ("formats", "formats --json")
_FORMAT_FIELDS = (
    "name",
    "aliases",
    "kind",
    "bits",
    "itemsize",
    "signed",
    "exponent_bits",
    "mantissa_bits",
    "bias",
    "specials",
    "has_infinity",
    "has_nan",
    "max",
    "min",
    "smallest_normal",
    "smallest_subnormal",
    "eps",
    "safetensors",
)


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _FORMATS, examples=_EXAMPLES)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--color", **COLOR_OPTION)
    parser.set_defaults(run=_formats)


def _formats(options: argparse.Namespace) -> int:
    """Run `castwise formats`; returns the exit code."""
    rows = [castwise.finfo(name) for name in castwise.formats()]
    if options.json:
        show([json_text(lambda: [_fields(row) for row in rows])])
    else:
        show_sheet([_table(rows)], options)
    return OK


def _table(rows: Sequence[castwise.FormatInfo]) -> Table:
    header = ("format", "kind", "bits", "max", "smallest normal", "eps", "safetensors", "numpy")
    cells = [
        (
            row.name,
            row.kind,
            str(row.bits),
            _number(row, "max"),
            _number(row, "smallest_normal"),
            _number(row, "eps"),
            row.safetensors or "as bytes",
            "yes" if row.dtype is not None else "no",
        )
        for row in rows
    ]
    return Table(header, lambda: cells, 2, spare=("numpy", "eps", "smallest normal"))


def _fields(row: castwise.FormatInfo) -> dict[str, Any]:
    """Give a row of the table as plain values; None for what its kind does not have."""
    fields = {name: getattr(row, name, None) for name in _FORMAT_FIELDS}
    return {**fields, "numpy": row.dtype is not None}


def _number(row: castwise.FormatInfo, attribute: str) -> str:
    """Write a number of the table; nothing if a kind does not have it."""
    value = getattr(row, attribute, None)
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)
