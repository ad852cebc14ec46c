"""Rust modules use only rooms above their own, and no two of them use each other."""

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

RUST = Path(__file__).parents[1] / "rust"
CRATES = {name: RUST / name / "src" for name in ("core", "logic", "bindings")}

ROOMS = [
    "format",
    "spelling",
    "error",
    "cached_once",
    "sort_few",
    "parse",
    "plain",
    "tuning",
    "cpu",
    "memory",
    "codec",
    "simd",
    "kernels",
    "layout",
    "route",
    "report",
    "plan",
    "exec",
    "compare",
    "survey",
    "cast",
    "quantization",
    "unscale",
]
"""Of the core, from the lowest on."""


def modules(source: Path) -> dict[str, Path]:
    """The modules of a crate but its root, by path."""
    found = {}
    for path in sorted(source.rglob("*.rs")):
        parts = path.relative_to(source).with_suffix("").parts
        name = "::".join(parts[:-1] if parts[-1] == "mod" else parts)
        found[name] = path
    del found["lib"]
    return found


def code(path: Path) -> str:
    """A file without comments, its tests, and scopes of visibility."""
    text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
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


def arrows(source: Path) -> dict[str, set[str]]:
    """The modules that each module of a crate names."""
    known = modules(source)
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        text = code(path)
        trees = [re.sub(r"\s+", "", tree) for tree in re.findall(r"\buse ([^;]*);", text)]
        paths = [leaf for tree in trees for leaf in leaves(tree)]
        paths += re.findall(r"\b(?:crate|super|self)(?:::\w+)+", text)
        found[module] = set()
        for named in paths:
            parts = named.split("::")
            here = [] if parts[0] == "crate" else module.split("::")
            while parts[0] in ("crate", "self", "super"):
                here = here[:-1] if parts[0] == "super" else here
                parts = parts[1:]
            whole = here + parts
            target = next(
                (name for n in range(len(whole), 0, -1) if (name := "::".join(whole[:n])) in known),
                module,
            )
            if target != module and not (named.startswith("super") and target == module):
                found[module].add(target)
    return found


def methods_elsewhere(source: Path) -> list[str]:
    """The inherent methods of types that another file defines, which no `use` shows."""
    found = []
    for module, path in modules(source).items():
        text = code(path)
        own = set(re.findall(r"\b(?:struct|enum|union|type) (\w+)", text))
        heads = re.findall(r"^\s*(?:unsafe )?impl\b([^{;]*)\{", text, re.MULTILINE)
        for head in heads:
            subject = re.sub(r"^<(?:[^<>]|<[^<>]*>)*>", "", head.strip()).strip()
            name = re.match(r"(?:\w+::)*(\w+)", subject)
            if " for " not in subject and name and name[1] not in own:
                found.append(f"{module}: {subject}")
    return found


@pytest.mark.parametrize("source", CRATES.values(), ids=CRATES)
def test_methods_stand_beside_their_type(source: Path) -> None:
    assert not methods_elsewhere(source)


@pytest.mark.parametrize("source", CRATES.values(), ids=CRATES)
def test_no_circle(source: Path) -> None:
    graph = arrows(source)
    assert sum(map(len, graph.values())) > 10, "uses are found"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules use each other: {' -> '.join(error.args[1])}")


def test_no_arrow_up() -> None:
    graph = arrows(CRATES["core"])
    rank = {room: place for place, room in enumerate(ROOMS)}
    assert {module.split("::")[0] for module in graph} == set(ROOMS), "each room has its place"
    assert len({target for targets in graph.values() for target in targets}) > 50
    upward = [
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in sorted(targets)
        if rank[target.split("::")[0]] > rank[module.split("::")[0]]
    ]
    assert not upward


@pytest.mark.parametrize("crate", ["core", "logic"])
def test_crates_below_the_bindings_know_nothing_of_python(crate: str) -> None:
    manifest = (RUST / crate / "Cargo.toml").read_text(encoding="utf-8")
    assert "pyo3" not in manifest
    assert "numpy" not in manifest
