"""Imports flow one way: from each room only to those below it, and in no circle."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import castwise
import pytest

PACKAGE = Path(castwise.__file__).parent

ROOMS = (
    ("_core", "_on_demand", "_options"),
    ("_floating", "_numbers", "text"),
    ("rendering",),
    ("_trees", "environment"),
    ("config", "dtype_policies"),
    # Above the policies, because `cast_tree` and checkpoints take those, too.
    ("arrays",),
    ("loss_scale",),
    ("models",),
    ("quantization",),
    ("surveys",),
    ("checkpoint",),
    ("autocast",),
    ("compat",),
    ("adapters",),
    ("cli", "__main__"),
)
"""The modules and packages of `castwise` room by room, the lowest first."""

CHECKPOINT_ROOMS = (
    ("_errors",),
    ("_tensors", "files", "maps"),
    ("containers", "plan", "results"),
    ("_config",),
    ("loading",),
    ("planning",),
    ("arrays", "running"),
    ("requests",),
    ("comparison", "conversions"),
    ("surveying",),
    ("advice",),
)
"""Those of `castwise.checkpoint`."""

QUANTIZATION_ROOMS = (("producers",), ("arrays",), ("weights",))
"""Those of `castwise.quantization`."""

LATER = ("import_module", "on_demand", "Container")
"""What is called with the names of modules, or of classes in them, that are imported when they are
needed."""


def modules() -> dict[str, Path]:
    """Each module's file by its name; a package is its `__init__`, the extension its stub."""
    files = [*PACKAGE.rglob("*.py"), PACKAGE / "_core.pyi"]
    places = {file: file.relative_to(PACKAGE.parent).with_suffix("").parts for file in files}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): file for file, p in places.items()}


def called(call: ast.Call) -> str:
    """The last name of what is called; "" if it has none."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def imported(file: Path, known: set[str]) -> set[str]:
    """What a module imports from the package, also in functions, for types only, and by name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and called(node) in LATER:
            texts = (str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant))
            found |= {text.partition(":")[0] for text in texts}
        elif isinstance(node, ast.Import):
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


def inside(package: str) -> dict[str, set[str]]:
    """What the modules in a package import from it, by names within it; not the package itself."""
    prefix = f"{package}."
    return {
        name.removeprefix(prefix): {
            other.removeprefix(prefix) for other in others if other.startswith(prefix)
        }
        for name, others in graph().items()
        if name.startswith(prefix)
    }


@pytest.mark.parametrize(
    ("package", "rooms"),
    [
        ("castwise", ROOMS),
        ("castwise.checkpoint", CHECKPOINT_ROOMS),
        ("castwise.quantization", QUANTIZATION_ROOMS),
    ],
)
def test_no_module_imports_from_a_room_above(package: str, rooms: tuple[tuple[str, ...]]) -> None:
    floors = {name: floor for floor, room in enumerate(rooms) for name in room}
    imports = inside(package)
    assert {name.split(".")[0] for name in imports} == set(floors)
    for name, others in imports.items():
        for other in others:
            assert floors[other.split(".")[0]] <= floors[name.split(".")[0]], (name, other)


def test_an_import_from_above_is_found(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.py"
    for source in (
        "from castwise.adapters import protocol",
        "import castwise.adapters.protocol",
        "if TYPE_CHECKING:\n    from castwise.adapters.protocol import Adapter",
        "def later():\n    from castwise.adapters.protocol import Adapter",
        "importlib.import_module('castwise.adapters.protocol')",
        "Container('castwise.adapters.protocol:Adapter')",
        "on_demand(__name__, {'castwise.adapters.protocol': ('Adapter',)})",
    ):
        hidden.write_text(source)
        assert imported(hidden, set(modules())) == {"castwise.adapters.protocol"}


def test_no_module_imports_one_that_imports_it() -> None:
    try:
        order = list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(f"circle of imports: {' -> '.join(error.args[1])}")
    assert order.index("castwise._core") < order.index("castwise.cli")


MODELS = {"checkpoint", "models", "cli", "__main__"}
"""The second wing; `quantization` of arrays serves both, and stands between them."""


def test_arrays_and_training_import_nothing_of_models() -> None:
    """Nor does what they import: a program that casts arrays loads no room of models."""
    for name, others in inside("castwise").items():
        if name.split(".")[0] not in MODELS:
            assert not MODELS.intersection(other.split(".")[0] for other in others), name


def test_only_the_command_line_uses_the_package_by_its_public_names() -> None:
    users = {name for name, others in graph().items() if "castwise" in others}
    assert {name for name in users if not name.startswith("castwise.cli")} <= {"castwise.__main__"}


INTERNAL = (
    *("arrays", "environment", "models", "rendering", "text"),
    *(f"quantization.{room}" for (room,) in QUANTIZATION_ROOMS),
    *(
        f"checkpoint.{room}"
        for rooms in CHECKPOINT_ROOMS
        for room in rooms
        if (PACKAGE / "checkpoint" / room).is_dir()
    ),
)
"""The rooms that castwise alone imports: their modules without underscore are for other rooms."""


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_no_room_imports_a_private_module_of_another() -> None:
    for name, others in graph().items():
        for other in others:
            parts = other.split(".")
            private = next((place for place, part in enumerate(parts) if part[0] == "_"), 0)
            package = ".".join(parts[:private])
            if any(is_inside(package, f"castwise.{room}") for room in INTERNAL):
                assert is_inside(name, package), (name, other)
