"""`like=`: the options that give another library's bits, wherever options are taken."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import castwise
import numpy as np
import pytest
from agreement import disagreement
from astype import IS_NEW
from castwise._options import Like
from castwise.arrays.library_casts import libraries
from libraries import CASTS, installed
from library_sources import PAIRS, library_source

X = np.array([1.0, 448.0, 1e6, -1e6, -0.3, 2.0**-9], np.float32)
ALIASED: tuple[Like, ...] = ("onnx", "onnxruntime")
NUMPY = CASTS[0]


@pytest.mark.thinned(11)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_numpy_casts_as_the_table_says(source: str, target: str) -> None:
    array = library_source(source, target)
    result = NUMPY.cast(array, np.dtype(castwise.finfo(target).dtype))
    assert disagreement(NUMPY, array, result, target) is None


def test_a_disagreement_is_found() -> None:
    wrong = castwise.cast(X, "float8_e4m3fn", overflow="saturate")
    said = disagreement(NUMPY, X, wrong, "float8_e4m3fn")
    assert said == (
        f"{NUMPY.name}, float32 to float8_e4m3fn: 2 of 6 values differ from the table, the first "
        "is 1000000.0, 448.0 instead of nan"
    )
    assert disagreement(NUMPY, X, None, "float16") == (
        f"{NUMPY.name}, float32 to float16: has no such cast, the table has such a cast"
    )


@pytest.mark.parametrize(
    ("like", "largest"), [("torch", 448), ("torch<2.12", np.nan), ("onnx", 448), ("jax", np.nan)]
)
def test_a_library_decides_what_overflow_becomes(like: Any, largest: float) -> None:
    expected = [1, 448, largest, -largest, -0.3125, 2.0**-9]
    result = castwise.cast(X, "float8_e4m3fn", like=like).astype(float)
    assert np.array_equal(result, expected, equal_nan=True)
    out = np.empty(X.shape, result_dtype := castwise.finfo("float8_e4m3fn").dtype)
    assert castwise.cast(X, out=out, like=like) is out
    assert out.tobytes() == castwise.cast(X, result_dtype, like=like).tobytes()
    caster = castwise.caster("float32", "float8_e4m3fn", like=like)
    for each in (caster, copy.copy(caster), pickle.loads(pickle.dumps(caster))):  # noqa: S301
        assert each(X).tobytes() == out.tobytes()
    tree = castwise.cast_tree({"a": [X]}, "float8_e4m3fn", like=like)
    assert tree["a"][0].tobytes() == out.tobytes()


def test_double_rounding_is_repeated() -> None:
    x = np.float64(1 + 2**-8 + 2**-40)
    once, twice = castwise.cast(x, "bfloat16"), castwise.cast(x, "bfloat16", like="ml_dtypes<0.7")
    assert (float(once), float(twice)) == (1 + 2**-7, 1)
    assert twice.shape == ()
    assert x.astype(twice.dtype) == (once if IS_NEW else twice)


def test_subnormals_become_zero_as_in_tensorflow() -> None:
    x = np.array([1e-40, -1e-40, 1.0, -0.0]).reshape(2, 2)[:, ::-1]
    for array in (x, x.astype(">f8")):
        result = castwise.cast(array, "float32", like="tensorflow")
        assert result.tolist() == [[0, 0], [0, 1]]
        assert np.signbit(result).tolist() == [[True, False], [True, False]]
    out = np.empty((2, 2), np.float32)
    assert castwise.cast(x, out=out, like="jax") is out
    assert out.tolist() == [[0, 0], [0, 1]]
    pairs = np.array([1e-40 + 2j])
    assert castwise.cast(pairs, "complex64", like="tensorflow").tolist() == [2j]


def test_a_value_without_a_single_answer_is_refused() -> None:
    out = np.full(X.shape, 7, np.int8)
    assert castwise.cast(X[:1], "int8", like="torch").tolist() == [1]
    with pytest.raises(OverflowError, match=r"^value 448.0 at flat index 1 .*int8, .*C does"):
        castwise.cast(X, out=out, like="torch")
    assert (out == 7).all()
    with pytest.raises(ValueError, match=r"^NaN at flat index 0, .*numpy gives: C does .*like="):
        castwise.cast([np.nan], "int8", like="numpy")
    x = np.array([1.0, 2.0**-126 - 2.0**-151])
    with pytest.raises(ValueError, match=r"^value 1.17.*e-38 at flat index 1, .* processors"):
        castwise.cast(x, "float32", like="tensorflow")
    with pytest.raises(ValueError, match="flat index 1, "):
        castwise.cast(x * 1j, "complex64", like="jax")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"like": "toch"}, ValueError, "like='toch' is not known; did you mean 'torch'.*numkong"),
        ({"like": "onxruntime"}, ValueError, "did you mean 'onnxruntime'"),
        ({"like": 3}, ValueError, "like=3 is not known; use one of numpy, ml_dtypes<0.7, torch, "),
        ({"like": ["torch"]}, ValueError, r"like=\['torch'\] is not known"),
        ({"overflow": "ieee"}, TypeError, "overflow= does not go with like='torch', which decides"),
        ({"rounding": "towards-zero"}, TypeError, "rounding= does not go with like='torch'"),
        ({"scale": 2.0}, TypeError, "scale= does not go with like='torch'"),
        ({"seed": 1}, TypeError, "seed= does not go with like='torch'"),
        ({"nan": "zero"}, TypeError, "nan= does not go with like='torch'"),
        ({"dtype": "float4_e2m1fn"}, TypeError, "like='torch': torch does not cast float32 to fl"),
        ({"dtype": "float8_e8m0fnu"}, ValueError, "like='torch': no options give what torch gives"),
        ({"dtype": None}, TypeError, "dtype=None says nothing to cast to"),
        ({"dtype": "flot16"}, TypeError, "flot16"),
        ({"out": np.empty(2)}, ValueError, r"out has shape \(2,\), x has shape \(6,\)"),
    ],
)
def test_a_wrong_argument_is_named(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    arguments = {"dtype": None if "out" in options else "float8_e4m3fn", "like": "torch", **options}
    with pytest.raises(error, match=said):
        castwise.cast(X, **arguments)


def test_onnxruntime_is_called_by_either_name() -> None:
    x = np.array([1.0, 1.1, 3.0], np.float32)
    results = [castwise.cast(x, "float8_e8m0fnu", like=name) for name in ALIASED]
    assert [result.tolist() for result in results] == [[1, 2, 4]] * 2
    for name in ALIASED:
        loaded, missing = installed([name])
        assert (missing or [loaded[0].distributions[0]]) == ["onnxruntime"]


def test_a_report_is_of_one_rounding() -> None:
    expected = castwise.cast(X, "float8_e4m3fn", overflow="saturate", report=True)[1]
    assert castwise.cast(X, "float8_e4m3fn", like="torch", report=True)[1] == expected
    with pytest.raises(ValueError, match="report=True: with like='torch', float64 to float8_e4m3f"):
        castwise.cast(X.astype(float), "float8_e4m3fn", like="torch", report=True)


def test_defaults_stay_what_they_are() -> None:
    assert castwise.cast(X, "int8", like=None).tolist() == [1, 127, 127, -128, 0, 0]
    assert castwise.cast(X, np.float32, like="torch", copy=False) is X


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.name)
def test_every_rule_is_about_a_pair(library: Any) -> None:
    """A row that an earlier one hides, or of formats that the library lacks, would say nothing."""
    used = {id(library.rule(*pair)) for pair in PAIRS if library.rule(*pair) is not None}
    assert [rule for rule in library.rules if id(rule) not in used] == []
