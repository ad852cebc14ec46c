"""Convert a checkpoint in parts, each in a run of its own, and put these together at the end.

All runs see the same files. Each plans the whole from the headers. The first one makes the ledger,
before it writes a byte of the result, and no run of another job writes beside it. A part writes its
bytes into files that all write into, and then its page. Whatever stops it, it is run again.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.files.replacing import replacing_file, sync_file
from castwise.checkpoint.files.source_files import open_file, read_file
from castwise.checkpoint.files.temporary_names import JOB, TemporaryName, hold_lock, parts_name
from castwise.checkpoint.results.report import CastRow, Progress, ProgressMeter, Report, add_report
from castwise.checkpoint.running._batches import Batch, TensorRange, cut_batches, cut_ranges
from castwise.checkpoint.running._conversion import Conversion
from castwise.checkpoint.running._executors import BatchTask, convert_batches
from castwise.checkpoint.running._job import ARGUMENTS, OTHER_FILES, Job, checksum, differences
from castwise.checkpoint.running.ledger import (
    DAMAGES,
    Ledger,
    Page,
    RunPart,
    Span,
    is_plain,
    rows_of,
)
from castwise.checkpoint.running.output_files import OutputFile
from castwise.checkpoint.running.to_file import ToFile
from castwise.checkpoint.running.to_folder import ToFolder
from castwise.text.wording import argument, parenthesis

# The conversions of each file, with all that belongs to them.
Work = list[tuple[OutputFile, Conversion, list[TensorRange]]]


class Outline(NamedTuple):
    """What is known of a file before it is converted."""

    target: OutputFile
    # The header, and what lies between tensors and after the last, by where it begins.
    rest: list[tuple[int, bytes]]
    # The bytes of all.
    size: int
    # Where tensors lie, those in a row as one span.
    spans: list[tuple[int, int]]


def outlines(work: Work) -> Iterator[Outline]:
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


_FILES = "files"  # the folder that all parts write into
_PLACED = "placed"  # names the file or folder that is to become, or has become, the destination
# Bytes that a part reads and writes before it looks again whether another run has begun anew.
_PIECE_BYTES = 64 << 20
_MAX_IDENTITY_BYTES = 1 << 20  # far more than a number of a file has
_MOST_READERS = 8  # threads that compute checksums


class _PartsLedger(Ledger):
    """The ledger of the parts for a destination, beside it, with the files that they write."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self._path = Path(os.path.realpath(destination))
        super().__init__(parts_name(self._path))
        self.files = self.folder / _FILES

    def check(self, job: Job, seal: str | None = None) -> str:
        """Return the seal of its job, which must be this one, with this seal if it is not None."""
        other_seal, other_job = "", Job()
        with suppress(FileNotFoundError):
            other_seal, other_job = self.checked_job()
        if other_job and (differing := differences(other_job, job)):
            raise CheckpointError(
                f"{self.folder} holds parts of another conversion: " + differing + "; repeat that "
                "one, or, when none of its parts is running, remove the folder"
            )
        if not other_job or seal not in {None, other_seal}:
            raise CheckpointError(
                f"{self.folder} was removed, became the destination, or has no {JOB}; remove it if "
                "it is there, and run again if the destination is not complete"
            )
        return other_seal

    def checked_job(self) -> tuple[str, Job]:
        """Return the seal and the job, which has all that `finish` needs of it."""
        try:
            seal, job = self.read_job()
            "".join((job[ARGUMENTS]["command"], job[ARGUMENTS]["source"]))  # both are texts
            RunPart.of((1, job["parts"]))
        except DAMAGES as error:
            raise CheckpointError(
                f"{self.folder / JOB} is not what the first part wrote, or was damaged; remove "
                f"{self.folder}, and convert all parts again"
            ) from error
        return seal, job

    def pages(self, seal: str) -> dict[RunPart, Page]:
        pages: dict[RunPart, Page] = {}
        for part in self.parts():
            try:
                pages[part] = self.read(part, seal)
            except FileNotFoundError:  # that part is run again
                continue
            except DAMAGES as error:
                raise CheckpointError(
                    f"{self.path_of(part)} is not a page that a part wrote, or was damaged; remove "
                    "it and convert that part again " + parenthesis("part", str(part))
                ) from error
        return pages

    @contextmanager
    def hold(self, job: Job, *, is_shared: bool = True) -> Iterator[str]:
        """Hold it, which is there for this job, during a block; yields the job's seal."""
        self.check(job)
        with self.lock(is_shared=is_shared):
            yield self.check(job)  # it may have been put together meanwhile

    @contextmanager
    def lock(self, *, is_shared: bool = False) -> Iterator[None]:
        """Let no part be converted meanwhile; if `is_shared`, let parts not be put together."""
        try:
            with hold_lock(self.folder / JOB, is_shared=is_shared):
                yield
        except BlockingIOError as error:
            reason = (
                f"the parts of {self.destination} are being put together"
                if is_shared
                else f"a part of {self.destination} is being converted, or they are put together"
            )
            raise CheckpointError(f"{reason}; wait for the end of that") from error

    def span(self, path: Path, begin: int, end: int) -> Span:
        """Return bytes of a file with their checksum."""
        return path.relative_to(self.files).as_posix(), begin, end, checksum(path, begin, end)

    def remove(self) -> None:
        """Remove it: in one step for all who look for it."""
        with TemporaryName(self._path) as temporary:
            self.folder.rename(temporary)


def convert_part(
    run: ToFile | ToFolder,
    destination: Path,
    part: RunPart,
    *,
    progress: Callable[[Progress], None] | None,
) -> list[CastRow]:
    """Carry out a part of a conversion; the rows tell of the elements in it."""
    ledger, job, work = _PartsLedger(destination), _job_of(run, part.total), _work_of(run)
    ranges_of_part = _part_of(work, part)
    nbytes = sum(span.source_nbytes for ranges in ranges_of_part for span in ranges)
    meter = ProgressMeter(nbytes, progress)
    rows: list[CastRow] = []
    reports: dict[tuple[str, str], Report | None] = {}
    if not ledger.folder.exists():
        run.room()
    ledger.make(job, destination)
    with ledger.hold(job) as seal, ThreadPoolExecutor(1) as executor:
        _begin_files(ledger, work, part, ledger.pages(seal))
        spans: list[Future[Span]] = []

        def check() -> None:
            ledger.check(job, seal)

        def note(batch: Batch) -> None:
            for begin, end in join_spans(span.target_span for span in batch.ranges):
                spans.append(executor.submit(ledger.span, batch.target, begin, end))

        for (target, conversion, _), ranges in zip(work, ranges_of_part, strict=True):
            path = ledger.files / target.name
            batches = (conversion.batch(one, path) for one in cut_batches(ranges, _PIECE_BYTES))
            try:
                new_reports = convert_batches(conversion, _tasks(batches, check, note), meter)
            except (OSError, ValueError):
                check()  # that it is gone explains more
                raise
            for span in ranges:
                report = reports[target.name, span.name] = new_reports[span.name]
                row = conversion.row(span.name, report, target.name)
                rows.append(
                    row._replace(nbytes_before=span.source_nbytes, nbytes_after=span.target_nbytes)
                )
        page = Page([future.result() for future in spans], reports)
        check()
        ledger.add(part, seal, page)
        meter.starts(None)
    return rows


def _begin_files(
    ledger: _PartsLedger, work: Work, part: RunPart, pages: Mapping[RunPart, Page]
) -> None:
    """Give each file all but its tensors; the page of a part goes that has to write again."""
    for path in (ledger.path_of(part), ledger.folder / _PLACED):
        path.unlink(missing_ok=True)
    for outline in outlines(work):
        if not begin_file(outline, ledger.files):
            continue
        for other, page in pages.items():  # the file was lost or cut
            if any(span[0] == outline.target.name for span in page.spans):
                ledger.path_of(other).unlink(missing_ok=True)


def _tasks(
    batches: Iterable[Batch], check: Callable[[], None], note: Callable[[Batch], None]
) -> Iterator[BatchTask]:
    """Return the tasks that convert batches in this process; each is noted when it is done."""
    for batch in batches:
        check()  # somebody may have begun anew
        yield BatchTask(batch, None)
        note(batch)


class RunParts:
    """The parts for a destination, all of them complete."""

    def __init__(self, destination: Path) -> None:
        if is_remote(destination):
            raise CheckpointError(
                f"{destination} has no parts: they " + parenthesis("part") + " are for files of "
                "this machine"
            )
        self._ledger = ledger = _PartsLedger(destination)
        if not ledger.is_there:
            raise CheckpointError(
                f"there are no parts of {destination}; castwise cast, quantize, dequantize and "
                "transcode make them with --part 1/N to N/N"
            )
        page = ledger.folder / _PLACED
        identity = read_file(page, _MAX_IDENTITY_BYTES) if page.exists() else b""
        if destination.exists() and identity == _identity(destination):
            with ledger.lock():
                ledger.remove()
            raise CheckpointError(
                f"{destination} is complete: a run before this one was stopped only when its parts "
                "were to be removed, which they are now"
            )
        seal, self._job = ledger.checked_job()
        self._pages, count = ledger.pages(seal), self._job["parts"]
        parts = [RunPart(number, count) for number in range(1, count + 1)]
        if missing := [str(part) for part in parts if part not in self._pages]:
            names = "all" if len(missing) == count else join_names(missing)
            raise CheckpointError(
                f"{ledger.folder}: parts are not complete: "
                + names
                + "; make them "
                + parenthesis("part")
                + " first"
            )
        self.arguments: dict[str, Any] = self._job[ARGUMENTS]

    def assemble(self, run: ToFile | ToFolder) -> list[CastRow]:
        """Make the destination of them, and remove them."""
        ledger = self._ledger
        # Of the arguments the caller may have changed whether the destination may be replaced.
        job = {**_job_of(run, self._job["parts"]), ARGUMENTS: self.arguments}
        with ledger.hold(job, is_shared=False):
            self._check_files(run)
            reports = self._sum_reports()
            rows = run.assemble(ledger.files, lambda target: rows_of(target, reports))
            with replacing_file(ledger.folder / _PLACED) as file:
                file.write(_identity(run.product(ledger.files)))
            run.place(ledger.files)
            ledger.remove()
        return rows

    def _sum_reports(self) -> dict[tuple[str, str], Report | None]:
        """Return what was lost of whole tensors, of which several parts may have converted some."""
        reports: dict[tuple[str, str], Report | None] = {}
        for page in self._pages.values():
            for names, report in page.reports.items():
                reports[names] = add_report(reports.get(names), report)
        return reports

    def _check_files(self, run: ToFile | ToFolder) -> None:
        """CheckpointError unless all files are as the parts wrote them."""
        files = self._ledger.files
        spans = sorted((*span, part) for part, page in self._pages.items() for span in page.spans)
        for outline in outlines(_work_of(run)):
            path, name = files / outline.target.name, outline.target.name
            spans_of_file = [span for span in spans if span[0] == name]
            writers = {part for *_, part in spans_of_file}
            fault = fault_of(path, outline)
            if join_spans(span[1:3] for span in spans_of_file) != outline.spans:
                fault, writers = "has bytes that no part wrote", set(self._pages)
            if fault is not None:
                raise _convert_again(f"{path} {fault}", writers)
        with ThreadPoolExecutor(min(_MOST_READERS, os.cpu_count() or 1)) as executor:
            sums = executor.map(lambda span: checksum(files / span[0], *span[1:3]), spans)
            for (name, begin, end, value, part), checksum_of_file in zip(spans, sums, strict=True):
                if value != checksum_of_file:
                    fault = f"{files / name} has other bytes from {begin} to {end}"
                    raise _convert_again(fault, [part])


def _job_of(run: ToFile | ToFolder, count: int) -> Job:
    return {**run.job, OTHER_FILES: run.other_states(), "parts": count}


def _identity(path: Path) -> bytes:
    """Name the folder or file at a path, whatever its path is, on all machines."""
    return str(path.stat().st_ino).encode()


def _work_of(run: ToFile | ToFolder) -> Work:
    work: Work = []
    for target in run.files:
        conversions = target.conversions()
        if conversions is None:
            raise CheckpointError(
                f"{target.name} cannot be converted in parts: not all of its tensors stand as "
                "plain elements in the source and in it, as in .safetensors and .npy; leave out "
                + argument("part")
            )
        work += ((target, conversion, conversion.ranges()) for conversion in conversions)
    return work


def _part_of(work: Work, part: RunPart) -> list[list[TensorRange]]:
    sizes = [sum(span.nbytes for span in ranges) for *_, ranges in work]
    # Parts have about the same bytes, whatever tensors these belong to.
    ends = [sum(sizes) * number // part.total for number in (part.number - 1, part.number)]
    ranges_of_part: list[list[TensorRange]] = []
    offset = 0
    for (*_, ranges), nbytes in zip(work, sizes, strict=True):
        cuts = [min(max(end - offset, 0), nbytes) for end in ends]
        ranges_of_part.append(list(cut_ranges(ranges, cuts))[1])
        offset += nbytes
    return ranges_of_part


def _convert_again(fault: str, parts: Iterable[RunPart]) -> CheckpointError:
    names = join_names([argument("part", str(part)) for part in sorted(parts)]) or "any part"
    return CheckpointError(f"{fault}; convert again: " + names + "; then castwise finish")
