"""What all benchmarks share: where their numbers come from, their CSV files, tables in a README.

A file opens with `# name: value` lines that say where the numbers come from, then has one line per
row. A row is a dataclass of str, int, float, bool and those or None; a float's field may say in its
metadata how many "digits" are written.
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

FOLDER = Path(__file__).with_name("record")

Row = TypeVar("Row")


def environment(versions: Mapping[str, str], **facts: str) -> dict[str, str]:
    """Machine, other facts, and versions: without them a number says nothing."""
    versions = {"python": platform.python_version(), **versions}
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        **facts,
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


def default_path(environment: Mapping[str, str], kind: str) -> Path:
    """record/DATE-CPU-KIND.csv."""
    name = f"{environment['date']}-{environment['cpu']}-{kind}"
    return FOLDER / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".csv")


def write(path: Path, environment: Mapping[str, str], rows: Iterable[Any]) -> None:
    """Write a record, creating its folder."""
    rows = list(rows)
    for _ in written(path, environment, type(rows[0]), rows):
        pass


def written(
    path: Path, environment: Mapping[str, str], cls: type[Any], rows: Iterable[Row]
) -> Iterator[Row]:
    """Write a record, creating its folder; yield each row when the file has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = fields(cls)
    with path.open("w", newline="") as file:
        file.writelines(f"# {name}: {value}\n" for name, value in environment.items())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(column.name for column in columns)
        for row in rows:
            writer.writerow(
                _text(getattr(row, column.name), column.metadata.get("digits"))
                for column in columns
            )
            file.flush()
            yield row


def read(path: Path, cls: type[Row]) -> tuple[dict[str, str], list[Row]]:
    """Read a record back; ValueError names the file if it is none of such rows."""
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("# ")]
    reader = csv.DictReader(lines[len(comments) :])
    hints = get_type_hints(cls)
    if reader.fieldnames != list(hints):
        raise ValueError(f"{path}: not such a record; columns are {reader.fieldnames}")
    facts = dict(line[2:].split(": ", 1) for line in comments)
    return facts, [
        cls(**{name: _value(values[name], hint) for name, hint in hints.items()})
        for values in reader
    ]


def replace_in(path: Path, name: str, table: str) -> None:
    """Put a table between the two markers of this name in a file; ValueError if it lacks them."""
    begin, end = (f"<!-- {name}:{word} -->" for word in ("begin", "end"))
    text = path.read_text()
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{path} has no {begin} ... {end}")
    path.write_text(f"{before}{begin}\n{table}\n{end}{after}")


def _text(value: Any, digits: int | None) -> str:
    return "" if value is None else f"{value:.{digits}g}" if digits else str(value)


def _value(text: str, hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if get_args(hint) and not text:
        return None
    return text == "True" if kinds == [bool] else kinds[0](text)
