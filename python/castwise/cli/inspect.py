"""`castwise inspect`: what a checkpoint holds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import castwise
from castwise import checkpoint
from castwise.checkpoint import Inspection, TensorInfo
from castwise.cli._output import (
    OK,
    json_text,
    path_argument,
    shape_text,
    show,
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
    show([json_text(inspection.to_dict())] if options.json else _lines(inspection))
    return OK


def _lines(inspection: Inspection) -> Iterator[str]:
    """Show every tensor, a total for each format, and the metadata."""
    nbytes = sum(info.nbytes for info in inspection.tensors)
    totals = [
        (label, f"{count:,}", f"{size:,}", size_text(size))
        for label, (count, size) in inspection.totals().items()
    ]
    totals.append(("total", f"{len(inspection.tensors):,}", f"{nbytes:,}", size_text(nbytes)))
    yield from table(
        ("tensor", "dtype", "shape", "bytes"),
        lambda: (
            (info.name, _stored_text(info), shape_text(info.shape), f"{info.nbytes:,}")
            for info in inspection.tensors
        ),
        text_columns=3,
    )
    yield ""
    yield from table(("dtype", "tensors", "bytes", "size"), lambda: totals, text_columns=1)
    if inspection.metadata:
        yield from ("", "metadata")
        yield from (f"  {key}: {text}" for key, text in inspection.metadata.items())


def _stored_text(info: TensorInfo) -> str:
    """Name the format, and a note where the container itself knows only bytes."""
    if info.format is None:
        return f"{info.stored} (raw bytes)" if info.kind == "unknown" else info.stored
    stored_as_bytes = (
        info.stored.upper() == "U8" and castwise.finfo(info.format).safetensors != "U8"
    )
    return f"{info.format} (as bytes)" if stored_as_bytes else info.format
