"""Records: one CSV per run, committed under record/, and the comparison of two of them.

A file has one line per case, call and peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import castwise
import files
from cases import Case
from peers import Peer


@dataclass(frozen=True)
class Row:
    """One peer in one case.

    `ratio` is its time over castwise's, so above 1 castwise is faster; `wrong` counts elements
    whose bits differ from the right answer, None where nothing was judged.
    """

    source: str
    target: str
    size: int
    layout: str
    call: str
    peer: str
    ns: float = field(metadata={"digits": 5})
    gb_per_s: float = field(metadata={"digits": 4})
    ratio: float = field(metadata={"digits": 4})
    wrong: int | None

    @property
    def key(self) -> tuple[Case, str]:
        """What was measured, whoever did it."""
        return Case(self.source, self.target, self.size, self.layout), self.call


@dataclass(frozen=True)
class Record:
    """A run: its environment and its rows."""

    environment: dict[str, str]
    rows: list[Row]

    def by_peer(self) -> dict[tuple[Case, str], dict[str, Row]]:
        """Rows grouped by what was measured, in order of measuring, then by peer."""
        groups: dict[tuple[Case, str], dict[str, Row]] = {}
        for row in self.rows:
            groups.setdefault(row.key, {})[row.peer] = row
        return groups


def versions(peers: Sequence[Peer]) -> dict[str, str]:
    """Of these peers."""
    found: dict[str, str] = {}
    for peer in peers:
        found |= peer.versions()
    return found


def environment(peers: Sequence[Peer], threads: int) -> dict[str, str]:
    """Machine, level and versions."""
    return files.environment(versions(peers), level=castwise.cpu_level(), threads=str(threads))


def default_path(environment: dict[str, str]) -> Path:
    """One file per level and number of threads, or a second run would replace the first."""
    threads = environment["threads"]
    suffix = "" if threads == "1" else f"-{threads}-threads"
    return files.default_path(environment, environment["level"] + suffix)


def write(record: Record, path: Path) -> None:
    """Write the record, creating its folder."""
    files.write(path, record.environment, record.rows)


def read(path: Path) -> Record:
    """Read a record back; ValueError names the file if it is not one."""
    return Record(*files.read(path, Row))


def compared(old: Record, new: Record) -> int:
    """Count the calls that both records have; ValueError if they are not of one kind."""
    for fact in ("cpu", "level", "threads"):
        was, now = (each.environment.get(fact) for each in (old, new))
        if was != now:
            raise ValueError(
                f"records of {fact} {was!r} and {now!r} do not compare; choose another."
            )
    return len(old.by_peer().keys() & new.by_peer().keys())


def slower(old: Record, new: Record, tolerance: float) -> Iterable[str]:
    """Lines naming what castwise does slower than in an old record.

    Time must have grown both absolutely and against the memcpy of its own run, so that neither a
    slower day of the machine nor a lucky memcpy raises an alarm.
    """
    before = old.by_peer()
    for key, now in new.by_peer().items():
        was = before.get(key)
        if was is None or not {"castwise", "memcpy"} <= was.keys() & now.keys():
            continue
        growth = now["castwise"].ns / was["castwise"].ns
        relative = now["memcpy"].ratio / was["memcpy"].ratio
        if min(growth, 1 / relative) > 1 + tolerance:
            case, call = key
            yield (
                f"{case.pair} {case.size} {case.layout} {call}: {was['castwise'].ns:,.0f} -> "
                f"{now['castwise'].ns:,.0f} ns ({growth:.2f}x; against memcpy {1 / relative:.2f}x)"
            )
