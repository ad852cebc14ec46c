"""Whether packages offer anything is found as `importlib.metadata` finds it, without it."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import offered
import pytest
from castwise import _entry_points
from castwise._entry_points import is_offered

GROUP = "castwise.example"


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without what earlier tests know, and with Python's finders alone.

    Libraries install their own: importlib_metadata takes `find_distributions` from Python's for it.
    """
    find = importlib.metadata.MetadataPathFinder.find_distributions
    monkeypatch.setattr(PathFinder, "find_distributions", find, raising=False)
    finders = [
        finder
        for finder in sys.meta_path
        if finder is PathFinder or not hasattr(finder, "find_distributions")
    ]
    monkeypatch.setattr(sys, "meta_path", finders)
    _entry_points._offered_groups.cache_clear()
    yield
    _entry_points._offered_groups.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[castwise.example]\na = b:c\n", True),
        ("[other]\nx = y\n\n[castwise.example]\na = b:c\n", True),
        ("  [castwise.example]\r\na = b:c\r\n", True),
        ("[castwise.examples]\na = b:c\n", False),
        ("[other]\n# [castwise.example]\n", False),
        ("", False),
    ],
)
def test_what_a_package_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: bool
) -> None:
    offered.install(tmp_path / "site", "some-package", text, "")
    missing, file = tmp_path / "missing", tmp_path / "site" / "some_package-1.0.dist-info" / "none"
    monkeypatch.setattr(sys, "path", [*sys.path, str(missing), str(tmp_path / "site"), str(file)])
    assert bool(importlib.metadata.entry_points(group=GROUP)) == expected
    assert is_offered(GROUP) == expected


def test_an_archive_may_offer_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = offered.install(tmp_path / "site", "some-package", f"[{GROUP}]\na = b:c\n", "")
    with zipfile.ZipFile(tmp_path / "site.zip", "w") as archive:
        for path in filter(Path.is_file, site.rglob("*")):
            archive.write(path, path.relative_to(site))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site.zip")])
    assert list(importlib.metadata.entry_points(group=GROUP).names) == ["a"]
    assert is_offered(GROUP)


def test_another_finder_may_offer_something(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder(importlib.metadata.DistributionFinder):
        def find_distributions(self, context: Any = None) -> Iterator[Any]:
            yield from ()

    assert not is_offered(GROUP)
    _entry_points._offered_groups.cache_clear()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert is_offered(GROUP)
