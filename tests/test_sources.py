"""What the sources are made of: which room imports which, what names mean, and where each stands.

Each source is parsed once. Beside each rule a test shows that its fault is found.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from pathlib import Path

import castwise
import numpy as np
import pytest
from castwise.quantization.producers.gguf import GGUF
from castwise.quantization.producers.producer import Producer
from castwise.quantization.producers.registry import PRODUCERS
from processes import run_python

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "castwise"
SOURCES = sorted(PACKAGE.rglob("*.py"))
Graph = Mapping[str, set[str]]


def word_list(text: str) -> list[str]:
    return text.split()


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in (*SOURCES, PACKAGE / "_core.pyi")}
"""A package is its `__init__`, the extension its stub."""

LATER = ("import_module", "on_demand", "Container")
"""What is called with the names of modules, or of classes in them, that are imported when they are
needed."""

WORDINGS = ("argument", "function", "join", "kept_text", "parenthesis", "quote", "setting")
"""What returns words of a function and of the command; an f-string drops the second."""


class Source:
    """What the rules ask of a Python source, without its tree, which takes much memory."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        self.lines = len(lines)
        self.comments = sum(line.lstrip().startswith("#") for line in lines)
        self.bindings: list[tuple[str, int]] = []
        self.classes: list[tuple[str, int]] = []
        self.annotations: list[str] = []  # of parameters
        self.strings: set[str] = set()  # but not docstrings
        imports: set[str] = set()  # also in functions, for types only, and by name
        uses: set[str] = set()
        self.half_wordings: list[str] = []  # arguments in f-strings
        statements: set[ast.expr] = set()
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Expr(value=value):
                    statements.add(value)
                case ast.Constant(value=str(value)) if node not in statements:
                    self.strings.add(value)
                case ast.Name(id=name, ctx=ctx) | ast.Attribute(attr=name, ctx=ctx):
                    uses.add(name)
                    if isinstance(ctx, ast.Store):
                        self.bindings.append((name, node.lineno))
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in LATER:
                    constants = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
                    imports |= {str(each.value).partition(":")[0] for each in constants}
                case ast.FormattedValue(value=ast.Call(func=ast.Name(id=name))) if name in WORDINGS:
                    self.half_wordings.append(f"{name}, line {node.lineno}")
                case ast.arg(arg=name, annotation=annotation):
                    self.bindings.append((name, node.lineno))
                    self.annotations += [ast.unparse(annotation)] if annotation else []
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self.bindings.append((node.name, node.lineno))
                    self.classes += [(node.name, node.lineno)] * isinstance(node, ast.ClassDef)
                case ast.ExceptHandler(name=str(name)):
                    self.bindings.append((name, node.lineno))
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    module = getattr(node, "module", None)
                    paths = {f"{module}.{each.name}" if module else each.name for each in names}
                    imports |= paths & MODULES.keys() or {str(module)}
                    uses |= {str(module), *(each.name for each in names)}
                    self.bindings += [(each.asname or each.name, node.lineno) for each in names]
        self.imports = imports & MODULES.keys()
        words = self.strings | uses | {name for name, _ in self.bindings}
        self.words = "\n".join(words).lower()
        """The strings and the identifiers, a line each."""


@cache
def source(path: Path) -> Source:
    return Source(path.read_text("utf-8"))


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


# Rooms of Python: imports flow one way, from each room only to those below it, and in no circle.

ROOMS = {
    "castwise": (
        ("_core", "_on_demand", "_options"),
        ("_numbers", "text"),
        ("rendering",),
        ("_trees", "environment"),
        ("config", "dtype_policies"),
        # Above the policies, because `cast_tree` and checkpoints take those, too.
        ("arrays",),
        ("loss_scale",),
        ("autocast",),
        ("models",),
        ("quantization",),
        ("surveys",),
        ("compat",),
        ("adapters",),
        ("checkpoint",),
        ("cli", "__main__"),
    ),
    "castwise.checkpoint": (
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
    ),
    "castwise.quantization": (("producers",), ("arrays",), ("weights",)),
}
"""The modules and packages of a package room by room, the lowest first."""

MODELS = {"checkpoint", "models", "cli", "__main__"}
"""The second wing; `quantization` of arrays serves both, and stands between them."""

INTERNAL = (
    *(f"castwise.{room}." for room in ("arrays", "environment", "models", "rendering", "text")),
    *(
        f"{package}.{room}."
        for package in ("castwise.checkpoint", "castwise.quantization")
        for rooms in ROOMS[package]
        for room in rooms
        if MODULES[f"{package}.{room}"].name == "__init__.py"
    ),
)
"""The rooms that castwise alone imports: their modules without underscore are for other rooms."""

MOST_MODULES = 10
"""Of the packages that a reader opens first."""


@cache
def graph() -> Graph:
    # The package's own names are loaded on demand, by whoever asks for them.
    return {name: source(path).imports for name, path in MODULES.items() if name != "castwise"}


def inside(package: str) -> Graph:
    """What the modules in a package import from it, by names within it; not the package itself."""
    prefix = f"{package}."
    return {
        name.removeprefix(prefix): {
            other.removeprefix(prefix) for other in others if other.startswith(prefix)
        }
        for name, others in graph().items()
        if name.startswith(prefix)
    }


def upward(arrows: Graph, rooms: Iterable[Iterable[str]], mark: str) -> list[str]:
    """The uses of a room above; a mark stands between the parts of a module's name."""
    floors = {name: floor for floor, room in enumerate(rooms) for name in room}
    assert {name.split(mark)[0] for name in arrows} == set(floors), "each room has its place"
    return [
        f"{name} -> {other}"
        for name, others in arrows.items()
        for other in sorted(others)
        if floors[other.split(mark)[0]] > floors[name.split(mark)[0]]
    ]


def circle(arrows: Graph) -> str:
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return " -> ".join(error.args[1])
    return ""


def intrusions(arrows: Graph) -> list[str]:
    """The imports of a private module of another room."""
    found = []
    for name, others in arrows.items():
        for other in others:
            package, is_private, _ = other.partition("._")
            is_internal = f"{package}.".startswith(INTERNAL)
            if is_private and is_internal and not f"{name}.".startswith(f"{package}."):
                found.append(f"{name} -> {other}")
    return found


@pytest.mark.parametrize("package", ROOMS)
def test_no_module_imports_from_a_room_above(package: str) -> None:
    assert upward(inside(package), ROOMS[package], ".") == []


def test_no_module_imports_one_that_imports_it() -> None:
    assert len(graph()) > 200
    assert circle(graph()) == ""


def test_arrays_and_training_import_nothing_of_models() -> None:
    """Nor does what they import: a program that casts arrays loads no room of models."""
    for name, others in inside("castwise").items():
        if name.split(".")[0] not in MODELS:
            assert not MODELS.intersection(other.split(".")[0] for other in others), name


def test_only_the_command_line_uses_the_package_by_its_public_names() -> None:
    users = {name for name, others in graph().items() if "castwise" in others}
    assert {name for name in users if not name.startswith("castwise.cli")} <= {"castwise.__main__"}


def test_no_room_imports_a_private_module_of_another() -> None:
    assert intrusions(graph()) == []


@pytest.mark.parametrize("folder", [PACKAGE, PACKAGE / "checkpoint"], ids=place)
def test_no_room_is_a_corridor(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= MOST_MODULES


@pytest.mark.parametrize(
    "text",
    [
        "from castwise.adapters import protocol",
        "import castwise.adapters.protocol",
        "if TYPE_CHECKING:\n    from castwise.adapters.protocol import Adapter",
        "def later():\n    from castwise.adapters.protocol import Adapter",
        "importlib.import_module('castwise.adapters.protocol')",
        "Container('castwise.adapters.protocol:Adapter')",
        "on_demand(__name__, {'castwise.adapters.protocol': ('Adapter',)})",
    ],
)
def test_an_import_from_above_is_found(text: str) -> None:
    assert Source(text).imports == {"castwise.adapters.protocol"}
    arrows = {"low": Source(text).imports, "castwise": set[str]()}
    assert upward(arrows, [["low"], ["castwise"]], ".") == ["low -> castwise.adapters.protocol"]


def test_circles_and_intrusions_are_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}).count(" -> ") == 3
    private = "castwise.checkpoint.files._private"
    assert intrusions({"castwise.checkpoint.planning.plan": {private}}) != []
    assert intrusions({"castwise.checkpoint.files.remote": {private}}) == []


# Names of Python: nouns, each class by a name of its own, few parameters `Any`.

PRONOUNS = word_list("one some own found made each there now old new others first wanted how what")
"""Words that say nothing of what they name; `_found` and `found_` count as `found`."""
PRONOUNS_PER_THOUSAND = 8

PARTICIPLES = word_list(
    "above after again ahead alone already apart away before begun below beside bound broken "
    "built chosen cut done drawn else given grown held here hidden inside kept known laid later "
    "led left lost made meant meanwhile met out outside paid put seen sent shown shut spent "
    "split spread stood taken there thought thrown together told understood won worn wound "
    "written"
)
"""Those, and adverbs, that do not end as the others do."""
NO_PARTICIPLES = word_list("bleed breed embed indeed speed")
PARTICIPLES_PER_THOUSAND = 8
COMMENTS_PER_THOUSAND = 12
"""Lines that are comments: at least so many."""

FRAMEWORKS = ("jax", "keras", "tf_keras", "torch")
OF_FRAMEWORKS = ("adapters", "compat")
"""Folders whose parameters are objects of libraries that castwise does not import."""
PERCENT_OF_ANY = 5

MIRRORS = ("adapters/", "autocast/", "compat/", "dtype_policies/", "loss_scale/")
"""Folders that have the names of the packages that they speak for."""
MIRRORED = {
    "DynamicLossScale": "of jmp, and of TF 2.4",
    "GradScaler": "of torch, for its tensors and for numpy",
    "LossScale": "of TF 2.4, and what castwise.adapters.jax makes of a loss scale",
    "LossScaleOptimizer": "of Keras 3, and of tf_keras on numpy and around its own",
    "Policy": "of jmp, and of TF 2",
    "Layer": "of Keras 3, and of tf_keras",
}
"""Classes that stand several times, because several of those packages have one, or its rules."""


def is_pronoun(name: str) -> bool:
    return name.strip("_") in PRONOUNS


def is_participle(name: str) -> bool:
    word = name.strip("_")
    is_regular = len(word) > 4 and word.isalpha() and word.islower() and word.endswith("ed")
    return word in PARTICIPLES or (is_regular and word not in NO_PARTICIPLES)


def bound_names(paths: Iterable[Path], kind: Callable[[str], bool]) -> tuple[list[str], int]:
    """The names of a kind that sources bind, and how many names they bind."""
    bound = [(path, *binding) for path in paths for binding in source(path).bindings]
    return [f"{place(path)}:{line}: {name}" for path, name, line in bound if kind(name)], len(bound)


def test_variables_are_named_by_nouns() -> None:
    for folder in {path.parent for path in SOURCES}:
        pronouns, count = bound_names(folder.glob("*.py"), is_pronoun)
        assert 1000 * len(pronouns) <= PRONOUNS_PER_THOUSAND * count, "\n".join(pronouns)


def test_few_names_are_participles_and_comments_give_reasons() -> None:
    participles, count = bound_names(SOURCES, is_participle)
    assert 1000 * len(participles) <= PARTICIPLES_PER_THOUSAND * count, (len(participles), count)
    comments = sum(source(path).comments for path in SOURCES)
    lines = sum(source(path).lines for path in SOURCES)
    assert 1000 * comments >= COMMENTS_PER_THOUSAND * lines, (comments, lines)


def test_the_guide_names_files_that_are_there() -> None:
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:python|rust/core|rust/logic|benches)/[\w./]+)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_parameters_have_types() -> None:
    paths = [path for path in SOURCES if place(path).split("/")[0] not in OF_FRAMEWORKS]
    annotations = [(place(path), each) for path in paths for each in source(path).annotations]
    bare = [path for path, annotation in annotations if annotation == "Any"]
    assert 100 * len(bare) <= PERCENT_OF_ANY * len(annotations), bare


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for name, line in source(path).classes:
            places[name.strip("_")].append(f"{place(path)}:{line}")
    repeated = {name: lines for name, lines in places.items() if len(lines) > 1}
    mirrored = {
        name
        for name, lines in repeated.items()
        if name in MIRRORED and all(line.startswith(MIRRORS) for line in lines)
    }
    assert {name: lines for name, lines in repeated.items() if name not in mirrored} == {}
    assert mirrored == MIRRORED.keys(), "a name is mirrored no longer"


def test_no_text_drops_the_words_of_the_command() -> None:
    assert [
        (place(path), *halves) for path in SOURCES if (halves := source(path).half_wordings)
    ] == []
    assert Source("f'give {argument(name)}'").half_wordings == ["argument, line 1"]
    assert Source("'give ' + argument(name) + f'{quote}'").half_wordings == []


@pytest.mark.parametrize(
    ("text", "pronouns", "participles"),
    [
        ("found = 1", ["found"], []),
        ("import re as what", ["what"], []),
        ("from a import new", ["new"], []),
        ("def _first(one, *each, now=1): pass", ["_first", "each", "now", "one"], []),
        ("self.own = others.there", ["own"], []),
        ("try: pass\nexcept OSError as one: pass", ["one"], []),
        ("[some for some in made]", ["some"], []),
        ("print(found, kept)", [], []),
        ("def kept(given, need_checked): done_ = speed = 1", [], ["done_", "given", "kept"]),
        ("class Checked: planned = _stated = fed", [], ["_stated", "planned"]),
    ],
)
def test_what_counts_as_a_binding(text: str, pronouns: list[str], participles: list[str]) -> None:
    bound = sorted(name for name, _ in Source(text).bindings)
    assert list(filter(is_pronoun, bound)) == pronouns
    assert list(filter(is_participle, bound)) == participles


@pytest.mark.parametrize(
    ("text", "annotations"),
    [
        ("def f(x: Any, y: int, z): pass", ["Any", "int"]),
        ("def f(x: list[Any], *y: Any): pass", ["list[Any]", "Any"]),
    ],
)
def test_what_counts_as_an_annotation(text: str, annotations: list[str]) -> None:
    assert Source(text).annotations == annotations


def test_what_counts_as_a_comment_and_as_a_class() -> None:
    parsed = Source("# why\nclass X:\n    # how\n    y = 1  # how much\n    '''#'''")
    assert (parsed.comments, parsed.lines, parsed.classes) == (2, 5, [("X", 2)])


# Rust: modules use only rooms below their own, and no two of them use each other.

CRATES = {name: ROOT / "rust" / name / "src" for name in ("core", "logic", "bindings")}
CORE_ROOMS = word_list(
    "format spelling error cached_once sort_few parse plain tuning cpu memory codec simd "
    "kernels layout route report plan exec compare survey cast quantization unscale elements "
    "slices tensor quantized"
)
"""From the lowest on."""


def rust_modules(crate: Path) -> dict[str, Path]:
    """The modules of a crate but its root, by path."""
    paths = {path: path.relative_to(crate).with_suffix("").parts for path in crate.rglob("*.rs")}
    named = {
        "::".join(parts[:-1] if parts[-1] == "mod" else parts): path
        for path, parts in sorted(paths.items())
    }
    named.pop("lib", None)
    return named


@cache
def rust_code(path: Path) -> str:
    """A file without comments, its tests, and scopes of visibility."""
    text = re.sub(r"//[^\n]*", "", path.read_text("utf-8"))
    text = re.sub(
        r"#\[cfg\((?:all\()?test[^\n]*\n\s*(#\[[^\n]*\]\s*)*mod \w+ \{.*", "", text, flags=re.DOTALL
    )
    return re.sub(r"\(in [^)]*\)", "", text)


def leaves(tree: str) -> Iterator[str]:
    """The paths of a tree as `use` has it."""
    start, brace, rest = tree.partition("{")
    if not brace:
        yield tree
        return
    depth, branch = 0, ""
    for letter in rest:
        if depth == 0 and letter in ",}":
            if branch:
                yield from leaves(start + branch)
            branch = ""
        else:
            depth += (letter == "{") - (letter == "}")
            branch += letter


def rust_graph(crate: Path) -> dict[str, set[str]]:
    """The modules that each module of a crate names."""
    known = rust_modules(crate)
    arrows: dict[str, set[str]] = {}
    for module, path in known.items():
        text = rust_code(path)
        trees = [re.sub(r"\s+", "", tree) for tree in re.findall(r"\buse ([^;]*);", text)]
        paths = [leaf for tree in trees for leaf in leaves(tree)]
        paths += re.findall(r"\b(?:crate|super|self)(?:::\w+)+", text)
        arrows[module] = set()
        for parts in (path.split("::") for path in paths):
            here = [] if parts[0] == "crate" else module.split("::")
            while parts[0] in ("crate", "self", "super"):
                here = here[:-1] if parts.pop(0) == "super" else here
            whole = here + parts
            starts = ("::".join(whole[:end]) for end in range(len(whole), 0, -1))
            arrows[module].add(next((start for start in starts if start in known), module))
        arrows[module].discard(module)
    return arrows


def methods_elsewhere(crate: Path) -> list[str]:
    """The inherent methods of types that another file defines, which no `use` shows."""
    methods = []
    for module, path in rust_modules(crate).items():
        text = rust_code(path)
        own = set(re.findall(r"\b(?:struct|enum|union|type) (\w+)", text))
        heads = re.findall(r"^\s*(?:unsafe )?impl\b([^{;]*)\{", text, re.MULTILINE)
        for head in heads:
            subject = re.sub(r"^<(?:[^<>]|<[^<>]*>)*>", "", head.strip()).strip()
            name = re.match(r"(?:\w+::)*(\w+)", subject)
            if " for " not in subject and name and name[1] not in own:
                methods.append(f"{module}: {subject}")
    return methods


@pytest.mark.parametrize("crate", CRATES)
def test_rust_modules_use_each_other_in_no_circle(crate: str) -> None:
    arrows = rust_graph(CRATES[crate])
    assert sum(map(len, arrows.values())) > 10, "uses are found"
    assert circle(arrows) == ""
    assert methods_elsewhere(CRATES[crate]) == []


def test_no_module_of_the_core_uses_a_room_above() -> None:
    arrows = rust_graph(CRATES["core"])
    assert len({target for targets in arrows.values() for target in targets}) > 50
    assert upward(arrows, [[room] for room in CORE_ROOMS], "::") == []


@pytest.mark.parametrize("crate", ["core", "logic"])
def test_crates_below_the_bindings_know_nothing_of_python(crate: str) -> None:
    manifest = (CRATES[crate].parent / "Cargo.toml").read_text("utf-8")
    assert "pyo3" not in manifest
    assert "numpy" not in manifest


# An argument of Python with a text in a string of Rust, as overflow=\\"raise\\".
_ARGUMENT = re.compile(r"""^(?!\s*//).*\b\w+=\\\\?\"""", re.MULTILINE)


def test_texts_of_the_core_write_no_arguments_as_python_does() -> None:
    paths = CRATES["core"].rglob("*.rs")
    found = {path.name for path in paths if _ARGUMENT.search(path.read_text("utf-8"))}
    assert found == {"encoder.rs", "operands.rs"}  # of what quantization refuses, still to do
    assert _ARGUMENT.search('format!("nan=\\"zero\\" is not for {target:?}")')
    assert not _ARGUMENT.search('    /// `nan="zero"` makes zeros of NaN.')


def test_uses_of_rust_are_found(tmp_path: Path) -> None:
    for name, text in {
        "lib": "mod a;",
        "a/mod": "pub(in crate::b) struct A;\nuse crate::{b, c::{d, D}};  // crate::e",
        "a/x": "impl<T: Into<u8>> super::A<T> {}\nimpl From<A> for u8 {}\nfn f() { self::g() }",
        "b": "fn f() { super::a::x::f() }\n#[cfg(test)]\nmod tests {\n    use crate::e;\n}",
        "c": "struct C;\nimpl C {}",
        "e": "",
    }.items():
        (tmp_path / name).with_suffix(".rs").parent.mkdir(exist_ok=True)
        (tmp_path / name).with_suffix(".rs").write_text(text)
    arrows = rust_graph(tmp_path)
    assert arrows == {"a": {"b", "c"}, "a::x": {"a"}, "b": {"a::x"}, "c": set(), "e": set()}
    assert sorted(circle(arrows).split(" -> ")[1:]) == ["a", "a::x", "b"]
    rooms = [["e"], ["b", "c"], ["a"]]
    assert upward(arrows, rooms, "::") == ["b -> a::x"]
    assert methods_elsewhere(tmp_path) == ["a::x: super::A<T>"]


VECTORS = [
    file
    for room in ("simd/avx2", "simd/avx512", "kernels/vectors", "kernels/tables", "unscale")
    for file in CRATES["core"].glob(f"{room}/*.rs")
]
"""Code that needs the instructions of a CPU level."""
VECTOR_CLOSURE = re.compile(
    r"(?:map|fold|for_each|from_fn)\((?:[^|()]*,)? *\|[^|]*\|[^;]*?"
    r"\b(?:(?:V|Avx2|short_tables)::[a-z]|arch::|Self::load)"
)


def test_no_vector_operation_stands_in_a_closure() -> None:
    """A closure has no CPU features: where it is not inlined, each operation is a call."""
    assert len(VECTORS) > 35
    assert {
        file: match[0] for file in VECTORS if (match := VECTOR_CLOSURE.search(rust_code(file)))
    } == {}


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("let x = [a, b].map(|half| V::and(half, mask));", True),
        ("let m = all.into_iter().fold(most, |most, p| V::max32(most, p));", True),
        ("let [a, b] = codes.map(|code| code as u16);", False),
    ],
)
def test_such_closures_are_found(code: str, is_found: bool) -> None:
    assert bool(VECTOR_CLOSURE.search(code)) == is_found


# Numbers of entries in numpy's table of C functions, beside numpy's header.

NUMPY_TABLE = (CRATES["bindings"] / "numpy_table.rs").read_text("utf-8")
NUMPY_ENTRIES = re.findall(
    r"/// `(\w+)`[^\n]*\n(?:#\[cfg[^\n]*\n)?(?:pub\(crate\) )?const \w+: usize = (\d+);",
    NUMPY_TABLE,
)


def test_entries_are_those_of_numpys_header() -> None:
    headers = Path(np.get_include()) / "numpy"
    header = "".join((headers / f"__{name}_api.h").read_text() for name in ("multiarray", "ufunc"))
    assert len(NUMPY_ENTRIES) == NUMPY_TABLE.count(": usize = ") > 0
    for name, number in NUMPY_ENTRIES:
        entry = re.search(rf"#define {name}\b[^#]*?Py(?:Array|UFunc)_API\[(\d+)\]", header)
        assert entry is not None, name
        assert entry[1] == number, name


# Each format is named in one place: the table of formats.

FORMAT_TABLE = CRATES["core"] / "format.rs"
OTHER_TABLES = (
    *("dialect.rs", "mode.rs", "element.rs"),
    *("comfy.py", "compressed_tensors.py", "quark.py", "torchao.py"),
    *("_torch_values.py", "_ggml_types.py"),
)
"""What other systems take for names, the quantization modes, and what schemes take for codes."""
WITHOUT_FORMATS = [
    path
    for path in (*SOURCES, *(file for crate in CRATES.values() for file in crate.rglob("*.rs")))
    if path != FORMAT_TABLE and path.name not in OTHER_TABLES
]
NUMPYS_OWN = {"bool", "float16", "float32", "float64", "complex64", "complex128"}
"""Words that also name types of the languages, or functions of numpy."""
OF_OTHERS = {
    "_compressed_tensors.py": {"uint8"},  # what it calls scales that are powers of two
    "_config.py": {"bfloat16"},  # what transformers loads
    "recognition.py": {"int4"},  # the end of a scheme's name
    "_values.py": {"int32"},  # what Keras makes of an integer
}
"""Words of other systems in single lines."""


def strings(path: Path) -> set[str]:
    if path.suffix == ".py":
        return source(path).strings
    return {text[1:-1] for text in re.findall(r'"(?:\\.|[^"\\\n])*"', rust_code(path))}


def test_no_format_is_named_outside_the_table() -> None:
    formats = set(castwise.formats())
    found = {path: (formats & strings(path)) - NUMPYS_OWN for path in WITHOUT_FORMATS}
    others = {path.name: words for path, words in found.items() if words}
    assert others == OF_OTHERS
    assert formats <= strings(FORMAT_TABLE)


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("x = 'bfloat16'", True),
        ('# a comment\nx = "bfloat16"', True),
        ('"""A docstring: # of words."""\nx = "bfloat16"  # why', True),
        ("x = '#', 'bfloat16'", True),
        ("x = 'it\\'s #', \"bfloat16\"", True),
        ('x = """bfloat16"""', True),
        ('x = 1  # not "bfloat16"', False),
        ('"""Take "bfloat16"\nor others."""', False),
    ],
)
def test_what_counts_as_a_string(tmp_path: Path, line: str, is_named: bool) -> None:
    assert ("bfloat16" in Source(line).strings) == is_named
    (tmp_path / "x.rs").write_text('let x = "int4"; // "bfloat16"\n#[cfg(test)]\nmod t { "int8" }')
    assert strings(tmp_path / "x.rs") == {"int4"}


# A producer's name stands in its module alone; other rooms ask the registry.

PRODUCER_FOLDER = PACKAGE / "quantization" / "producers"
PRODUCER_MODULES = {
    value.name: path
    for path in sorted(PRODUCER_FOLDER.glob("*.py"))
    if "Producer" in {name for name, _ in source(path).bindings}
    and "= Producer(" in path.read_text("utf-8")
    for value in vars(importlib.import_module(module_name(path))).values()
    if isinstance(value, Producer)
}
"""The module that makes each of them."""
ALSO_NAMED = {"keras", "gguf"}
"""A framework and a container as well: classes, texts and suffixes may say so, but the bare name,
which is that of the producer, stands in the module alone."""
OTHER_MEANINGS = {
    "comfy.py": {"awq"},  # the algorithm
    "keras.py": {"awq"},
    "modelopt.py": {"awq"},
    "keras_layers.py": {"awq", "gptq", "keras"},  # modes of Keras, and the package
    "_module_entries.py": {"awq", "gptq"},  # what auto-round packs as
    "packing.py": {"awq"},  # an order of codes in words
}
ASKING = [
    path
    for path in SOURCES
    if place(path).startswith(("quantization/", "checkpoint/"))
    # The tables of all producers and of who loads what they write; where models are named, by which
    # some producers are called, and what consumers call the methods that they load.
    and path not in (PRODUCER_FOLDER / "registry.py", PRODUCER_FOLDER / "consumers.py")
    and path.parent.name not in ("gguf", "loading")
]


def naming(words: str, producer: str) -> list[str]:
    """The lines of words that name a producer."""
    return re.findall(rf"^.*(?<![a-z]){producer.replace('-', '[-_ ]?')}.*$", words, re.MULTILINE)


def means_another(path: Path, producer: str) -> bool:
    return producer in OTHER_MEANINGS.get(path.name, ())


@pytest.mark.parametrize("producer", sorted(PRODUCER_MODULES.keys() - ALSO_NAMED - {"deepseek-v4"}))
def test_a_producer_is_named_in_its_module_alone(producer: str) -> None:
    found = {
        path: lines
        for path in ASKING
        if not means_another(path, producer) and (lines := naming(source(path).words, producer))
    }
    assert found.keys() == {PRODUCER_MODULES[producer]}, found


@pytest.mark.parametrize("producer", sorted(ALSO_NAMED))
def test_the_bare_name_stands_in_its_module_alone(producer: str) -> None:
    found = {path for path in ASKING if producer in source(path).strings}
    others = {path for path in found if means_another(path, producer)}
    assert found - others == {PRODUCER_MODULES[producer]}


def test_few_sources_name_gguf() -> None:
    """Tables, the producer, and what Rust calls a type; beside them, the room of the container."""
    found = {
        place(path)
        for path in SOURCES
        if path.parent.name not in ("gguf", "cli") and naming(source(path).words, "gguf")
    }
    assert found == {
        *("_options.py", "text/spelling.py", "checkpoint/containers/registry.py"),
        *(f"quantization/producers/{name}.py" for name in ("consumers", "registry", "gguf")),
    }


def test_other_meanings_are_still_there() -> None:
    for name, producers in OTHER_MEANINGS.items():
        words = [source(path).words for path in ASKING if path.name == name]
        assert all(any(naming(each, producer) for each in words) for producer in producers), name


def test_every_producer_has_a_module() -> None:
    assert PRODUCER_MODULES.keys() == {producer.name for producer in (*PRODUCERS, GGUF)}


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("x = 'modelopt'", True),
        ("x = f'as {y} of ModelOpt'", True),
        ("of_modelopt = 1", True),
        ("from producers.modelopt import y", True),
        ("from producers import MODELOPT", True),
        ("from producers import y as modelopt", True),
        ("def f(modelopt): pass", True),
        ("x.modelopt", True),
        ("x = 1  # ModelOpt", False),
        ("def f():\n    '''As ModelOpt does.'''", False),
    ],
)
def test_what_names_a_producer(line: str, is_named: bool) -> None:
    assert bool(naming(Source(line).words, "modelopt")) == is_named


# Tests: what files of them share stands in tests/helpers, and few cases of a sweep run by default.

TESTS = Path(__file__).parent
SWEEPS = TESTS / "casting" / "test_accelerate.py"


def imported_tests(text: str) -> list[str]:
    """The files of tests that a program imports."""
    return re.findall(r"^ *(?:from|import) +(?:[\w.]*\.)?(test_\w+)", text, re.MULTILINE)


def test_no_file_imports_a_file_of_tests() -> None:
    """Its tests would be collected twice, and be marked and recorded by the wrong file."""
    texts = {path: path.read_text("utf-8") for path in TESTS.rglob("*.py")}
    found = {path: files for path, text in texts.items() if (files := imported_tests(text))}
    assert found == {}, "move what they share to tests/helpers"


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("import test_a", ["test_a"]),
        ("def f():\n    from x.test_a import b", ["test_a"]),
        ("import a.test_b", ["test_b"]),
        ("from helpers import tests", []),
        ("from a import test_a", []),
    ],
)
def test_what_counts_as_an_import_of_tests(text: str, files: list[str]) -> None:
    assert imported_tests(text) == files


def collected(*arguments: object) -> list[str]:
    result = run_python("-m", "pytest", "--collect-only", "-q", *arguments)
    return [line for line in result.stdout.splitlines() if line.endswith("]")]


@pytest.mark.exhaustive
def test_a_case_that_is_named_is_collected() -> None:
    left_out = collected("-m", "exhaustive", SWEEPS)[-1]
    name = f"{SWEEPS}::{left_out.partition('::')[2]}"
    assert collected(name) == [left_out]
    assert collected("-m", "not exhaustive", name) == []


@pytest.mark.exhaustive
def test_every_so_manieth_case() -> None:
    whole = collected("-m", "exhaustive", SWEEPS)
    part = collected("-m", "exhaustive", "--every", "3", SWEEPS)
    assert set(part) < set(whole)
    assert len(whole) / 6 < len(part) < len(whole) / 1.5
    functions = [{case.partition("[")[0] for case in cases} for cases in (part, whole)]
    assert functions[0] == functions[1]


# Packages: `dir()` is `__all__`, and modules are imported when they are used.

PACKAGES = word_list(
    "castwise castwise.autocast castwise.checkpoint castwise.compat castwise.compat.jmp "
    "castwise.compat.keras castwise.compat.tf_keras castwise.compat.tf_keras.mixed_precision "
    "castwise.dtype_policies castwise.loss_scale castwise.quantization"
)
ADAPTERS: dict[str, tuple[str, ...]] = {f"castwise.adapters.{name}": (name,) for name in FRAMEWORKS}
ADAPTERS["castwise.adapters"] = FRAMEWORKS
"""The frameworks that each needs."""


@pytest.mark.parametrize(
    "name", [*PACKAGES, *(pytest.param(name, marks=pytest.mark.frameworks) for name in ADAPTERS)]
)
def test_dir_is_all(name: str, request: pytest.FixtureRequest) -> None:
    for each in ADAPTERS.get(name, ()):
        request.getfixturevalue("framework")(each)
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, each) for each in package.__all__)


def test_type_checkers_know_the_names_that_are_imported_on_demand() -> None:
    stub = ast.parse((PACKAGE / "checkpoint" / "__init__.pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in imports for alias in node.names}
    names = castwise.checkpoint._NAMES.items()
    assert homes == {name: module for module, defined in names for name in defined}


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        ("--help", ("checkpoint", "quantization", "autocast", "loss_scale")),
        ("formats", ("checkpoint", "quantization")),
        ("cast --help", ("checkpoint.conversions", "checkpoint.containers", "cli.quantize")),
        (
            "cast IN OUT --dtype bfloat16",
            ("checkpoint.comparison", "checkpoint.planning.component"),
        ),
        (
            "cast IN OUT --dtype float16",
            ("checkpoint.containers.hdf5", "quantization.arrays.arrays"),
        ),
        (
            "diff IN IN",
            (
                *(f"checkpoint.containers.{name}" for name in ("hdf5", "npz", "torch")),
                "checkpoint.loading.check",
            ),
        ),
    ],
)
def test_a_command_imports_what_it_uses(
    tmp_path: Path, arguments: str, unused: tuple[str, ...]
) -> None:
    model, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    castwise.checkpoint.save(model, {"w": np.ones(3, np.float32)})
    program = (
        "import sys, contextlib; from castwise.cli import main\n"
        "with contextlib.suppress(SystemExit): assert main(sys.argv[1:]) == 0\n"
        "print('imported:', *sys.modules)"
    )
    paths = {"IN": model, "OUT": out}
    words = [paths.get(word, word) for word in arguments.split()]
    result = run_python("-c", program, *words, env=dict(os.environ))
    assert result.returncode == 0, result.stderr
    modules = set(result.stdout.rpartition("imported:")[2].split())
    assert "castwise.cli" in modules
    others = {f"castwise.{name}" for name in unused}
    assert others <= MODULES.keys(), "a module has another name"
    assert modules.isdisjoint(others)


@pytest.mark.parametrize(
    "arguments", ["inspect IN", "diff --help", "survey --help", "verify --help"]
)
def test_what_casts_nothing_imports_no_ml_dtypes(tmp_path: Path, arguments: str) -> None:
    """To import it takes a second with numpy 2.4 and ml_dtypes 0.7."""
    model = tmp_path / "in.safetensors"
    castwise.checkpoint.save(model, {"w": castwise.cast(np.ones(3, np.float32), "bfloat16")})
    program = (
        "import sys, contextlib; from castwise.cli import main\n"
        "with contextlib.suppress(SystemExit): assert main(sys.argv[1:]) == 0\n"
        "assert 'ml_dtypes' not in sys.modules"
    )
    words = arguments.replace("IN", str(model)).split()
    result = run_python("-c", program, *words, forked=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("package", ["checkpoint", "quantization"])
def test_a_name_that_is_not_there(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'castwise.{package}' has no attribute 'lod'"):
        attrgetter(f"{package}.lod")(castwise)
