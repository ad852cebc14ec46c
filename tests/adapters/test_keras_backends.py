"""The adapter of Keras on each of its backends, in a process each."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import keras_checks
import keras_scaling_checks
import keras_scaling_state_checks
import peers
import pytest
import readme
from processes import run_python

BACKENDS = ("numpy", "jax", "torch", "tensorflow")
PAGE = readme.PACKAGE / "adapters" / "adapters.md"
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


GRADIENTS = """
import keras, numpy as np, tensorflow as tf
from castwise.surveys import GradientLog
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name="net")
model.compile(keras.optimizers.SGD(1.0), "mse")
data = np.random.default_rng(0).standard_normal((6, 8, 4)).astype(np.float32)
batches, log = [(x, x[:, :2]) for x in data], GradientLog(every=5, by_name=True)
@@@
assert log.steps == (0, 5), log.steps
assert set(log.at(0).by_name) == {v.path for v in model.trainable_variables}, log.at(0).by_name
assert log.at(5).total.amax == max(float(np.abs(grad).max()) for grad in grads)
"""


def test_a_step_of_keras_records_its_gradients_as_the_page_shows() -> None:
    peers.need("keras", "tensorflow")
    (block,) = re.findall(
        r"^```python\n(@tf.function\n.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S
    )
    environment = {**os.environ, **QUIET, "KERAS_BACKEND": "tensorflow"}
    program = GRADIENTS.replace("@@@", block)
    done = run_python("-c", program, env=environment, forked=False)
    assert done.returncode == 0, done.stderr
