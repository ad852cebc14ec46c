"""A framework that is missing, or of a release nobody has tried, is named with the remedy."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from castwise.environment.frameworks import require


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
