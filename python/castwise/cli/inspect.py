"""`castwise inspect`: what a checkpoint holds."""

from __future__ import annotations

import argparse
from typing import Any

import castwise
from castwise import checkpoint
from castwise.checkpoint import Inspection, TensorInfo
from castwise.cli._output import (
    OK,
    json_text,
    path_argument,
    printable_lines,
    shape_text,
    size_text,
    table,
)


def add(commands: Any) -> None:
    """Add the command to those of a parser."""
    inspect = commands.add_parser("inspect", help="what a checkpoint holds, from its headers alone")
    inspect.add_argument(
        "file", metavar="FILE", type=path_argument, help="a file, or a folder of shards"
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    inspection = checkpoint.inspect(options.file)
    print(json_text(inspection.to_dict()) if options.json else _text(inspection))
    return OK


def _text(inspection: Inspection) -> str:
    """Show every tensor, a total for each format, and the metadata."""
    rows = [
        (info.name, _stored_text(info), shape_text(info.shape), f"{info.nbytes:,}")
        for info in inspection.tensors
    ]
    totals = [
        (label, f"{count:,}", f"{nbytes:,}", size_text(nbytes))
        for label, (count, nbytes) in inspection.totals().items()
    ]
    nbytes = sum(info.nbytes for info in inspection.tensors)
    totals.append(("total", f"{len(inspection.tensors):,}", f"{nbytes:,}", size_text(nbytes)))
    lines = [
        table(("tensor", "dtype", "shape", "bytes"), rows, text_columns=3),
        "",
        table(("dtype", "tensors", "bytes", "size"), totals, text_columns=1),
    ]
    if inspection.metadata:
        lines += [
            "",
            "metadata",
            *(f"  {key}: {text}" for key, text in inspection.metadata.items()),
        ]
    return printable_lines(lines)


def _stored_text(info: TensorInfo) -> str:
    """Name the format, and a note where the container itself knows only bytes."""
    if info.format is None:
        return f"{info.stored} (raw bytes)" if info.kind == "unknown" else info.stored
    stored_as_bytes = (
        info.stored.upper() == "U8" and castwise.finfo(info.format).safetensors != "U8"
    )
    return f"{info.format} (as bytes)" if stored_as_bytes else info.format
