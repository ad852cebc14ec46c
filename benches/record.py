"""Records: one CSV per run, committed under record/, and the comparison of two of them.

The file opens with `# name: value` lines that say where the numbers come from, then has one line
per case, call and peer.
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import castwise
from cases import Case
from peers import PEERS

FOLDER = Path(__file__).with_name("record")


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
    ns: float
    gb_per_s: float
    ratio: float
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


def environment(threads: int) -> dict[str, str]:
    """Machine, level and versions: without them a number says nothing."""
    versions = {"python": platform.python_version()}
    for peer in PEERS:
        versions |= peer.versions()
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "level": castwise.cpu_level(),
        "threads": str(threads),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }


def cpu() -> str:
    """Name the processor, with family and model since virtual machines shorten the name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", text, re.MULTILINE))
    if "model name" not in found:
        return platform.machine()
    return f"{found['model name']} (family {found['cpu family']}, model {found['model']})"


def default_path(environment: dict[str, str]) -> Path:
    """record/DATE-CPU-LEVEL.csv; one file per level, or a second run would replace the first."""
    name = f"{environment['date']}-{environment['cpu']}-{environment['level']}"
    return FOLDER / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".csv")


def write(record: Record, path: Path) -> None:
    """Write the record, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        file.writelines(f"# {name}: {value}\n" for name, value in record.environment.items())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        for row in record.rows:
            values = asdict(row) | {"ns": f"{row.ns:.5g}", "gb_per_s": f"{row.gb_per_s:.4g}"}
            writer.writerow((values | {"ratio": f"{row.ratio:.4g}"}).values())


def read(path: Path) -> Record:
    """Read a record back; ValueError names the file if it is not one."""
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("# ")]
    environment = dict(line[2:].split(": ", 1) for line in comments)
    reader = csv.DictReader(lines[len(comments) :])
    if reader.fieldnames != [field.name for field in fields(Row)]:
        raise ValueError(f"{path}: not a benchmark record; columns are {reader.fieldnames}")
    return Record(environment, [parse(row) for row in reader])


def parse(row: dict[str, str]) -> Row:
    """One line of the file."""
    return Row(
        source=row["source"],
        target=row["target"],
        size=int(row["size"]),
        layout=row["layout"],
        call=row["call"],
        peer=row["peer"],
        ns=float(row["ns"]),
        gb_per_s=float(row["gb_per_s"]),
        ratio=float(row["ratio"]),
        wrong=int(row["wrong"]) if row["wrong"] else None,
    )


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
