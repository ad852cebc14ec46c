"""Numbers of entries in numpy's table of C functions, beside numpy's header."""

import re
from pathlib import Path

import numpy as np
import pytest

SOURCE = Path(__file__).parents[1] / "rust" / "bindings" / "src" / "numpy_table.rs"
ENTRIES = re.findall(
    r"/// `(\w+)`[^\n]*\n(?:#\[cfg[^\n]*\n)?(?:pub\(crate\) )?const \w+: usize = (\d+);",
    SOURCE.read_text("utf-8"),
)


def test_every_entry_is_compared() -> None:
    assert len(ENTRIES) == SOURCE.read_text("utf-8").count(": usize = ")


@pytest.mark.parametrize(("name", "number"), ENTRIES)
def test_entries_are_those_of_numpys_header(name: str, number: str) -> None:
    header = Path(np.get_include()) / "numpy" / "__multiarray_api.h"
    defined = re.search(rf"#define {name}\b[^#]*?PyArray_API\[(\d+)\]", header.read_text())
    assert defined is not None
    assert defined[1] == number
