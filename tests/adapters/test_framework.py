"""A framework that is missing, or of a release nobody has tried, is named with the remedy."""

from __future__ import annotations

import re
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from castwise.environment import frameworks
from castwise.environment.frameworks import require

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    require.cache_clear()
    yield
    require.cache_clear()


def test_a_missing_framework_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    with pytest.raises(ImportError, match=r"pip install 'castwise\[tf_keras\]'") as raised:
        require("tf_keras")
    assert raised.value.name == "tf_keras"


@pytest.mark.parametrize(
    ("version", "warned"),
    [("3.4.0", False), ("3.15.2", False), ("3.3.9", True), ("4.0.0rc1", True), ("3.99", True)],
)
def test_a_release_out_of_range_is_warned_of_once(
    version: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keras.py").write_text(f"__version__ = {version!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        first, second = require("keras"), require("keras")
    del sys.modules["keras"]
    assert first is second
    assert [str(warning.message) for warning in seen if "tested with" in str(warning.message)] == [
        f"castwise.adapters.keras is tested with keras 3.4 to 3.15, and {version} is installed; "
        "if something fails, install one of those."
    ] * warned


@pytest.mark.parametrize("name", ["jax", "keras", "tf_keras", "torch"])
def test_the_oldest_release_is_that_of_the_extra(name: str) -> None:
    """`.ci/ends adapters` tests the oldest release that the extra allows, and no older one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["optional-dependencies"][name]
    floors = [re.fullmatch(rf"{name}>=([\d.]+)", requirement) for requirement in requirements]
    oldest = frameworks.tested_releases(name).split(" to ")[0]
    assert [floor[1] for floor in floors if floor] == [oldest]
