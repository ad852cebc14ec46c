"""What files of tests share stands in tests/helpers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PATHS = sorted(TESTS.rglob("*.py"))


def imported_tests(source: str) -> list[str]:
    """Name the files of tests that a program imports."""
    return re.findall(r"^ *(?:from|import) +(?:[\w.]*\.)?(test_\w+)", source, re.MULTILINE)


def test_no_file_imports_a_file_of_tests() -> None:
    """Its tests would be collected twice, and be marked and recorded by the wrong file."""
    imports = {
        str(path.relative_to(TESTS)): names
        for path in PATHS
        if (names := imported_tests(path.read_text("utf-8")))
    }
    assert imports == {}, "move what they share to tests/helpers"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import test_a", ["test_a"]),
        ("def f():\n    from x.test_a import b", ["test_a"]),
        ("import a.test_b", ["test_b"]),
        ("from helpers import tests", []),
        ("from a import test_a", []),
    ],
)
def test_what_counts_as_an_import(source: str, names: list[str]) -> None:
    assert imported_tests(source) == names
