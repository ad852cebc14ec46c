"""Few cases of a sweep are tests by default, and each case is one that is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_python

SWEEPS = Path(__file__).parent / "casting" / "test_accelerate.py"


def collected(*arguments: object) -> list[str]:
    result = run_python("-m", "pytest", "--collect-only", "-q", *arguments)
    return [line for line in result.stdout.splitlines() if line.endswith("]")]


@pytest.mark.exhaustive
def test_a_case_that_is_named_is_collected() -> None:
    left_out = collected("-m", "exhaustive", SWEEPS)[-1]
    name = f"{SWEEPS}::{left_out.partition('::')[2]}"
    assert collected(name) == [left_out]
    assert collected("-m", "not exhaustive", name) == []


@pytest.mark.exhaustive
def test_every_so_manieth_case() -> None:
    whole = collected("-m", "exhaustive", SWEEPS)
    part = collected("-m", "exhaustive", "--every", "3", SWEEPS)
    assert set(part) < set(whole)
    assert len(whole) / 6 < len(part) < len(whole) / 1.5
    functions = [{case.partition("[")[0] for case in cases} for cases in (part, whole)]
    assert functions[0] == functions[1]
