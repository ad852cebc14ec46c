"""Convert without writing: what a conversion would lose, measured."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from castwise.checkpoint.containers import has_places
from castwise.checkpoint.results.report import CastRow, ProgressMeter
from castwise.checkpoint.running._output_files import OutputFile


def measured_rows(
    files: Iterable[OutputFile], meter: ProgressMeter, *, in_folder: bool
) -> list[CastRow]:
    """Convert the tensors of files, throw the results away, and return the rows with reports."""
    rows: list[CastRow] = []
    for target in files:
        with _discarding(target.name) as file:
            rows += target.write(file, meter, target.name if in_folder else None)
    meter.starts(None)
    return rows


@contextmanager
def _discarding(name: str) -> Iterator[BinaryIO]:
    """Open what takes the bytes of a file and keeps none of them."""
    # Containers that may read again what they have written are written to a file without a name,
    # which is gone at the end.
    if not has_places(Path(name)):
        with tempfile.TemporaryFile() as file:
            yield cast("BinaryIO", file)
        return
    # Opened by number, so that nobody takes its folder for one of files.
    with os.fdopen(os.open(os.devnull, os.O_RDWR), "r+b") as file:
        yield file
