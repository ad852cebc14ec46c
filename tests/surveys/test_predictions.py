"""Predictions are near what casts and quantisations of the array itself measure."""

from __future__ import annotations

import math

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise.quantization import dequantize, quantize, schemes
from oracle import Array

SIZE = (128, 256)
RNG = np.random.default_rng(11)
ARRAYS = {
    "normal": 0.02 * RNG.standard_normal(SIZE),
    "Laplace": RNG.laplace(size=SIZE),
    "t3": RNG.standard_t(3, SIZE),
    "rows of many sizes": RNG.standard_normal(SIZE) * np.exp2(RNG.integers(-6, 6, (SIZE[0], 1))),
    "bfloat16": RNG.standard_normal(SIZE).astype(ml_dtypes.bfloat16),
    "float16": RNG.standard_normal(SIZE).astype(np.float16),
}
FORMATS = [
    name
    for name in castwise.formats()
    if castwise.finfo(name).kind == "float" and castwise.finfo(name).dtype is not None
]
FEW = 100
FEW_BITS = 10
"""From more bits on, the noise of heavy tails is that of the largest element."""
NEAR = 0.5
"""Decibels."""


def measured(x: Array, results: Array) -> float:
    """The ratio of signal to noise in decibels."""
    noise = np.square(results - x).sum()
    return math.inf if noise == 0 else 10 * math.log10(np.square(x).sum() / noise)


NARROW = ("bfloat16", "float16")
"""Dtypes in which producers compute, and store some scales, if weights are of them."""


def array(name: str) -> Array:
    return ARRAYS[name].astype(np.float32)


def weight(name: str) -> Array:
    """Weights of a dtype as they are stored; the others as float32."""
    return ARRAYS[name] if name in NARROW else array(name)


@pytest.mark.parametrize("scheme", [row.name for row in schemes()])
@pytest.mark.parametrize("name", ARRAYS)
def test_every_scheme(name: str, scheme: str) -> None:
    x = weight(name)
    results = np.asarray(dequantize(quantize(x, scheme), "float32"))
    prediction = castwise.survey(x).predict(scheme)
    assert prediction.sqnr_db == pytest.approx(measured(x.astype(float), results), abs=NEAR)
    zeros = np.count_nonzero((results == 0) & (x != 0))
    assert prediction.underflowed == pytest.approx(zeros, rel=0.1, abs=20)


@pytest.mark.parametrize("scale", [1.0, 64.0, 2.0**-6, 0.3])
@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("name", ARRAYS)
def test_every_format(name: str, target: str, scale: float) -> None:
    x = array(name)
    _, report = castwise.cast(x, target, scale=scale, report=True)
    prediction = castwise.survey(x).predict(target, scale=scale)
    for field in ("count", "nan_in", "inf_in", "zero_in"):
        assert getattr(prediction, field) == getattr(report, field)
    for field in ("overflowed", "saturated", "underflowed", "subnormal"):
        expected = getattr(report, field)
        assert getattr(prediction, field) == pytest.approx(expected, rel=0.1, abs=30), field
    # Where a few elements are cut off, or are the only ones that are rounded, all noise is theirs.
    few = 0 < report.saturated + report.overflowed < FEW or report.count - report.exact < FEW
    few = few or (name == "t3" and castwise.finfo(target).mantissa_bits > FEW_BITS)
    if few or report.sqnr_db == prediction.sqnr_db or target == "float64":
        return
    assert prediction.sqnr_db == pytest.approx(report.sqnr_db, abs=NEAR)


def test_what_a_format_holds_is_exact() -> None:
    x = RNG.standard_normal((4, 1000)).astype(ml_dtypes.bfloat16)
    assert castwise.survey(x).predict("float32").sqnr_db == math.inf
    assert castwise.survey(x).predict("bfloat16").sqnr_db == math.inf
    assert castwise.survey(x.astype(np.float64)).predict("bfloat16").sqnr_db == math.inf


def test_overflow() -> None:
    survey = castwise.survey([1.0, 1000.0])
    assert survey.predict("float8_e4m3fn").sqnr_db == -math.inf
    saturated = survey.predict("float8_e4m3fn", overflow="saturate")
    assert (saturated.overflowed, saturated.saturated) == (0, 1)
    assert saturated.sqnr_db == pytest.approx(20 * math.log10(1000 / 552), abs=0.1)
    assert saturated.to_dict()["target"] == "float8_e4m3fn"
    assert survey.predict("float8_e4m3fn").to_dict()["sqnr_db"] == "-inf"


@pytest.mark.parametrize("target", ["float32", "bfloat16", "float8_e4m3fn", "int8", "nvfp4"])
@pytest.mark.parametrize("exponent", [996, -996, 1022])
def test_the_ends_of_float64(exponent: int, target: str) -> None:
    size = math.ldexp(1.0, exponent)
    x = size * np.linspace(0.5, 1.5, 4000)
    scale = None if target == "nvfp4" else 1 / size
    near_one = castwise.survey(x / size).predict(target)
    prediction = castwise.survey(x).predict(target, scale=scale)
    assert prediction.sqnr_db == pytest.approx(near_one.sqnr_db, abs=0.2)
    assert castwise.survey(x).predict("float64").sqnr_db == math.inf
