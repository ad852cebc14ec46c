"""`dir()` of a package is its `__all__`, and its modules are imported when they are used."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import castwise
import numpy as np
import pytest
from processes import run_python

PACKAGES = (
    "castwise",
    "castwise.autocast",
    "castwise.checkpoint",
    "castwise.compat",
    "castwise.compat.jmp",
    "castwise.compat.keras",
    "castwise.compat.tf_keras",
    "castwise.compat.tf_keras.mixed_precision",
    "castwise.dtype_policies",
    "castwise.loss_scale",
    "castwise.quantization",
)
FRAMEWORKS = ("jax", "keras", "tf_keras", "torch")
ADAPTERS = ("castwise.adapters", *(f"castwise.adapters.{name}" for name in FRAMEWORKS))


def check(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, each) for each in package.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_dir_is_all(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", ADAPTERS)
def test_dir_of_an_adapter_is_all(name: str, framework: Callable[[str], object]) -> None:
    for each in FRAMEWORKS if name == "castwise.adapters" else (name.rpartition(".")[2],):
        framework(each)
    check(name)


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        ("--help", ("checkpoint", "quantization", "autocast", "loss_scale")),
        ("formats", ("checkpoint", "quantization")),
        ("cast --help", ("checkpoint.conversions", "checkpoint.containers", "cli.quantize")),
        (
            "cast IN OUT --dtype bfloat16",
            ("checkpoint.comparison", "checkpoint.planning._new_statements"),
        ),
        (
            "cast IN OUT --dtype float16",
            ("checkpoint.containers.hdf5", "quantization.arrays._arrays"),
        ),
    ],
)
def test_a_command_imports_what_it_uses(
    tmp_path: Path, arguments: str, unused: tuple[str, ...]
) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    castwise.checkpoint.save(source, {"w": np.ones(3, np.float32)})
    program = (
        "import sys, contextlib; from castwise.cli import main\n"
        "with contextlib.suppress(SystemExit): assert main(sys.argv[1:]) == 0\n"
        "print('imported:', *sys.modules)"
    )
    paths = {"IN": source, "OUT": out}
    given = [paths.get(one, one) for one in arguments.split()]
    result = run_python("-c", program, *given, env=dict(os.environ))
    assert result.returncode == 0, result.stderr
    imported = set(result.stdout.rpartition("imported:")[2].split())
    assert "castwise.cli" in imported
    assert imported.isdisjoint(f"castwise.{name}" for name in unused)


@pytest.mark.parametrize("package", ["checkpoint", "quantization"])
def test_a_name_that_is_not_there(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'castwise.{package}' has no attribute 'lod'"):
        attrgetter(f"{package}.lod")(castwise)
