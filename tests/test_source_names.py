"""What the sources call things: nouns, each class by a name of its own, few parameters `Any`."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent / "python" / "castwise"
SOURCES = sorted(ROOT.rglob("*.py"))

PRONOUNS = frozenset(
    {"one", "some", "own", "found", "made", "each", "there", "now"}
    | {"old", "new", "others", "first", "wanted", "how", "what"}
)
"""Words that say nothing of what they name; `_found` and `found_` count as `found`."""
PER_THOUSAND = 8

FRAMEWORKS = ("adapters", "compat")
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


def bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Every name that the nodes of a source bind, with its line."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.alias(name=name):
                yield name, node.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.ExceptHandler(name=str(name)):
                yield name, node.lineno


def annotated(nodes: Iterable[ast.AST]) -> list[ast.arg]:
    """The annotated parameters of a source."""
    return [node for node in nodes if isinstance(node, ast.arg) and node.annotation]


def is_any(parameter: ast.arg) -> bool:
    return isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == "Any"


class Names(NamedTuple):
    """What a source binds and annotates, without its tree, which takes much memory."""

    bound: list[tuple[str, int]]
    are_any: list[bool]
    classes: list[tuple[str, int]]


@cache
def source_names(path: Path) -> Names:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return Names(
        list(bindings(nodes)),
        [is_any(parameter) for parameter in annotated(nodes)],
        [(node.name, node.lineno) for node in classes],
    )


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in SOURCES}),
    ids=lambda folder: folder.relative_to(ROOT).as_posix(),
)
def test_variables_are_named_by_nouns(folder: Path) -> None:
    count, vague = 0, []
    for path in SOURCES:
        if path.parent == folder:
            for name, line in source_names(path).bound:
                count += 1
                if name.strip("_") in PRONOUNS:
                    vague.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert 1000 * len(vague) <= PER_THOUSAND * count, "\n".join(vague)


def test_parameters_have_types() -> None:
    count, bare = 0, Counter[str]()
    for path in SOURCES:
        place = path.relative_to(ROOT)
        if place.parts[0] not in FRAMEWORKS:
            count += len(source_names(path).are_any)
            bare[str(place)] += sum(source_names(path).are_any)
    assert 100 * bare.total() <= PERCENT_OF_ANY * count, bare.most_common(20)


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for name, line in source_names(path).classes:
            places[name.strip("_")].append(f"{path.relative_to(ROOT)}:{line}")
    repeated = {name: lines for name, lines in places.items() if len(lines) > 1}
    mirrored = {
        name
        for name, lines in repeated.items()
        if name in MIRRORED and all(line.startswith(MIRRORS) for line in lines)
    }
    assert {name: lines for name, lines in repeated.items() if name not in mirrored} == {}
    assert mirrored == MIRRORED.keys(), "a name is mirrored no longer"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("found = 1", ["found"]),
        ("import re as what", ["what"]),
        ("from a import new", ["new"]),
        ("def _first(one, *each, now=1): pass", ["_first", "each", "now", "one"]),
        ("self.own = others.there", ["own"]),
        ("try: pass\nexcept OSError as one: pass", ["one"]),
        ("[some for some in made]", ["some"]),
        ("print(found)", []),
    ],
)
def test_what_counts_as_a_binding(source: str, names: list[str]) -> None:
    bound = (name for name, _ in bindings(ast.walk(ast.parse(source))))
    assert sorted(name for name in bound if name.strip("_") in PRONOUNS) == names


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("def f(x: Any, y: int, z): pass", [True, False]),
        ("def f(x: list[Any], *y: Any): pass", [False, True]),
    ],
)
def test_what_counts_as_any(source: str, counts: list[bool]) -> None:
    assert [is_any(parameter) for parameter in annotated(ast.walk(ast.parse(source)))] == counts
