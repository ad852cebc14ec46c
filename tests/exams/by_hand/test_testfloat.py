"""Berkeley SoftFloat rounds as castwise does, of the cases that Berkeley TestFloat generates.

`.ci/exams` compiles `testfloat_gen`, which prints operands, results and flags of level 2: all that
few bits make of significands and exponents, then at random. bfloat16 is SoftFloat's in Python.
"""

from __future__ import annotations

import os
import subprocess

import castwise
import numpy as np
import oracle
import pytest
import softfloatpy
from examination import Record, differing, examine
from oracle import FORMATS, Array
from sources import all_codes
from support import array_of, codes_of

GENERATOR = os.environ["TESTFLOAT_GEN"]
CASES = 1_000_000
OF_BFLOAT16 = 200_000
ROUNDINGS = {
    "nearest-even": ("-rnear_even", "NEAR_EVEN"),
    "nearest-away": ("-rnear_maxMag", "NEAR_MAX_MAG"),
    "towards-zero": ("-rminMag", "MIN_MAG"),
    "towards-positive": ("-rmax", "MAX"),
    "towards-negative": ("-rmin", "MIN"),
}
FLOATS = {"f16": "float16", "f32": "float32", "f64": "float64"}
INTEGERS = {"i32": "int32", "i64": "int64", "ui32": "uint32", "ui64": "uint64"}
NAMES = FLOATS | INTEGERS
FUNCTIONS = [
    (source, target)
    for source in NAMES
    for target in NAMES
    if source != target and (source in FLOATS or target in FLOATS)
]
INVALID = 0x10

DIGITS = np.full(256, 255, np.uint8)
DIGITS[list(b"0123456789ABCDEF")] = range(16)


def generated(*arguments: str, cases: int = CASES) -> list[Array]:
    """Run testfloat_gen at level 2, and read its columns of hexadecimal digits."""
    command = [GENERATOR, "-level", "2", "-n", str(cases), *arguments]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    width = text.index(b"\n") + 1
    lines = np.frombuffer(text, np.uint8).reshape(-1, width)
    columns, start = [], 0
    for word in text[: width - 1].split(b" "):
        digits = DIGITS[lines[:, start : start + len(word)]]
        assert digits.max() < 16
        column = np.zeros(len(lines), np.uint64)
        for place in range(len(word)):
            column = column << np.uint64(4) | digits[:, place]
        columns.append(column)
        start += len(word) + 1
    return columns


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("source", "target"), FUNCTIONS)
def test_a_conversion_is_that_of_softfloat(
    source: str, target: str, rounding: str, record_property: Record
) -> None:
    rows = [FORMATS[NAMES[name]] for name in (source, target)]
    operands, results, flags = generated(ROUNDINGS[rounding][0], f"{source}_to_{target}")
    x = array_of(operands.astype(rows[0].codes), rows[0])
    result = castwise.cast(x, rows[1].name, rounding=rounding)
    different = differing(codes_of(result, rows[1]), results.astype(rows[1].codes), rows[1])
    explained: dict[str, Array] = {}
    if target in INTEGERS:
        is_invalid = flags & np.uint64(INVALID) != 0
        explained["beyond an integer, SoftFloat"] = is_invalid & different
        clamped = oracle.cast(operands[is_invalid], *rows).expected(rounding, "ieee").codes
        assert np.array_equal(codes_of(result, rows[1])[is_invalid], clamped)
    examine(record_property, x, different, explained)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_bfloat16_is_that_of_softfloat(rounding: str, record_property: Record) -> None:
    """SoftFloat has it from and to float32."""
    (operands,) = generated("f32", cases=OF_BFLOAT16)
    bfloat16, float32 = FORMATS["bfloat16"], FORMATS["float32"]
    softfloatpy.set_rounding_mode(softfloatpy.RoundingMode[ROUNDINGS[rounding][1]])
    convert, read = softfloatpy.f32_to_bf16, softfloatpy.Float32.from_bytes
    words = operands.astype(">u4").tobytes()
    others = b"".join(
        convert(read(words[place : place + 4])).to_bytes() for place in range(0, len(words), 4)
    )
    x = array_of(operands.astype(np.uint32), float32)
    codes = codes_of(castwise.cast(x, "bfloat16", rounding=rounding), bfloat16)
    different = differing(codes, np.frombuffer(others, ">u2").astype(np.uint16), bfloat16)
    examine(record_property, x, different)


def test_every_bfloat16_is_widened_as_by_softfloat(record_property: Record) -> None:
    codes, float32 = all_codes(FORMATS["bfloat16"]), FORMATS["float32"]
    read = softfloatpy.BFloat16.from_bytes
    others = b"".join(
        softfloatpy.bf16_to_f32(read(code.to_bytes(2, "big"))).to_bytes() for code in codes.tolist()
    )
    x = array_of(codes, FORMATS["bfloat16"])
    found = codes_of(castwise.cast(x, "float32"), float32)
    different = differing(found, np.frombuffer(others, ">u4").astype(np.uint32), float32)
    examine(record_property, codes, different)
