"""`quantize` and `dequantize` give what the oracle gives, for every scheme, recipe and layout."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scheme_oracle as oracle
from castwise.quantization import QuantizedArray, UnfitError, dequantize, quantize, schemes
from golden import GOLDEN
from scheme_oracle import ELEMENTS, F32, Array, Encoded, spread, w
from support import LEVELS, at_level

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """A scheme as one producer computes and stores it."""

    scheme: str
    recipe: str
    encode: Callable[[Array], Encoded]
    element: str
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: int = 1
    """Of which columns must be a multiple."""
    global_divides: bool = False
    dtypes: tuple[str, ...] = FLOATS

    @property
    def bits(self) -> int:
        return next(row.bits for row in schemes() if row.name == self.scheme)


def _mx(scheme: str, element: str, recipe: str, rule: str, **more: Any) -> Case:
    ties = more.pop("ties", "even")
    encode = partial(
        oracle.mx, element=element, rule=rule, ties=ties, zero_byte=more.pop("zero", 0)
    )
    return Case(scheme, recipe, encode, element, **more)


def _fp8(scheme: str, block: tuple[int, int], recipe: str, **more: Any) -> Case:
    return Case(scheme, recipe, partial(oracle.fp8, block=block, recipe=recipe), "e4m3", **more)


def _int(bits: int, kind: str, block: tuple[int, int], *, symmetric: bool = True) -> Case:
    options: dict[str, Any] = {"symmetric": symmetric} | ({"block": 32} if block[1] else {})
    encode = partial(oracle.integers, block=block, bits=bits, symmetric=symmetric)
    return Case(f"int{bits}_{kind}", "compressed-tensors", encode, "int", options)


def _modelopt(bits: int, kind: str, block: tuple[int, int]) -> Case:
    encode = partial(oracle.integers, block=block, bits=bits, recipe="modelopt")
    options = {"block": block[1]} if block[1] else {}
    return Case(f"int{bits}_{kind}", "modelopt", encode, "int", options)


MX = {"mxfp8_e4m3": "e4m3", "mxfp8_e5m2": "e5m2", "mxfp6_e2m3": "e2m3", "mxfp6_e3m2": "e3m2"}
MX |= {"mxfp4": "e2m1", "mxint8": "int8"}
CASES = [
    *(
        _fp8(scheme, block, recipe)
        for scheme, block in (
            ("fp8_tensor", (0, 0)),
            ("fp8_channel", (1, 0)),
            ("fp8_block", (128, 128)),
        )
        for recipe in ("deepseek", "compressed-tensors", "transformers", "modelopt")
    ),
    *(
        _mx(scheme, element, "torchao", rule, options={"scale_rule": rule})
        for scheme, element in MX.items()
        for rule in ("floor", "rceil", "ceil", "even")
        if element != "int8" or rule == "floor"
    ),
    *(_mx(s, MX[s], "compressed-tensors", "ct") for s in ("mxfp4", "mxfp6_e2m3", "mxfp8_e4m3")),
    _mx("mxfp8_e4m3", "e4m3", "modelopt", "rceil"),
    _mx("mxfp4", "e2m1", "gpt-oss", "rceil", columns=32),
    _mx("mxfp4", "e2m1", "mlx", "rceil", ties="zero", zero=127, columns=32),
    _mx("mxfp8_e4m3", "e4m3", "mlx", "rceil", zero=127, columns=32),
    *(
        Case("nvfp4", recipe, partial(oracle.nvfp4, recipe=recipe), "e2m1")
        for recipe in ("modelopt", "torchao", "transformer-engine")
    ),
    Case(
        "nvfp4",
        "compressed-tensors",
        partial(oracle.nvfp4, recipe="compressed-tensors"),
        "e2m1",
        global_divides=True,
    ),
    Case("nvfp4", "mlx", partial(oracle.nvfp4, recipe="mlx"), "e2m1", columns=32),
    *(_int(8, kind, block) for kind, block in (("tensor", (0, 0)), ("channel", (1, 0)))),
    _modelopt(8, "channel", (1, 0)),
    _modelopt(4, "group", (1, 32)),
    *(_int(bits, "group", (1, 32)) for bits in (2, 3, 4, 5, 6, 8)),
    *(_int(bits, "channel", (1, 0)) for bits in (2, 3, 4)),
    *(_int(bits, "group", (1, 32), symmetric=False) for bits in (3, 4, 8)),
    *(
        Case(
            f"int{bits}_group",
            "mlx",
            partial(oracle.affine, group=64, bits=bits),
            "uint",
            {"block": 64},
            columns=64,
        )
        for bits in (2, 3, 4, 5, 6, 8)
    ),
    *(
        # The last, shorter block is computed in another way there.
        Case(name, "bitsandbytes", partial(oracle.mapped, scheme=name), name, columns=64)
        for name in ("bnb_nf4", "bnb_fp4")
    ),
]
IDS = [f"{c.scheme}-{c.recipe}" + "".join(f"-{v}" for v in c.options.values()) for c in CASES]


def weights(case: Case, dtype: str, rows: int = 33, columns: int = 150) -> dict[str, Array]:
    """Weights of every kind, ragged where the layout permits it."""
    rng = np.random.default_rng(5)
    columns = -(-columns // case.columns) * case.columns
    normal = rng.standard_normal((rows, columns))
    heavy = rng.standard_t(2, (rows, columns)) * 0.1
    heavy[::4] = 0
    tiny, huge = (1e-6, 3e3) if dtype == "float16" else (1e-30, 1e30)
    found = {
        "ties": w(rows, columns, np.float64),
        "random": normal,
        "heavy-tailed, zero rows": heavy,
        "powers": np.exp2(rng.integers(-9, 5, (rows, columns))) * np.sign(normal),
        "tiny": normal * tiny,
        "huge": normal * huge,
    }
    return {name: x.astype(dtype) for name, x in found.items()}


def raw(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def codes_of(q: QuantizedArray, case: Case, shape: tuple[int, ...]) -> Array:
    """The codes in the stored payload, unpacked by the oracle."""
    data = q.data
    if case.scheme.startswith("bnb"):
        data = (data >> 4) | (data << 4)
        return oracle.unpack(data.reshape(1, -1), 4, int(np.prod(shape))).reshape(shape)
    if case.element == "int" and case.recipe == "modelopt" and case.bits < 8:
        # Two rows in a byte, the first one low.
        return oracle.unpack(np.ascontiguousarray(data.T), 4, shape[0]).T
    if case.recipe == "gpt-oss":
        data = data.reshape(*data.shape[:-2], -1)
    plain = np.ascontiguousarray(data)
    plain = plain.view(np.uint8) if plain.ndim else plain
    return oracle.unpack(plain.reshape(*shape[:-1], -1), case.bits, shape[-1])


def as_stored(codes: Array, case: Case) -> Array:
    """The oracle's codes with the bits that are stored."""
    if case.recipe == "modelopt" and case.bits < 8 and case.element == "int":
        return codes.view(np.uint8) & 15
    packed = case.bits < 8 or "group" in case.scheme
    if case.element == "int" and packed:
        return (codes.astype(np.int64) + (1 << (case.bits - 1))).astype(np.uint8)
    return codes.view(np.uint8)


def check(case: Case, x: Array) -> None:
    """Compare parts and decoded values with the oracle's."""
    expected = case.encode(x)
    q = quantize(x, case.scheme, recipe=case.recipe, **case.options)
    np.testing.assert_array_equal(raw(q.scale), raw(expected.scale))
    np.testing.assert_array_equal(codes_of(q, case, x.shape), as_stored(expected.codes, case))
    if expected.global_scale is not None:
        assert q.global_scale is not None
        np.testing.assert_array_equal(raw(q.global_scale), raw(expected.global_scale))
    if expected.bias is not None:
        np.testing.assert_array_equal(raw(q.extras["bias"]), raw(expected.bias))
    values, scale, more = decodable(case, expected, x.shape)
    for dtype in (*FLOATS, "float64"):
        found = dequantize(q, dtype)
        if case.recipe == "mlx" and "bias" in more:
            more["scale_dtype"] = F32 if dtype == "float64" else found.dtype
        peer = oracle.decode_peer(values, scale, found.dtype, **more)
        np.testing.assert_array_equal(raw(found), raw(peer.reshape(x.shape)))


def decodable(case: Case, expected: Encoded, shape: tuple[int, ...]) -> tuple[Array, Array, Any]:
    """The value of each code, its scale, and what is added."""
    codes, scale = expected.codes, expected.scale
    if case.element in ELEMENTS:
        values = ELEMENTS[case.element].decode(codes)
        if (case.scheme, case.recipe) == ("nvfp4", "modelopt"):
            values += 0.0  # its table of values has no -0
    elif case.element == "int8":
        values = codes / 64
    elif case.element in oracle.MAPS:
        values = oracle.MAPS[case.element][codes].reshape(1, -1)
        return values, spread(scale.reshape(1, -1), values.shape, expected.block), {}
    else:
        values = codes.astype(np.float64)
    if scale.dtype == np.uint8 and case.scheme == "nvfp4":
        decoded = oracle.E4M3.decode(scale).astype(F32)
        if expected.global_scale is not None:
            level = expected.global_scale[0]
            decoded = decoded / level if case.global_divides else decoded * level
    elif scale.dtype == np.uint8:
        decoded = oracle.power(scale.astype(int) - 127)
    else:
        decoded = scale.astype(F32)
    more: dict[str, Any] = {}
    if expected.zero is not None:
        more["zero"] = spread(expected.zero, shape, expected.block)
    if expected.bias is not None:
        more["bias"] = spread(expected.bias, shape, expected.block)
    return values, spread(decoded, shape, expected.block), more


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_arrays_are_the_oracles(case: Case) -> None:
    check(case, weights(case, "bfloat16", 5, 70)["heavy-tailed, zero rows"])
    check(case, weights(case, "float32", 3, 70)["random"])


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:x has scales of")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_arrays_of_every_kind_are_the_oracles(case: Case, dtype: str) -> None:
    kinds = weights(case, dtype)
    if not case.options.get("symmetric", True) and dtype == "float16":
        # Scales that underflow to 0 give the producer other codes of the same values.
        del kinds["tiny"]
    for x in kinds.values():
        check(case, x)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_every_code_is_multiplied_by_every_power(element: str, level: str) -> None:
    scheme = f"mxfp8_{element}"
    dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[element]
    numbers = np.arange(256, dtype=np.uint8)
    data, scale = np.tile(numbers, (256, 1)), np.repeat(numbers, 8).reshape(256, 8)
    values = ELEMENTS[element].decode(data)
    factors = np.where(scale == 255, np.nan, oracle.power(scale.astype(int) - 127))
    expected = oracle.decode_peer(values, spread(factors, data.shape, (1, 32)), BF16)
    # Beside NaN, infinities or other powers, blocks are multiplied in another way.
    with at_level(level):
        for columns in (slice(None), slice(96), slice(128, 224)):
            for rows in (slice(None), slice(50, 200)):
                codes = np.ascontiguousarray(data[rows, columns])
                scales = scale[rows, : codes.shape[1] // 32]
                q = QuantizedArray(scheme, codes.view(dtype), scales, shape=codes.shape)
                same_numbers(dequantize(q, BF16), expected[rows, columns])


BLOCK_SCALES = (0, 1e-45, 1e-39, 2.0**-126, 3e-37, 0.3, 1.0, -1.7, 2.0**118, 3e38, np.inf, np.nan)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("target", [np.dtype(np.float16), BF16])
@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_every_code_is_multiplied_by_the_scale_of_a_large_block(
    element: str, target: np.dtype[Any], level: str
) -> None:
    """Rows of tables differ by constants, unless products are infinite or subnormal."""
    dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[element]
    data = np.tile(np.arange(256, dtype=np.uint8), (len(BLOCK_SCALES) * 128 - 5, 2))[:, :300]
    scale = np.stack([np.roll(np.array(BLOCK_SCALES, F32), shift) for shift in (0, 1, 5)], axis=1)
    values = ELEMENTS[element].decode(data)
    expected = oracle.decode_peer(values, spread(scale, data.shape, (128, 128)), target)
    q = QuantizedArray("fp8_block", data.view(dtype), scale, shape=data.shape, block=(128, 128))
    with at_level(level):
        same_numbers(dequantize(q, target), expected)


def same_numbers(found: Array, expected: Array) -> None:
    """Compare bits, but for those of NaN."""
    is_nan = np.isnan(expected.astype(F32))
    np.testing.assert_array_equal(np.isnan(found.astype(F32)), is_nan)
    bits = [np.where(is_nan, 0, one.view(np.uint16)) for one in (found, expected)]
    np.testing.assert_array_equal(*bits)


BY_POWERS = [case for case in CASES if case.scheme.startswith("mx") and case.recipe != "mlx"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("largest", [2.0**-130, 2.0**-120, 2.0**-60, 0.3, 1.0, 3e4, 2.0**100, 3e38])
@pytest.mark.parametrize("case", BY_POWERS, ids=lambda case: f"{case.scheme} {case.recipe}")
def test_bfloat16_of_every_magnitude_are_the_oracles(
    case: Case, largest: float, level: str
) -> None:
    rng = np.random.default_rng(5)
    # Zeros, subnormal numbers, and magnitudes up to the largest, each in blocks with others.
    most = int(np.asarray(largest, BF16).view(np.uint16))
    bits = rng.integers(0, most + 1, (8, 256))
    bits[:, ::7] = rng.integers(0, 0x90, bits[:, ::7].shape)
    near = rng.integers(max(0, most - 0x600), most + 1, bits.shape)
    bits = np.where(rng.random(bits.shape) < 0.5, near, bits)
    bits[:, 3::5] = 0
    x = (bits | rng.integers(0, 2, bits.shape) << 15).astype(np.uint16).view(BF16)
    with at_level(level):
        check(case, x)


CHANGED: list[tuple[str, str, dict[str, Any], str]] = [
    ("int4_group", "mlx", {}, "bias"),
    ("int8_group", "compressed-tensors", {"symmetric": False}, "zero_point"),
    ("bnb_nf4", "bitsandbytes", {}, "code map"),
    ("bnb_nf4", "bitsandbytes", {}, "scale"),
]


@pytest.mark.parametrize(("scheme", "recipe", "options", "name"), CHANGED)
def test_a_part_that_changes_is_decoded_as_it_is(
    scheme: str, recipe: str, options: dict[str, Any], name: str
) -> None:
    q = quantize(w(8, 128), scheme, recipe=recipe, **options)
    before, out = dequantize(q), np.empty((16, 256), BF16)[::2, ::2]
    np.testing.assert_array_equal(dequantize(q), before)
    np.testing.assert_array_equal(dequantize(q, out=out), before)
    part = q.extras[name] if name in q.extras else getattr(q, name)
    part += part.dtype.type(1)
    expected = dequantize(replace(q))
    assert (expected != before).any()
    np.testing.assert_array_equal(dequantize(q), expected)
    np.testing.assert_array_equal(dequantize(q, out=out), expected)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_exact_arithmetic_rounds_once(case: Case) -> None:
    x = weights(case, "float32", 2, 64)["random"]
    q = quantize(x, case.scheme, recipe=case.recipe, **case.options)
    expected = case.encode(x)
    scales = scales_exactly(case, expected, x.shape)
    values, _, more = decodable(case, expected, x.shape)
    zero = np.broadcast_to(more.get("zero", 0), values.shape).ravel()
    bias = np.broadcast_to(more.get("bias", 0.0), values.shape).ravel()
    exact = [
        (Fraction(float(v)) - int(z)) * s + Fraction(float(b))
        for v, z, s, b in zip(values.ravel(), zero, scales, bias, strict=True)
    ]
    for dtype in (BF16, np.dtype(np.float32)):
        found = dequantize(q, dtype, arithmetic="exact").astype(np.float64)
        rounded = [oracle.rounded(value, dtype) for value in exact]
        np.testing.assert_array_equal(found.ravel(), rounded)


def scales_exactly(case: Case, expected: Encoded, shape: tuple[int, ...]) -> list[Fraction]:
    """Each element's scale, as a fraction."""
    _, scale, _ = decodable(case, expected, shape)
    if case.scheme != "nvfp4" or expected.global_scale is None:
        return [Fraction(float(s)) for s in scale.ravel()]
    level = Fraction(float(expected.global_scale[0]))
    first = spread(oracle.E4M3.decode(expected.scale), shape, expected.block)
    return [Fraction(s) / level if case.global_divides else Fraction(s) * level for s in first.flat]


# The producers' own bytes


@dataclass(frozen=True)
class Written:
    """What makes the bytes of a row of `GOLDEN`, and what the row calls the parts."""

    scheme: str
    recipe: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, int] = (16, 128)
    dtype: Any = ml_dtypes.bfloat16
    names: Mapping[str, str] = field(default_factory=dict)


_AO = {"data": "weight_qdata", "scale": "weight_scale"}
_AO |= {"per_tensor_scale": "weight_per_tensor_scale"}
_BNB = {"absmax": "weight.absmax"}
_GGUF: dict[str, Any] = {"shape": (2, 256), "dtype": np.float32}
WRITTEN = {
    **{
        f"compressed-tensors {name}": Written(scheme, "compressed-tensors")
        for name, scheme in (
            ("nvfp4", "nvfp4"),
            ("mxfp4", "mxfp4"),
            ("mxfp6", "mxfp6_e2m3"),
            ("mxfp8", "mxfp8_e4m3"),
            ("fp8 channel", "fp8_channel"),
            ("fp8 tensor", "fp8_tensor"),
            ("int8 channel", "int8_channel"),
        )
    },
    "compressed-tensors fp8 block": Written("fp8_block", "compressed-tensors", shape=(256, 256)),
    **{
        f"compressed-tensors pack int{bits} sym g32": Written(
            f"int{bits}_group", "compressed-tensors", {"block": 32}
        )
        for bits in (2, 3, 4, 8)
    },
    "compressed-tensors pack int4 asym g32": Written(
        "int4_group", "compressed-tensors", {"block": 32, "symmetric": False}
    ),
    "modelopt nvfp4 bf16": Written("nvfp4", "modelopt"),
    "modelopt nvfp4 f32": Written("nvfp4", "modelopt", dtype=np.float32),
    "modelopt mxfp8": Written("mxfp8_e4m3", "modelopt"),
    "modelopt fp8 block": Written("fp8_block", "modelopt", shape=(256, 320)),
    "modelopt int8": Written("int8_channel", "modelopt"),
    "modelopt int4 g32": Written("int4_group", "modelopt", {"block": 32}),
    **{
        f"torchao {rule} {name}": Written(scheme, "torchao", {"scale_rule": rule}, names=_AO)
        for rule in ("floor", "rceil", "ceil")
        for name, scheme in (("fp4", "mxfp4"), ("e4m3", "mxfp8_e4m3"), ("e5m2", "mxfp8_e5m2"))
    },
    "torchao nvfp4": Written("nvfp4", "torchao", names=_AO),
    "gguf Q8_0": Written("int8_group", "gguf", **_GGUF),
    "gguf mxfp4": Written("mxfp4", "gguf", **_GGUF),
    "bitsandbytes nf4": Written("bnb_nf4", "bitsandbytes", names=_BNB),
    "bitsandbytes fp4": Written("bnb_fp4", "bitsandbytes", names=_BNB),
    "bitsandbytes int8": Written("int8_channel", "bitsandbytes", dtype=np.float16),
    "comfy nvfp4": Written("nvfp4", "comfy", names={"scale_2": "weight_scale_2"}),
    "comfy mxfp8": Written("mxfp8_e4m3", "comfy", shape=(32, 128)),
    "transformers fp8 block": Written("fp8_block", "transformers", shape=(256, 256)),
    "transformers fp8 block ue8m0": Written(
        "fp8_block", "transformers", {"scale_rule": "rceil"}, shape=(256, 256)
    ),
    **{
        f"mlx affine {bits}": Written(f"int{bits}_group", "mlx", {"block": 64}, dtype=np.float32)
        for bits in (3, 4, 5, 6, 8)
    },
    **{
        f"mlx {name}": Written(scheme, "mlx", dtype=np.float32)
        for name, scheme in (("mxfp4", "mxfp4"), ("mxfp8", "mxfp8_e4m3"), ("nvfp4", "nvfp4"))
    },
}


def digest(part: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("label", sorted(WRITTEN))
def test_bytes_are_the_producers(label: str) -> None:
    one = WRITTEN[label]
    x = w(*one.shape, one.dtype)
    q = quantize(x, one.scheme, recipe=one.recipe, **one.options)
    parts = q.parts()
    for name, (described, expected) in GOLDEN[label].items():
        dtype, _, shape = described.partition(" ")
        if name == "decoded":
            assert digest(dequantize(q, dtype)) == expected
            continue
        part = parts[one.names.get(name, name)]
        assert digest(part) == expected, name
        if part.size > 1:
            assert str(part.shape) == shape


@pytest.mark.thinned(3)
@pytest.mark.parametrize("label", sorted(WRITTEN))
def test_parts_make_the_array_again(label: str) -> None:
    one = WRITTEN[label]
    x = w(*one.shape, one.dtype)
    q = quantize(x, one.scheme, recipe=one.recipe, **one.options)
    options = {"block": one.options["block"]} if "block" in one.options else {}
    again = QuantizedArray.from_parts(q.parts(), one.recipe, x.shape, scheme=one.scheme, **options)
    np.testing.assert_array_equal(raw(dequantize(again)), raw(dequantize(q)))
    for name, part in again.parts().items():
        np.testing.assert_array_equal(raw(part), raw(q.parts()[name]))


def test_every_golden_row_is_written() -> None:
    only_read = {"bitsandbytes nf4 nested", *(f"gguf {kind}" for kind in ONLY_READ)}
    assert set(GOLDEN) - set(WRITTEN) == only_read


ONLY_READ = {"Q4_0": "int4_group", "Q4_1": "int4_group", "Q5_0": "int5_group", "Q5_1": "int5_group"}


@pytest.mark.parametrize("kind", sorted(ONLY_READ))
def test_blocks_of_gguf_decode_as_its_own(kind: str) -> None:
    blocks = oracle.gguf_blocks(oracle.gguf(w(2, 256, F32), kind.lower()), kind.lower())
    described, expected = GOLDEN[f"gguf {kind}"]["blocks"]
    assert (f"{blocks.dtype} {blocks.shape}", digest(blocks)) == (described, expected)
    q = QuantizedArray.from_parts({"blocks": blocks}, "gguf", (2, 256), scheme=ONLY_READ[kind])
    assert digest(dequantize(q, np.float32)) == GOLDEN[f"gguf {kind}"]["decoded"][1]
    np.testing.assert_array_equal(q.parts()["blocks"], blocks)


def test_nested_scales_of_bitsandbytes_decode_as_its_own() -> None:
    """The absmax of each 64 elements is an index into a map of 256 values, plus an offset."""
    x = w(16, 128)
    q = quantize(x, "bnb_nf4", recipe="bitsandbytes")
    rng = np.random.default_rng(0)
    table = np.sort(rng.standard_normal(256)).astype(np.float32)
    parts = q.parts() | {
        "weight.absmax": rng.integers(0, 256, 32).astype(np.uint8),
        "weight.nested_absmax": np.array([0.25], np.float32),
        "weight.nested_quant_map": table,
    }
    state = json.loads(parts["weight.quant_state.bitsandbytes__nf4"].tobytes())
    state |= {"nested_offset": 0.75, "nested_blocksize": 256}
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    parts["weight.quant_state.bitsandbytes__nf4"] = text
    nested = QuantizedArray.from_parts(parts, "bitsandbytes")
    absmax = table[parts["weight.absmax"]] * np.float32(0.25) + np.float32(0.75)
    values = oracle.NF4[oracle.mapped(x, "bnb_nf4").codes].reshape(32, 64)
    expected = (values * absmax[:, None]).astype(BF16).reshape(16, 128)
    np.testing.assert_array_equal(dequantize(nested), expected)


@pytest.mark.parametrize(
    ("scheme", "recipe"),
    [("bnb_nf4", "bitsandbytes"), ("int4_group", "mlx"), ("nvfp4", "modelopt"), ("mxfp4", None)],
)
def test_copies_and_pickles_decode_alike(scheme: Any, recipe: Any) -> None:
    q = quantize(w(16, 128), scheme, recipe=recipe)
    values = dequantize(q)  # with a decoder, which is kept
    for other in (pickle.loads(pickle.dumps(q)), copy.deepcopy(q), copy.copy(q)):  # noqa: S301
        assert repr(other) == repr(q)
        assert other.layout is q.layout
        np.testing.assert_array_equal(dequantize(other), values)
        with pytest.raises(TypeError):
            other.extras["bias"] = q.scale
    assert copy.deepcopy(q).data is not q.data


@pytest.mark.parametrize("options", [{"scheme": "nvfp4", "block": 7}, {"scheme": "int8_channel"}])
def test_what_a_scheme_cannot_hold_is_a_public_error(options: dict[str, Any]) -> None:
    """It has its name where users find it, also in a traceback, and in a pickle."""
    x = np.full((2, 32), np.nan if "block" not in options else 1.0, np.float32)
    with pytest.raises(UnfitError) as caught:
        quantize(x, **options)
    assert isinstance(caught.value, ValueError)
    line = "".join(traceback.format_exception_only(caught.value))
    assert line.startswith("castwise.quantization.UnfitError: ")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (type(again), again.args) == (UnfitError, caught.value.args)


@pytest.mark.parametrize(
    ("scheme", "shape", "value"),
    [
        ("q4_k", (4, 100), 1),  # no whole blocks
        ("q4_k", (4, 256), 1e30),  # scales beyond float16
        ("q4_k", (4, 256), np.nan),
        ("q4_k", (), 1),
        ("nvfp4", (), 1),
    ],
)
def test_every_array_that_a_scheme_cannot_hold_is_the_same_error(
    scheme: str, shape: tuple[int, ...], value: float
) -> None:
    with pytest.raises(UnfitError, match=r"^x "):
        quantize(np.full(shape, value, np.float32), scheme)


def test_importance_of_another_shape_is_no_unfit_array() -> None:
    x = np.ones((4, 256), np.float32)
    with pytest.raises(ValueError, match="importance has no axes") as caught:
        quantize(x, "q4_k", importance=np.float32(1))
    assert type(caught.value) is ValueError


def test_a_pickle_of_another_table_of_layouts_is_refused() -> None:
    q = quantize(w(16, 128), "nvfp4", recipe="modelopt")
    state = q.__getstate__()
    index, (_, *fields) = state["layout"]
    for row in ((index, ("nvfp5", *fields)), (99, ("nvfp4", *fields))):
        with pytest.raises(ValueError, match="does not store nvfp4 of modelopt as the one that"):
            copy.copy(q).__setstate__({**state, "layout": row})
