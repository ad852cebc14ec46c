"""What several test files share: the formats to test, CPU levels, arrays from codes and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess
from typing import Any

import castwise
import numpy as np
import pytest
from castwise.cli import PrintableFormatter, main
from oracle import FORMATS, Array, Format

LEVELS: tuple[str, ...] = castwise.cpu_levels()
"""The CPU levels to test: by default only the best one (conftest.py)."""
FEWER = 1
"""By how much samples are thinned out: by default 5 (conftest.py)."""
AVAILABLE = tuple(
    FORMATS[name] for name in castwise.formats() if castwise.finfo(name).dtype is not None
)
REAL = tuple(row for row in AVAILABLE if not row.part)
COMPLEX = tuple(row for row in AVAILABLE if row.part)
FLOATS = tuple(row for row in AVAILABLE if row.kind == "float")
INTEGERS = tuple(row for row in AVAILABLE if row.kind in ("int", "uint"))


@contextmanager
def at_level(name: str) -> Iterator[None]:
    """Run the kernels of one CPU level."""
    before = castwise.cpu_level()
    castwise._core.set_cpu_level(name)
    try:
        yield
    finally:
        castwise._core.set_cpu_level(before)


def array_of(codes: Array, row: Format) -> Array:
    """Make the array with these codes; a last axis holds the two parts of complex elements."""
    array = np.ascontiguousarray(codes, row.codes).view(row.dtype)
    return array[..., 0] if row.part else array


def codes_of(array: Array, row: Format) -> Array:
    """Read the codes of an array; the parts of a complex one lie along a new last axis."""
    contiguous = np.ascontiguousarray(array)
    codes = contiguous[..., np.newaxis].view(row.codes) if row.part else contiguous.view(row.codes)
    return codes.reshape(array.shape + ((2,) if row.part else ()))


def log_of_command(caplog: pytest.LogCaptureFixture) -> str:
    """Return what a command logged, as its own handler prints it."""
    return "\n".join(map(PrintableFormatter().format, caplog.records))


def run_castwise(*arguments: Any, code: int = 0) -> CompletedProcess[str]:
    """Run the command line in this process, a tenth of the work of one of its own.

    The exit code is checked, and that nothing but it ends the command.
    """
    given: list[str] = list(map(str, arguments))
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as errors:
        try:
            found = main(given)
        except SystemExit as end:  # as argparse ends
            found = end.code if isinstance(end.code, int) else 0
    assert found == code, errors.getvalue()
    return CompletedProcess(given, found, out.getvalue(), errors.getvalue())
