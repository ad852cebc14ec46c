"""LLVM's APFloat rounds a float64 once, to the nearest: as castwise does, into 14 formats.

jaxlib's attributes of floats are the way to it: `FloatAttr.get(type, x).value`.
"""

from __future__ import annotations

import castwise
import numpy as np
import peers
import pytest
from examination import Record, differing_values, examine
from oracle import FORMATS, Array
from sources import random_codes, sources_around

FLOAT64 = FORMATS["float64"]
TYPES = {
    "float32": "F32Type",
    "float16": "F16Type",
    "bfloat16": "BF16Type",
    "float8_e3m4": "Float8E3M4Type",
    "float8_e4m3": "Float8E4M3Type",
    "float8_e4m3fn": "Float8E4M3FNType",
    "float8_e4m3fnuz": "Float8E4M3FNUZType",
    "float8_e4m3b11fnuz": "Float8E4M3B11FNUZType",
    "float8_e5m2": "Float8E5M2Type",
    "float8_e5m2fnuz": "Float8E5M2FNUZType",
    "float8_e8m0fnu": "Float8E8M0FNUType",
    "float6_e2m3fn": "Float6E2M3FNType",
    "float6_e3m2fn": "Float6E3M2FNType",
    "float4_e2m1fn": "Float4E2M1FNType",
}


def rounded(x: Array, target: str) -> Array:
    """Round each float64 by APFloat, and give the result as a float64."""
    ir = peers.framework("jaxlib.mlir.ir")
    with ir.Context(), ir.Location.unknown():
        kind, get = getattr(ir, TYPES[target]).get(), ir.FloatAttr.get
        return np.array([get(kind, value).value for value in x.tolist()])


@pytest.mark.parametrize("target", TYPES)
def test_a_float64_is_rounded_as_apfloat_rounds_it(target: str, record_property: Record) -> None:
    """Every value of a format of 16 bits or fewer, every midpoint, their neighbors, and random."""
    around = sources_around(FLOAT64, FORMATS[target]).view(np.float64)
    spread = np.random.default_rng(34).standard_normal(20_000)
    x = np.concatenate([around, random_codes(FLOAT64, 20_000, 34).view(np.float64), spread])
    values = castwise.cast(x, target).astype(np.float64)
    others = rounded(x, target)
    explained: dict[str, Array] = {}
    if FORMATS[target].specials == "finite":
        explained["infinities and NaN, APFloat"] = ~np.isfinite(x)
    elif target == "float8_e8m0fnu":
        others = np.where(np.isinf(others), np.nan, others)  # its code is that of NaN
        explained["zero and negative numbers, APFloat"] = (x <= 0) & ~np.isnan(others)
    examine(record_property, x, differing_values(values, others), explained)


def test_a_float64_that_ml_dtypes_rounded_twice_before_0_7() -> None:
    x = np.array([1 + 2**-8 + 2**-40])
    assert castwise.cast(x, "bfloat16") == rounded(x, "bfloat16") == 1 + 2**-7
    assert castwise.cast(x, "bfloat16", like="ml_dtypes<0.7") == 1
