"""Convert a checkpoint in parts, each in a run of its own, and put these together at the end.

All runs see the same files. Each plans the whole from the headers, writes its part of the bytes
into files that all write into, and then a page beside them: of what job it is, and what was lost.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Protocol

from castwise._core import CastReport
from castwise._wording import argument
from castwise.checkpoint._errors import CheckpointError, listed
from castwise.checkpoint.containers import Reader
from castwise.checkpoint.files import (
    Room,
    is_remote,
    locked,
    parts_name,
    read_file,
    remove_folder,
    replacing_file,
    shared_folder,
    sync_file,
)
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.report import CastRow, Progress, ProgressMeter, Report
from castwise.checkpoint.running._batches import TensorRange, convert_batch, cut
from castwise.checkpoint.running._conversion import Conversion
from castwise.checkpoint.running._executors import summed
from castwise.checkpoint.running._journal import job_of, report_of, state_of
from castwise.checkpoint.running._output_files import OutputFile, opened

_FILES = "files"  # the folder that all parts write into
_PLACED = "placed"  # says which folder has become the destination
_MAX_PARTS = 100_000
_PAGE = re.compile(r"part-(\d{1,6})-of-(\d{1,6})\.json")
_PIECE_BYTES = 64 << 20
_MAX_PAGE_BYTES = 1 << 30  # a tensor takes some 500 bytes


class Run(Protocol):
    """A conversion that has been planned."""

    @property
    def files(self) -> Sequence[OutputFile]: ...
    @property
    def sources(self) -> Mapping[str, Reader]: ...
    @property
    def options(self) -> CastOptions: ...
    def room(self) -> Room: ...
    def put_together(
        self, folder: Path, rows_of: Callable[[OutputFile], list[CastRow]]
    ) -> Iterator[list[CastRow]]: ...


@dataclass(frozen=True, slots=True, order=True)
class RunPart:
    """One of several parts of about as many bytes, counted from 1."""

    number: int
    count: int

    @classmethod
    def of(cls, value: Any) -> RunPart:  # noqa: ANN401  (as it is given)
        """Read a part: text such as "3/16", or the two numbers.

        Raises
        ------
        ValueError
            It is neither, or there is no such part.

        """
        try:
            numbers = map(int, value.split("/")) if isinstance(value, str) else map(index, value)
            number, count = numbers
        except (TypeError, ValueError) as error:
            raise ValueError(f"{argument('part', value)} is not a part such as '3/16'") from error
        if count > _MAX_PARTS:
            raise ValueError(
                f"{argument('part', value)}: a conversion has at most {_MAX_PARTS:,} parts"
            )
        if not 1 <= number <= count:
            raise ValueError(
                f"{argument('part', value)}: parts of {count} are 1/{count} to {count}/{count}"
            )
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def convert_part(
    run: Run,
    destination: Path,
    part: RunPart,
    *,
    arguments: Mapping[str, Any],
    progress: Callable[[Progress], None] | None,
) -> list[CastRow]:
    """Carry out a part of a conversion; the rows tell of the elements in it.

    `arguments` are kept for the end.

    Raises
    ------
    CheckpointError
        Some tensors have no place in their file, as those of `.npz`; parts of another conversion
        are there; the parts are being put together; or, before the first, there is too little
        room.

    """
    folder = _folder(destination)
    job = _job(run)
    rows: list[CastRow] = []
    states: list[tuple[str, str, Any]] = []
    work = _divided(run, part)
    meter = ProgressMeter(sum(span.source_nbytes for *_, mine in work for span in mine), progress)
    if not folder.exists():
        run.room()
    with shared_folder(folder, destination):
        _check_same(folder, _pages(folder), part.count, job, arguments)
        for target in run.files:
            _begin(target, folder / _FILES)
        for target, conversion, mine in work:
            path = folder / _FILES / target.name
            converted = _converted(mine, conversion, path, meter)
            for span, report in zip(mine, summed(converted), strict=True):
                rows.append(_row(conversion, span, report, target.name))
                states.append((target.name, span.name, state_of(report)))
        page = {"job": job, "arguments": dict(arguments), "reports": states}
        with replacing_file(folder / f"part-{part.number}-of-{part.count}.json") as file:
            file.write(json.dumps(page).encode())
        meter.starts(None)
    return rows


class RunParts:
    """The parts for a destination, all of them complete.

    Raises
    ------
    CheckpointError
        There are none, some are missing, or a run before this one made the destination of them.

    """

    def __init__(self, destination: Path) -> None:
        if is_remote(destination):
            raise CheckpointError(
                f"{destination} has no parts: they ({argument('part')}) are for files of "
                "this machine"
            )
        self._destination = destination
        self._folder = _folder(destination)
        if not self._folder.is_dir():
            raise CheckpointError(
                f"there are no parts of {destination}; castwise cast, quantize, dequantize and "
                "transcode make them with --part 1/N to N/N"
            )
        placed = self._folder / _PLACED
        if placed.exists() and read_file(placed, _MAX_PAGE_BYTES).decode() == _identity(
            destination
        ):
            with self._held():
                remove_folder(self._folder)
            raise CheckpointError(
                f"{destination} is complete: a run before this one was stopped only when its parts "
                "were to be removed, which they are now"
            )
        self._reports: _Reports = {}
        self._pages = _pages(self._folder, self._reports)
        count = max((part.count for part in self._pages), default=0)
        every = [RunPart(number + 1, count) for number in range(count)]
        missing = [str(part) for part in every if part not in self._pages]
        if missing or not every:
            names = listed(missing) or "all"
            raise CheckpointError(
                f"{self._folder}: parts are not complete: {names}; make them "
                f"({argument('part')}) first"
            )
        self.arguments: dict[str, Any] = self._pages[every[0]]["arguments"]

    def put_together(self, run: Run) -> list[CastRow]:
        """Make the destination of them, and remove them.

        Raises
        ------
        CheckpointError
            The source was changed since, or a part is still being converted.

        """
        count = next(iter(self._pages)).count
        files = self._folder / _FILES
        with self._held():
            _check_same(self._folder, self._pages, count, _job(run), self.arguments)
            steps = run.put_together(files, self._rows)
            rows = next(steps)
            with (self._folder / _PLACED).open("w", encoding="utf-8") as file:
                file.write(_identity(files))
                sync_file(file)
            next(steps, None)
            remove_folder(self._folder)
        return rows

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Let no part be converted meanwhile."""
        try:
            with locked(self._folder):
                yield
        except BlockingIOError as error:
            raise CheckpointError(
                f"a part of {self._destination} is being converted, or they are put together; "
                "wait for the end of that"
            ) from error

    def _rows(self, target: OutputFile) -> list[CastRow]:
        """Return what the parts say of a file."""
        rows: list[CastRow] = []
        conversions = target.conversions() or []
        for conversion in conversions:
            reports = (
                self._reports.get((target.name, span.name), CastReport() if span.is_cast else None)
                for span in conversion.ranges()
            )
            rows += conversion.rows(reports, target.name)
        return target.in_order(rows, conversions[0].file_order) if conversions else rows


def _folder(destination: Path) -> Path:
    return parts_name(Path(os.path.realpath(destination)))


def _job(run: Run) -> dict[str, Any]:
    job = job_of(run.sources, run.options, {target.name: target.planned for target in run.files})
    return dict(json.loads(json.dumps(job)))  # as it comes from a page


def _identity(path: Path) -> str:
    """Name the folder or file at a path, whatever its path is."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    return f"{status.st_dev} {status.st_ino}"


def _divided(run: Run, part: RunPart) -> list[tuple[OutputFile, Conversion, list[TensorRange]]]:
    """Return what belongs to a part of each conversion of each file."""
    work: list[tuple[OutputFile, Conversion, list[TensorRange]]] = []
    for target in run.files:
        conversions = target.conversions()
        if conversions is None:
            raise CheckpointError(
                f"{target.name} cannot be converted in parts: not all of its tensors stand as "
                "plain elements in the source and in it, as in .safetensors and .npy; leave out "
                f"{argument('part')}"
            )
        work += ((target, conversion, conversion.ranges()) for conversion in conversions)
    total = sum(span.nbytes for *_, ranges in work for span in ranges)
    ends = [total * number // part.count for number in (part.number - 1, part.number)]
    done = 0
    for place, (target, conversion, ranges) in enumerate(work):
        nbytes = sum(span.nbytes for span in ranges)
        mine = list(cut(ranges, [min(max(end - done, 0), nbytes) for end in ends]))[1]
        work[place] = (target, conversion, mine)
        done += nbytes
    return work


def _begin(target: OutputFile, files: Path) -> None:
    """Write the header of a file; every part writes the same one."""
    path = files / target.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "r+b", opener=_opened_or_created) as file:
        target.write_header(file)
        sync_file(file)


def _opened_or_created(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def _converted(
    ranges: Sequence[TensorRange],
    conversion: Conversion,
    path: Path,
    meter: ProgressMeter,
) -> list[tuple[TensorRange, Report | None]]:
    """Convert ranges of one file, in pieces; returns these with their reports."""
    done: list[tuple[TensorRange, Report | None]] = []
    total = sum(span.nbytes for span in ranges)
    reader = conversion.reader
    for piece in cut(ranges, range(_PIECE_BYTES, total, _PIECE_BYTES)):
        if not piece:
            continue
        meter.starts(piece[0].name)
        reports, error = convert_batch(conversion.batch(piece, path))
        if error is not None:
            raise error
        done += zip(piece, reports, strict=True)
        meter.finished(sum(span.source_nbytes for span in piece))
    with opened(reader):
        reader.check_unchanged()
    return done


def _row(conversion: Conversion, span: TensorRange, report: Report | None, shard: str) -> CastRow:
    row = conversion.row(span.name, report, shard)
    nbytes = span.source_nbytes
    return row._replace(nbytes_before=nbytes, nbytes_after=span.nbytes - nbytes)


_Reports = dict[tuple[str, str], Report]
"""Reports by file and tensor."""


def _pages(folder: Path, reports: _Reports | None = None) -> dict[RunPart, dict[str, Any]]:
    """Read the pages of the parts that are complete; their reports are added to others."""
    pages: dict[RunPart, dict[str, Any]] = {}
    for path in folder.iterdir():
        if match := _PAGE.fullmatch(path.name):
            try:
                page = json.loads(read_file(path, _MAX_PAGE_BYTES))
                dict(page["job"])
                arguments = dict(page["arguments"])
                "".join((arguments["command"], arguments["source"]))  # both are texts
                _add(page.pop("reports"), {} if reports is None else reports)
            except (TypeError, ValueError, LookupError, RecursionError) as error:
                raise CheckpointError(
                    f"{path} is not a page that a part wrote, or was damaged; remove it "
                    "and convert that part again"
                ) from error
            pages[RunPart(int(match[1]), int(match[2]))] = page
    return pages


def _add(states: list[tuple[str, str, Any]], reports: _Reports) -> None:
    """Add what a page says of its part of each tensor."""
    for file, name, state in states:
        if (report := report_of(state)) is not None:
            before = reports.get((file, name))
            reports[file, name] = report if before is None else before + report


def _check_same(
    folder: Path,
    pages: Mapping[RunPart, dict[str, Any]],
    count: int,
    job: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> None:
    """CheckpointError if a page is of another conversion."""
    for part, page in pages.items():
        differing = [key for key in arguments if page["arguments"].get(key) != arguments[key]]
        differing += [key for key in job if page["job"].get(key) != job[key]]
        if part.count != count:
            differing.append(f"{part.count} parts")
        if differing:
            raise CheckpointError(
                f"{folder} holds parts of another conversion ({', '.join(differing)}); repeat that "
                "one, or remove the folder"
            )
