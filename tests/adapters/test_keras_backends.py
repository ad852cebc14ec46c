"""The adapter of Keras on each of its backends, in a process each."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import keras_checks
import keras_gradient_checks
import keras_scaling_checks
import keras_scaling_state_checks
import peers
import pytest

BACKENDS = ("numpy", "jax", "torch", "tensorflow")
QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


@functools.cache
def results(checks: ModuleType, backend: str) -> dict[str, str | None]:
    program = Path(str(checks.__file__))
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, **QUIET, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
        cwd=program.parent,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, str | None] = json.loads(done.stdout)
    return answers


PROGRAMS = (keras_checks, keras_scaling_checks, keras_scaling_state_checks)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "check"), [(each, check) for each in PROGRAMS for check in each.CHECKS]
)
def test_every_backend(program: ModuleType, check: str, backend: str) -> None:
    peers.need("keras", *({backend} - {"numpy"}))
    traceback = results(program, backend)[check]
    assert traceback is None, traceback


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
@pytest.mark.parametrize("check", keras_gradient_checks.CHECKS)
def test_surveys_of_gradients(check: str, backend: str) -> None:
    peers.need("keras", backend)
    traceback = results(keras_gradient_checks, backend)[check]
    assert traceback is None, traceback
