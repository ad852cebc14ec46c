"""Convert a checkpoint in parts, each in a run of its own, and put these together at the end.

All runs see the same files. Each plans the whole from the headers. The first one names the job in
the folder of the parts before it writes a byte of the result, and no run of another job writes into
that folder. A part writes its bytes into files that all write into, and then a page beside them:
what was lost, and the checksums of what it wrote. Whatever stops it, it is run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from castwise._core import CastReport
from castwise._numbers import is_integer
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint.files.free_space import Room
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.files.replacing import make_shared_folder, replacing_file
from castwise.checkpoint.files.source_files import read_file
from castwise.checkpoint.files.temporary_names import TemporaryName, hold_lock, parts_name
from castwise.checkpoint.results.report import CastRow, Progress, ProgressMeter, Report
from castwise.checkpoint.running._batches import TensorRange, convert_batch, cut_ranges
from castwise.checkpoint.running._conversion import Conversion
from castwise.checkpoint.running._executors import sum_reports
from castwise.checkpoint.running._job import ARGUMENTS, OTHER_FILES, Job, checksum, differences
from castwise.checkpoint.running._output_files import OutputFile, reopen
from castwise.checkpoint.running._part_files import Work, begin_file, fault_of, join_spans, outlines
from castwise.checkpoint.running.journal import report_of, state_of
from castwise.text.wording import argument

_FILES = "files"  # the folder that all parts write into
_JOB = "job.json"  # is there before any of the files; its lock is that of the folder
_NONCE = "nonce"  # of the job's page; tells folders apart that had the same name one by one
_PLACED = "placed"  # says which file or folder has become the destination
_MAX_PARTS = 100_000
_PAGE = re.compile(r"part-(\d{1,6})-of-(\d{1,6})\.json")
_PIECE_BYTES = 64 << 20
_MAX_PAGE_BYTES = 1 << 30  # a tensor takes some 500 bytes
_MOST_READERS = 8  # threads that compute checksums

# Bytes that a part wrote: the file, where they begin and end, and their checksum.
Span = tuple[str, int, int, int]


class PartedRun(Protocol):
    """A conversion that has been planned."""

    @property
    def files(self) -> Sequence[OutputFile]: ...
    @property
    def job(self) -> Job: ...
    def other_states(self) -> Mapping[str, list[Any]]: ...
    def product(self, folder: Path) -> Path: ...
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

        ValueError: it is neither, or there is no such part.
        """
        try:
            number, count = map(int, value.split("/")) if isinstance(value, str) else value
        except (TypeError, ValueError):
            number = count = None
        if not (is_integer(number) and is_integer(count)):
            raise ValueError(f"{argument('part', value)} is not a part such as '3/16'")
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
    run: PartedRun,
    destination: Path,
    part: RunPart,
    *,
    progress: Callable[[Progress], None] | None,
) -> list[CastRow]:
    """Carry out a part of a conversion; the rows tell of the elements in it.

    CheckpointError: some tensors have no place in their file, as those of `.npz`; parts of another
    conversion are there; the parts are being put together; or, before the first, there is too
    little room.
    """
    folder = _folder(destination)
    job = _job(run, part.count)
    work = _work_of(run)
    mine = _part_of(work, part)
    page = folder / f"part-{part.number}-of-{part.count}.json"
    rows: list[CastRow] = []
    states: list[tuple[str, str, Any]] = []
    meter = ProgressMeter(sum(span.source_nbytes for one in mine for span in one), progress)
    if not folder.exists():
        run.room()
    page_of_job = _seal({**job, _NONCE: secrets.token_hex()})
    make_shared_folder(folder, destination, _JOB, page_of_job)
    with _hold_job(folder, destination, job) as seal, ThreadPoolExecutor(1) as executor:
        pages = _pages(folder, seal)
        for old in (page, folder / _PLACED):  # until its bytes are all written again
            old.unlink(missing_ok=True)
        for outline in outlines(work):
            if begin_file(outline, folder / _FILES):
                _remove_pages(folder, pages, outline.target.name)
        futures: list[Future[Span]] = []
        for (target, conversion, _), ranges in zip(work, mine, strict=True):
            reports_of_ranges: list[tuple[TensorRange, Report | None]] = []
            for piece in _pieces(ranges):
                _check_job(folder, job, seal)  # somebody may have begun anew
                meter.starts(piece[0].name)
                batch = conversion.batch(piece, folder / _FILES / target.name)
                reports, error = convert_batch(batch)
                if error is not None:
                    _check_job(folder, job, seal)  # that it is gone explains more
                    raise error
                reports_of_ranges += zip(piece, reports, strict=True)
                for begin, end in join_spans(span.target_span for span in piece):
                    futures.append(executor.submit(_span, batch.target, target.name, begin, end))
                meter.finish(sum(span.source_nbytes for span in piece))
            with reopen(conversion.reader) as reader:
                reader.check_unchanged()
            reports_by_name = sum_reports(reports_of_ranges)
            for span in ranges:
                report = reports_by_name[span.name]
                rows.append(_row(conversion, span, report, target.name))
                states.append((target.name, span.name, state_of(report)))
        content = {
            "part": str(part),
            "job": seal,
            "reports": states,
            "spans": [future.result() for future in futures],
        }
        _check_job(folder, job, seal)
        with replacing_file(page) as file:
            file.write(_seal(content))
        meter.starts(None)
    return rows


def refuse_parts(destination: Path) -> None:
    """CheckpointError if parts of a destination are there, of which `finish` makes it."""
    if not is_remote(destination) and (_folder(destination) / _JOB).exists():
        raise CheckpointError(
            f"{_folder(destination)} holds parts of {destination}; make it of them (castwise "
            f"finish {shlex.quote(str(destination))}), or remove that folder first"
        )


class RunParts:
    """The parts for a destination, all of them complete.

    CheckpointError: there are none, some are missing, or a run before this one made the destination
    of them.
    """

    def __init__(self, destination: Path) -> None:
        if is_remote(destination):
            raise CheckpointError(
                f"{destination} has no parts: they ({argument('part')}) are for files of "
                "this machine"
            )
        self._destination = destination
        self._folder = _folder(destination)
        if self._folder.is_symlink() or not (self._folder / _JOB).exists():
            raise CheckpointError(
                f"there are no parts of {destination}; castwise cast, quantize, dequantize and "
                "transcode make them with --part 1/N to N/N"
            )
        page = self._folder / _PLACED
        identity = read_file(page, _MAX_PAGE_BYTES) if page.exists() else b""
        if destination.exists() and identity == _identity(destination):
            with _lock_job(self._folder, destination):
                self._remove()
            raise CheckpointError(
                f"{destination} is complete: a run before this one was stopped only when its parts "
                "were to be removed, which they are now"
            )
        self._job = _read_job(self._folder)
        self._reports: _Reports = {}
        self._pages = _pages(self._folder, _digest(self._job), self._reports)
        every = [RunPart(number + 1, self._job["parts"]) for number in range(self._job["parts"])]
        if missing := [str(part) for part in every if part not in self._pages]:
            names = "all" if len(missing) == len(every) else join_names(missing)
            raise CheckpointError(
                f"{self._folder}: parts are not complete: {names}; make them "
                f"({argument('part')}) first"
            )
        self.arguments: dict[str, Any] = self._job[ARGUMENTS]

    def put_together(self, run: PartedRun) -> list[CastRow]:
        """Make the destination of them, and remove them.

        CheckpointError: the source was changed since, a part is still being converted, or a file
        does not hold what the parts wrote.
        """
        files = self._folder / _FILES
        # Of the arguments the caller may have changed whether the destination may be replaced.
        job = {**_job(run, self._job["parts"]), ARGUMENTS: self.arguments}
        with _hold_job(self._folder, self._destination, job, is_shared=False):
            self._check_files(run, files)
            steps = run.put_together(files, self._rows)
            rows = next(steps)
            with replacing_file(self._folder / _PLACED) as file:
                file.write(_identity(run.product(files)))
            next(steps, None)
            self._remove()
        return rows

    def _check_files(self, run: PartedRun, files: Path) -> None:
        """CheckpointError unless all files are as the parts wrote them."""
        spans = sorted(
            (*span, part) for part, page in self._pages.items() for span in page["spans"]
        )
        for outline in outlines(_work_of(run)):
            path, name = files / outline.target.name, outline.target.name
            mine = [span for span in spans if span[0] == name]
            writers = {part for *_, part in mine}
            fault = fault_of(path, outline)
            if join_spans(span[1:3] for span in mine) != outline.spans:
                fault, writers = "has bytes that no part wrote", set(self._pages)
            if fault is not None:
                raise _to_be_run_again(f"{path} {fault}", writers)
        with ThreadPoolExecutor(min(_MOST_READERS, os.cpu_count() or 1)) as executor:
            sums = executor.map(lambda span: checksum(files / span[0], *span[1:3]), spans)
            for (name, begin, end, value, part), checksum_of_file in zip(spans, sums, strict=True):
                if value != checksum_of_file:
                    fault = f"{files / name} has other bytes from {begin} to {end}"
                    raise _to_be_run_again(fault, [part])

    def _remove(self) -> None:
        """Remove the folder: in one step for all who look for it."""
        with TemporaryName(_real(self._destination)) as temporary:
            self._folder.rename(temporary)

    def _rows(self, target: OutputFile) -> list[CastRow]:
        """Return what the parts say of a file."""
        rows: list[CastRow] = []
        conversions = target.conversions() or []
        for conversion in conversions:
            reports = {
                span.name: self._reports.get(
                    (target.name, span.name), CastReport() if span.is_cast else None
                )
                for span in conversion.ranges()
            }
            rows += conversion.rows(reports, target.name)
        return target.in_order(rows, conversions[0].file_order) if conversions else rows


def _real(destination: Path) -> Path:
    return Path(os.path.realpath(destination))


def _folder(destination: Path) -> Path:
    return parts_name(_real(destination))


def _job(run: PartedRun, count: int) -> Job:
    return {**run.job, OTHER_FILES: run.other_states(), "parts": count}


def _digest(job: Job) -> str:
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()


def _seal(content: dict[str, Any]) -> bytes:
    """Return a page of JSON that tells whether it was damaged."""
    plain = json.loads(json.dumps(content))
    return json.dumps({"seal": _digest(plain), **plain}).encode()


def _unseal(path: Path) -> dict[str, Any]:
    """Return what is on such a page.

    ValueError, TypeError, LookupError, RecursionError: it is none, or was damaged.
    """
    content: dict[str, Any] = json.loads(read_file(path, _MAX_PAGE_BYTES))
    if content.pop("seal") != _digest(content):
        raise ValueError(path)
    return content


# What is raised of a page that is not as it was written.
_DAMAGES = (AttributeError, TypeError, ValueError, LookupError, RecursionError)


def _read_job(folder: Path) -> Job:
    """Return the job of the parts in a folder."""
    path = folder / _JOB
    try:
        job = _unseal(path)
        "".join((job[ARGUMENTS]["command"], job[ARGUMENTS]["source"]))  # both are texts
        RunPart.of((1, job["parts"]))
    except _DAMAGES as error:
        raise CheckpointError(
            f"{path} is not what the first part wrote, or was damaged; remove {folder}, and "
            "convert all parts again"
        ) from error
    return job


def _check_job(folder: Path, job: Job, seal: str | None = None) -> str:
    """Return the seal of the page of the job, which must be this one, with this seal if given.

    CheckpointError: the folder is gone, or is another one, or is there for another conversion.
    """
    other_job: Job = {}
    with suppress(FileNotFoundError):
        other_job = _read_job(folder)
    other_seal = _digest(other_job)
    other_job.pop(_NONCE, None)
    if other_job and (differing := differences(other_job, job)):
        raise CheckpointError(
            f"{folder} holds parts of another conversion: {differing}; repeat that one, or, when "
            "none of its parts is running, remove the folder"
        )
    if not other_job or seal not in {None, other_seal}:
        raise CheckpointError(
            f"{folder} was removed, became the destination, or has no {_JOB}; remove it if it is "
            "there, and run again if the destination is not complete"
        )
    return other_seal


@contextmanager
def _hold_job(
    folder: Path, destination: Path, job: Job, *, is_shared: bool = True
) -> Iterator[str]:
    """Hold the folder, which is there for this job, during a block; yields the job's seal."""
    _check_job(folder, job)
    with _lock_job(folder, destination, is_shared=is_shared):
        yield _check_job(folder, job)  # it may have been put together meanwhile


@contextmanager
def _lock_job(folder: Path, destination: Path, *, is_shared: bool = False) -> Iterator[None]:
    """Let no part be converted meanwhile; if `is_shared`, let parts not be put together."""
    try:
        with hold_lock(folder / _JOB, is_shared=is_shared):
            yield
    except BlockingIOError as error:
        doing = "the parts of {} are being put together"
        if not is_shared:
            doing = "a part of {} is being converted, or they are put together"
        raise CheckpointError(f"{doing.format(destination)}; wait for the end of that") from error


def _identity(path: Path) -> bytes:
    """Name the folder or file at a path, whatever its path is, on all machines."""
    return str(path.stat().st_ino).encode()


def _work_of(run: PartedRun) -> Work:
    """Return all that is to be converted, in its order."""
    work: Work = []
    for target in run.files:
        conversions = target.conversions()
        if conversions is None:
            raise CheckpointError(
                f"{target.name} cannot be converted in parts: not all of its tensors stand as "
                "plain elements in the source and in it, as in .safetensors and .npy; leave out "
                f"{argument('part')}"
            )
        work += ((target, conversion, conversion.ranges()) for conversion in conversions)
    return work


def _part_of(work: Work, part: RunPart) -> list[list[TensorRange]]:
    """Return what belongs to a part of each conversion."""
    sizes = [sum(span.nbytes for span in ranges) for *_, ranges in work]
    ends = [sum(sizes) * number // part.count for number in (part.number - 1, part.number)]
    mine: list[list[TensorRange]] = []
    offset = 0
    for (*_, ranges), nbytes in zip(work, sizes, strict=True):
        mine.append(
            list(cut_ranges(ranges, [min(max(end - offset, 0), nbytes) for end in ends]))[1]
        )
        offset += nbytes
    return mine


def _remove_pages(folder: Path, pages: Mapping[RunPart, dict[str, Any]], name: str) -> None:
    """Remove the pages of the parts that have to write into a file again, which was lost or cut."""
    for part, page in pages.items():
        if any(span[0] == name for span in page["spans"]):
            (folder / f"part-{part.number}-of-{part.count}.json").unlink(missing_ok=True)


def _to_be_run_again(fault: str, parts: Iterable[RunPart]) -> CheckpointError:
    names = join_names([argument("part", str(part)) for part in sorted(parts)]) or "any part"
    return CheckpointError(f"{fault}; convert again: {names}; then castwise finish")


def _pieces(ranges: Sequence[TensorRange]) -> Iterator[list[TensorRange]]:
    """Cut ranges into what is converted and brought to the disk at once."""
    total = sum(span.nbytes for span in ranges)
    return filter(None, cut_ranges(ranges, range(_PIECE_BYTES, total, _PIECE_BYTES)))


def _span(path: Path, name: str, begin: int, end: int) -> Span:
    return name, begin, end, checksum(path, begin, end)


def _row(conversion: Conversion, span: TensorRange, report: Report | None, shard: str) -> CastRow:
    row = conversion.row(span.name, report, shard)
    return row._replace(nbytes_before=span.source_nbytes, nbytes_after=span.target_nbytes)


# Reports by file and tensor.
_Reports = dict[tuple[str, str], Report]


def _pages(
    folder: Path, seal: str, reports: _Reports | None = None
) -> dict[RunPart, dict[str, Any]]:
    """Read the pages of the parts that are complete, of the job whose page has this seal.

    Their reports are added to others.
    """
    pages: dict[RunPart, dict[str, Any]] = {}
    for path in folder.iterdir():
        if match := _PAGE.fullmatch(path.name):
            part = RunPart(int(match[1]), int(match[2]))
            try:
                page = _unseal(path)
                if (page["part"], page["job"]) != (str(part), seal):
                    raise ValueError(path)
                for name, *numbers in page["spans"]:
                    if type(name) is not str or list(map(type, numbers)) != [int] * 3:
                        raise TypeError(path)
                _add(page.pop("reports"), {} if reports is None else reports)
            except FileNotFoundError:  # that part is run again
                continue
            except _DAMAGES as error:
                raise CheckpointError(
                    f"{path} is not a page that a part wrote, or was damaged; remove it and "
                    f"convert that part again ({argument('part', str(part))})"
                ) from error
            pages[part] = page
    return pages


def _add(states: list[tuple[str, str, Any]], reports: _Reports) -> None:
    """Add what a page says of its part of each tensor."""
    for file, name, state in states:
        if (report := report_of(state)) is not None:
            report_before = reports.get((file, name))
            reports[file, name] = report if report_before is None else report_before + report
