"""Every format is spelled in one place: the table. Nothing else in the sources names one."""

from __future__ import annotations

import re
from pathlib import Path

import castwise

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "rust" / "core" / "src" / "format.rs"
OTHER_TABLES = ("dialect.rs", "mode.rs", "element.rs", "_configs.py", "_torch_values.py")
"""What other systems take for names, the quantization modes, and what schemes take for codes."""
SOURCES = [
    path
    for folder, suffix in (("rust/core/src", "rs"), ("rust/bindings/src", "rs"), ("python", "py"))
    for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))
    if path != TABLE and path.name not in OTHER_TABLES
]
NUMPYS_OWN = {"bool", "float16", "float32", "float64", "complex64", "complex128"}
"""Words that also name types of the languages, or functions of numpy."""


def code(path: Path) -> str:
    """A source without its comments, docstrings, examples and tests."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return re.sub(r'r?"""(.*?)"""|#.*', "", text, flags=re.DOTALL)
    return re.sub(r"//.*", "", text.split("#[cfg(test)]")[0])


def test_no_format_is_named_outside_the_table() -> None:
    names = set(castwise.formats()) - NUMPYS_OWN
    quoted = {path: re.findall(r"""["']([\w.]+)["']""", code(path)) for path in SOURCES}
    named = {str(path): names.intersection(words) for path, words in quoted.items()}
    assert {path: found for path, found in named.items() if found} == {}


def test_the_table_names_every_format() -> None:
    quoted = set(re.findall(r'"(\w+)"', TABLE.read_text("utf-8")))
    assert set(castwise.formats()) <= quoted
    assert len(SOURCES) > 40
