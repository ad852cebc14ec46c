"""The memory that a conversion takes, in a process that does nothing else."""

from __future__ import annotations

from pathlib import Path

from processes import run_python
from system_parts import need

MEASURE = """
import sys
from castwise import checkpoint

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

before = peak()
summary = checkpoint.cast_file(*sys.argv[1:], "float8_e4m3fn")
assert all(row.report for row in summary.rows)
print(peak() - before)
"""


def peak_above_import(source: Path, destination: Path) -> int:
    """The memory in bytes that a conversion adds to what the import has taken."""
    need("/proc/self/status")
    result = run_python("-c", MEASURE, source, destination)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)
