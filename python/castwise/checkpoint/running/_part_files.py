"""The files that the parts of a conversion write into: what they hold besides tensors, and where.

Every part gives each file its size and all but its tensors, so that it makes no difference which
one is the first, and whether a file was lost meanwhile.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.replacing import sync_file
from castwise.checkpoint.files.source_files import open_file
from castwise.checkpoint.running._batches import TensorRange
from castwise.checkpoint.running._conversion import Conversion
from castwise.checkpoint.running.ledger import is_plain
from castwise.checkpoint.running.output_files import OutputFile

# The conversions of each file, with all that belongs to them.
Work = list[tuple[OutputFile, Conversion, list[TensorRange]]]


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a file before it is converted."""

    target: OutputFile
    # The header, and what lies between tensors and after the last, by where it begins.
    rest: list[tuple[int, bytes]]
    # The bytes of all.
    size: int
    # Where tensors lie, those in a row as one span.
    spans: list[tuple[int, int]]


def outlines(work: Work) -> Iterator[Outline]:
    """Return the outline of each file."""
    for _, group in groupby(work, lambda one: one[0].name):
        targets, _, ranges = zip(*group, strict=True)
        spans = join_spans(span.target_span for one in ranges for span in one)
        with tempfile.TemporaryFile() as file:
            targets[0].write_header(file)
            size = max([file.seek(0, os.SEEK_END), *(end for _, end in spans)])
            rest = []
            for (_, begin), (end, _) in pairwise([(0, 0), *spans, (size, size)]):
                file.seek(begin)
                rest.append((begin, file.read(end - begin).ljust(end - begin, b"\0")))
        yield Outline(targets[0], rest, size, spans)


def begin_file(outline: Outline, files: Path) -> bool:
    """Give a file its size, and all but its tensors; returns True if it had another size."""
    # Every part does that, with the same bytes.
    path = files / outline.target.name
    files.mkdir(exist_ok=True)  # an error if the folder that it is in was removed
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path) and not is_plain(path):
        raise CheckpointError(f"{path} is not a file that a part made; remove it")
    with open(path, "r+b", opener=_opened_or_created) as file:
        is_other = os.fstat(file.fileno()).st_size != outline.size
        file.truncate(outline.size)
        for begin, content in outline.rest:
            file.seek(begin)
            file.write(content)
        sync_file(file)
    return is_other


def fault_of(path: Path, outline: Outline) -> str | None:
    """Say what is wrong with a file, from all but its tensors."""
    if not os.path.lexists(path):
        return "is missing"
    if not is_plain(path):
        return "is not a file that a part made; remove it"
    if (size := path.stat().st_size) != outline.size:
        return f"has {size:,} bytes, not {outline.size:,}"
    with open_file(path) as file:
        for begin, content in outline.rest:
            file.seek(begin)
            if file.read(len(content)) != content:
                return f"has other bytes from {begin} to {begin + len(content)}"
    return None


def _opened_or_created(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def join_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans of a file in their order, those in a row as one."""
    rows: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if rows and rows[-1][1] == begin:
            rows[-1] = rows[-1][0], end
        else:
            rows.append((begin, end))
    return rows
