"""Fixtures for every test, and the matrix of casts that the run compared, printed after it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings
from support import LEVELS, at_level

settings.register_profile("castwise", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("castwise")

# torch imports triton where it can, for GPUs: and its LLVM ends a process that has TensorFlow's.
sys.modules.setdefault("triton", None)  # type: ignore[arg-type]

MATRIX = pytest.StashKey[Counter[tuple[str, str]]]()


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each CPU level this machine can run, in force during the test."""
    with at_level(request.param):
        yield request.param


@pytest.fixture(scope="session")
def matrix(request: pytest.FixtureRequest) -> Counter[tuple[str, str]]:
    """Count, by (source, target), the results compared with the oracle; printed at the end."""
    return request.config.stash.setdefault(MATRIX, Counter())


def _short(name: str) -> str:
    """Abbreviate a heading: `float8_e4m3fn` to `e4m3fn`, `bfloat16` to `bf16`, `uint4` to `u4`."""
    name = name.rpartition("_")[2]
    for word, letter in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(word, letter)
    return name


def _count(number: int) -> str:
    return str(number) if number < 10_000 else f"{number // 1000}k"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the matrix, a row per source, in two halves that fit a log."""
    counts = config.stash.get(MATRIX, None)
    if not counts:
        return
    sources = list(dict.fromkeys(source for source, _ in counts))
    targets = list(dict.fromkeys(target for _, target in counts))
    terminalreporter.section(
        f"casts compared with the oracle: {sum(counts.values()):,}, on {', '.join(LEVELS)}"
    )
    half = (len(targets) + 1) // 2
    for columns in (targets[:half], targets[half:]):
        rows = [["from \\ to", *map(_short, columns)]]
        rows += [
            [_short(source), *(_count(counts[source, target]) for target in columns)]
            for source in sources
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for head, *cells in rows:
            line = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            terminalreporter.write_line("  ".join([head.ljust(widths[0]), *line]))
        terminalreporter.write_line("")
