"""The table of formats says what the specifications, numpy and ml_dtypes say."""

from __future__ import annotations

import copy
import pickle
import re

import castwise
import ml_dtypes
import numpy as np
import oracle
import pytest
from oracle import FORMATS, Format
from support import AVAILABLE

ROWS = [FORMATS[name] for name in castwise.formats()]
FLOATS = [row for row in ROWS if row.kind == "float"]
OPTIONAL = {"float8_e5m3fnu"}  # a row that may be ahead of ml_dtypes' releases


def value_of(code: int, row: Format) -> float:
    """Read one code of at most 53 significant bits as a float."""
    exact = oracle.decode(np.array([code], row.codes), row)
    magnitude = float(np.ldexp(float(exact.significand[0]), int(exact.exponent[0])))
    return -magnitude if exact.negative[0] else magnitude


def test_every_format_of_the_specification_is_there() -> None:
    assert set(castwise.formats()) | OPTIONAL == set(FORMATS)
    assert len(castwise.formats()) == len(set(castwise.formats()))


def test_every_row() -> None:
    for row in ROWS:
        info = castwise.finfo(row.name)
        assert (info.name, info.kind, info.bits) == (row.name, row.kind, row.bits)
        assert info.itemsize == max(1, row.bits // 8), row
        assert info.dtype == row.dtype, row
        if info.dtype is not None:
            assert info.itemsize == info.dtype.itemsize, row


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_a_float_s_numbers(row: Format) -> None:
    info = castwise.finfo(row.name)
    assert info.exponent_bits == row.exponent_bits
    assert info.mantissa_bits == row.mantissa_bits
    assert (info.bias, info.specials) == (row.bias, row.specials)
    assert info.signed == row.signed
    assert info.has_infinity == (row.specials == "ieee")
    assert info.has_nan == (row.specials != "finite")
    first = 0 if row.specials == "exponent-only" else 1 << row.mantissa_bits
    assert info.max == value_of(row.largest, row)
    assert info.min == (-info.max if row.signed else value_of(0, row))
    assert info.smallest_normal == value_of(first, row)
    assert info.smallest_subnormal == value_of(0 if first == 0 else 1, row)
    assert info.eps == 2.0**-row.mantissa_bits


@pytest.mark.parametrize("row", [row for row in FLOATS if row.dtype], ids=lambda row: row.name)
def test_a_float_agrees_with_the_installed_finfo(row: Format) -> None:
    info = castwise.finfo(row.name)
    theirs = np.finfo(row.dtype) if hasattr(np, row.name) else ml_dtypes.finfo(row.dtype)
    for name in ("bits", "max", "min", "smallest_normal", "smallest_subnormal", "eps"):
        assert float(getattr(info, name)) == float(getattr(theirs, name)), name


@pytest.mark.parametrize(
    "row", [row for row in AVAILABLE if row.kind in ("int", "uint")], ids=lambda row: row.name
)
def test_an_integer_s_limits(row: Format) -> None:
    info = castwise.finfo(row.name)
    assert info.min == (-(2 ** (row.bits - 1)) if row.signed else 0)
    assert info.max == 2 ** (row.bits - row.signed) - 1
    assert type(info.min) is type(info.max) is int
    theirs = np.iinfo(row.dtype) if hasattr(np, row.name) else ml_dtypes.iinfo(row.dtype)
    assert (info.min, info.max) == (int(theirs.min), int(theirs.max))


def test_every_way_to_name_a_format_is_the_same_format() -> None:
    """Its name, its aliases, its dtype, its dtype's class and byte order, a finfo itself."""
    taken: dict[str, str] = {}
    for name in castwise.formats():
        info = castwise.finfo(name)
        assert name not in info.aliases
        for alias in info.aliases:
            assert castwise.finfo(alias).name == name
            assert taken.setdefault(alias, name) == name
            assert alias not in castwise.formats()
        if info.dtype is not None:
            assert castwise.finfo(info.dtype).name == name
            assert castwise.finfo(info.dtype.type).name == name
            assert castwise.finfo(info.dtype.newbyteorder()).name == name
            for given in (*info.aliases, info.dtype, info.dtype.type):
                assert castwise.cast([1, 0], given).dtype == info.dtype


def numpys(spelling: str) -> str | None:
    """Name the format that numpy, on its own, takes a spelling for."""
    try:
        return castwise.finfo(np.dtype(spelling)).name
    except TypeError:
        return None


def test_no_alias_means_another_format_to_numpy() -> None:
    for row in ROWS:
        for alias in (row.name, *castwise.finfo(row.name).aliases):
            for spelling in (alias, alias.upper()):
                assert numpys(spelling) in (None, row.name), spelling


def test_a_safetensors_code_is_a_name() -> None:
    """Spellings ignore case, but where numpy means another format: its "i8" has 8 bytes."""
    for row in ROWS:
        code = castwise.finfo(row.name).safetensors or row.name
        for spelling in (code, code.lower(), code.title()):
            assert castwise.finfo(spelling).name == (numpys(spelling) or row.name), spelling


def test_copies_and_pickles_are_equal() -> None:
    for row in ROWS:
        info = castwise.finfo(row.name)
        copies = [copy.copy(info), copy.deepcopy(info)]
        copies += [pickle.loads(pickle.dumps(info, level)) for level in range(2, 6)]  # noqa: S301
        for other in copies:
            assert type(other) is castwise.FormatInfo
            assert other == info
            assert hash(other) == hash(info)
            assert repr(other) == repr(info)
            assert (other.name, other.max, other.dtype) == (info.name, info.max, info.dtype)
        assert [castwise.finfo(name) == info for name in castwise.formats()].count(True) == 1
        assert info != row.name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (float, "float64"),
        (int, "int64"),
        (bool, "bool"),
        (complex, "complex128"),
        ("f4", "float32"),
        ("i8", "int64"),
        ("u8", "uint64"),
        ("c8", "complex64"),
        ("<f2", "float16"),
        (">i2", "int16"),
    ],
)
def test_numpy_s_own_spellings(given: object, name: str) -> None:
    assert castwise.finfo(given).name == name
    assert castwise.cast([0.5], given).dtype == np.dtype(given)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
        ("bfloat16", "BF16"),
        ("float16", "F16"),
        ("float32", "F32"),
        ("float64", "F64"),
        ("bool", "BOOL"),
        ("uint8", "U8"),
        ("int64", "I64"),
        ("float8_e3m4", None),
        ("int4", None),
        ("complex128", None),
    ],
)
def test_safetensors_codes(name: str, code: str | None) -> None:
    assert castwise.finfo(name).safetensors == code


def test_safetensors_codes_name_one_format_each() -> None:
    codes = [castwise.finfo(name).safetensors for name in castwise.formats()]
    named = [code for code in codes if code is not None]
    assert len(named) == len(set(named))


def test_a_format_without_a_dtype_is_known_but_no_target() -> None:
    """The table may have a format that the installed ml_dtypes lacks; the error says so."""
    ahead = [name for name in castwise.formats() if castwise.finfo(name).dtype is None]
    for name in ahead:
        assert not hasattr(ml_dtypes, name)
        with pytest.raises(TypeError, match=re.escape(name)) as caught:
            castwise.cast([1.0], name)
        assert "ml_dtypes" in str(caught.value)


@pytest.mark.parametrize("garbage", ["", "float31", "e4m3fnfn", 3, 1.5, object(), [], "O", "U3"])
def test_garbage_is_not_a_format(garbage: object) -> None:
    with pytest.raises(TypeError):
        castwise.finfo(garbage)
