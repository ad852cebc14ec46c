"""A page of commands as a Jupyter notebook, and a check that its commands print what the page has.

    python .site/notebook.py PAGE FOLDER

runs the notebook of a page in a new folder, and ends with an error where a line of the page is not
printed. The half hour downloads a model of 84 MB into that folder.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode, v4

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)")
COMMANDS = ("sh", "bash")
"""Languages of fences with commands: those that the tests of pages run, and others."""
COLUMNS = 118
"""The width of the tables of the page."""


def notebook(path: Path) -> NotebookNode:
    """Return the notebook of a page: a cell for each text, and for each block of commands.

    A block without a language that follows commands has what they print. Links lead to the files of
    the repository.
    """
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]

    def link(target: re.Match[str]) -> str:
        file = os.path.relpath(path.parent / target[1] if target[1] else path, ROOT)
        return f"]({urls['Repository']}/blob/main/{Path(file).as_posix()}"

    text = LINK.sub(link, path.read_text("utf-8"))
    cells = [v4.new_code_cell(f"%pip install --quiet castwise\n%env COLUMNS={COLUMNS}")]
    end = 0
    for fence in FENCE.finditer(text):
        if prose := text[end : fence.start()].strip():
            cells.append(v4.new_markdown_cell(prose))
        end, block = fence.end(), fence[2]
        if fence[1] in COMMANDS:
            # `castwise diff` ends with 1 where models differ, as `diff` does.
            cells.append(v4.new_code_cell(f"%%sh --no-raise-error\n{block.strip()}"))
        elif cells[-1].cell_type == "code":
            cells[-1].outputs = [v4.new_output("stream", text=block)]
        else:
            cells.append(v4.new_markdown_cell(fence[0]))
    cells.append(v4.new_markdown_cell(text[end:].strip()))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # by default they are random
    language = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": language})


def absent_lines(page: NotebookNode, run: NotebookNode) -> Iterator[str]:
    """Yield of each output of a page the first line that a run did not print in this order."""
    for cell, execution in zip(page.cells, run.cells, strict=True):
        if cell.cell_type == "code" and cell.outputs:
            texts = (out.text for out in execution.outputs if out.get("name") == "stdout")
            printed = iter("".join(texts).splitlines())
            lines = cell.outputs[0].text.splitlines()
            # The search for an absent line reads all lines, so that it cannot find later ones.
            yield from islice((line for line in lines if line not in printed), 1)


def write(path: Path, file: Path) -> None:
    """Write the notebook of a page to a file."""
    nbformat.write(notebook(path), file)


def main(path: Path, folder: Path) -> None:
    """Run the notebook of a page in a folder, and compare what it prints with the page."""
    folder.mkdir(parents=True)
    page, run = notebook(path), notebook(path)
    run.cells[0].source = f"%env COLUMNS={COLUMNS}"  # the castwise at hand is tried
    NotebookClient(run, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    if absent := [*absent_lines(page, run)]:
        sys.exit("\n".join((f"{path}: commands do not print these lines:", *absent)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
