"""The ledger of a run: its job, and a page for each of its parts that is finished.

A part is a shard of a run that can be resumed, or a share of the bytes that a run of its own
converts. A finished one leaves a page: what it wrote, with checksums, and what was lost. A run that
resumes takes over the shards that have one; `finish` needs those of all shares. The page of the job
comes first, and of another job nothing is taken.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import stat
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from castwise._core import CastReport, finfo, restore_report
from castwise._numbers import is_integer
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.files.replacing import make_shared_folder, replacing_file, sync_folder
from castwise.checkpoint.files.source_files import read_file
from castwise.checkpoint.files.temporary_names import JOB, journal_name, parts_name
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.results.report import CastRow, DecodeReport, Report, WeightedReport
from castwise.checkpoint.running._job import ARGUMENTS, Job, checksum, differences, digest
from castwise.checkpoint.running.output_files import OutputFile
from castwise.text.wording import argument

_NONCE = "nonce"  # of the job's page; tells ledgers apart that had the same name one by one
# Each finished part leaves a page, and `finish` reads them all.
_MAX_PARTS = 100_000
# As `part-2-of-8.json`.
_PAGE = r"part-(\d{1,6})-of-(\d{1,6})\.json"
_MAX_PAGE_BYTES = 1 << 30  # a tensor takes some 500 bytes
# A seed of stochastic rounding is a whole number of 64 bits.
_SEEDS = 1 << 64

# What is raised of a page that is not as it was written.
DAMAGES = (AttributeError, TypeError, ValueError, LookupError, OverflowError, RecursionError)

# Bytes that a part wrote: the file, where they begin and end, and their checksum.
Span = tuple[str, int, int, int]

# What was lost, by file and tensor; None of tensors that are not cast.
Reports = Mapping[tuple[str, str], Report | None]


class RunPart(NamedTuple):
    """One of several parts of a run, counted from 1."""

    number: int
    total: int

    @classmethod
    def of(cls, value: Any) -> RunPart:  # noqa: ANN401  (as it is given)
        """Read a part: text such as "3/16", or the two numbers."""
        try:
            number, count = map(int, value.split("/")) if isinstance(value, str) else value
        except (TypeError, ValueError):
            number = count = None
        if not (is_integer(number) and is_integer(count)):
            raise ValueError(argument("part", value) + " is not a part such as '3/16'")
        if not 1 <= count <= _MAX_PARTS:
            bound = "least one part" if count < 1 else f"most {_MAX_PARTS:,} parts"
            raise ValueError(argument("part", value) + f": a conversion has at {bound}")
        if not 1 <= number <= count:
            raise ValueError(
                argument("part", value) + f": parts of {count} are 1/{count} to {count}/{count}"
            )
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


class Page(NamedTuple):
    """What a finished part leaves."""

    spans: Sequence[Span]
    reports: Reports


class Ledger:
    """A folder with the page of a job, and those of its finished parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def is_there(self) -> bool:
        return not self.folder.is_symlink() and (self.folder / JOB).exists()

    def make(self, job: Job, destination: Path) -> None:
        """Make it with its job, for several runs at the same time, unless it is there."""
        page_of_job = seal_page({**job, _NONCE: os.urandom(32).hex()})
        make_shared_folder(self.folder, destination, JOB, page_of_job)

    def read_job(self) -> tuple[str, Job]:
        """Return the seal of the page of the job, and the job; raises `DAMAGES`."""
        job = _unseal_page(self.folder / JOB)
        seal = _digest(job)
        job.pop(_NONCE, None)
        return seal, job

    def parts(self) -> list[RunPart]:
        matches = filter(None, (re.fullmatch(_PAGE, path.name) for path in self.folder.iterdir()))
        return sorted(RunPart(int(match[1]), int(match[2])) for match in matches)

    def path_of(self, part: RunPart) -> Path:
        return self.folder / f"part-{part.number}-of-{part.total}.json"

    def read(self, part: RunPart, seal: str) -> Page:
        """Read the page of a part of the job whose page has this seal; raises `DAMAGES`."""
        page = _unseal_page(self.path_of(part))
        if (page["part"], page["job"]) != (str(part), seal):
            raise ValueError(part)
        for name, *numbers in page["spans"]:
            if type(name) is not str or list(map(type, numbers)) != [int] * 3:
                raise TypeError(part)
            if not 0 <= numbers[0] <= numbers[1]:
                raise ValueError(part)
        reports = {(file, name): _report_of(state) for file, name, state in page["reports"]}
        return Page([(*span,) for span in page["spans"]], reports)

    def add(self, part: RunPart, seal: str, page: Page) -> None:
        """Note that all that a part wrote is on the disk."""
        states = [(*names, _state_of(report)) for names, report in page.reports.items()]
        content = {"part": str(part), "job": seal, "reports": states, "spans": page.spans}
        with replacing_file(self.path_of(part)) as file:
            file.write(seal_page(content))


def refuse_parts(destination: Path) -> None:
    """CheckpointError if parts of a destination are there, of which `finish` makes it."""
    if is_remote(destination):
        return
    if ((folder := parts_name(Path(os.path.realpath(destination)))) / JOB).exists():
        raise CheckpointError(
            f"{folder} holds parts of {destination}; complete them (castwise finish "
            f"{shlex.quote(str(destination))}), or remove that folder first"
        )


# The ledger stands beside the folder, and goes when the folder has become the destination: whatever
# stops the last step, a run can go on from there. The destination never has a page in it, and holds
# nothing but complete shards.
class ShardLedger:
    """The ledger of a run into a folder, of which each shard is a part, to resume from."""

    def __init__(
        self,
        folder: Path,  # the temporary folder, which this run holds
        destination: Path,  # what it becomes
        job: Job,  # all that decides the result
        files: Sequence[OutputFile],  # the shards
    ) -> None:
        self._folder = folder
        self._ledger = Ledger(journal_name(folder))
        self._parts = _parts_of(files)
        shards = _read_shards(folder, job, files)
        # The rows of the shards that are complete.
        self.rows = {
            name: rows for name, (rows, span) in shards.items() if _is_whole(folder / name, span)
        }
        remove_all_but(folder, folder, self.rows)
        self._ledger.make(job, destination)
        self._seal, _ = self._ledger.read_job()
        for name, part in self._parts.items():
            if name not in self.rows:
                self._ledger.path_of(part).unlink(missing_ok=True)

    @contextmanager
    def hold(self) -> Iterator[ShardLedger]:
        """Keep it from being removed where nothing can be locked: Windows removes no open file."""
        with (self._ledger.folder / JOB).open("rb"):
            yield self

    def add(self, shard: str, rows: Sequence[CastRow]) -> None:
        """Note that a shard is complete and on the disk."""
        path = self._folder / shard
        for parent in path.relative_to(self._folder).parents:
            sync_folder(self._folder / parent)
        span = shard, 0, path.stat().st_size, checksum(path)
        page = Page([span], {(shard, row.name): row.whole_report for row in rows})
        self._ledger.add(self._parts[shard], self._seal, page)


def count_shards(folder: Path) -> int:
    """Count the complete shards of a temporary folder, to resume from."""
    ledger = Ledger(journal_name(folder))
    with suppress(OSError):
        return len(ledger.parts()) if ledger.is_there else 0
    return 0


def resumed_options(folder: Path, options: CastOptions, *, is_drawn: bool) -> CastOptions:
    """Return the options with the seed of the run that is resumed, if theirs was just drawn."""
    with _naming_journal(folder):
        _, job = _read_ledger(folder)  # the folder may be the destination already
        seed = job["options"]["seed"] if job else None
        if seed is not None and not (type(seed) is int and 0 <= seed < _SEEDS):
            raise ValueError(seed)
    return replace(options, seed=seed) if is_drawn and seed is not None else options


def has_finished(folder: Path) -> bool:
    """Return True if a run may have named its folder, and been stopped before its ledger went."""
    return not os.path.lexists(folder) and Ledger(journal_name(folder)).is_there


def finished_rows(
    folder: Path,  # the temporary folder that became the destination
    destination: Path,
    job: Job,
    files: Sequence[OutputFile],
) -> list[CastRow] | None:
    """Return the rows of a run that was stopped after it had named its folder; None of another.

    The ledger goes last, and proves that the destination is the result if it has all its shards.
    """
    with _naming_journal(folder):
        seal, other_job = _read_ledger(folder)
    if {**other_job, ARGUMENTS: None} != {**job, ARGUMENTS: None}:
        return None
    path, shards = Path(os.path.realpath(destination)), _read_pages(folder, seal, files)
    names = [target.name for target in files]
    if not all(name in shards and _is_whole(path / name, shards[name][1]) for name in names):
        return None
    return [row for name in names for row in shards[name][0]]


def shards_by_size(folder: Path, job: Job, files: Sequence[OutputFile]) -> list[str]:
    """List the shards that a run can go on with, if they have the bytes that they had."""
    shards = _read_shards(folder, job, files)
    is_whole = partial(_is_whole, is_summed=False)
    return [name for name, (_, span) in shards.items() if is_whole(folder / name, span)]


def _parts_of(files: Sequence[OutputFile]) -> dict[str, RunPart]:
    return {target.name: RunPart(index, len(files)) for index, target in enumerate(files, 1)}


def _read_job(folder: Path) -> tuple[str, Job]:
    """Return the seal and the job of the ledger of a temporary folder; none if it has no ledger."""
    return _read_ledger(folder) if folder.is_dir() else ("", {})


def _read_ledger(folder: Path) -> tuple[str, Job]:
    """Return the same, also if the folder is not there any more."""
    journal = journal_name(folder)
    if not os.path.lexists(journal):
        return "", {}
    if journal.is_symlink():
        raise TypeError(journal)
    return Ledger(journal).read_job()


def _read_shards(
    folder: Path, job: Job, files: Sequence[OutputFile]
) -> dict[str, tuple[list[CastRow], Span]]:
    """Return rows and bytes of the shards that have a page, which must be of this job."""
    with _naming_journal(folder):
        seal, other_job = _read_job(folder)
    # Other arguments that come to the same, such as another name of a dtype, make no difference.
    if other_job and {**other_job, ARGUMENTS: None} != {**job, ARGUMENTS: None}:
        raise CheckpointError(
            f"{folder} keeps shards of another conversion: "
            + differences(other_job, job)
            + "; repeat that one, or leave out "
            + argument("resume")
            + " to begin anew"
        )
    return _read_pages(folder, seal, files) if other_job else {}


def _read_pages(
    folder: Path, seal: str, files: Sequence[OutputFile]
) -> dict[str, tuple[list[CastRow], Span]]:
    """Return rows and bytes of the shards that have a page, of the job with this seal."""
    ledger, parts = Ledger(journal_name(folder)), _parts_of(files)
    finished_parts = set(ledger.parts())
    shards: dict[str, tuple[list[CastRow], Span]] = {}
    with _naming_journal(folder):
        for target in files:
            if (part := parts[target.name]) not in finished_parts:
                continue
            with suppress(json.JSONDecodeError):  # a page that was cut off
                page = ledger.read(part, seal)
                (span,) = page.spans
                names = {(target.name, plan.info.name) for plan in target.plans}
                if span[:2] != (target.name, 0) or page.reports.keys() != names:
                    raise ValueError(part)
                for plan in target.plans:
                    _check_count(plan, page.reports[target.name, plan.info.name])
                shards[target.name] = rows_of(target, page.reports), span
    return shards


@contextmanager
def _naming_journal(folder: Path) -> Iterator[None]:
    """Say of errors in the block that they come from what the ledger of a folder has."""
    try:
        yield
    except (*DAMAGES, FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{journal_name(folder)} is not a journal that a resumable cast wrote, or was damaged; "
            "leave out " + argument("resume") + " to begin anew"
        ) from error


def _check_count(plan: Planned, report: Report | None) -> None:
    """ValueError if a report is not of all elements of its tensor."""
    if plan.target is not None and not plan.is_derived and isinstance(report, CastReport):
        parts = 1 + (finfo(plan.target).kind == "complex")
        if report.count != parts * math.prod(plan.info.shape):
            raise ValueError(f"{plan.info.name}: the report is of {report.count} elements")


def rows_of(target: OutputFile, reports: Reports) -> list[CastRow]:
    """Return the rows of a file, given what was lost of its tensors."""
    # A tensor without elements is in no part.
    empty = {plan.info.name: CastReport() if plan.is_cast else None for plan in target.plans}
    return [
        row.with_report(reports.get((target.name, row.name), empty[row.name]))
        for row in target.preview(target.name)
    ]


def is_plain(path: Path) -> bool:
    """Return True for a regular file to which no link leads."""
    return os.path.realpath(path) == str(path) and path.is_file()


def _is_whole(path: Path, span: Span, *, is_summed: bool = True) -> bool:
    """Return True if a shard is as it was written; of one that is not summed, as to its size."""
    _, begin, end, value = span
    has_size = is_plain(path) and path.stat().st_size == end
    return has_size and (not is_summed or checksum(path, begin) == value)


def remove_all_but(folder: Path, root: Path, names: Container[str]) -> None:
    """Remove all in a folder but regular files whose paths from the root are among the names."""
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            remove_all_but(path, root, names)
            with suppress(OSError):  # it has files that stay
                path.rmdir()
        elif not stat.S_ISREG(mode) or path.relative_to(root).as_posix() not in names:
            path.unlink()


def _digest(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())


def seal_page(content: Mapping[str, Any]) -> bytes:
    """Return a page of JSON that tells whether it was damaged."""
    plain = json.loads(json.dumps(content))
    return json.dumps({"seal": _digest(plain), **plain}).encode()


def _unseal_page(path: Path) -> dict[str, Any]:
    """Return what is on such a page; raises `DAMAGES`."""
    content: dict[str, Any] = json.loads(read_file(path, _MAX_PAGE_BYTES))
    if content.pop("seal") != _digest(content):
        raise ValueError(path)
    return content


def _state_of(report: Report | None) -> object:
    """Return a report as plain values that JSON can say, its sums to the last bit."""
    # A magnitude that is infinite is None.
    if report is None or isinstance(report, DecodeReport):
        return None if report is None else report.to_dict()
    if isinstance(report, WeightedReport):
        return {"values": _state_of(report.values), "weighted": _state_of(report.weighted)}
    counts, magnitudes, *sums = report.__reduce__()[1]
    return [counts, [None if math.isinf(value) else value for value in magnitudes], *sums]


def _report_of(state: Any) -> Report | None:  # noqa: ANN401  (of JSON)
    """Restore a report from what JSON made of its state."""
    if state is None:
        return None
    if isinstance(state, dict) and state.keys() == {"values", "weighted"}:
        return WeightedReport(*(_cast_report_of(state[key]) for key in ("values", "weighted")))
    if isinstance(state, dict):
        if not all(type(count) is int and count >= 0 for count in state.values()):
            raise TypeError(state)
        report = DecodeReport(**state)
        if max(state.values(), default=0) > report.count:
            raise ValueError(f"{report} counts more than its elements")
        return report
    return _cast_report_of(state)


def _cast_report_of(state: Any) -> CastReport:  # noqa: ANN401  (of JSON)
    counts, magnitudes, signal, noise = state
    magnitudes = [math.inf if value is None else value for value in magnitudes]
    return restore_report(counts, magnitudes, tuple(signal), tuple(noise))
