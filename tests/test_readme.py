"""The documentation says what the code does: its tables are today's; examples and links work."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from weakref import WeakKeyDictionary

import castwise
import numpy as np
import pytest
import readme
from castwise.arrays import adapter_registry

HOW = "run `python tests/helpers/readme.py`"
PAGES = sorted(
    page
    for pages in (
        "*.md",
        ".github/*.md",
        ".site/*.md",
        "benches/*.md",
        "python/castwise/**/*.md",
        "tests/**/*.md",
    )
    for page in readme.ROOT.glob(pages)
)
FRAMEWORKS = ("keras", "tf_keras", "torch", "jax")


def section(page: Path, name: str) -> str:
    return readme.section(page.read_text("utf-8"), name)


def named(page: Path) -> str:
    return str(page.relative_to(readme.ROOT))


def test_the_table_of_formats_is_todays() -> None:
    assert section(readme.FORMATS, "formats") == readme.formats(), HOW


def test_the_cheat_sheet_is_todays() -> None:
    assert section(readme.FORMATS, "cheatsheet") == readme.cheatsheet(), HOW
    assert section(readme.FORMATS, "overflows") == readme.overflows(), HOW


@pytest.mark.parametrize(
    "row",
    [row for row in map(castwise.finfo, castwise.formats()) if row.kind == "float" and row.dtype],
    ids=lambda row: row.name,
)
def test_the_cheat_sheet_says_what_casts_give(row: castwise.FormatInfo) -> None:
    line = re.search(rf"^\| `{row.name}` .*$", readme.cheatsheet(), re.MULTILINE)
    assert line
    overflow, nan = line[0].strip("| ").split(" | ")[-2:]
    expected = {"infinity": np.inf, "NaN": np.nan, "max": row.max, "0": 0.0}
    assert row.dtype is not None
    for value, cell in ((row.max * 4, overflow), (np.nan, nan)):
        result = castwise.cast(np.float64(value), row.dtype)
        np.testing.assert_array_equal(float(result), expected[cell])


def test_the_table_of_schemes_is_todays() -> None:
    assert section(readme.QUANTISED, "schemes") == readme.schemes(), HOW


def test_the_table_of_consumers_is_todays() -> None:
    assert section(readme.WHICH_SCHEME, "consumers") == readme.consumers(), HOW


def test_the_report_is_what_the_first_command_prints() -> None:
    text = readme.README.read_text("utf-8")
    assert section(readme.README, "report") == readme.report(text), HOW


def test_the_picture_is_of_the_checkpoint_of_the_first_command() -> None:
    assert readme.PICTURE.read_text("utf-8") == readme.picture(), HOW


def test_the_speeds_are_those_of_the_benchmark() -> None:
    assert section(readme.README, "speed") == readme.speed(section(readme.BENCHES, "benchmark")), (
        HOW
    )


def test_the_picture_of_speed_is_of_the_benchmark() -> None:
    drawn = readme.speed_picture(section(readme.BENCHES, "benchmark"))
    assert readme.SPEED_PICTURE.read_text("utf-8") == drawn, HOW


def test_the_checkpoint_is_that_of_the_benchmark() -> None:
    measured = readme.files(section(readme.BENCHES, "checkpoints"))
    assert section(readme.README, "files") == measured, HOW


@pytest.mark.parametrize(
    ("page", "part"),
    [
        (readme.CAST, "accuracy"),
        *(
            (readme.BENCHES, part)
            for part in ("benchmark", "options-avx512", "options-avx2", "unscale", "policies")
        ),
    ],
)
def test_measured_parts_are_filled_in(page: Path, part: str) -> None:
    assert section(page, part).count("|") > 20, part


def test_the_readme_is_short() -> None:
    assert len(readme.README.read_text("utf-8").splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
            slugs = {
                re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
            }
            assert anchor in slugs, f"{target}#{anchor}"


def examples(page: Path) -> doctest.DocTest:
    text = page.read_text("utf-8")
    return doctest.DocTestParser().get_doctest(
        text, {"__name__": "__main__"}, page.name, str(page), 0
    )


def frameworks(page: Path) -> set[str]:
    """Name the frameworks that the examples of a page import."""
    return {name for name in FRAMEWORKS if f">>> import {name}" in page.read_text("utf-8")}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.frameworks if frameworks(page) else ())
        for page in PAGES
        if examples(page).examples
    ],
    ids=named,
)
def test_the_examples_run(
    page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An example may register an adapter, which later tests must not find.
    monkeypatch.setattr(adapter_registry, "_adapters_by_predicate", [])
    monkeypatch.setattr(adapter_registry, "_adapters_by_class", WeakKeyDictionary())
    for name in frameworks(page):
        request.getfixturevalue("framework")(name)  # first, as its warnings would fail the test
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(examples(page)).failed == 0
