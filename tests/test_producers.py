"""A producer's name stands in its module alone; other rooms ask the registry."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import castwise
import pytest
from castwise.quantization.producers.registry import PRODUCERS

PACKAGE = Path(castwise.__file__).parent
FOLDER = PACKAGE / "quantization" / "producers"
TABLES = (FOLDER / "registry.py", FOLDER / "consumers.py")
"""Those of all producers, and of who loads what they write."""
MODULES = {
    "aqlm": "unread.py",
    "awq": "awq_gptq.py",
    "autofp8": "autofp8.py",
    "bitsandbytes": "bitsandbytes.py",
    "comfy": "comfy.py",
    "compressed-tensors": "compressed_tensors.py",
    "deepseek": "deepseek.py",
    "exl2": "unread.py",
    "exl3": "unread.py",
    "fbgemm": "fbgemm.py",
    "gpt-oss": "gpt_oss.py",
    "gptq": "awq_gptq.py",
    "hqq": "unread.py",
    "mistral": "mistral.py",
    "mlx": "mlx.py",
    "modelopt": "modelopt.py",
    "nunchaku": "unread.py",
    "quanto": "unread.py",
    "quark": "quark.py",
    "quip": "unread.py",
    "torchao": "torchao.py",
    "transformer-engine": "unread.py",
}
"""The module of each producer whose name means nothing else here."""

ALSO_NAMED = {"keras": "keras.py", "gguf": "gguf.py"}
"""The others, which are a framework and a container as well: classes, texts and suffixes may say
so, but the bare name, which is that of the producer, stands in the module alone."""

OTHER_MEANINGS = {
    "comfy.py": {"awq"},  # the algorithm
    "keras.py": {"awq"},
    "modelopt.py": {"awq"},
    "keras_layers.py": {"awq", "gptq", "keras"},  # modes of Keras, and the package
    "keras_names.py": {"awq"},
    "_module_entries.py": {"gptq"},  # what auto-round packs as
    "packing.py": {"awq"},  # an order of codes in words
}

SOURCES = [
    path
    for room in ("quantization", "checkpoint")
    for path in sorted((PACKAGE / room).rglob("*.py"))
    # Where models are named, by which some producers are called, what Keras computes, and what
    # consumers call the methods that they load.
    if path not in TABLES and path.parent.name not in ("gguf", "keras", "loading")
]


def strings(path: Path) -> Iterator[str]:
    """List the strings of a source, but not docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield node.value


def words(path: Path) -> Iterator[str]:
    """List the identifiers and the strings of a source, but not docstrings."""
    yield from strings(path)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (str(node.module), *(alias.name for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def lower_words(path: Path) -> frozenset[str]:
    return frozenset(word.lower() for word in words(path))


def naming(path: Path, producer: str) -> list[str]:
    """List what of a source names a producer."""
    pattern = re.compile(r"(?<![a-z])" + producer.replace("-", "[-_ ]?"))
    return [word for word in lower_words(path) if pattern.search(word)]


@pytest.mark.parametrize(("producer", "module"), MODULES.items())
def test_a_producer_is_named_in_its_module_alone(producer: str, module: str) -> None:
    naming_sources = {
        str(path.relative_to(PACKAGE)): named
        for path in SOURCES
        if path != FOLDER / module
        and producer not in OTHER_MEANINGS.get(path.name, set())
        and (named := naming(path, producer))
    }
    assert naming_sources == {}
    assert naming(FOLDER / module, producer) != []


@pytest.mark.parametrize(("producer", "module"), ALSO_NAMED.items())
def test_the_bare_name_stands_in_its_module_alone(producer: str, module: str) -> None:
    named = {path.name for path in SOURCES if producer in set(strings(path))}
    others = {name for name, meanings in OTHER_MEANINGS.items() if producer in meanings}
    assert named - others == {module}


def test_few_sources_name_gguf() -> None:
    """Tables, the producer, and what Rust calls a type; beside them, the room of the container."""
    room = PACKAGE / "checkpoint" / "containers" / "gguf"
    named = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.parent != room and path.parent.name != "cli" and naming(path, "gguf")
    }
    assert named == {
        "_options.py",
        "text/spelling.py",
        "checkpoint/containers/registry.py",
        *(f"quantization/producers/{name}.py" for name in ("consumers", "registry", "gguf")),
    }


def test_other_meanings_are_still_there() -> None:
    for name, producers in OTHER_MEANINGS.items():
        sources = [path for path in SOURCES if path.name == name]
        assert all(any(naming(path, each) for path in sources) for each in producers)


def test_every_producer_has_a_module() -> None:
    modules = {
        path.name for path in FOLDER.glob("*.py") if " = Producer(\n" in path.read_text("utf-8")
    }
    assert modules == {*MODULES.values(), *ALSO_NAMED.values()}
    names = {producer.name for producer in PRODUCERS} - {"keras", "deepseek-v4"}
    assert names == set(MODULES)


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("x = 'modelopt'", True),
        ("x = f'as {y} of ModelOpt'", True),
        ("of_modelopt = 1", True),
        ("from producers.modelopt import y", True),
        ("from producers import MODELOPT", True),
        ("def f(modelopt): pass", True),
        ("x.modelopt", True),
        ("x = 1  # ModelOpt", False),
        ("def f():\n    '''As ModelOpt does.'''", False),
    ],
)
def test_what_counts_as_a_name(tmp_path: Path, line: str, is_named: bool) -> None:
    source = tmp_path / "source.py"
    source.write_text(line)
    assert bool(naming(source, "modelopt")) == is_named
