"""Bad input is refused, by an error that names argument, value and remedy; nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint, loss_scale, quantization
from oracle import OVERFLOWS, ROUNDINGS
from support import AVAILABLE

X = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("bflot16", "bfloat16"),
        ("float8_e4m3f", "float8_e4m3fn"),
        ("flaot32", "float32"),
        ("float8_e5m2fn", "float8_e5m2"),
        ("unit8", "uint8"),
        ("complex63", "complex64"),
    ],
)
def test_an_unknown_dtype_names_the_nearest(name: str, near: str) -> None:
    for refused in (lambda: castwise.cast(X, name), lambda: castwise.finfo(name)):
        with pytest.raises(TypeError, match="dtype") as caught:
            refused()
        assert name in str(caught.value)
        assert near in str(caught.value)


@pytest.mark.parametrize("family", ["fp8_", "f8_", "float6", "fp6", "float4", "f8_e5"])
def test_the_name_of_a_family_names_members(family: str) -> None:
    with pytest.raises(TypeError, match="dtype") as caught:
        castwise.cast(X, family)
    said = str(caught.value).partition("?")[0].replace(family, "", 1)
    start = family.strip("_").replace("fp", "float").replace("f8", "float8")
    named = [name for name in castwise.formats() if f'"{name}"' in said or f"'{name}'" in said]
    assert named
    assert all(name.startswith(start) for name in named)


@pytest.mark.parametrize("dtype", ["", "   ", "no such thing at all"])
def test_what_resembles_no_name_is_sent_to_the_list(dtype: str) -> None:
    with pytest.raises(TypeError, match="dtype") as caught:
        castwise.cast(X, dtype)
    assert "castwise.formats()" in str(caught.value)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "dtype", ["", "no such thing", "O", "U5", "S3", "M8[s]", "i4,f4", object, str, 7, 1.5, [], {}]
)
def test_a_dtype_without_a_format_is_a_type_error(dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype"):
        castwise.cast(X, dtype)


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_numbers_wider_than_the_table_are_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype"):
        castwise.cast(X, dtype)
    with pytest.raises(TypeError, match="x"):
        castwise.cast(X.astype(dtype), "float32")


@pytest.mark.parametrize(
    ("argument", "value", "valid"),
    [
        ("rounding", "nearest", ROUNDINGS),
        ("rounding", "", ROUNDINGS),
        ("overflow", "clip", OVERFLOWS),
        ("nan", "drop", ("keep", "raise", "zero")),
        ("order", "Z", ("K", "A", "C", "F")),
    ],
)
def test_an_unknown_option_names_the_valid_ones(
    argument: str, value: str, valid: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=argument) as caught:
        castwise.cast(X, "bfloat16", **{argument: value})
    assert repr(value) in str(caught.value) or f'"{value}"' in str(caught.value)
    for name in valid:
        assert name in str(caught.value)


VALID = {
    "rounding": ROUNDINGS,
    "overflow": OVERFLOWS,
    "nan": ("keep", "raise", "zero"),
    "order": ("K", "A", "C", "F"),
}


@pytest.mark.parametrize("value", [3, None, b"ieee", 1.5, ["ieee"], True, np.int64(5)], ids=repr)
@pytest.mark.parametrize("argument", VALID)
def test_an_option_of_another_type_is_refused(argument: str, value: Any) -> None:
    """The message has the argument, the value and the valid values."""
    if (argument, value) == ("rounding", None):
        return  # the default
    with pytest.raises((TypeError, ValueError), match=argument) as caught:
        castwise.cast(X, "bfloat16", **{argument: value})
    assert str(value) in str(caught.value)
    for name in VALID[argument]:
        assert name in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "a", True, False, np.True_])
def test_a_seed_is_an_integer_of_64_bits(seed: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError), match="seed"):
        castwise.cast(X, "bfloat16", rounding="stochastic", seed=seed)


@pytest.mark.parametrize("rounding", [None, *ROUNDINGS[:-1]])
def test_a_seed_needs_stochastic_rounding(rounding: str | None) -> None:
    with pytest.raises(ValueError, match="seed"):
        castwise.cast(X, "bfloat16", rounding=rounding, seed=1)


@pytest.mark.parametrize(
    ("threads", "remedy"),
    [(0, "1 or more"), (-1, "1 or more"), (-(10**20), "1 or more"), (10**20, "a smaller int")],
)
def test_threads_are_at_least_one(threads: int, remedy: str) -> None:
    message = f"threads={threads} is not valid; use .*{remedy}"
    with pytest.raises(ValueError, match=message):
        castwise.cast(X, "bfloat16", threads=threads)
    with pytest.raises(ValueError, match=message):
        castwise.set_num_threads(threads)


@pytest.mark.parametrize("threads", [True, False, np.True_], ids=repr)
def test_a_switch_is_not_a_number_of_threads(threads: Any, tmp_path: Path) -> None:
    source, out = tmp_path / "in.npz", tmp_path / "out.npz"
    checkpoint.save(source, {"w": X})
    quantized = quantization.quantize(np.ones((2, 32), np.float32), "mxfp4")
    for call in (
        lambda: castwise.cast(X, "bfloat16", threads=threads),
        lambda: castwise.caster("float32", "bfloat16", threads=threads),
        lambda: castwise.cast_tree([], "bfloat16", threads=threads),
        lambda: castwise.set_num_threads(threads),
        lambda: loss_scale.unscale([X], 2.0, threads=threads),
        lambda: loss_scale.all_finite([X], threads=threads),
        lambda: loss_scale.DelayedScaling().quantize(X, threads=threads),
        lambda: quantization.quantize(np.ones((2, 32)), "mxfp4", threads=threads),
        lambda: quantization.dequantize(quantized, threads=threads),
        lambda: checkpoint.cast_file(source, out, "bfloat16", threads=threads),
    ):
        with pytest.raises(ValueError, match=f"threads={threads!r} is not valid; use an int of 1 "):
            call()
    with pytest.raises(ValueError, match=f"mebibytes={threads!r} is not valid"):
        castwise.set_kept_memory(threads)
    assert not out.exists()


@pytest.mark.parametrize("name", ["Float32DType", "Int8DType", "BoolDType"])
def test_a_class_of_dtypes_is_not_a_dtype(name: str) -> None:
    given = getattr(np.dtypes, name)
    said = rf"=<class 'numpy.dtypes.{name}'> is a class of dtypes; give .*numpy.dtypes.{name}\(\)"
    for argument, call in (
        ("dtype", lambda: castwise.cast(X, given)),
        ("dtype", lambda: castwise.cast_tree([X], given)),
        ("dtype", lambda: castwise.finfo(given)),
        ("target", lambda: castwise.caster("float32", given)),
    ):
        with pytest.raises(TypeError, match=argument + said):
            call()
    assert castwise.cast(X, given()).dtype == given()


class Portable:
    """What only has DLPack."""

    def __dlpack__(self, **options: Any) -> Any:
        return X.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return X.__dlpack_device__()


class Unreadable:
    """What is an array for numpy, but not on this machine."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self.error("it is elsewhere.")

    def __init__(self, error: type[Exception]) -> None:
        self.error = error


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (Portable(), r"x is of type .*Portable, which .* give numpy.from_dlpack\(x\)\.$"),
        ([X, Portable()], r"x\[1\] is of type .*Portable.* numpy.from_dlpack\(x\[1\]\)\.$"),
        (
            SimpleNamespace(shape=(3,), dtype=X.dtype),
            r"x is of type .* not an array that numpy can",
        ),
        ({"a": 1}, r"x is of type dict, which is not an array; cast .* castwise.cast_tree\.$"),
        ([[1.0], [None]], r"x\[1\]\[0\] is of type NoneType, of which numpy makes no number"),
        (iter([1.0]), r"x is of type list_iterator, of which numpy makes no number; give"),
        (Unreadable(TypeError), r"x is of type .*Unreadable, which .* \(it is elsewhere\); give"),
        (
            [Unreadable(TypeError)],
            r"x\[0\] is of type .*Unreadable.* \(it is elsewhere\); giv",
        ),
    ],
)
def test_what_is_no_array_is_named_with_a_remedy(x: Any, said: str) -> None:
    to_bf16 = castwise.caster("float32", "bfloat16")
    for call in (lambda: castwise.cast(x, "bfloat16"), lambda: to_bf16(x)):
        with pytest.raises(TypeError, match=f"^{said}"):
            call()
    with pytest.raises(TypeError, match="^scale" + said[1:].replace(r"(x", "(scale")):
        castwise.cast(np.ones((2, 3)), "bfloat16", scale=x)


def test_errors_that_are_more_than_a_text_stay() -> None:
    class SpecialError(TypeError):
        def __init__(self, code: int, text: str) -> None:
            super().__init__(text)
            self.code = code

    class Array:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            raise SpecialError(3, "it is traced")

    with pytest.raises(SpecialError, match="it is traced") as caught:
        castwise.cast([Array()], "bfloat16")
    assert caught.value.code == 3
    assert caught.value.__notes__ == ["in x, which numpy reads"]


@pytest.mark.parametrize(
    "x",
    [
        np.array([1, "a", None], object),
        np.array([1.0, 2.0], object),
        np.array(["1.0", "2.0"]),
        np.array([b"1.0"]),
        np.array([b"ab"], "V2"),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([1], "timedelta64[s]"),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        np.ma.masked_array([1.0, 2.0]),
        "1.0",
        None,
        {"a": 1},
        pytest.param(object(), id="object"),
    ],
    ids=str,
)
def test_arrays_that_are_not_numbers_are_refused(x: Any) -> None:
    with pytest.raises(TypeError):
        castwise.cast(x, "float32")


def test_ragged_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="inhomogeneous"):
        castwise.cast([[1.0, 2.0], [3.0]], "float32")


def test_complex_to_real_is_refused() -> None:
    complexes = [row for row in AVAILABLE if row.part]
    for source in complexes:
        x = castwise.cast(np.ones(3, np.float32), source.name)
        for target in AVAILABLE:
            if not target.part:
                with pytest.raises(TypeError, match="complex"):
                    castwise.cast(x, target.name)
                with pytest.raises(TypeError, match="complex"):
                    castwise.cast(x, out=np.zeros(3, target.dtype))


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.zeros(4, np.float16), ValueError),
        (np.zeros((1, 3), np.float16), ValueError),
        (np.zeros((), np.float16), ValueError),
        (np.zeros(3, np.float32), TypeError),
        (np.zeros(3, object), TypeError),
        ([0.0, 0.0, 0.0], TypeError),
        (np.float16(1), TypeError),
        (np.ma.zeros(3, np.float16), TypeError),
    ],
    ids=["longer", "another shape", "0-d", "another dtype", "object", "list", "scalar", "masked"],
)
def test_a_wrong_out_is_refused(out: Any, error: type[Exception]) -> None:
    before = repr(out)
    with pytest.raises(error, match="out"):
        castwise.cast(X, "float16", out=out)
    assert repr(out) == before


def test_a_read_only_out_is_refused() -> None:
    out = np.zeros(3, np.float16)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out"):
        castwise.cast(X, out=out)
    assert not out.any()


def test_a_target_is_needed() -> None:
    with pytest.raises(TypeError, match="dtype"):
        castwise.cast(X)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"overflow": "raise"}, OverflowError, ("100005", "500", "overflow")),
        ({"nan": "raise"}, ValueError, ("100003", "nan")),
    ],
)
@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_offender_is_named_and_out_untouched(
    options: dict[str, Any],
    error: type[Exception],
    words: tuple[str, ...],
    threads: int,
    level: str,
) -> None:
    """The error names the first in C order, whichever thread meets one first."""
    x = np.ones(400_000, np.float32)
    x[[100_005, 100_006, 300_000, 399_999]] = [500.0, -600.0, 1e9, np.inf]
    x[[100_003, 250_000]] = np.nan
    for array in (x, x.reshape(1000, 400), np.asfortranarray(x.reshape(1000, 400))):
        out = np.full(array.shape, 7, np.uint8).view(castwise.finfo("float8_e4m3fn").dtype)
        with pytest.raises(error) as caught:
            castwise.cast(array, out=out, threads=threads, **options)
        message = str(caught.value).lower()
        for word in words:
            assert word in message
        assert (out.view(np.uint8) == 7).all()


@pytest.mark.parametrize(
    ("x", "scale", "words"),
    [
        (np.float32([1.0, 300.0]), 2.0, ("300", "2", "600", "index 1")),
        (np.float64([1.0, 2.0, -0.5]), 1024.0, ("1", "1024", "index 0")),
        (np.int32([3, -70]), 7.0, ("-70", "7", "-490", "index 1")),
        (np.float32([[1.0, 1.0], [3.0, 4.0]]), np.float64([[1.0], [150.0]]), ("4", "150", "600")),
    ],
    ids=["float32", "float64", "int32", "one per row"],
)
def test_a_scaled_offender_is_named_with_value_scale_and_product(
    x: Any, scale: Any, words: tuple[str, ...], level: str
) -> None:
    with pytest.raises(OverflowError, match="float8_e4m3fn") as caught:
        castwise.cast(x, "float8_e4m3fn", overflow="raise", scale=scale)
    for word in words:
        assert re.search(rf"(?<![\d.]){re.escape(word)}(?!\d)", str(caught.value)), word


def test_raise_judges_the_rounded_value(level: str) -> None:
    """464 is a tie that goes down to 448; 127.9 truncates to 127; values beyond are refused."""
    assert castwise.cast([464.0], "float8_e4m3fn", overflow="raise").astype(float).tolist() == [448]
    assert castwise.cast([127.9, -128.9], "int8", overflow="raise").tolist() == [127, -128]
    for value, target in (
        (464.1, "float8_e4m3fn"),
        (128.0, "int8"),
        (-1.0, "uint8"),
        (300, "int8"),
        (7.0, "float4_e2m1fn"),
    ):
        with pytest.raises(OverflowError, match="index 0"):
            castwise.cast([value], target, overflow="raise")


def test_out_is_untouched_when_it_overlaps_and_the_cast_is_refused(level: str) -> None:
    x = np.arange(1000, dtype=np.float32)
    before = x.copy()
    with pytest.raises(OverflowError):
        castwise.cast(x, out=x.view(np.int8)[:1000], overflow="raise")
    assert np.array_equal(x, before)


@pytest.mark.parametrize(
    "scale",
    [
        True,
        np.True_,
        [True, True],
        np.ones(2, bool),
        "2",
        1j,
        [1.0, 2.0],
        np.ones((2, 2)),
        np.ones(3, object),
        np.ones((2, 3)),
        2**1024,
    ],
)
def test_a_scale_that_does_not_fit(scale: Any) -> None:
    for call in (
        lambda: castwise.cast(X, "float64", scale=scale),
        lambda: castwise.cast_tree([X], "float64", scale=scale),
        lambda: castwise.caster("float32", "float64", scale=scale)(X),
        lambda: castwise.cast(X, "float64", scale=scale, like="numpy"),
    ):
        with pytest.raises((TypeError, ValueError), match="scale"):
            call()


def test_ints_beyond_64_bits_are_told_to_become_floats() -> None:
    calls: list[Any] = [
        lambda: castwise.cast(2**70, "float32"),
        lambda: castwise.cast([1, -(2**70)], "float32"),
        lambda: castwise.compare([2**70], [1.0]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"^x has a Python int beyond 64.* make a float of"):
            call()


@pytest.mark.parametrize("scale", [2**64, -(2**70), 1, np.uint64(2**63)])
def test_every_real_number_is_a_scale(scale: Any) -> None:
    got = castwise.cast(np.float32([1, 3]), "float64", scale=scale)
    assert got.tolist() == [float(scale), 3 * float(scale)]


@pytest.mark.parametrize("argument", ["copy", "report"])
@pytest.mark.parametrize("value", [None, 1, "no"])
def test_a_switch_that_is_not_a_bool_is_refused(argument: str, value: Any) -> None:
    options = {argument: value}
    with pytest.raises(TypeError, match=f"^{argument}={value!r} is not valid; use True or False"):
        castwise.cast(X, "float16", **options)
    options = {argument: np.True_}
    castwise.cast(X, "float16", **options)


def test_orders_are_numpys_letters_in_either_case() -> None:
    x = np.ones((3, 5), np.float32)
    letters: list[Any] = ["C", "c", "F", "f", "A", "a", "K", "k"]
    for order in letters:
        got = castwise.cast(x, "float16", order=order)
        assert got.strides == x.astype(np.float16, order=order.upper()).strides


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "d", "?", ">f4", "F32", "I8", "double"])
def test_short_spellings_are_numpys_and_safetensors(dtype: str) -> None:
    """Both have "I8": it is the code in safetensors files, as numpy writes i8."""
    codes = {"F32": "float32", "I8": "int8"}
    assert castwise.cast(X, dtype).dtype == np.dtype(codes.get(dtype, dtype))


class Raising:
    """Something whose `dtype` cannot be read."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @property
    def dtype(self) -> object:
        raise self.error


@pytest.mark.parametrize("read", [castwise.finfo, lambda dtype: castwise.cast(np.ones(2), dtype)])
@pytest.mark.parametrize(
    "kind", [RuntimeError, KeyboardInterrupt, MemoryError, SystemExit, KeyError]
)
def test_what_an_object_raises_for_its_dtype_is_raised(
    read: Callable[[Any], Any], kind: type[BaseException]
) -> None:
    error = kind("mine")
    with pytest.raises(kind) as raised:
        read(Raising(error))
    assert raised.value is error


@pytest.mark.parametrize("kind", [TypeError, ValueError])
def test_what_an_object_says_of_its_dtype_is_the_cause(kind: type[Exception]) -> None:
    error = kind("mine")
    with pytest.raises(TypeError, match="is not a dtype; give a dtype of numpy") as raised:
        castwise.finfo(Raising(error))
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("dtype", [None, 3, [("a",)], {"a": 1}, "f99,f4", ()])
def test_what_numpy_says_of_no_dtype_is_no_cause(dtype: Any) -> None:
    with pytest.raises(TypeError) as raised:
        castwise.finfo(dtype)
    assert raised.value.__cause__ is None
