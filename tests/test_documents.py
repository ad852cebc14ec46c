"""Pages, docstrings and releases: tables are today's, examples run, links lead somewhere."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import castwise
import numpy as np
import pytest
import readme
import release
from castwise import quantization
from castwise.arrays import adapter_registry
from castwise.environment import defaults
from imatrix import write_imatrix
from processes import run_python
from readme import PACKAGE, ROOT
from sharded_folder import contents
from whole_models import WIDTH, dense

FRAMEWORKS = ("keras", "tf_keras", "torch", "jax")
SITE = ROOT / ".site" / "index.md"
PAGES = sorted(PACKAGE.rglob("*.md"))
"""The pages of the site."""
EVERY_PAGE = sorted(
    page
    for pages in ("*.md", ".github/*.md", ".site/*.md", "benches/*.md", "tests/**/*.md")
    for page in ROOT.glob(pages)
)
EVERY_PAGE += PAGES
WITH_COMMANDS = [
    *sorted(readme.CAST.parent.glob("*.md")),
    readme.WHICH_SCHEME,
    readme.FORMATS,
    readme.COMING_FROM,
    SITE,
]
"""The pages whose commands are about `model`, a model of the reader's."""
PLAIN = [page for page in EVERY_PAGE if page not in {readme.BENCHES, ROOT / "CHANGELOG.md"}]
"""The pages whose sentences are short: all but the log of measurements and that of changes."""
LONGEST = 32
"""Words of a sentence."""
TURNS = (
    *(r"\balone\b", r"\b[aA]s (it|they) stands?\b", r"\ball the same\b", r"\bwhat becomes of\b"),
    *(r"\b(is|are) (said|told|asked)\b", r"\b[wW]hat stays\b", r"\bthe others\b", r"\bthe like\b"),
    *(r"\bquantise", r"\bso-manieth\b", r"\bsession", r"^Of "),
)
"""Turns that a page does without: its sentences begin with their subjects, and name them."""

HOW = "run `python tests/helpers/readme.py`"


@cache
def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def beside_frameworks(values: Iterable[Any], needs: Callable[[Any], object]) -> list[object]:
    """Mark the parameters for which a function names frameworks."""
    mark = pytest.mark.frameworks
    return [pytest.param(each, marks=mark if needs(each) else ()) for each in values]


# What is generated, and links.


def section(page: Path, name: str) -> str:
    return readme.section(text_of(page), name)


def benchmark() -> str:
    return section(readme.BENCHES, "benchmark")


@pytest.mark.parametrize(
    ("page", "name", "today"),
    [
        (readme.FORMATS, "formats", readme.formats),
        (readme.FORMATS, "cheatsheet", readme.cheatsheet),
        (readme.FORMATS, "overflows", readme.overflows),
        (readme.QUANTIZED, "schemes", readme.schemes),
        (readme.QUANTIZED, "scales", readme.scales),
        (readme.WHICH_SCHEME, "consumers", readme.consumers),
        (readme.README, "speed", lambda: readme.speed(benchmark())),
        (readme.README, "files", lambda: readme.files(section(readme.BENCHES, "checkpoints"))),
        (readme.PICTURE, "", readme.picture),
        (readme.SPEED_PICTURE, "", lambda: readme.speed_picture(benchmark())),
    ],
)
def test_what_is_generated_is_todays(page: Path, name: str, today: Callable[[], str]) -> None:
    assert (section(page, name) if name else text_of(page)) == today(), HOW


@pytest.mark.parametrize(
    "row",
    [row for row in map(castwise.finfo, castwise.formats()) if row.kind == "float" and row.dtype],
    ids=lambda row: row.name,
)
def test_the_cheat_sheet_says_what_casts_give(row: castwise.FormatInfo) -> None:
    line = re.search(rf"^\| `{row.name}` .*$", section(readme.FORMATS, "cheatsheet"), re.MULTILINE)
    assert line
    overflow, nan = line[0].strip("| ").split(" | ")[-2:]
    expected = {"infinity": np.inf, "NaN": np.nan, "max": row.max, "0": 0.0}
    assert row.dtype is not None
    for value, cell in ((row.max * 4, overflow), (np.nan, nan)):
        result = castwise.cast(np.float64(value), row.dtype)
        np.testing.assert_array_equal(float(result), expected[cell])


@pytest.mark.parametrize(
    ("page", "part"),
    [
        (readme.CAST, "accuracy"),
        *(
            (readme.BENCHES, part)
            for part in ("benchmark", "options-avx512", "options-avx2", "unscale", "policies")
        ),
    ],
)
def test_measured_parts_are_filled_in(page: Path, part: str) -> None:
    assert section(page, part).count("|") > 20, part


def test_the_readme_is_short() -> None:
    assert len(text_of(readme.README).splitlines()) <= 120


def test_the_readme_says_who_loads_what() -> None:
    table = (
        text_of(readme.README).partition("## Who reads and writes what")[2].partition("\n## ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in table.lower().splitlines() if "|" in line]
    for consumer in quantization.consumers():
        for loading in consumer.loads:
            (row,) = (row for row in rows if re.search(rf"\b{loading.recipe}", row[0]))
            assert consumer.name in row[-1]


@pytest.mark.parametrize("page", EVERY_PAGE, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text_of(page)):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", text_of(file), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in slugs, f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_site_leads_to_every_page(page: Path) -> None:
    address = page.relative_to(PACKAGE).with_suffix("").as_posix()
    assert address in text_of(SITE).splitlines()


@pytest.mark.parametrize("scheme", quantization.schemes(), ids=lambda scheme: scheme.name)
def test_the_site_has_a_page_for_each_scheme(
    scheme: quantization.Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SITE.parent))
    text = importlib.import_module("schemes").page(scheme)
    for consumer in quantization.consumers():
        for loading in consumer.loads:
            is_loaded = scheme.name in (*loading.schemes, *loading.experts, *loading.stacks)
            assert (f"| {consumer.name} | `{loading.recipe}` |" in text) == is_loaded
    assert all(len(sentence.split()) <= LONGEST for sentence in sentences(text))


def sentences(text: str) -> Iterator[str]:
    """Give the sentences and the items of lists of a page, without code, tables and headings."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^[|#].*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", text))
    for paragraph in re.split(r"\n\s*\n|^\s*- ", text, flags=re.MULTILINE):
        yield from re.split(r"(?<=[.!?:])[)\"*]*\s+", paragraph.strip())


@pytest.mark.parametrize("page", PLAIN, ids=page_name)
def test_sentences_are_short(page: Path) -> None:
    for sentence in sentences(text_of(page)):
        assert len(sentence.split()) <= LONGEST, sentence


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_sentences_name_their_subjects(page: Path) -> None:
    for sentence in sentences(text_of(page)):
        found = [turn for turn in TURNS if re.search(turn, sentence)]
        assert not found, (found, sentence)


# Commands of pages.


def commands(page: Path) -> list[list[str]]:
    """Give the arguments of each command of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def uses(page: Path, scheme: str) -> bool:
    return any(scheme in argument for command in commands(page) for argument in command)


@pytest.mark.parametrize("page", WITH_COMMANDS[:-1], ids=page_name)
def test_a_page_opens_with_a_command(page: Path) -> None:
    title, _, text = text_of(page).partition("\n\n")
    assert title.startswith("# ")
    assert text.startswith("```sh\ncastwise ")


@pytest.mark.frameworks  # of two pages alone; but each command is a process
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_name)
def test_the_commands_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    shutil.rmtree(dense(tmp_path / "model", {}))
    if uses(page, "s3://"):
        request.getfixturevalue("store").put(tmp_path / "model", "model")
    if uses(page, "hf://"):
        request.getfixturevalue("hub").put("org/model", contents(tmp_path / "model"))
    if uses(page, "imatrix.gguf"):
        gguf, rows = request.getfixturevalue("framework")("gguf"), np.ones(WIDTH, np.float32)
        write_imatrix(gguf, tmp_path / "imatrix.gguf", {"blk.0.attn_q.weight": rows})
    monkeypatch.chdir(tmp_path)
    for program, *arguments in commands(page):
        assert program == "castwise"
        result = run_python("-m", "castwise", *arguments)
        assert result.returncode == 0, (arguments, result.stderr)


# Examples of pages and of docstrings.

MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py" and ">>> " in path.read_text("utf-8")
)
"""The modules with examples."""
ROOMS = (
    *("castwise", "castwise.autocast", "castwise.checkpoint", "castwise.config"),
    *("castwise.dtype_policies", "castwise.loss_scale", "castwise.quantization"),
    *("castwise.surveys", *(f"castwise.adapters.{name}" for name in FRAMEWORKS)),
)
OF_THE_CORE = [name for name in castwise.__all__ if inspect.isbuiltin(getattr(castwise, name))]


NAMES = {"castwise": castwise, "np": np}
"""What the examples of docstrings do not import."""


def examples(text: str, name: str, names: Mapping[str, object]) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(text, dict(names), name, name, 0)


class Checker(doctest.OutputChecker):
    """Takes the dtypes of arrays as ml_dtypes spells them from 0.7 on and before."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        spelled = r"dtype=(?:dtype\((\w+)\)|'(\w+)')"
        want, got = (re.sub(spelled, r"dtype=\1\2", text) for text in (want, got))
        return super().check_output(want, got, optionflags)


def failures(test: doctest.DocTest, flags: int = doctest.ELLIPSIS) -> int:
    return doctest.DocTestRunner(Checker(), optionflags=flags).run(test).failed


def frameworks_of_page(page: Path) -> list[str]:
    return [name for name in FRAMEWORKS if f">>> import {name}" in text_of(page)]


@cache
def frameworks_of_module(name: str) -> list[str]:
    """Name the framework that a module imports: of an adapter, or one that requires it at once."""
    parts = name.split(".")
    if parts[1:2] == ["adapters"] and parts[2:3] and parts[2] in FRAMEWORKS:
        return [parts[2]]
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""
    return re.findall(r'^\w.*= require\("(\w+)"\)$', source, re.MULTILINE)


def import_frameworks(names: list[str], request: pytest.FixtureRequest) -> None:
    """Import them first, as their warnings would fail the test."""
    for name in names:
        request.getfixturevalue("framework")(name)


@pytest.mark.parametrize(
    "page",
    beside_frameworks([page for page in EVERY_PAGE if ">>> " in text_of(page)], frameworks_of_page),
    ids=page_name,
)
def test_examples_of_a_page_run(
    page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An example may register an adapter, which later tests must not find.
    monkeypatch.setattr(adapter_registry, "_adapters_by_predicate", [])
    monkeypatch.setattr(adapter_registry, "_adapters_by_class", WeakKeyDictionary())
    import_frameworks(frameworks_of_page(page), request)
    test = examples(text_of(page), str(page), {"__name__": "__main__"})
    assert test.examples
    assert failures(test) == 0


@pytest.mark.parametrize("name", beside_frameworks(MODULES, frameworks_of_module))
def test_examples_of_a_module_run(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_frameworks(frameworks_of_module(name), request)
    for test in doctest.DocTestFinder().find(importlib.import_module(name), extraglobs=NAMES):
        if test.examples:  # each run looks at every file that Python has quoted lines of
            folder = tmp_path / test.name
            folder.mkdir()
            monkeypatch.chdir(folder)
            with defaults.policy_scope(None):  # an example may set the policy of the thread
                assert failures(test) == 0


@pytest.mark.parametrize("name", OF_THE_CORE)
def test_examples_of_the_core_run(name: str) -> None:
    test = examples(getattr(castwise, name).__doc__, name, NAMES)
    assert test.examples
    assert failures(test, flags=0) == 0


@pytest.mark.parametrize("room", beside_frameworks(ROOMS, frameworks_of_module))
def test_every_public_function_has_an_example(room: str, request: pytest.FixtureRequest) -> None:
    import_frameworks(frameworks_of_module(room), request)
    module = importlib.import_module(room)
    functions = [name for name in module.__all__ if inspect.isroutine(getattr(module, name))]
    lacking = [name for name in functions if ">>> " not in (getattr(module, name).__doc__ or "")]
    assert functions
    assert not lacking


# A release: version, notes, the README on PyPI, and what GitHub reads about the project.

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
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
    text = text_of(readme.README)
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


@pytest.mark.parametrize(
    ("text", "version"),
    [
        *((CHANGELOG, version) for version in ("0.3.0", "0.2", "0x2x0")),
        (CHANGELOG.replace("### Added\n\n- A format.\n", ""), "0.2.0"),
    ],
)
def test_a_version_without_a_text_is_refused(text: str, version: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no text for version {version}.")):
        release.notes(text, version)


@pytest.mark.parametrize("tag", ["v0.1.0", "0.2.0", "v0.2.0rc1", "refs/tags/v0.2.0"])
def test_a_tag_is_that_of_the_version(tag: str) -> None:
    release.check("v0.2.0", "0.2.0", CHANGELOG)
    with pytest.raises(ValueError, match=r"Tag v0\.2\.0, or change the version"):
        release.check(tag, "0.2.0", CHANGELOG)


def test_what_is_refused_ends_the_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["check", "v99.0.0"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert release.main(["notes", "v99.0.0"]) == 1


def test_the_recipe_of_conda_requires_what_the_wheel_does(tmp_path: Path) -> None:
    sdist = tmp_path / "castwise.tar.gz"
    sdist.write_bytes(b"")
    recipe = release.conda_recipe(sdist)
    assert f'version: "{release.version()}"' in recipe
    assert f'sha256: "{hashlib.sha256(b"").hexdigest()}"' in recipe
    required = re.findall(r"^ +- (\w+) (\S+)$", recipe, re.MULTILINE)
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    build, run = project["build-system"]["requires"], project["project"]["dependencies"]
    assert {*build, *run} <= {"".join(each) for each in required}
    # conda-forge's matrix gives the version of Python in host; the recipe chooses among its builds.
    oldest = re.search(r'^  python_min: "(\S+)"$', recipe, re.MULTILINE)
    assert oldest is not None
    assert f">={oldest[1]}" == project["project"]["requires-python"]
    assert 'skip: not (match(python, python_min ~ ".*") and is_abi3)' in recipe
    assert "- castwise = " + project["project"]["scripts"]["castwise"] in recipe


def test_the_repository_has_one_address() -> None:
    """It stands in pyproject.toml; what cannot read that says the same."""
    files = [ROOT / name for name in ("pyproject.toml", "README.md", "CHANGELOG.md")]
    files += [path for path in (ROOT / ".github").rglob("*") if path.is_file()]
    pattern = r"https://github\.com/[\w-]+/castwise\b"
    addresses = {each for file in files for each in re.findall(pattern, file.read_text("utf-8"))}
    assert addresses == {release.repository()}


def test_actions_are_pinned_to_commits() -> None:
    """One commit for each action, with the version that it is in a comment."""
    pins: dict[str, set[str]] = {}
    for workflow in WORKFLOWS:
        for line in re.findall(r"uses: *(.*)", text_of(workflow)):
            match = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40} # v[\d.]+)", line)
            assert match is not None, f"{workflow.name}: {line}"
            pins.setdefault(match[1], set()).add(match[2])
    assert {action: pin for action, pin in pins.items() if len(pin) > 1} == {}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=page_name)
def test_workflows_run_commands_that_exist(workflow: Path) -> None:
    for command in re.findall(r"(?<![\w/])\.ci/[\w-]+", text_of(workflow)):
        assert os.access(ROOT / command, os.X_OK), command
