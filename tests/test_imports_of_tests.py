"""What files of tests share stands in tests/helpers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PATHS = sorted(TESTS.rglob("*.py"))


def imported_tests(source: str) -> Iterator[str]:
    """Name the files of tests that a program imports."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        yield from (name for name in names if name.rpartition(".")[2].startswith("test_"))


def test_no_file_imports_a_file_of_tests() -> None:
    """Its tests would be collected twice, and be marked and recorded by the wrong file."""
    imports = {
        str(path.relative_to(TESTS)): names
        for path in PATHS
        if (names := list(imported_tests(path.read_text("utf-8"))))
    }
    assert imports == {}, "move what they share to tests/helpers"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import test_a", ["test_a"]),
        ("def f():\n    from x.test_a import b", ["x.test_a"]),
        ("from . import test_a", ["test_a"]),
        ("from helpers import tests", []),
    ],
)
def test_what_counts_as_an_import(source: str, names: list[str]) -> None:
    assert list(imported_tests(source)) == names
