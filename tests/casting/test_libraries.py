"""Every row of the table of `like=`, beside the library that it is about."""

from __future__ import annotations

from typing import Any

import castwise
import numpy as np
import peers
import pytest
from agreement import disagreement
from castwise.arrays.library_casts import library_named
from libraries import CASTS, LibraryCast
from library_sources import NAMES, PAIRS, library_source

OTHERS = [library for library in CASTS if library.distributions[0] != "numpy"]
MODULES = {"onnxruntime": ("onnxruntime", "onnx")}

# The page has jax and numkong without AVX512-FP16, as their headings state. With it, jax rounds
# float64 to float16 once, and numkong makes zeros of the smallest float8_e5m2.
OTHER_WITH_FP16 = {("jax", "float64", "float16"), ("numkong", "float16", "float8_e5m2")}
HAS_FP16 = np._core._multiarray_umath.__cpu_features__.get("AVX512_SPR", False)

# The page has numkong on AVX-512, too. On AVX2 alone negative integers become 0
# and not what is left modulo 2^64, and integers beyond float8_e5m2 NaN and not infinity.
OTHER_ON_AVX2 = {
    *(("numkong", source, "uint64") for source in ("int8", "int16", "int32", "int64")),
    *(("numkong", source, "float8_e5m2") for source in ("int32", "uint32")),
}


def loaded(library: LibraryCast) -> LibraryCast:
    """Import a library, or skip the test."""
    name = library.distributions[0]
    for module in MODULES.get(name, (name,)):
        peers.framework(module)
    library.load()
    return library


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("library", OTHERS, ids=lambda library: library.distributions[0])
def test_a_library_casts_as_the_table_says(library: LibraryCast, source: str) -> None:
    loaded(library)
    for target in (target for each, target in PAIRS if each == source):
        row = library.distributions[0], source, target
        if row in OTHER_ON_AVX2 and "avx512" not in castwise.cpu_levels():
            continue
        if row in OTHER_WITH_FP16 and HAS_FP16:
            continue
        array = library_source(source, target)
        result = library.cast(array, np.dtype(castwise.finfo(target).dtype))
        assert disagreement(library, array, result, target) is None


@pytest.mark.parametrize("library", OTHERS, ids=lambda library: library.distributions[0])
def test_a_place_and_a_length_change_nothing(library: LibraryCast) -> None:
    """Loops over registers and over what is left agree wherever the table has an answer."""
    loaded(library)
    x = np.array([1e6, -1e6, 0.3, np.inf, 1e-40, 449.0, 464.0, 1.0, -0.0] * 7, np.float32)
    for target in ("float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int32"):
        rule = library_named(library.name).rule("float32", target)
        for length in range(1, 40, 3):
            result = library.cast(x[:length].copy(), np.dtype(castwise.finfo(target).dtype))
            assert (result is None) == (rule is None)
            assert disagreement(library, x[:length], result, target) is None


def test_a_row_that_is_wrong_is_found() -> None:
    torch = loaded(OTHERS[0])
    array = np.array([1.0, 1e6], np.float32)
    result: Any = torch.cast(array, np.dtype(castwise.finfo("float8_e4m3fn").dtype))
    wrong = result.copy()
    wrong[1] = -wrong[1]
    said = disagreement(torch, array, wrong, "float8_e4m3fn")
    assert said is not None
    assert "1 of 2 values differ" in said
