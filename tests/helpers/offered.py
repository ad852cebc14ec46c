"""Packages that offer castwise containers or architectures, installed in a folder of their own."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import readme
from processes import run_python

CONTAINER_PAGE = readme.PACKAGE / "checkpoint" / "write_a_container.md"

COMMANDS = """
import shlex, sys
from castwise.cli import main
for command in sys.argv[1:]:
    print(main(shlex.split(command)))
"""
"""Runs the commands that are its arguments, and prints the exit code of each."""


def example(page: Path) -> str:
    """Return the module that a page shows, which is all of its Python."""
    block = re.search(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert block
    return block[1]


def entry_point(page: Path) -> str:
    """Return the entry point that a page shows, as `entry_points.txt` has it."""
    block = re.search(r'entry-points\."(.*?)"\]\n(\w+) = "(.*?)"$', page.read_text("utf-8"), re.M)
    assert block
    return f"[{block[1]}]\n{block[2]} = {block[3]}\n"


def install(folder: Path, package: str, entry_points: str, source: str) -> Path:
    """Install a package of one module into a folder, and return that."""
    module = package.replace("-", "_")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    (folder / f"{module}.py").write_text(source)
    return folder


def install_example(folder: Path, page: Path) -> Path:
    """Install the package that a page shows."""
    points = entry_point(page)
    package = points.partition("= ")[2].partition(":")[0].replace("_", "-")
    return install(folder, package, points, example(page))


def run(folder: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of a folder, beside those of the tests."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return run_python(*arguments, env={**os.environ, "PYTHONPATH": path}, forked=False)


def run_program(folder: Path, program: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a place, with the packages of a folder; it ends well."""
    text = f"import os; os.chdir({str(place)!r})\n{textwrap.dedent(program)}"
    done = run(folder, "-c", text)
    assert done.returncode == 0, done.stderr
    return done


def run_commands(
    folder: Path, *commands: str, files: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run commands of castwise beside files, one after the other in one process; all end well."""
    for name, text in files.items():
        Path(name).write_text(text)
    done = run(folder, "-W", "error", "-c", COMMANDS, *commands)
    assert done.returncode == 0, done.stderr
    codes = [line for line in done.stdout.splitlines() if line in {"0", "1", "2"}]
    assert codes == ["0"] * len(commands), (done.stdout, done.stderr)
    return done
