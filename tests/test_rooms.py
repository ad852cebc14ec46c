"""Imports flow one way: from each room only to those below it, and in no circle."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import castwise
import pytest

PACKAGE = Path(castwise.__file__).parent

ROOMS = (
    ("_core", "_on_demand", "_options", "_wording"),
    (
        "_adapter_registry",
        "_argument_names",
        "_brief",
        "_entry_points",
        "_floating",
        "_frameworks",
        "_numbers",
        "_spelling",
    ),
    ("rendering",),
    (
        "_acceleration",
        "_blocks",
        "_environment",
        "_host_arrays",
        "_regular_files",
        "_parsed_files",
        "_switch",
        "_trees",
    ),
    ("_global_state", "_keras_objects", "_standard_dtype", "config", "dtype_policies"),
    # Above the policies, because `cast_tree` and checkpoints take those, too.
    ("_array_leaves", "_casting", "_comparison", "_dtype_map", "_measures", "_recipe", "_seeding"),
    ("_library_casts",),
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
    ("containers", "plan", "report"),
    ("_sheets", "_inspection"),
    ("_config", "summary"),
    ("_model_card", "preview"),
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


FRONTS = {f"castwise.quantization.{room}" for (room,) in QUANTIZATION_ROOMS}
"""The rooms of quantization, each of which hands out names by its `__init__`."""


CHECKPOINT_FRONTS = {
    f"castwise.checkpoint.{room}"
    for rooms in CHECKPOINT_ROOMS
    for room in rooms
    if (PACKAGE / "checkpoint" / room).is_dir()
}
"""Those of checkpoint; the modules of containers that begin with no underscore are handed out, too:
they are imported for a file of theirs alone."""


@cache
def names_imported() -> list[tuple[str, str, str]]:
    """List modules of the package, and what each imports: from where, and by which name."""
    return [
        (name, node.module, alias.name)
        for name, file in modules().items()
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module in FRONTS | CHECKPOINT_FRONTS
        for alias in node.names
    ]


def names_from_below(front: str) -> set[str]:
    """What a front imports from the modules of its room, which it hands out."""
    tree = ast.parse(modules()[front].read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {a.name for node in imports if str(node.module).startswith(front) for a in node.names}


def names_taken(front: str) -> set[str]:
    """What modules outside import from a room by name: outside of quantization for all of its."""
    package = front if front in CHECKPOINT_FRONTS else "castwise.quantization"
    return {
        taken
        for name, room, taken in names_imported()
        if room == front and not name.startswith(package)
    }


def test_no_other_room_imports_a_private_module_of_quantization() -> None:
    fronts = {"castwise.quantization", *FRONTS}
    for name, others in graph().items():
        if not name.startswith("castwise.quantization"):
            inner = {other for other in others if other.startswith("castwise.quantization")}
            assert inner <= fronts, name


@pytest.mark.parametrize("front", sorted(CHECKPOINT_FRONTS))
def test_no_other_room_imports_a_private_module_of_a_room_of_checkpoint(front: str) -> None:
    for name, others in graph().items():
        if not name.startswith(front):
            inner = {other.removeprefix(front) for other in others if other.startswith(front)}
            assert not any("._" in module for module in inner), (name, inner)


@pytest.mark.parametrize("front", sorted(FRONTS | CHECKPOINT_FRONTS))
def test_a_front_hands_out_what_is_taken_and_no_more(front: str) -> None:
    module = import_module(front)
    names = getattr(module, "__all__", None) or names_from_below(front)
    assert set(names) == names_taken(front)
    for name in names:
        assert getattr(module, name) is not None
