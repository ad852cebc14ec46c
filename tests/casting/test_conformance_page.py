"""The page of conformance: its options are those of the table, and no cell is empty."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
import readme
from castwise.arrays.library_casts import Library, libraries, library_named
from libraries import CASTS
from library_sources import PAIRS
from oracle import Array
from page import measure, recipe_text
from processes import run_python

PAGE = readme.PACKAGE / "conformance.md"
SCRIPT = Path(__file__).parents[2] / "benches/conformance/conformance.py"
KINDS = {"integers": ("int", "uint"), "floats": ("float",), "complex": ("complex",)}


def sections(text: str) -> dict[str, list[list[str]]]:
    """The cells of each library's table, without its head."""
    found = {}
    for section in text.split("\n## ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        found[section.split("\n")[0]] = [line.strip("| ").split(" | ") for line in lines[1:]]
    return found


def names(cell: str, library: Library) -> list[str]:
    """The formats that a cell stands for."""
    found: list[str] = []
    for part in cell.split(", "):
        word, _, missing = part.partition(" but ")
        if word in KINDS:
            kinds = [name for name in library.formats if castwise.finfo(name).kind in KINDS[word]]
            found += [name for name in kinds if name not in missing.split(" and ")]
        elif castwise.finfo(word).dtype is not None:  # else the installed ml_dtypes lacks it
            found.append(word)
    return found


def rows(cells: list[list[str]], library: Library) -> Iterator[tuple[str, str, list[str]]]:
    for row in cells:
        for source in names(row[0], library):
            for target in names(row[1], library):
                if source != target:
                    yield source, target, row


@pytest.mark.parametrize("name", [library.name for library in libraries()])
def test_every_pair_has_the_options_of_the_table(name: str) -> None:
    library = library_named(name)
    seen = {}
    for source, target, row in rows(sections(PAGE.read_text("utf-8"))[name], library):
        rule = library.rule(source, target)
        assert rule is not None, (source, target)
        assert re.sub(r" \[\d+\]$", "", row[-2]) == recipe_text(rule), (source, target)
        assert (source, target) not in seen
        seen[source, target] = row
    assert set(seen) == {pair for pair in PAIRS if library.rule(*pair) is not None}


def test_no_cell_is_empty_and_no_note_is_missing() -> None:
    text = PAGE.read_text("utf-8")
    for section in text.split("\n## ")[1:]:
        notes = set(re.findall(r"^(\d+)\. \w", section, re.MULTILINE))
        assert set(re.findall(r"\[(\d+)\] \|", section)) == notes
    for cells in sections(text).values():
        for row in cells:
            assert len(row) == 10
            assert all(cell.strip() for cell in row)
            if set(row) & {"varies", "otherwise", "others"}:
                assert row[-2].endswith("]"), row


def test_the_script_writes_the_page() -> None:
    """The part of numpy is measured as it was, or the page is to be written anew."""
    done = run_python(SCRIPT, "--library", "numpy", forked=False)
    assert (done.returncode, done.stderr) == (0, "")
    name = CASTS[0].name
    assert sections(done.stdout)[name] == sections(PAGE.read_text("utf-8"))[name]
    done = run_python(SCRIPT, "--library", "toch", forked=False)
    assert done.returncode == 2
    assert "'toch' is not a library that is compared; did you mean 'torch'? use" in done.stderr


def test_a_library_that_differs_from_the_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = CASTS[0]
    cast = numpy.cast

    def saturating(array: Array, target: np.dtype[Any]) -> Array | None:
        result = cast(array, target)
        if target.name != "float8_e5m2":
            return result
        return castwise.cast(array, target, overflow="saturate")

    monkeypatch.setattr(numpy, "cast", saturating)
    texts = measure(numpy).disagreements
    assert any(re.match(rf"{numpy.name}, float32 to float8_e5m2: \d+ of", text) for text in texts)
