"""A release: version, notes, the README on PyPI, and what GitHub reads about the project."""

from __future__ import annotations

import os
import re

import pytest
import release
from release import ROOT

URL = re.compile(r"https://github\.com/[\w-]+/castwise\b")
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- Not yet.

## [0.2.0] - 2027-01-02

### Added

- A format.

## [0.1.0] - 2026-12-01

First.
"""


def test_links_of_the_readme_lead_to_the_tag_on_pypi() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    absolute = release.absolute_links(text, "https://example.org/castwise", "v1.2.3")
    targets = re.findall(r"\]\(([^)\s]+)\)", absolute)
    assert all(target.startswith(("https:", "#")) for target in targets)
    paths = re.findall(r"https://example\.org/castwise/(?:blob|raw)/v1\.2\.3/([^)#\s]+)", absolute)
    assert len(paths) >= 10
    assert all((ROOT / path).is_file() for path in paths)
    assert "![" not in text or "https://example.org/castwise/raw/v1.2.3/" in absolute
    # Nothing else changes: with the addresses taken away again it is the page as it stands.
    assert re.sub(r"https://example\.org/castwise/(blob|raw)/v1\.2\.3/", "", absolute) == text


def test_notes_are_the_section_of_the_version() -> None:
    assert release.notes(CHANGELOG, "0.2.0") == "### Added\n\n- A format.\n"
    assert release.notes(CHANGELOG, "0.1.0") == "First.\n"


@pytest.mark.parametrize("version", ["0.3.0", "0.2", "0x2x0"])
def test_a_version_without_a_section_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no text for version {version}.")):
        release.notes(CHANGELOG, version)


def test_an_empty_section_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no text for version 0\.2\.0"):
        release.notes(CHANGELOG.replace("### Added\n\n- A format.\n", ""), "0.2.0")


@pytest.mark.parametrize("tag", ["v0.1.0", "0.2.0", "v0.2.0rc1", "refs/tags/v0.2.0"])
def test_a_tag_is_that_of_the_version(tag: str) -> None:
    release.check("v0.2.0", "0.2.0", CHANGELOG)
    with pytest.raises(ValueError, match=r"Tag v0\.2\.0, or change the version"):
        release.check(tag, "0.2.0", CHANGELOG)


def test_what_is_refused_ends_the_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["check", "v99.0.0"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert release.main(["notes", "v99.0.0"]) == 1


def test_the_repository_has_one_address() -> None:
    """It stands in pyproject.toml; what cannot read that says the same."""
    repository = release.repository()
    files = [ROOT / name for name in ("pyproject.toml", "README.md", "CHANGELOG.md")]
    files += [path for path in (ROOT / ".github").rglob("*") if path.is_file()]
    addresses = {found for file in files for found in URL.findall(file.read_text("utf-8"))}
    assert addresses == {repository}


def test_actions_are_pinned_to_commits() -> None:
    """One commit for each action, with the version that it is in a comment."""
    pins: dict[str, set[str]] = {}
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        for line in re.findall(r"uses: *(.*)", workflow.read_text("utf-8")):
            match = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40} # v[\d.]+)", line)
            assert match is not None, f"{workflow.name}: {line}"
            pins.setdefault(match[1], set()).add(match[2])
    assert {action: pin for action, pin in pins.items() if len(pin) > 1} == {}


def test_workflows_run_commands_that_exist() -> None:
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        for command in set(re.findall(r"(?<![\w/])\.ci/[\w-]+", workflow.read_text("utf-8"))):
            assert os.access(ROOT / command, os.X_OK), f"{workflow.name}: {command}"
