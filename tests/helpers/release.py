"""What a release says of itself: its version, its notes, and a README whose links hold on PyPI.

python tests/helpers/release.py check v0.1.0   the tag, Cargo.toml and CHANGELOG.md name one version
python tests/helpers/release.py notes v0.1.0   what CHANGELOG.md says of it
python tests/helpers/release.py readme FOLDER  FOLDER/README.md, its links made absolute
python tests/helpers/release.py conda SDIST    the recipe of conda-forge for that sdist
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A link or a picture of Markdown whose target is a path in the repository.
RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#|mailto:)([^)\s]+)\)")


def version(root: Path = ROOT) -> str:
    """Read the version, which stands in Cargo.toml alone."""
    cargo = tomllib.loads((root / "Cargo.toml").read_text("utf-8"))
    return str(cargo["workspace"]["package"]["version"])


def repository(root: Path = ROOT) -> str:
    """Read where the repository is."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["urls"]["Repository"])


def absolute_links(text: str, repository: str, ref: str) -> str:
    """Make the links of a page at the top of the repository lead to a commit or tag of it."""

    def absolute(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        return f"{picture}{label}({repository}/{'raw' if picture else 'blob'}/{ref}/{target})"

    return RELATIVE_LINK.sub(absolute, text)


def notes(changelog: str, version: str) -> str:
    """Return the text of a version's section, without its heading.

    Raises
    ------
    ValueError
        There is no such section, or it is empty.

    """
    heading = rf"^## \[{re.escape(version)}\][^\n]*\n"
    section = re.search(rf"(?ms){heading}(.*?)(?=^## |\Z)", changelog)
    if section is None or not section[1].strip():
        message = (
            f"CHANGELOG.md has no text for version {version}. "
            f"Name the section of what was not released yet '## [{version}] - DATE'."
        )
        raise ValueError(message)
    return section[1].strip() + "\n"


def conda_recipe(sdist: Path) -> str:
    """Return the recipe of conda-forge, with the version and the digest of an sdist."""
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    recipe = (ROOT / ".github" / "conda-forge" / "recipe.yaml").read_text("utf-8")
    return recipe.replace("@VERSION@", version()).replace("@SHA256@", digest)


def check(tag: str, version: str, changelog: str) -> None:
    """Compare a tag with the version that the package has, and with the changelog.

    Raises
    ------
    ValueError
        They name different versions.

    """
    if tag != f"v{version}":
        message = (
            f"the tag is {tag!r}, and the version in Cargo.toml is {version}. "
            f"Tag v{version}, or change the version."
        )
        raise ValueError(message)
    notes(changelog, version)


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands that the head of this file names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("check", "notes"):
        commands.add_parser(name).add_argument("tag")
    commands.add_parser("readme").add_argument("folder", type=Path)
    commands.add_parser("conda").add_argument("sdist", type=Path)
    given = parser.parse_args(arguments)

    if given.command == "conda":
        sys.stdout.write(conda_recipe(given.sdist))
        return 0
    if given.command == "readme":
        page = given.folder / "README.md"
        text = absolute_links(page.read_text("utf-8"), repository(), f"v{version()}")
        page.write_text(text, "utf-8", newline="\n")
        return 0
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    try:
        if given.command == "check":
            check(given.tag, version(), changelog)
        else:
            sys.stdout.write(notes(changelog, given.tag.removeprefix("v")))
    except ValueError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
