"""The pages' commands run as they stand there, sentences are short, and the site has every page."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import readme
from hub import Hub
from object_store import Store
from processes import run_python
from sharded_folder import contents
from whole_models import dense

SITE = readme.ROOT / ".site" / "index.md"
PAGES = sorted(readme.PACKAGE.rglob("*.md"))
WITH_COMMANDS = [
    *sorted(readme.CAST.parent.glob("*.md")),
    readme.WHICH_SCHEME,
    readme.FORMATS,
    SITE,
]
"""The pages whose commands are about `model`, a model of the reader's."""
LONGEST = 36
"""Words of a sentence."""


def page_name(page: Path) -> str:
    return page.relative_to(readme.ROOT).as_posix()


def commands(page: Path) -> list[list[str]]:
    """Give the arguments of each command of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def uses(page: Path, scheme: str) -> bool:
    return any(scheme in argument for command in commands(page) for argument in command)


@pytest.mark.parametrize("page", WITH_COMMANDS[:-1], ids=page_name)
def test_a_page_opens_with_a_command(page: Path) -> None:
    title, _, text = page.read_text("utf-8").partition("\n\n")
    assert title.startswith("# ")
    assert text.startswith("```sh\ncastwise ")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.frameworks if uses(page, "://") else ())
        for page in WITH_COMMANDS
    ],
    ids=page_name,
)
def test_the_commands_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    shutil.rmtree(dense(tmp_path / "model", {}))
    if uses(page, "s3://"):
        bucket: Store = request.getfixturevalue("store")
        bucket.put(tmp_path / "model", "model")
    if uses(page, "hf://"):
        hub: Hub = request.getfixturevalue("hub")
        hub.put("org/model", contents(tmp_path / "model"))
    monkeypatch.chdir(tmp_path)
    for program, *arguments in commands(page):
        assert program == "castwise"
        done = run_python("-m", "castwise", *arguments)
        assert done.returncode == 0, (arguments, done.stderr)


def sentences(text: str) -> Iterator[str]:
    """Give the sentences and the items of lists of a page, without code, tables and headings."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^[|#].*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", text))
    for paragraph in re.split(r"\n\s*\n|^\s*- ", text, flags=re.MULTILINE):
        yield from re.split(r"(?<=[.!?:])[)\"*]*\s+", paragraph.strip())


@pytest.mark.parametrize("page", [*PAGES, SITE], ids=page_name)
def test_sentences_are_short(page: Path) -> None:
    for sentence in sentences(page.read_text("utf-8")):
        assert len(sentence.split()) <= LONGEST, sentence


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_site_leads_to_every_page(page: Path) -> None:
    address = page.relative_to(readme.PACKAGE).with_suffix("").as_posix()
    assert address in SITE.read_text("utf-8").splitlines()
