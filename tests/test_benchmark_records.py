"""The CSV files of benchmarks."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FILES = Path(__file__).parents[1] / "benches" / "files.py"


@dataclass(frozen=True)
class Row:
    name: str
    share: float | None


def test_rows_are_recorded_as_they_come(tmp_path: Path) -> None:
    """A run that is stopped leaves the rows that it had."""
    spec = importlib.util.spec_from_file_location("benchmark_files", FILES)
    assert spec is not None
    assert spec.loader is not None
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    path, facts = tmp_path / "record" / "rows.csv", {"cpu": "one"}
    rows = [Row("a", 0.5), Row("b", None)]

    def measured() -> Iterator[Row]:
        for count, row in enumerate(rows):
            yield row
            assert files.read(path, Row) == (facts, rows[: count + 1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(files.written(path, facts, Row, measured()))
    assert files.read(path, Row) == (facts, rows)
    files.write(path, facts, rows[1:])
    assert files.read(path, Row) == (facts, rows[1:])
