"""A value of CASTWISE_* that is not valid: a warning for who imports, an error for the command."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from processes import run_python

ONLY_LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="Linux alone has it")
WRONG = [
    ("CASTWISE_NUM_THREADS", "abc", '="abc" is not valid; use a whole number of 1 or more.'),
    ("CASTWISE_NUM_THREADS", "0", '="0" is not valid; use a whole number of 1 or more.'),
    ("CASTWISE_NUM_THREADS", "1.5", '="1.5" is not valid; use a whole number of 1 or more.'),
    ("CASTWISE_CPU_LEVEL", "sse9", "sse9"),
    ("CASTWISE_LOG", "casts", '="casts" is not valid; use "cast".'),
    ("CASTWISE_ACCELERATE", "yes please", "='yes please' is not valid; use 1 or 0."),
    pytest.param("CASTWISE_KEPT_MEMORY", "-1", '="-1" is not valid; use a whole', marks=ONLY_LINUX),
]
ALL_WRONG = {
    f"CASTWISE_{name}": "wrong"
    for name in ("NUM_THREADS", "CPU_LEVEL", "LOG", "ACCELERATE", "KEPT_MEMORY")
    if name != "KEPT_MEMORY" or os.path.exists("/proc/self/maps")
}
STATE = """
import castwise
print(castwise.get_num_threads(), castwise.cpu_level())
"""
SLOTS = """
from cast_slots import cast_slots
before = cast_slots()
castwise.restore()
print(before == cast_slots())
"""


def run(*arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CASTWISE_")}
    path = os.pathsep.join(filter(None, sys.path))
    return run_python(*arguments, env={**kept, "PYTHONPATH": path, **variables})


@cache
def by_default(program: str) -> str:
    """What a program prints without any variable."""
    return run("-c", program).stdout


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_an_import_warns_and_uses_the_default(name: str, value: str, words: str) -> None:
    program = STATE + SLOTS * (name == "CASTWISE_ACCELERATE")
    done = run("-c", program, **{name: value})
    assert done.returncode == 0, done.stderr
    assert done.stdout == by_default(program)
    assert done.stderr.count("RuntimeWarning") == 1
    assert "<string>:2: RuntimeWarning: environment variable" in done.stderr
    for part in (name, value, words, "It is ignored."):
        assert part in done.stderr


@pytest.mark.thinned(4)  # test_several_values_are_all_named has every variable
@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_the_command_line_refuses(name: str, value: str, words: str) -> None:
    done = run("-m", "castwise", "formats", **{name: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"castwise: error: environment variable {name}")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_the_version_is_told_nevertheless() -> None:
    assert run("-m", "castwise", "--version", **ALL_WRONG).returncode == 0


def test_several_values_are_all_named() -> None:
    done = run("-c", "import castwise", **ALL_WRONG)
    assert (done.returncode, done.stderr.count("RuntimeWarning")) == (0, len(ALL_WRONG))
    done = run_python("-m", "castwise", "formats", env=os.environ | ALL_WRONG, forked=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert all(name in done.stderr for name in ALL_WRONG)


def test_a_warning_may_be_an_error() -> None:
    done = run("-W", "error", "-c", "import castwise", CASTWISE_NUM_THREADS="abc")
    assert done.returncode == 1
    assert 'RuntimeWarning: environment variable CASTWISE_NUM_THREADS="abc"' in done.stderr
