"""The text of every refusal that a test of models provokes, as it was recorded.

A test that is in the record must be refused by the same texts, in the same order; a test that is
not is no part of it. So a change of the code's structure keeps them, and one that rewords them
shows all that it rewords:

    python -m pytest -n 0 --record tests/checkpoint tests/cli tests/quantization
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from recorded import FOLDER, TESTS

RECORD = FOLDER / "refusals.json"
FOLDERS = ("checkpoint", "cli", "quantization")
_CHANGING = re.compile(
    r"/[^\s'\"]*/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?/[^/\s'\":;,]+"  # folders of tests
    r"|0x[0-9a-f]{6,}"  # addresses
    r"|\b\d{1,3}(?:,\d{3}){3,}\b"  # bytes of a file system
    r"|\b[\d,]+(?= bytes, and its file system)|(?<=has only )[\d,]+(?= free)"  # room on a disk
    r"|\b\d{4}-\d\d-\d\dT[\d:.]+Z"  # when a file was changed
    r"|(?<=\[Errno )\d+"  # a number of the system
    r"|(?:No module named|Unsupported filesystem:) '\w+'"  # with or without a package
)

# What Python 3.14 and musl say, and Python 3.11 with glibc, on which the record is made.
_NEWER = (
    (re.compile(r"Stack overflow \(used \d+ kB\)"), "maximum recursion depth exceeded"),
    (re.compile(r"(?<=recursion depth exceeded) while calling a Python object"), ""),
    (re.compile(r"cannot use '\w+' as a dict key \((.*?)\)"), r"\1"),
    (re.compile(r"Symbolic link loop"), "Too many levels of symbolic links"),
)


def as_recorded(text: str) -> str:
    """Return a message in the words of the Python on which the record is made."""
    for newer, older in _NEWER:
        text = newer.sub(older, text)
    return text


class Noted:
    """The texts of the errors that the test that runs now expected and got."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def expect(self, *arguments: Any, **options: Any) -> Any:
        """Stand for `pytest.raises`, and note the text of what was raised."""
        expected = _raises(*arguments, **options)
        return expected if isinstance(expected, pytest.ExceptionInfo) else _Expected(expected)


class _Expected:
    """The context manager of `pytest.raises`, whose error is noted."""

    def __init__(self, expected: Any) -> None:
        self._expected = expected

    def __enter__(self) -> Any:
        return self._expected.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        is_expected = bool(self._expected.__exit__(kind, error, traceback))
        if is_expected and isinstance(error, (ValueError, TypeError, OSError, OverflowError)):
            NOTED.texts.append(_CHANGING.sub("TMP", as_recorded(str(error))))
        return is_expected


_raises = pytest.raises
NOTED = Noted()
pytest.raises = NOTED.expect  # type: ignore[assignment]


def name_of(item: pytest.Item) -> str | None:
    """Name a test in the record; None if it is none of models, or its examples are drawn.

    On Windows none has a name: paths, and the texts of the system, are others there.
    """
    if os.name == "nt" or getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return None
    path = item.path.relative_to(TESTS) if item.path.is_relative_to(TESTS) else Path()
    return (
        f"{path.as_posix()}::{item.name}" if path.parts[:1] and path.parts[0] in FOLDERS else None
    )


@cache
def record() -> dict[str, list[str]]:
    """The texts by the names of tests."""
    found: dict[str, list[str]] = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    return found


def write(found: dict[str, list[str]]) -> None:
    """Write the texts of these tests anew; those of others stay."""
    rows = {**record(), **found}
    lines = [
        f"{json.dumps(name)}: {json.dumps(texts)}" for name, texts in sorted(rows.items()) if texts
    ]
    RECORD.write_text("{{\n{}\n}}\n".format(",\n".join(lines)), "utf-8")
