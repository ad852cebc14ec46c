"""The real packages beside castwise, live or recorded.

A test asks a real package through a `Peer`, inside of `outcome` (policies/sides.py,
policies/keras_systems.py). Such a test runs twice: `live`, marked `frameworks`, where what the real
package did is compared with the record of it; and `recorded`, without any framework, where the
recorded answers are given in its place, in the order in which the test asks.

    python -m pytest -m frameworks --record FILES      # writes the records of these files anew

A test that asks a real package outside of `outcome`, or draws its questions with hypothesis, has no
record and is only run live.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import currently_in_test_context

TESTS = Path(__file__).parents[1]
FOLDER = TESTS / "recorded"


class Unrecordable(Exception):  # noqa: N818 - not an error
    """A value is not plain data, so no file holds it."""


class NeedsAnswer(BaseException):
    """A peer was asked while answers are replayed: unwinds past `except Exception` to `outcome`."""


class Session:
    """What the test that runs now has asked the real packages, or is to be told."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, answers: list[str] | None = None) -> None:
        """Begin a test: live, or with the answers that it is to get."""
        self.answers = answers
        self.given: list[str] = []
        self.is_recordable = True
        self.depth = 0  # of calls to `outcome`
        self.was_asked = False

    @property
    def is_live(self) -> bool:
        """Whether peers are the real packages."""
        return self.answers is None

    def ask(self) -> None:
        """Take notice that a peer is used."""
        if not self.is_live:
            raise NeedsAnswer
        self.was_asked = True
        self.is_recordable &= self.depth > 0

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Use peers for something that gives no answer, such as to bring them into a state."""
        before = self.is_recordable, self.was_asked
        yield
        self.is_recordable, self.was_asked = before

    def outcome(self, call: Callable[[], Any], keeps_message: bool = True) -> Any:
        """Make a call, or give what the record says it did if it asks a peer."""
        self.depth += 1
        if self.depth == 1:
            self.was_asked = False
        try:
            done = call()
        except NeedsAnswer:
            if self.depth > 1:
                raise
            place = len(self.given)
            assert place < len(self.answers or ()), "the test asks more than its record answers"
            self.given.append((self.answers or [])[place])
            return read(self.given[-1])
        finally:
            self.depth -= 1
        if self.depth == 0 and self.was_asked:
            self.note(done if keeps_message else replace(done, message=""))
        return done

    def note(self, done: Any) -> None:
        """Keep an answer of a real package."""
        try:
            self.given.append(written(done))
        except Unrecordable:
            self.is_recordable = False
        self.is_recordable &= not currently_in_test_context()


SESSION = Session()


class Peer:
    """A real package, or what stands for one, made when an attribute of it is first needed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        SESSION.ask()
        return getattr(self._make(), name)


def written(value: Any) -> str:
    """Write plain data, outcomes and exception classes as an expression that `read` evaluates."""
    from sides import Outcome  # noqa: PLC0415 - which records its calls here

    kind = type(value)
    if value is None or kind in (bool, int, bytes) or (kind is float and math.isfinite(value)):
        text = repr(value)
    elif kind is float:
        text = f"float('{value}')"
    elif isinstance(value, str):
        text = repr(str(value))
    elif kind is list:
        text = f"[{', '.join(map(written, value))}]"
    elif isinstance(value, tuple):
        text = f"({''.join(f'{written(each)}, ' for each in value)})"
    elif kind is dict:
        text = "{" + ", ".join(f"{written(k)}: {written(v)}" for k, v in value.items()) + "}"
    elif isinstance(value, np.dtype) and value.isbuiltin:
        text = f"dtype({value.name!r})"
    elif isinstance(value, Outcome):
        text = f"Outcome({written(value.value)}, {written(value.error)}, {value.message!r})"
    elif isinstance(value, type) and value.__module__ in ("builtins", "dataclasses", "re"):
        text = f"error({value.__module__!r}, {value.__name__!r})"
    else:
        raise Unrecordable(value)
    return text


def read(text: str) -> Any:
    """Evaluate an expression of a record."""
    from sides import Outcome  # noqa: PLC0415

    def error(module: str, name: str) -> type[BaseException]:
        found: type[BaseException] = getattr(importlib.import_module(module), name)
        return found

    names = {"Outcome": Outcome, "dtype": np.dtype, "error": error, "float": float}
    return eval(text, {"__builtins__": {}}, names)  # noqa: S307 - a file of these tests


@cache
class Records:
    """The records of one file of tests: the texts of all answers, and which each test gets."""

    def __init__(self, tests: Path) -> None:
        self.path = FOLDER / tests.relative_to(TESTS).with_suffix(".json")
        content = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        self.answers: list[str] = content.get("answers", [])
        self.tests: dict[str, list[int]] = content.get("tests", {})

    def of(self, test: str) -> list[str] | None:
        """Give the answers to one test."""
        found = self.tests.get(test)
        return None if found is None else [self.answers[place] for place in found]

    def functions(self) -> set[str]:
        """Name the functions that have records."""
        return {test.partition("[")[0] for test in self.tests}


def write(tests: Path, found: dict[str, list[str]]) -> None:
    """Write the records of one file of tests anew."""
    answers = list(dict.fromkeys(answer for given in found.values() for answer in given))
    places = {answer: place for place, answer in enumerate(answers)}
    rows = [
        f"{json.dumps(test)}: {json.dumps([places[each] for each in given], separators=(',', ':'))}"
        for test, given in sorted(found.items())
    ]
    lines = ",\n".join(map(json.dumps, answers)), ",\n".join(rows)
    path = FOLDER / tests.relative_to(TESTS).with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{{"answers": [\n{}\n], "tests": {{\n{}\n}}}}\n'.format(*lines), "utf-8")
