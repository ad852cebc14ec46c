"""The command line of a benchmark: measure or load, record, and put tables into a README."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import files

Facts = dict[str, str]


def parser(doc: str) -> argparse.ArgumentParser:
    """Take the options of every benchmark; the first line of its docstring describes it."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    add = made.add_argument
    add("--threads", type=int, default=1, help="threads (default 1)")
    add("--repeats", type=int, default=9, help="turns per case (default 9)")
    add("--quick", action="store_true", help="small arrays: does it work at all")
    add("--csv", type=Path, nargs="?", const=Path(), help="record to FILE (default record/...)")
    add("--from", type=Path, dest="source", metavar="CSV", help="show a record, measure nothing")
    add("--readme", type=Path, metavar="FILE", help="put the table into FILE, at its markers")
    return made


def record_path(options: argparse.Namespace, facts: Facts) -> Path:
    """The file that `--csv` names."""
    several = "" if facts["threads"] == "1" else f"-{facts['threads']}-threads"
    kind = f"{facts['level']}-{Path(sys.argv[0]).stem}{several}"
    path: Path = files.default_path(facts, kind) if options.csv == Path() else options.csv
    return path


def resume(
    options: argparse.Namespace, facts: Facts, row: type[files.Row]
) -> tuple[Facts, list[files.Row]]:
    """Return the facts, with the date of the record that goes on, and the rows that it has.

    ValueError: The record is of another machine, or of other versions.
    """
    if not options.csv or not (path := record_path(options, facts)).exists():
        return facts, []
    earlier, recorded = files.read(path, row)
    if (facts := facts | {"date": earlier["date"]}) != earlier:
        raise ValueError(f"{path} is of another machine or other versions; name another file")
    return facts, recorded


def print_rows(rows: Iterable[Any], line: Callable[[Any], str]) -> list[Any]:
    """Print a line for each row when it is measured; returns the rows."""
    measured = []
    for row in rows:
        print(line(row), flush=True)
        measured.append(row)
    return measured


def carry_out(
    options: argparse.Namespace,
    row: type[Any],
    run: Callable[[argparse.Namespace], tuple[Facts, Iterable[Any]]],
    line: Callable[[Any], str],
    tables: Callable[[Facts, list[Any]], Iterable[tuple[str, str]]],
) -> int:
    """Measure or load, then report as asked; returns the exit code.

    `run` prints a `line` for each row itself; `tables` gives the README's, each with its marker.
    Rows that it yields are recorded one by one.
    """
    name = Path(sys.argv[0]).name
    try:
        facts, found = files.read(options.source, row) if options.source else run(options)
        if options.source:
            print("\n".join(map(line, found)))
        if options.csv:
            path = record_path(options, facts)
            found = [*files.written(path, facts, row, found)]
            print(f"recorded in {path}")
        found = [*found]
        if options.readme:
            for marker, table in tables(facts, found):
                files.replace_in(options.readme, marker, table)
    except (OSError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return int(any(each.correct is False for each in found))
