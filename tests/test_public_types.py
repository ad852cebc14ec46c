"""The types that public functions declare are those of what they return."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import public_types
import pytest


@pytest.mark.parametrize("name", ["arrays", "trees", "policies", "gradients", "quantized"])
def test_types_of_numpys_arrays(name: str) -> None:
    getattr(public_types, name)()


def test_types_of_conversions(tmp_path: Path) -> None:
    public_types.conversions(tmp_path)


@pytest.mark.parametrize(("name", "library"), [("tensors", "torch"), ("jax_arrays", "jax")])
def test_types_of_other_arrays(name: str, library: str, framework: Callable[[str], object]) -> None:
    framework(library)
    getattr(public_types, name)()
