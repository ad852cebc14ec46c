"""Every format is spelled in one place: the table. Nothing else in the sources names one."""

from __future__ import annotations

import re
from pathlib import Path

import castwise
import pytest

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "rust" / "core" / "src" / "format.rs"
OTHER_TABLES = (
    *("dialect.rs", "mode.rs", "element.rs"),
    *("comfy.py", "compressed_tensors.py", "quark.py", "torchao.py"),
    *("_torch_values.py", "_ggml_types.py"),
)
"""What other systems take for names, the quantization modes, and what schemes take for codes."""
SOURCES = [
    path
    for folder, suffix in (
        ("rust/core/src", "rs"),
        ("rust/logic/src", "rs"),
        ("rust/bindings/src", "rs"),
        ("python", "py"),
    )
    for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))
    if path != TABLE and path.name not in OTHER_TABLES
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

DOCSTRING = r'r?"""(?s:.*?)"""'
DOUBLE = r'"(?:\\.|[^"\\\n])*"'
SINGLE = r"'(?:\\.|[^'\\\n])*'"


def strings(path: Path) -> set[str]:
    """The strings of a source, but not of its comments, docstrings, examples and tests."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        found = re.findall(rf"{DOCSTRING}|#.*|({DOUBLE}|{SINGLE})", text)
    else:
        code = re.sub(r"//.*", "", text.split("#[cfg(test)]")[0])
        found = re.findall(DOUBLE, code)
    return {each[1:-1] for each in found}


def named(path: Path) -> set[str]:
    """The formats that a source names."""
    names = set(castwise.formats()) - NUMPYS_OWN - OF_OTHERS.get(path.name, set())
    return names.intersection(strings(path))


def test_no_format_is_named_outside_the_table() -> None:
    assert {path: found for path in SOURCES if (found := named(path))} == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x = 'bfloat16'", True),
        ('# a comment\nx = "bfloat16"', True),
        ('"""A docstring: # of words."""\nx = "bfloat16"  # why', True),
        ("x = '#', 'bfloat16'", True),
        ("x = 'it\\'s #', \"bfloat16\"", True),
        ('x = 1  # not "bfloat16"', False),
        ('"""Take "bfloat16"\nor others."""', False),
    ],
)
def test_what_counts_as_a_name(tmp_path: Path, line: str, found: bool) -> None:
    source = tmp_path / "source.py"
    source.write_text(line)
    assert named(source) == ({"bfloat16"} if found else set())


def test_names_of_others_are_still_there() -> None:
    sources = {path.name: path for path in SOURCES}
    assert all(words <= strings(sources[name]) for name, words in OF_OTHERS.items())


def test_the_table_names_every_format() -> None:
    quoted = set(re.findall(r'"(\w+)"', TABLE.read_text("utf-8")))
    assert set(castwise.formats()) <= quoted
    assert len(SOURCES) > 40
