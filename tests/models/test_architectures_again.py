"""The table of architectures beside transformers and diffusers, of which it is written."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import peers
import pytest

SCRIPT = Path(__file__).parents[2] / "benches/architectures/table.py"
OTHER_VERSIONS = 2


def test_a_random_fortieth_is_written_again_as_it_is_in_the_table() -> None:
    peers.framework("torch")
    seed = random.randrange(10_000)
    command = [sys.executable, SCRIPT, "--check", str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == OTHER_VERSIONS and "write it anew" in run.stdout:
        pytest.skip(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
