"""What the compiler does not check in code that needs the instructions of a CPU level."""

from __future__ import annotations

import re
from pathlib import Path

CORE = Path(__file__).parents[1] / "rust" / "core" / "src"
VECTORS = [
    file
    for room in ("simd/avx2", "simd/avx512", "kernels/vectors", "kernels/tables", "unscale")
    for file in CORE.glob(f"{room}/*.rs")
]
CLOSURE = re.compile(
    r"(?:map|fold|for_each|from_fn)\((?:[^|()]*,)? *\|[^|]*\|[^;]*?"
    r"\b(?:(?:V|Avx2|short_tables)::[a-z]|arch::|Self::load)"
)


def found(code: str) -> list[str]:
    return [match[0] for match in CLOSURE.finditer(code)]


def test_no_vector_operation_stands_in_a_closure() -> None:
    """A closure has no CPU features: where it is not inlined, each operation is a call."""
    for file in VECTORS:
        code = re.sub(r"//.*", "", file.read_text("utf-8").partition("#[cfg(test)]")[0])
        assert not found(code), file


def test_such_closures_are_found() -> None:
    assert len(VECTORS) > 35
    assert found("let x = [a, b].map(|half| V::and(half, mask));")
    assert found("let m = all.into_iter().fold(most, |most, p| V::max32(most, p));")
    assert not found("let [a, b] = codes.map(|code| code as u16);")
