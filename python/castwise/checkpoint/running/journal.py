"""The journal of a resumable conversion: which shards are complete in the temporary folder.

It stands beside that folder, and goes when the folder has become the destination: whatever stops
the last step, a run can go on from there, and the destination never has a journal in it.

Its first line tells what is being made of what; each other line is a shard that is on the disk,
with its size, its checksum and the reports of its tensors. A run that resumes takes over the shards
that are as their lines say, so that it ends with the same bytes and the same report.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from castwise._core import CastReport, finfo, restore_report
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.files.replacing import replacing_file, sync_folder
from castwise.checkpoint.files.source_files import read_file
from castwise.checkpoint.files.temporary_names import journal_name
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.results.report import CastRow, DecodeReport, Report
from castwise.checkpoint.running._job import ARGUMENTS, checksum, differences
from castwise.text.wording import argument

_SEEDS = 1 << 64
_MAX_BYTES = 1 << 30  # of a journal; a tensor takes some 500 bytes


@dataclass(frozen=True, slots=True)
class _Shard:
    """A line about a complete shard."""

    shard: str
    size: int
    checksum: int
    rows: list[dict[str, Any]]


def kept_shards(folder: Path) -> int:
    """Count the complete shards of a temporary folder, to resume from."""
    journal = journal_name(folder)
    try:
        if journal.is_symlink():
            return 0
        return max(read_file(journal, _MAX_BYTES).count(b"\n") - 1, 0)
    except (OSError, CheckpointError):
        return 0


def resumed_options(folder: Path, options: CastOptions, *, is_drawn: bool) -> CastOptions:
    """Return the options with the seed of the run that is resumed, if theirs was just drawn."""
    job, _ = _read(folder)
    seed = job.get("options", {}).get("seed")
    return replace(options, seed=seed) if is_drawn and seed is not None else options


class Journal:
    """The journal of one run; the folder then holds nothing but the complete shards.

    `job` is what `job_of` returns, `plans_of_shards` what becomes of the tensors of each new
    shard, by its path.
    """

    def __init__(
        self,
        folder: Path,
        job: Mapping[str, Any],
        plans_of_shards: Mapping[str, Sequence[Planned]],
    ) -> None:
        self._folder = folder
        journal = journal_name(folder)
        rows_of_shards = _read_rows(folder, job, plans_of_shards)
        remove_all_but(folder, folder, rows_of_shards)
        complete = {
            shard: entry for shard, entry in rows_of_shards.items() if self._is_complete(entry[0])
        }
        self._shards = {shard: line for shard, (line, _) in complete.items()}
        self._rows = {shard: rows for shard, (_, rows) in complete.items()}
        remove_all_but(folder, folder, self._shards)
        # In one step: a run that is killed here leaves a journal of what is complete.
        with replacing_file(journal) as file:
            for line in (job, *map(asdict, self._shards.values())):
                file.write(_line(line).encode())
        self._file = journal.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    @property
    def shards(self) -> Container[str]:
        """The shards that are complete."""
        return self._shards.keys()

    def rows_of(self, shard: str) -> list[CastRow] | None:
        """Return the rows of a shard that is complete; None if it is not."""
        return self._rows.get(shard)

    def add(self, shard: str, rows: Sequence[CastRow]) -> None:
        """Note that a shard is complete and on the disk."""
        path = self._folder / shard
        states = [
            {"name": row.name, "nbytes": row.nbytes_after, "report": state_of(row.report)}
            for row in rows
        ]
        for parent in path.relative_to(self._folder).parents:
            sync_folder(self._folder / parent)
        self._write(asdict(_Shard(shard, path.stat().st_size, checksum(path), states)))

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(_line(line))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _is_complete(self, line: _Shard) -> bool:
        path = self._folder / line.shard
        return (
            path.is_file() and path.stat().st_size == line.size and checksum(path) == line.checksum
        )


def _line(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"


def kept_by_size(
    folder: Path, job: Mapping[str, Any], plans_of_shards: Mapping[str, Sequence[Planned]]
) -> list[str]:
    """List the shards that a run can go on with, if they have the bytes that they had.

    CheckpointError: the folder keeps those of another conversion, or its journal is damaged.
    """
    rows_of_shards = _read_rows(folder, job, plans_of_shards)
    return [
        shard for shard, (line, _) in rows_of_shards.items() if _size(folder / shard) == line.size
    ]


def _read_rows(
    folder: Path, job: Mapping[str, Any], plans_of_shards: Mapping[str, Sequence[Planned]]
) -> dict[str, tuple[_Shard, list[CastRow]]]:
    """Return the shards in a journal, which must be that of this job, with their rows."""
    other_job, lines = _read(folder)
    # Other arguments that come to the same, such as another name of a dtype, make no difference.
    if other_job and {**other_job, ARGUMENTS: None} != {**job, ARGUMENTS: None}:
        raise CheckpointError(
            f"{folder} keeps shards of another conversion: {differences(other_job, job)}; repeat "
            f"that one, or leave out {argument('resume')} to begin anew"
        )
    with _damage(journal_name(folder)):
        return {
            line.shard: (line, _rows(line, plans_of_shards[line.shard]))
            for line in lines
            if line.shard in plans_of_shards
        }


def _read(folder: Path) -> tuple[dict[str, Any], list[_Shard]]:
    """Return the job and the shards of a journal, up to a line that was cut off.

    CheckpointError: it is not what a run writes.
    """
    journal = journal_name(folder)
    if not folder.is_dir() or not os.path.lexists(journal):
        return {}, []
    with _damage(journal):
        if journal.is_symlink():
            raise TypeError(journal)
        lines: list[Any] = []
        for line in read_file(journal, _MAX_BYTES).decode().splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:  # a line that was cut off
                break
        if not lines:
            return {}, []
        job, shards = lines[0], [_Shard(**line) for line in lines[1:]]
        seed = job["options"]["seed"]
        if seed is not None and not (type(seed) is int and 0 <= seed < _SEEDS):
            raise ValueError(seed)
        for shard in shards:
            if not (isinstance(shard.shard, str) and isinstance(shard.rows, list)):
                raise TypeError(shard)
    return job, shards


@contextmanager
def _damage(journal: Path) -> Iterator[None]:
    """Say of errors in the block that they come from what is in the journal."""
    try:
        yield
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{journal} is not a journal that a resumable cast wrote, or was damaged; leave out "
            f"{argument('resume')} to begin anew"
        ) from error


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def remove_all_but(folder: Path, root: Path, names_to_keep: Container[str]) -> None:
    """Remove all in a folder but regular files whose paths from the root are kept."""
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            remove_all_but(path, root, names_to_keep)
            with suppress(OSError):  # it has files that are kept
                path.rmdir()
        elif not stat.S_ISREG(mode) or path.relative_to(root).as_posix() not in names_to_keep:
            path.unlink()


def state_of(report: Report | None) -> object:
    """Return a report as plain values that JSON can say, its sums to the last bit.

    A magnitude that is infinite is None.
    """
    if report is None or isinstance(report, DecodeReport):
        return None if report is None else report.to_dict()
    counts, magnitudes, *sums = report.__reduce__()[1]
    return [counts, [None if math.isinf(value) else value for value in magnitudes], *sums]


def report_of(state: Any) -> Report | None:  # noqa: ANN401  (of JSON)
    """Restore a report from what JSON made of its state."""
    if state is None:
        return None
    if isinstance(state, dict):
        if not all(type(count) is int and count >= 0 for count in state.values()):
            raise TypeError(state)
        report = DecodeReport(**state)
        if max(state.values(), default=0) > report.count:
            raise ValueError(f"{report} counts more than its elements")
        return report
    counts, magnitudes, signal, noise = state
    magnitudes = [math.inf if value is None else value for value in magnitudes]
    return restore_report(counts, magnitudes, tuple(signal), tuple(noise))


def _rows(line: _Shard, plans: Sequence[Planned]) -> list[CastRow]:
    """Restore the rows of a shard; an error if they are not those of its tensors."""
    plans_by_name = {plan.info.name: plan for plan in plans}
    rows = [_row(state, plans_by_name.pop(state["name"]), line.shard) for state in line.rows]
    if plans_by_name:
        raise KeyError(*plans_by_name)
    return rows


def _row(state: dict[str, Any], plan: Planned, shard: str) -> CastRow:
    nbytes, report = state["nbytes"], report_of(state["report"])
    if type(nbytes) is not int or nbytes < 0:
        raise TypeError(state)
    if plan.target is not None and not plan.is_derived and isinstance(report, CastReport):
        parts = 1 + (finfo(plan.target).kind == "complex")
        if report.count != parts * math.prod(plan.info.shape):
            raise ValueError(f"{plan.info.name}: the report is of {report.count} elements")
    return CastRow.of(plan, nbytes, report, shard)
