"""The README says what the code does: its tables are those of today, its examples run."""

from __future__ import annotations

import doctest

import peers
import pytest
import readme

TEXT = readme.README.read_text("utf-8")
HOW = "run `python tests/readme.py`"


def test_the_table_of_formats_is_todays() -> None:
    assert readme.section(TEXT, "formats") == readme.formats(), HOW


def test_the_account_is_what_the_first_command_prints() -> None:
    assert readme.section(TEXT, "account") == readme.account(TEXT), HOW


@pytest.mark.parametrize("part", ["accuracy", "benchmark"])
def test_measured_parts_are_filled_in(part: str) -> None:
    assert readme.section(TEXT, part).count("|") > 20, part


def test_the_examples_run() -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    examples = doctest.DocTestParser().get_doctest(TEXT, {}, "README.md", "README.md", 0)
    assert len(examples.examples) > 5
    peers.keras()  # imported before its warnings would fail the test
    assert runner.run(examples).failed == 0
