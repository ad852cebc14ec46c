"""`castwise.compat.keras.quantizers` has the bits of `keras.quantizers` on its numpy backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, product
from typing import Any

import castwise
import numpy as np
import peers
import pytest
from castwise.compat.keras import quantizers
from float_environment import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, SUPPORTED, mxcsr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from recorded import Peer
from sides import Outcome, outcome

Array = NDArray[Any]

FLOATS = ("float16", "bfloat16", "float32", "float64")


@cache
def real() -> Any:
    """Give Keras' own: its public functions, and three more."""
    return Peer(lambda: peers.keras().src.quantizers)


def bits(value: Any) -> Any:
    """Describe results as plain data: dtype, shape and bytes, with one NaN for all."""
    if isinstance(value, tuple):
        return tuple(map(bits, value))
    if not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.array(value)
    if array.dtype.kind not in "iu":
        array[np.isnan(array)] = np.nan
    return array.dtype.name, array.shape, array.tobytes().hex()


def answer(of: Any, name: str, *arguments: Any, **options: Any) -> Outcome:
    """Describe what one side does."""
    return outcome(lambda: bits(getattr(of, name)(*arguments, **options)))


def check(name: str, *arguments: Any, **options: Any) -> Any:
    """Compare both sides; give what they return."""
    wanted = answer(real(), name, *arguments, **options)
    got = answer(quantizers, name, *arguments, **options)
    assert got == wanted, f"{name}{arguments}{options}: castwise {got}, not {wanted}"
    return got.value


def sample(kind: str, dtype: str, *shape: int) -> Array:
    """Make an array whose values are of a kind."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape)
    if kind == "ties":  # products with a scale of 2 are halves
        x = rng.integers(-127, 128, shape) / 4
        x[..., 0] = 63.5
    elif kind == "one sign":
        x = np.abs(x) + 3
    elif kind == "equal":
        x = np.full(shape, -1.5)
    elif kind == "zeros":
        x = np.zeros(shape)
    elif kind == "special":
        x[..., 0], x[0], x[-1, -1] = 0, np.inf, np.nan
    else:
        x = x * {"random": 1.0, "tiny": 1e-7, "huge": 1e4}[kind]
    return castwise.cast(castwise.cast(x, np.float32), dtype)


KINDS = ("random", "ties", "one sign", "equal", "zeros", "special", "tiny", "huge")
SAMPLES = pytest.mark.parametrize(("kind", "dtype"), [*product(KINDS, FLOATS)])


def axes_of(rank: int) -> Iterator[Any]:
    """Give every way to name axes of an array of this rank."""
    yield None
    yield from range(-rank, rank)
    for count in range(1, rank + 1):
        yield from combinations(range(rank), count)


# ---------------------------------------------------------------------- samples, recorded too


@SAMPLES
def test_abs_max(kind: str, dtype: str) -> None:
    x = sample(kind, dtype, 3, 4)
    for axis in (0, -1, None):
        check("abs_max_quantize", x, axis)
    check("abs_max_quantize", x, [0], to_numpy=True)
    check("abs_max_quantize", x, (0, 1), (-8, 7), "int8", 0.01)
    check("abs_max_quantize", x, 1, (0, 255), "uint8", to_numpy=True)


def test_float64_is_float32_but_in_numpy() -> None:
    x = np.random.default_rng(1).standard_normal((3, 4)) / 3
    for to_numpy in (False, True):
        check("abs_max_quantize", x, 0, to_numpy=to_numpy)
        check("abs_max_quantize_grouped_with_zero_point", x, 2, to_numpy=to_numpy)
    check("quantize_and_dequantize", x, 1 / x[0], "float8_e4m3fn", "float64")
    check("compute_quantization_parameters", x, bits=4, compute_dtype="float64")
    check("compute_float8_amax_history", x, np.arange(3.0))


@SAMPLES
def test_groups_with_zero_points(kind: str, dtype: str) -> None:
    x = sample(kind, dtype, 5, 2)
    for block, to_numpy in product((2, 5, 8), (False, True)):
        check("abs_max_quantize_grouped_with_zero_point", x, block, to_numpy=to_numpy)


@SAMPLES
def test_groups_of_rows(kind: str, dtype: str) -> None:
    """Scales and zero points, the codes that they give, and the values of these."""
    x = sample(kind, dtype, 3, 5)
    for options in (
        {"bits": 4, "per_channel": True, "group_size": 2},
        {"bits": 8, "per_channel": True, "symmetric": True, "compute_dtype": dtype},
        {"bits": 2, "signed": True, "epsilon": 1e-3},
        {"bits": 3, "signed": True, "symmetric": True, "per_channel": True, "group_size": 5},
    ):
        check("compute_quantization_parameters", x, **options)
    scale, zero, most = quantizers.compute_quantization_parameters(
        x, bits=4, per_channel=True, group_size=2
    )
    groups = np.array([0, 0.5, 1, 1.5, 2], np.float32)
    check("quantize_with_sz_map", x, scale, zero, groups, most)
    check("quantize_with_sz_map", x.T, scale.T, zero.T, groups, 15, group_axis=0)
    codes = np.arange(15, dtype=np.uint8).reshape(3, 5)
    for given_codes in (codes, codes.astype(np.int8) - 8, castwise.cast(codes, dtype)):
        check("dequantize_with_sz_map", given_codes, scale, zero, groups)
    check("dequantize_with_sz_map", codes.T, scale.T, zero.T, groups, group_axis=0)


@SAMPLES
def test_float8(kind: str, dtype: str) -> None:
    x = sample(kind, dtype, 2, 5)
    for number, to in ((0.37, "float8_e4m3fn"), (-2.0, "float8_e5m2"), (1e-5, "float8_e4m3fn")):
        check("quantize_and_dequantize", x, np.float32(number), to, "float32")
        check("quantize_and_dequantize", x, np.float32(number), to, "bfloat16")
    per_row = np.array([[0.5], [3.0]], np.float32)
    check("quantize_and_dequantize", x, per_row, "float8_e4m3fn", "float16")
    history = check("compute_float8_amax_history", x, np.array([1, 2, 3], np.float32))
    assert history[1] == (3,)
    for margin in (-2, 0, 3):
        for amax in (x[0, 1], x[-1, -1]):
            check("compute_float8_scale", amax, np.float32(0.3), np.float32(448), margin)
    check("compute_float8_scale", x[0], np.full(5, 2, np.float32), 57344)


@SAMPLES
def test_fake_quantised(kind: str, dtype: str) -> None:
    x = sample(kind, dtype, 3, 4)
    check("fake_quant_with_min_max_vars", x, -1, 2.5)
    check("fake_quant_with_min_max_vars", x, 0.5, 3.0, 4, True)
    low, high = np.array([-1, 0, -2, 1], np.float32), np.array([1, 5, -1, 1], np.float64)
    check("fake_quant_with_min_max_vars", x, low, high, 8, True, axis=-1)
    check("fake_quant_with_min_max_vars", x, low.astype(np.int64), high, 2)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(5,), (4,), (3, 5), (2, 3, 4), (2, 1, 3, 2), (0, 3), (3, 0)])
def test_nibbles(shape: tuple[int, ...], dtype: str) -> None:
    """Every axis; all bytes, also those that are no integers of 4 bits."""
    whole = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8).view(dtype)
    for axis in range(-len(shape), len(shape)):
        check("pack_int4", whole, axis, dtype)
        packed, _, length = quantizers.pack_int4(whole, axis, dtype)
        for to, count in product(("int8", "uint8"), sorted({length, max(length - 1, 0), 0})):
            if packed.size:  # Keras cannot unpack what is empty
                check("unpack_int4", packed, count, axis, to)
        back = quantizers.unpack_int4(packed, length, axis, dtype)
        low = whole & 15
        np.testing.assert_array_equal(back, low if dtype == "uint8" else (low ^ 8) - 8)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("pack_int4", (np.zeros(2, np.int8), 0, "int16")),
        ("pack_int4", (np.zeros(2, np.uint8), 0, "int8")),
        ("unpack_int4", (np.zeros(2, np.int8), 2, 0, "int4")),
        ("unpack_int4", (np.zeros(2, np.int16), 2)),
        ("abs_max_quantize", (castwise.cast(np.ones(2), "float8_e4m3fn"), 0)),
        ("abs_max_quantize", (np.ones(2, np.float32), 0, (-127, 127), "int9")),
        ("abs_max_quantize", (np.ones((2, 0), np.float32), 1)),
        ("abs_max_quantize_grouped_with_zero_point", (np.ones((2, 2), np.float32), -1)),
        ("compute_float8_amax_history", (np.ones(0, np.float32), np.ones(2, np.float32))),
        ("quantize_and_dequantize", (np.ones(2, np.float32), 1.0, "float8_e4m3fnuz", "float32")),
    ],
)
def test_what_both_refuse(name: str, arguments: tuple[Any, ...]) -> None:
    assert answer(quantizers, name, *arguments).error in (ValueError, TypeError)
    check(name, *arguments)


@pytest.mark.parametrize("x", [None, np.ones(3, np.float32), np.ones((2, 0), np.float32)])
def test_parameters_that_both_refuse(x: Any) -> None:
    check("compute_quantization_parameters", x, bits=4)
    with pytest.raises(ValueError, match=r"^x"):
        quantizers.compute_quantization_parameters(x, bits=4)


# ----------------------------------------------------------------- the classes, and what is read


def test_quantizers_are_functions_with_arguments() -> None:
    x = sample("random", "float32", 3, 4)

    def told(of: Any) -> Any:
        found = []
        for made in (of.AbsMaxQuantizer(), of.AbsMaxQuantizer(0, (-8, 7), 0.5)):
            again = type(made).from_config(made.get_config())
            found += [made.get_config(), bits(made(x)), bits(again(x, axis=1, to_numpy=True))]
        return [*found, of.Quantizer("int4")(3), of.Quantizer("int4").output_dtype]

    assert outcome(lambda: told(quantizers)) == outcome(lambda: told(real()))
    for call in (
        lambda of: of.AbsMaxQuantizer(value_range=(-128, 128)),
        lambda of: of.Quantizer().get_config(),
    ):
        ours, theirs = outcome(call, quantizers), outcome(lambda call=call: call(real()))
        assert ours == theirs
        assert ours.error in (ValueError, NotImplementedError)


def test_quantizers_have_names_and_dictionaries() -> None:
    def told(of: Any) -> Any:
        made = of.AbsMaxQuantizer(-1, (-8, 7))
        config = of.serialize(made)
        again = [of.deserialize(config), of.get(config), of.get(made), of.get(of.AbsMaxQuantizer)]
        again += [of.get(name, axis=1) for name in ("AbsMaxQuantizer", "abs_max_quantizer")]
        configs = [one.get_config() for one in again]
        return [config, of.serialize([made, 5, None]), configs, of.get(None), of.deserialize(None)]

    assert outcome(lambda: told(quantizers)) == outcome(lambda: told(real()))
    for identifier in ("nope", 5, {"class_name": "Nope"}):
        ours = outcome(quantizers.get, identifier)
        theirs = outcome(lambda identifier=identifier: real().get(identifier))
        assert ours == theirs
        assert ours.error is ValueError
    with pytest.raises(ValueError, match="use one of Quantizer, quantizer, AbsMaxQuantizer"):
        quantizers.get("nope")


@pytest.mark.parametrize("name", sorted(set(quantizers.__all__) - {"Quantizer"}))
def test_signatures_are_those_of_keras(name: str) -> None:
    def told(of: Any) -> list[tuple[str, str, Any]]:
        parameters = inspect.signature(getattr(of, name)).parameters.values()
        none = inspect.Parameter.empty
        return [
            (one.name, one.kind.name, None if one.default is none else one.default)
            for one in parameters
        ]

    assert outcome(lambda: told(quantizers)) == outcome(lambda: told(real()))


def test_what_only_castwise_refuses() -> None:
    x = np.ones((2, 2), np.float32)
    for call, words in (
        (lambda: quantizers.abs_max_quantize(np.arange(3), 0), r"inputs has dtype int64.*cast it"),
        (lambda: quantizers.abs_max_quantize(x, 0, (-129, 127)), r"\(-129, 127\).*from -128 to"),
        (lambda: quantizers.abs_max_quantize(x, 0, (7, -8)), "the smaller one first"),
        (lambda: quantizers.unpack_int4(np.zeros(2, np.int8), 5), "orig_len=5.*4 elements"),
        (lambda: quantizers.unpack_int4(np.zeros(2, np.int8), -1), "orig_len=-1"),
        (lambda: quantizers.fake_quant_with_min_max_vars(x, 0, 1, axis=2), r"axis=2.*\(2, 2\)"),
        (
            lambda: quantizers.abs_max_quantize_grouped_with_zero_point(x[0], 2),
            r"inputs has shape \(2,\)",
        ),
        (
            lambda: quantizers.quantize_and_dequantize(x, 1.0, "int8", "float32"),
            "quantized_dtype='int8' is not valid",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_limits_lie_along_the_axis() -> None:
    """As the documentation of Keras says, and its TensorFlow backend does."""
    x = sample("random", "float32", 2, 3, 4)
    low, high = np.array([-1, -0.5, 0], np.float32), np.array([1, 2, 3], np.float32)
    wanted = np.stack(
        [
            quantizers.fake_quant_with_min_max_vars(x[:, place], low[place], high[place])
            for place in range(3)
        ],
        axis=1,
    )
    for axis in (1, -2):
        got = quantizers.fake_quant_with_min_max_vars(x, low, high, axis=axis)
        np.testing.assert_array_equal(got, wanted)


def test_layouts_and_orders_of_bytes() -> None:
    x = sample("random", "float32", 6, 10)
    wide = np.zeros((12, 30), np.float32)
    wide[1::2, 2::3] = x
    views = [x, np.asfortranarray(x), wide[1::2, 2::3], x[::-1][::-1], x.astype(">f4"), x.tolist()]
    codes, scale = quantizers.abs_max_quantize(x, 1)
    groups, sizes = np.arange(10) // 4, (6, 3)
    factors, zeros = np.ones(sizes, np.float32) / 3, np.ones(sizes, np.int8)
    for view in views:
        assert bits(quantizers.abs_max_quantize(view, 1)) == bits((codes, scale))
        assert bits(quantizers.quantize_and_dequantize(view, 0.7, "float8_e5m2", "float32")) == (
            bits(quantizers.quantize_and_dequantize(x, 0.7, "float8_e5m2", "float32"))
        )
    for view in (codes, np.asfortranarray(codes), codes.repeat(2, 1)[:, ::2]):
        got = quantizers.dequantize_with_sz_map(view, factors, zeros, groups)
        np.testing.assert_array_equal(got, (codes.astype(np.float32) - 1) * factors[0, 0])


def test_numbers_that_are_no_arrays_count_as_floatx() -> None:
    assert quantizers.compute_float8_scale(2, 1, 448).dtype == np.float32
    assert quantizers.abs_max_quantize([1, 2], 0)[1].dtype == np.float32


def test_groups_that_are_not_there() -> None:
    ones = np.ones((2, 2), np.float32)
    for codes in (ones, ones.astype(np.int8)):
        with pytest.raises(IndexError):
            quantizers.dequantize_with_sz_map(codes, ones, ones.astype(np.int8), [0, 2])
        # numpy counts from the end, and so does Keras' numpy backend.
        got = quantizers.dequantize_with_sz_map(codes, ones * 3, ones.astype(np.int8), [0, -1])
        np.testing.assert_array_equal(got, np.zeros((2, 2)))


@pytest.mark.skipif(not SUPPORTED, reason="MXCSR is x86-64's")
def test_flush_to_zero_changes_nothing() -> None:
    tiny = castwise.cast(np.linspace(-1e-39, 3e-39, 12).reshape(3, 4), "float32")
    calls: list[Callable[[], Any]] = [
        lambda: quantizers.abs_max_quantize(tiny, 0, epsilon=0.0),
        lambda: quantizers.abs_max_quantize(tiny, (0, 1), (-8, 7), epsilon=1e-39),
        lambda: quantizers.compute_quantization_parameters(tiny, bits=8, per_channel=True),
        lambda: quantizers.fake_quant_with_min_max_vars(tiny, 0.0, 3e-39),
        lambda: quantizers.compute_float8_amax_history(tiny, np.zeros(2, np.float32)),
        lambda: quantizers.quantize_and_dequantize(tiny, 1e-39, "float8_e4m3fn", "float32"),
    ]
    wanted = [bits(call()) for call in calls]
    with mxcsr(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO):
        got = [call() for call in calls]
    assert [bits(one) for one in got] == wanted


def test_levels(level: str) -> None:
    """Large arrays, on each CPU level, against Keras' formula in numpy."""
    x = sample("huge", "float32", 301, 1027)
    for axis in (0, 1):
        codes, scale = quantizers.abs_max_quantize(x, axis)
        wanted = np.float32(127) / (np.abs(x).max(axis, keepdims=True) + np.float32(1e-7))
        np.testing.assert_array_equal(scale, wanted)
        np.testing.assert_array_equal(codes, np.clip(np.rint(x * wanted), -127, 127))


# ------------------------------------------------------------------- drawn by hypothesis, live


@st.composite
def drawn(draw: st.DrawFn, rank: st.SearchStrategy[int], largest: int = 6) -> Array:
    """An array of a float dtype, of one of several kinds of values."""
    count = draw(rank)
    shape = draw(arrays.array_shapes(min_dims=count, max_dims=count, max_side=largest))
    dtype = draw(st.sampled_from(FLOATS))
    width = 16 if dtype == "float16" else 32
    elements: st.SearchStrategy[float] = draw(
        st.sampled_from(
            [
                st.floats(width=width),
                st.integers(-300, 300).map(lambda n: n / 4),
                st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-7, 63.5, 127.0, 448.0]),
                st.integers(1, 9).map(float),
            ]
        )
    )
    values = draw(arrays.arrays(np.float64, shape, elements=elements))
    # Keras compares some float64, before they become float32.
    return castwise.cast(castwise.cast(values, np.float32), dtype)


RANKS = st.integers(1, 4)
MATRICES = st.just(2)


@given(
    x=drawn(RANKS, 4),
    limits=st.sampled_from([(-127, 127), (-8, 7), (0, 15), (-128, 127)]),
    epsilon=st.sampled_from([1e-7, 0.0, 1e-3]),
    to_numpy=st.booleans(),
)
def test_abs_max_of_any_array(
    x: Array, limits: tuple[int, int], epsilon: float, to_numpy: bool
) -> None:
    for axis in axes_of(x.ndim):
        check("abs_max_quantize", x, axis)
        check("abs_max_quantize", x, axis, limits, "int8", epsilon, to_numpy)


@given(x=drawn(MATRICES), block=st.integers(1, 8), to_numpy=st.booleans())
def test_groups_of_any_matrix(x: Array, block: int, to_numpy: bool) -> None:
    check("abs_max_quantize_grouped_with_zero_point", x, block, to_numpy=to_numpy)
    limits = (-127, 127)
    check("abs_max_quantize_grouped_with_zero_point", x, block, limits, to_numpy=to_numpy)


OPTIONS = st.fixed_dictionaries(
    {
        "bits": st.sampled_from([2, 3, 4, 8]),
        "symmetric": st.booleans(),
        "per_channel": st.booleans(),
        "group_size": st.sampled_from([-1, 1, 2, 3]),
        "compute_dtype": st.sampled_from(FLOATS),
    }
)


@given(
    x=drawn(MATRICES),
    options=OPTIONS,
    signed=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_parameters_codes_and_values_of_any_matrix(
    x: Array, options: dict[str, Any], signed: bool, order: Any
) -> None:
    check("compute_quantization_parameters", x, **options, signed=signed, epsilon=1e-5)
    check("compute_quantization_parameters", x, **options, signed=signed)
    scale, zero, most = quantizers.compute_quantization_parameters(x, **options)
    index = np.arange(x.shape[1]) % scale.shape[1]
    order.shuffle(index)
    check("quantize_with_sz_map", x, scale, zero, index, most)
    codes = quantizers.quantize_with_sz_map(x, scale, zero, index, most)
    for stored in (codes, castwise.cast(codes, "uint8"), castwise.cast(codes, "int8")):
        check("dequantize_with_sz_map", stored, scale, zero, index)
        check("dequantize_with_sz_map", stored.T, scale.T, zero.T, index, group_axis=0)


@given(
    x=drawn(RANKS),
    scale=st.floats(width=32, allow_nan=False),
    to=st.sampled_from(["float8_e4m3fn", "float8_e5m2"]),
    compute=st.sampled_from(FLOATS),
    margin=st.integers(-3, 3),
)
def test_float8_of_any_array(x: Array, scale: float, to: str, compute: str, margin: int) -> None:
    check("quantize_and_dequantize", x, np.float32(scale), to, compute)
    check("quantize_and_dequantize", x, np.full(x.shape[-1], scale, np.float32), to, compute)
    check("compute_float8_amax_history", x, np.array([scale, 2, 3], np.float32))
    check("compute_float8_scale", x, np.float32(scale), np.float32(448), margin)


@given(
    x=drawn(RANKS),
    limits=st.tuples(st.floats(width=32), st.floats(width=32)),
    size=st.integers(1, 8),
    narrow=st.booleans(),
)
def test_fake_quantised_of_any_array(
    x: Array, limits: tuple[float, float], size: int, narrow: bool
) -> None:
    low, high = (np.float32(one) for one in limits)
    check("fake_quant_with_min_max_vars", x, low, high, size, narrow)
    lows = np.full(x.shape[-1], low)
    check("fake_quant_with_min_max_vars", x, lows, np.abs(lows) + 1, size, narrow, axis=-1)
