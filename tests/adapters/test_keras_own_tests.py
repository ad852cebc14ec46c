"""Keras' own unit tests of policies, maps and loss scaling pass with castwise in Keras.

They come with Keras: from its wheel, or where that was stripped of them, from its source archive.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import peers
import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.network]
FILES = ("dtype_policies/dtype_policy_test.py", "dtype_policies/dtype_policy_map_test.py")
OF_CLASSES = (*FILES, "optimizers/loss_scale_optimizer_test.py")

DIFFERENT = {
    "DTypePolicyMapTest::test_add": "reads the private attribute `_source_name` of a policy",
    "DTypePolicyMapTest::test_basic_usage": (
        "compares policies of Keras, which layers have, with castwise's: classes take part in it"
    ),
}
"""Tests that fail with castwise's classes under Keras' names, and why."""


def keras_tests(folder: Path, files: tuple[str, ...]) -> list[Path]:
    """The files of tests, downloaded if they are not where Keras is installed."""
    found = importlib.util.find_spec("keras")
    assert found is not None
    assert found.origin is not None
    installed = Path(found.origin).parent / "src"
    if all((installed / name).exists() for name in files):
        return [installed / name for name in files]
    return downloaded_tests(folder, files)


def downloaded_tests(folder: Path, files: tuple[str, ...]) -> list[Path]:
    """The files of tests from the source archive of the Keras that is installed, from PyPI."""
    version = metadata.version("keras")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "keras"]
    subprocess.run([*pip, f"keras=={version}", "--dest", str(folder)], check=True)
    with tarfile.open(next(folder.glob("keras-*.tar.gz"))) as archive:
        source = f"keras-{version}/keras/src"
        for name in files:
            archive.extract(f"{source}/{name}", folder, filter="data")
    return [folder / source / name for name in files]


def outcomes(folder: Path, backend: str, castwise_classes: bool) -> dict[str, str]:
    """What became of each test, by its name."""
    peers.need("keras", *({backend} - {"numpy"}))
    report = folder / "outcomes.json"
    environment = {
        **os.environ,
        "CASTWISE_CLASSES": str(int(castwise_classes)),
        "CASTWISE_OUTCOMES": str(report),
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    # An empty configuration, so that neither this project's nor one above Keras applies.
    configuration = folder / "pytest.ini"
    configuration.write_text("[pytest]\nmarkers = requires_trainable_backend\n")
    options = ["-c", str(configuration), "-p", "no:cacheprovider", "-q", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", *options, "-p", "keras_own_tests"]
    files = OF_CLASSES if castwise_classes else FILES
    tests = [str(path) for path in keras_tests(folder, files)]
    done = subprocess.run(
        [*command, *tests], env=environment, capture_output=True, text=True, check=False, cwd=folder
    )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, str] = json.loads(report.read_text())
    assert len(found) > 80, done.stdout
    return found


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_they_pass_with_castwise_installed(backend: str, tmp_path: Path) -> None:
    assert set(outcomes(tmp_path, backend, castwise_classes=False).values()) == {"passed"}


def test_they_pass_with_castwises_classes_but_for_those_listed(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "numpy", castwise_classes=True)
    assert len([name for name in found if name.startswith("LossScaleOptimizerTest")]) > 20
    assert {name for name, outcome in found.items() if outcome != "passed"} == set(DIFFERENT)
