"""Predictions are near what casts and quantizations of the array itself measure."""

from __future__ import annotations

import math
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise._options import Overflow, Scales
from castwise.quantization import dequantize, quantize, schemes
from castwise.quantization.producers.schemes import SCALES, has_scales
from castwise.surveys import Prediction
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


CHOICES = [
    (row.name, choice)
    for row in schemes()
    for choice in SCALES
    if choice != "amax" and has_scales(choice, row, row.recipes[0])
]


@pytest.mark.parametrize(("scheme", "scales"), CHOICES)
@pytest.mark.parametrize("name", ARRAYS)
def test_every_choice_of_scales(name: str, scheme: str, scales: Scales) -> None:
    x = weight(name)
    results = np.asarray(dequantize(quantize(x, scheme, scales=scales), "float32"))
    prediction = castwise.survey(x).predict(scheme, scales=scales)
    assert prediction.sqnr_db == pytest.approx(measured(x.astype(float), results), abs=NEAR)
    zeros = np.count_nonzero((results == 0) & (x != 0))
    assert prediction.underflowed == pytest.approx(zeros, rel=0.15, abs=50)


@pytest.mark.filterwarnings("ignore:x has scales")
@pytest.mark.parametrize("factor", [1000.0, 1.0, 0.3, 0.1, 0.02, 0.01, 0.001])
def test_scales_without_a_global_one(factor: float) -> None:
    """Errors of MLX' nvfp4 depend on the magnitude: they are near, or not known."""
    x = np.random.default_rng(3).standard_normal(SIZE).astype(np.float32) * np.float32(factor)
    predicted = castwise.survey(x).predict("nvfp4", recipe="mlx").sqnr_db
    report = quantize(x, "nvfp4", recipe="mlx").report(x)
    assert predicted is None or abs(predicted - report.sqnr_db) < NEAR
    assert (predicted is None) == (factor in {1000.0, 0.1, 0.02, 0.01, 0.001})


def test_scales_go_with_schemes_that_have_the_choice() -> None:
    surveyed = castwise.survey(array("normal"))
    with pytest.raises(ValueError, match=r"^scales='best' goes with a scheme, not with .*bfloat16"):
        surveyed.predict("bfloat16", scales="best")
    with pytest.raises(ValueError, match=r"^scales='best' is not valid for fp8_channel, .* nvfp4"):
        surveyed.predict("fp8_channel", scales="best")
    recipe: Any = "nope"
    with pytest.raises(ValueError, match=r"^recipe='nope' is not known"):
        surveyed.predict("nvfp4", scales="best", recipe=recipe)


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


STEADY = {"bfloat16", "mxint8"} | {
    f"int{bits}_{blocks}" for bits in (5, 6, 8) for blocks in ("channel", "group")
}
"""Targets of which a peak within a binade matters least."""


@pytest.mark.parametrize("distribution", ["normal", "Laplace"])
@pytest.mark.parametrize(
    ("mean", "part"), [(3, 11), (5, 4), (10, 7), (20, 1), (20, 11), (30, 10), (50, 16), (100, 0)]
)
def test_a_mean_far_from_zero(mean: int, part: int, distribution: str) -> None:
    """The bounds of `surveys.md`; where in a binade the mean is decides how large errors are."""
    rng = np.random.default_rng(part)
    deviations = (
        rng.standard_normal(SIZE) if distribution == "normal" else rng.laplace(size=SIZE) / 2**0.5
    )
    x = (2 ** (part / 24) * (mean + deviations)).astype(np.float32)
    survey = castwise.survey(x)
    for target in [*FORMATS, *(row.name for row in schemes())]:
        predicted = survey.predict(target).sqnr_db
        if predicted is None or (target in FORMATS and not castwise.finfo(target).signed):
            continue  # of formats without a sign a survey does not see that all are positive
        if target in FORMATS:
            _, report = castwise.cast(x, target, report=True)
        else:
            report = quantize(x, target).report(x)
        bound = 1 if target in STEADY else 4 if mean <= 10 else 13
        assert predicted == pytest.approx(report.sqnr_db, abs=bound), target


def placed(x: Array, value: object, number: int) -> Array:
    """Put values at some places."""
    x.reshape(-1)[RNG.choice(x.size, number, replace=False)] = value
    return x


def odd_weights() -> dict[str, Array]:
    """Weights without a smooth density, or of which few elements matter."""
    rows = RNG.standard_normal((SIZE[0], 1)) * np.ones(SIZE)
    arrays = {
        "constant": np.full(SIZE, 0.0371),
        "ones": np.ones(SIZE),
        "one outlier": placed(0.02 * RNG.standard_normal(SIZE), 37.3, 1),
        "a huge outlier": placed(0.02 * RNG.standard_normal(SIZE), 1e4, 1),
        "eight outliers": placed(0.02 * RNG.standard_normal(SIZE), 5.3, 8),
        "one element": placed(np.zeros(SIZE), 0.7, 1),
        "five elements": placed(np.zeros(SIZE), RNG.standard_normal(5), 5),
        "nearly all zero": placed(np.zeros(SIZE), RNG.standard_normal(600), 600),
        "half zero": placed(RNG.standard_normal(SIZE), 0.0, SIZE[0] * SIZE[1] // 2),
        "tiny integers": RNG.integers(-3, 4, SIZE),
        "integers of 4 bits": RNG.integers(-8, 8, SIZE),
        "integers of 8 bits": RNG.integers(-127, 128, SIZE),
        "two values": np.where(RNG.random(SIZE) < 0.5, 0.3, -0.37),
        "two far values": np.where(RNG.random(SIZE) < 0.9, 0.01, -7.3),
        "powers of two": np.exp2(RNG.integers(-9, 3, SIZE)),
        "many powers of two": np.exp2(RNG.integers(-90, 90, SIZE)),
        "near one": 1 + 1e-3 * RNG.standard_normal(SIZE),
        "two peaks": RNG.choice([-0.5, 0.35], SIZE) + 0.01 * RNG.standard_normal(SIZE),
        "constant rows": rows,
        "lines": np.linspace(-1, 1, SIZE[0] * SIZE[1]).reshape(SIZE),
        "sines": np.sin(np.arange(SIZE[0] * SIZE[1])).reshape(SIZE),
        "lognormal": np.exp(2 * RNG.standard_normal(SIZE)),
        "Cauchy": RNG.standard_cauchy(SIZE),
        "identity": np.eye(*SIZE),
        "triangle": np.tril(np.ones(SIZE)),
        "codes of float8": RNG.standard_normal(SIZE).astype(ml_dtypes.float8_e4m3fn),
        "of few elements": RNG.standard_normal((4, 32)),
        "subnormal": 1e-40 * RNG.standard_normal(SIZE),
        "zeros": np.zeros(SIZE),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


ODD = odd_weights()
ODD_NEAR = 1.6
"""Decibels: sines are predicted to 1.5 in mxint8, whose blocks all have the same maximum."""


def squared(x: Array, results: Array) -> tuple[float, float]:
    """Sums of squares, of the values and of errors, that float64 holds."""
    unit = float(np.abs(x).max()) or 1.0
    with np.errstate(over="ignore"):
        errors = (results.astype(float) - x.astype(float)) / unit
    return float(np.square(x.astype(float) / unit).sum()), float(np.square(errors).sum())


@pytest.mark.parametrize("name", ODD)
def test_odd_weights_are_predicted_or_not_known(name: str) -> None:
    x = ODD[name]
    survey = castwise.survey(x)
    for row in schemes():
        prediction = survey.predict(row.name).sqnr_db
        try:
            results = np.asarray(dequantize(quantize(x, row.name), "float32"))
        except ValueError:  # what one producer stores in whole blocks of another size
            continue
        signal, noise = squared(x, results)
        if prediction is None or (math.isnan(prediction) and signal == 0):
            continue
        ratio = math.inf if noise == 0 else 10 * math.log10(signal / noise)
        near = ODD_NEAR if (name, row.name) == ("sines", "mxint8") else 1
        assert prediction == pytest.approx(ratio, abs=near), row.name


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("name", ODD)
def test_casts_of_odd_weights(name: str, target: str) -> None:
    x = ODD[name]
    _, report = castwise.cast(x, target, report=True)
    prediction = castwise.survey(x).predict(target)
    if prediction.sqnr_db is None:
        assert castwise.survey(x).values is None
        return
    if castwise.survey(x).values is not None:
        for field in ("overflowed", "saturated", "underflowed", "subnormal"):
            assert getattr(prediction, field) == getattr(report, field), field
    expected = -math.inf if report.overflowed else report.sqnr_db
    assert prediction.sqnr_db == pytest.approx(expected, abs=1, nan_ok=True)


@pytest.mark.parametrize("name", ["constant", "one outlier", "powers of two"])
def test_what_is_not_known_is_shown_as_such(name: str) -> None:
    prediction = castwise.survey(ODD[name]).predict("fp8_channel")
    assert prediction.sqnr_db is None
    assert prediction.to_dict()["sqnr_db"] is None
    assert "not known" in str(prediction)


def test_what_a_format_holds_is_exact() -> None:
    x = RNG.standard_normal((4, 1000)).astype(ml_dtypes.bfloat16)
    assert castwise.survey(x).predict("float32").sqnr_db == math.inf
    assert castwise.survey(x).predict("bfloat16").sqnr_db == math.inf
    assert castwise.survey(x.astype(np.float64)).predict("bfloat16").sqnr_db == math.inf


@pytest.mark.parametrize(
    ("values", "target", "decision"),
    [
        ((1.0, 2.0), "float32", "signal to noise: inf"),
        ((1.0, 1e30), "float8_e4m3fn", "signal to noise: -inf"),
        ((0.0, 0.0), "nvfp4", "signal to noise: "),
        ((), "float16", "no elements"),
    ],
)
def test_numbers_that_are_not_finite_are_shown(
    values: tuple[float, ...], target: str, decision: str
) -> None:
    prediction = castwise.survey(np.array(values, np.float32)).predict(target)
    assert decision in str(prediction)
    assert decision in prediction._repr_html_()


def test_numbers_below_the_range_of_a_format_without_a_sign() -> None:
    x = np.array([1.0, -1.0] * 100)
    _, report = castwise.cast(x, "float8_e8m0fnu", overflow="saturate", report=True)
    prediction = castwise.survey(x).predict("float8_e8m0fnu", overflow="saturate")
    assert prediction.saturated == report.saturated == 100


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize(
    "values", [[0.0] * 7, [0.0, 0.0, math.nan, math.inf], [0.0] * 9 + [-3.0, 3.0] * 500]
)
def test_zeros_in_a_format_without_them(values: list[float], overflow: Overflow) -> None:
    _, report = castwise.cast(np.array(values), "float8_e8m0fnu", overflow=overflow, report=True)
    prediction = castwise.survey(values).predict("float8_e8m0fnu", overflow=overflow)
    for field in ("overflowed", "saturated", "underflowed", "zero_in"):
        assert getattr(prediction, field) == getattr(report, field), field
    assert prediction.sqnr_db == pytest.approx(report.sqnr_db, abs=1e-6, nan_ok=True)


def test_overflow() -> None:
    survey = castwise.survey([1.0, 1000.0])
    assert survey.predict("float8_e4m3fn").sqnr_db == -math.inf
    saturated = survey.predict("float8_e4m3fn", overflow="saturate")
    assert (saturated.overflowed, saturated.saturated) == (0, 1)
    assert saturated.sqnr_db == pytest.approx(20 * math.log10(1000 / 552), abs=0.1)
    assert saturated.to_dict()["target"] == "float8_e4m3fn"
    assert survey.predict("float8_e4m3fn").to_dict()["sqnr_db"] == "-inf"


BEYOND = {
    "float16": 65530,
    "float8_e5m2": 61440,
    "float8_e4m3fn": 475,
    "float8_e4m3": 250,
    "float8_e3m4": 15.8,
    "float4_e2m1fn": 7.9,
    "int8": 128.5,
}
"""Magnitudes of the binade of a format's largest number, beyond its range."""


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-7, 0.3125])
@pytest.mark.parametrize("target", BEYOND)
def test_the_largest_is_beyond_the_range(target: str, scale: float, overflow: Overflow) -> None:
    top = BEYOND[target] / scale
    x = np.clip(0.14 * top * RNG.standard_normal(SIZE), -0.9 * top, 0.9 * top).astype(np.float32)
    for outlier in (top, -top, np.inf):
        _, report = castwise.cast(
            placed(x.copy(), outlier, 1), target, scale=scale, overflow=overflow, report=True
        )
        survey = castwise.survey(placed(x.copy(), outlier, 1))
        prediction = survey.predict(target, scale=scale, overflow=overflow)
        expected = report.saturated, report.overflowed
        if target == "int8" and outlier == -top:  # -128.5 is cut off to -128, which int8 has
            expected = 1, 0
        assert (prediction.saturated, prediction.overflowed) == expected
        assert prediction.sqnr_db == pytest.approx(report.sqnr_db, abs=NEAR)


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("target", FORMATS)
def test_the_ends_of_the_range(target: str, overflow: Overflow) -> None:
    """Half a step beyond the largest value, rounding to even decides whether it is in range."""
    info = castwise.finfo(target)
    if target == "float64" or not info.signed:
        return  # a survey counts no signs, and no number is between the largest one and infinity
    last_place = 2.0 ** (math.frexp(float(info.max))[1] - 1 - info.mantissa_bits)
    middle = float(info.max) + last_place / 2
    for end in (float(info.max), np.nextafter(middle, 0), middle, np.nextafter(middle, np.inf)):
        x = np.array([end, -end])
        _, report = castwise.cast(x, target, overflow=overflow, report=True)
        prediction = castwise.survey(x).predict(target, overflow=overflow)
        for field in ("overflowed", "saturated"):
            assert getattr(prediction, field) == getattr(report, field), (field, end)


@pytest.mark.parametrize("target", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_an_overflow_is_known_beside_an_outlier(target: str) -> None:
    """The density of the others is not needed where a number is lost."""
    x = placed(RNG.standard_normal(SIZE), 1.9 * castwise.finfo(target).max, 1).astype(np.float32)
    prediction = castwise.survey(x).predict(target)
    assert (prediction.overflowed, prediction.sqnr_db) == (1, -math.inf)
    prediction = castwise.survey(x).predict(target, overflow="saturate")
    assert (prediction.overflowed, prediction.saturated, prediction.sqnr_db) == (0, 1, None)


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("scale", [1.0, -2.0])
@pytest.mark.parametrize("target", [*FORMATS, "int2", "int8", "uint4", "uint8"])
def test_infinities_are_counted_as_casts_count_them(
    target: str, scale: float, overflow: Overflow
) -> None:
    for finite in (np.zeros(3), RNG.standard_normal(1000)):  # of few magnitudes, and of many
        with_infinities = np.concatenate([finite, np.repeat([np.inf, -np.inf], [20, 7])])
        predictions = [
            castwise.survey(x).predict(target, scale=scale, overflow=overflow)
            for x in (finite, with_infinities)
        ]
        infinities = with_infinities[len(finite) :]
        _, report = castwise.cast(infinities, target, scale=scale, overflow=overflow, report=True)
        for field in ("overflowed", "saturated", "inf_in"):
            without, counted = (getattr(prediction, field) for prediction in predictions)
            assert counted - without == getattr(report, field), field
        assert predictions[0].sqnr_db == pytest.approx(predictions[1].sqnr_db, nan_ok=True)


def test_measured_losses_leave_out_infinities_as_predicted_ones_do() -> None:
    x = np.concatenate([RNG.standard_normal(1000), [np.inf]]).astype(np.float32)
    _, report = castwise.cast(x, "float8_e4m3fn", report=True)
    measured_losses = Prediction.of_report("float8_e4m3fn", report)
    assert measured_losses.overflowed == 1
    assert measured_losses.sqnr_db == report.sqnr_db
    predicted = castwise.survey(x).predict("float8_e4m3fn")
    assert predicted.sqnr_db == pytest.approx(report.sqnr_db, abs=NEAR)


@pytest.mark.parametrize("target", ["int2", "int4", "int8", "int16"])
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("value", [0.3, 7.0, 23.0, 128.0, 300.0, 1e6, 1e12])
def test_integers_beyond_the_range(target: str, overflow: Overflow, value: float) -> None:
    x = np.full(1000, value, np.float32)
    x[::2] *= -1
    _, report = castwise.cast(x, target, overflow=overflow, report=True)
    prediction = castwise.survey(x).predict(target, overflow=overflow)
    for name in ("overflowed", "saturated", "underflowed"):
        assert getattr(prediction, name) == getattr(report, name), name
    assert prediction.sqnr_db == pytest.approx(report.sqnr_db, abs=1e-3)


@pytest.mark.parametrize("target", ["uint32", "int64", "uint64"])
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("value", [0.25, 1.5, 2.0**63, 2.0**64, 1e20])
def test_wide_integers_beyond_the_range(target: str, overflow: Overflow, value: float) -> None:
    """One beyond a limit of 64 bits is the same float64 as the limit."""
    x = np.array([value, -value] * 2)
    _, report = castwise.cast(x, target, overflow=overflow, report=True)
    prediction = castwise.survey(x).predict(target, overflow=overflow)
    for name in ("overflowed", "saturated", "underflowed"):
        assert getattr(prediction, name) == getattr(report, name), name


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
