"""Imports flow one way: no module of the package needs one that needs it."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import castwise
import pytest

PACKAGE = Path(castwise.__file__).parent


def modules() -> dict[str, Path]:
    """Each module's file by its name; a package is its `__init__`, the extension its stub."""
    files = [*PACKAGE.rglob("*.py"), PACKAGE / "_core.pyi"]
    places = {file: file.relative_to(PACKAGE.parent).with_suffix("").parts for file in files}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): file for file, p in places.items()}


def imported(file: Path, known: set[str]) -> set[str]:
    """What a module imports from the package, also in functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & known or {node.module}
    return found & known


@cache
def graph() -> dict[str, set[str]]:
    files = modules()
    # The package's own names are loaded on demand, by whoever asks for them.
    return {name: imported(file, set(files)) for name, file in files.items() if name != "castwise"}


def test_no_module_imports_one_that_imports_it() -> None:
    try:
        order = list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(f"circle of imports: {' -> '.join(error.args[1])}")
    assert order.index("castwise._core") < order.index("castwise.cli")


@pytest.mark.parametrize(
    ("room", "above"),
    [
        ("castwise.dtype_policies", ("autocast", "compat", "adapters", "checkpoint", "cli")),
        ("castwise.loss_scale", ("autocast", "compat", "adapters", "checkpoint", "cli")),
        ("castwise.checkpoint", ("autocast", "compat", "cli")),
        ("castwise.autocast", ("adapters", "checkpoint", "cli")),
        ("castwise.compat", ("adapters", "checkpoint", "cli")),
        ("castwise.adapters", ("checkpoint", "cli")),
    ],
)
def test_a_room_uses_no_room_above_it(room: str, above: tuple[str, ...]) -> None:
    upward = [
        f"{name} imports {other}"
        for name, others in graph().items()
        if name.startswith(room)
        for other in others
        if other.startswith(tuple(f"castwise.{one}" for one in above))
    ]
    assert not upward


def test_only_the_command_line_uses_the_package_by_its_public_names() -> None:
    users = {name for name, others in graph().items() if "castwise" in others}
    assert users <= {"castwise.__main__", "castwise.cli", "castwise.cli_output"}
