"""Blocks of llama.cpp: those that its own functions make, as recorded, and what they decode to.

python -m pytest -m "" --record tests/quantization/test_block_types.py    # writes the record
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import castwise
import numpy as np
import pytest
from castwise._core import block_types, decode_block_type, encode_block_type
from castwise.quantization import QuantizedArray, dequantize, quantize
from castwise.quantization.producers.block_types import (
    BLOCK_TYPES,
    FILE_TYPES,
    decode_type,
    encode_type,
)
from float_environment import ENVIRONMENTS, SUPPORTED, mxcsr
from numpy.typing import NDArray
from recorded import FOLDER

Array = NDArray[Any]
Framework = Callable[[str], ModuleType]
RECORD = FOLDER / "quantization" / "block_types.json"
TYPES = [name for name, *_ in block_types()]
ROWS, COLUMNS = 24, 1024
DIGITS = 16  # of a digest


def bell(rng: np.random.Generator, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Array:
    """Draw from about a normal distribution, exactly: sums of integers."""
    drawn = rng.integers(-(1 << 18), 1 << 18, (6, *shape)).sum(0)
    values: Array = (drawn / (1 << 18)).astype(np.float32)
    return values


def powers(rng: np.random.Generator, least: int, most: int) -> Array:
    """Draw a power of two for each 16 elements of a row."""
    exponents = rng.integers(least, most, (ROWS, COLUMNS // 16, 1))
    return np.broadcast_to(2.0**exponents, (ROWS, COLUMNS // 16, 16)).reshape(ROWS, COLUMNS)


def cases() -> dict[str, Array]:
    """Return rows of every kind that encoders meet; none is beyond a type."""
    rng = np.random.default_rng(3)
    tails = bell(rng) / (np.abs(bell(rng)) + np.float32(2**-8))
    signs = rng.integers(0, 2, (ROWS, COLUMNS)) * 2 - 1
    found = {
        "normal": bell(rng),
        "bfloat16": castwise.cast(castwise.cast(bell(rng), "bfloat16"), np.float32),
        "heavy tails": tails,
        "positive": np.abs(bell(rng)) + 1,
        "negative": -np.abs(bell(rng)) - 1,
        "sparse": bell(rng) * (rng.integers(0, 16, (ROWS, COLUMNS)) == 0),
        "outliers": np.where(rng.integers(0, 256, (ROWS, COLUMNS)) == 0, 64, bell(rng) / 64),
        "offsets": bell(rng) / 1024 + bell(rng, (ROWS, 1)),
        "integers": rng.integers(-20, 20, (ROWS, COLUMNS)),
        "halves": rng.integers(-20, 20, (ROWS, COLUMNS)) / 2,
        "two values": rng.choice([0.3, -0.7], (ROWS, COLUMNS)),
        "constant": np.repeat(bell(rng, (ROWS, 1)), COLUMNS, 1),
        "constant parts": np.repeat(bell(rng, (ROWS, COLUMNS // 16)), 16, 1),
        "zeros": np.zeros((2, COLUMNS)),
        "signed zeros": signs * 0.0,
        "one element": np.eye(2, COLUMNS, 40) * -3,
        "parts of every magnitude": bell(rng) * powers(rng, -60, 12),
        "small parts": bell(rng) * powers(rng, -149, -10),
    }
    for exponent in (-149, -140, -130, -127, -60, -50, -40, -30, -24, -16, -12, -8, 8, 12):
        found[f"2**{exponent}"] = bell(rng, (4, COLUMNS)) * 2.0**exponent
    return {name: np.ascontiguousarray(x, np.float32) for name, x in found.items()}


CASES = cases()
OF_IMPORTANCE = ", importance"  # ends the names of types in the record


def importances() -> Array:
    """Return numbers of columns, 0 of a block and more; squares, exactly."""
    numbers = np.random.default_rng(5).integers(0, 1 << 11, COLUMNS) ** 2 / 1024
    numbers[:300] = 0
    return numbers.astype(np.float32)


IMPORTANCE = importances()


def encode(x: Array, name: str, importance: Array | None = None, *, best: bool = False) -> Array:
    _, elements, size = BLOCK_TYPES[name]
    blocks = np.empty((*x.shape[:-1], x.shape[-1] // elements, size), np.uint8)
    assert encode_block_type(x, blocks, name, importance, best) is None
    return blocks


def digest(blocks: Array) -> str:
    return hashlib.sha256(blocks.tobytes()).hexdigest()[:DIGITS]


def record() -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = json.loads(RECORD.read_text())
    return rows


@pytest.mark.parametrize("importance", [None, IMPORTANCE], ids=["plain", "importance"])
@pytest.mark.parametrize("name", TYPES)
def test_blocks_are_those_of_llama(name: str, importance: Array | None) -> None:
    digests = {case: digest(encode(x, name, importance)) for case, x in CASES.items()}
    assert digests == record()[name if importance is None else name + OF_IMPORTANCE]


@pytest.mark.parametrize("importance", [None, IMPORTANCE], ids=["plain", "importance"])
@pytest.mark.parametrize("name", TYPES)
def test_the_record_is_what_llama_makes(
    name: str, importance: Array | None, framework: Framework, request: pytest.FixtureRequest
) -> None:
    """By `ggml_quantize_chunk`, without an importance matrix and with one."""
    folder = Path(str(framework("xllamacpp").__file__)).parent
    (path,) = folder.glob("xllamacpp*.so")
    quantize = ctypes.CDLL(str(path)).ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    counts = (ctypes.c_int64,) * 3
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *counts, ctypes.c_void_p]
    kind, elements, size = BLOCK_TYPES[name]
    digests = {}
    for case, x in CASES.items():
        blocks = np.zeros((len(x), COLUMNS // elements, size), np.uint8)
        numbers = None if importance is None else importance.ctypes.data
        quantize(kind, x.ctypes.data, blocks.ctypes.data, 0, *x.shape, numbers)
        digests[case] = digest(blocks)
    name = name if importance is None else name + OF_IMPORTANCE
    if request.config.getoption("record"):
        rows = (record() if RECORD.exists() else {}) | {name: digests}
        RECORD.write_text(json.dumps(rows, indent=1) + "\n")
    assert record()[name] == digests


def losses(x: Array, name: str, blocks: Array, importance: Array | None) -> Array:
    """Return the sum of weighted squared errors of each block."""
    values = np.empty_like(x)
    decode_block_type(blocks, values, name)
    errors = (x.astype(np.float64) - values) ** 2
    if importance is not None:
        errors *= importance
    sums: Array = errors.reshape(*blocks.shape[:-1], -1).sum(-1)
    return sums


@pytest.mark.parametrize("importance", [None, IMPORTANCE], ids=["plain", "importance"])
@pytest.mark.parametrize("name", TYPES)
def test_no_best_block_loses_more_than_that_of_llama(name: str, importance: Array | None) -> None:
    for case, x in CASES.items():
        best = losses(x, name, encode(x, name, importance, best=True), importance)
        for numbers in (None, importance):
            other = losses(x, name, encode(x, name, numbers), importance)
            assert (best <= other * (1 + 1e-12)).all(), case
            if case == "normal":
                assert 10 * np.log10(other.sum() / best.sum()) > 0.05


@pytest.mark.parametrize(("name", "half"), [("Q4_0", 8), ("Q5_0", 16)])
def test_one_scale_is_the_best_of_all(name: str, half: int) -> None:
    """Of all float16 of both signs around that of the largest magnitude, within 0.001 dB."""
    rng = np.random.default_rng(11)
    x = np.concatenate([bell(rng, (24, 32)), rng.standard_t(3, (24, 32)).astype(np.float32)])
    magnitudes = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    least = []
    for elements in x.astype(np.float64):
        step = np.abs(elements).max() / half
        scales = magnitudes[(magnitudes > step / 4) & (magnitudes < step * 4)]
        scales = np.concatenate([scales, -scales])[:, None]
        codes = np.clip(np.rint(elements / scales), -half, half - 1)
        least.append(((codes * scales - elements) ** 2).sum(1).min())
    found = losses(x, name, encode(x, name, best=True), None).sum()
    assert 0 <= 10 * np.log10(found / np.sum(least)) < 0.001


@pytest.mark.parametrize("name", TYPES)
def test_they_decode_as_the_package_decodes_them(name: str, framework: Framework) -> None:
    gguf = framework("gguf")
    kind = gguf.GGMLQuantizationType[name]
    for x in CASES.values():
        blocks, values = encode(x, name), np.empty_like(x)
        decode_block_type(blocks, values, name)
        expected = gguf.quants.dequantize(blocks.reshape(len(x), -1), kind)
        np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


def test_the_tables_agree() -> None:
    for name, elements, size, bits, _ in block_types():
        assert BLOCK_TYPES[name][1:] == (elements, size)
        assert 8 * size / elements >= bits
        assert name in FILE_TYPES


def test_types_of_files_are_those_of_the_package(framework: Framework) -> None:
    kinds = framework("gguf").LlamaFileType
    names = {name: f"MOSTLY_{name}" for name in FILE_TYPES}
    names |= {name: f"MOSTLY_{name}_S" for name in ("Q3_K", "Q4_K", "Q5_K")}
    names["MXFP4"] = "MOSTLY_MXFP4_MOE"
    assert {name: int(kinds[row]) for name, row in names.items()} == FILE_TYPES


@pytest.mark.parametrize("name", TYPES)
def test_a_scale_that_float16_does_not_hold_is_refused(name: str) -> None:
    x = CASES["normal"].copy()
    x[3, 800] = 2.0**60
    block = 3 * COLUMNS // BLOCK_TYPES[name][1] + 800 // BLOCK_TYPES[name][1]
    _, elements, size = BLOCK_TYPES[name]
    blocks = np.empty((ROWS, COLUMNS // elements, size), np.uint8)
    assert encode_block_type(x, blocks, name) == block
    with pytest.raises(ValueError, match=r"of row 3, whose largest magnitude is 1\.15292e\+18, is"):
        encode_type(x, name)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("magnitude", [1e4, 1e5, 1e6, 1e8, 1e10, 1e20, 1e38])
def test_best_scales_refuse_what_those_of_llama_refuse(name: str, magnitude: float) -> None:
    _, elements, size = BLOCK_TYPES[name]
    bell_shaped = (CASES["normal"][:2] / np.abs(CASES["normal"][:2]).max() * magnitude).astype("f4")
    for x in (bell_shaped, np.full((1, COLUMNS), magnitude, np.float32)):
        blocks = np.empty((len(x), COLUMNS // elements, size), np.uint8)
        refused = encode_block_type(x, blocks, name)
        assert encode_block_type(x, blocks, name, best=True) == refused
        if refused is None:
            assert np.abs(decode_type(blocks, name) - x).max() < magnitude / 2


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_the_unit_of_importance_does_not_matter(name: str, best: bool) -> None:
    """Sums of weighted squares stay within the range of float32."""
    expected = encode(CASES["normal"], name, IMPORTANCE, best=best)
    for factor in (2.0**-100, 2.0**-50, 2.0**50, 2.0**100):
        numbers = (IMPORTANCE * factor).astype(np.float32)
        assert encode(CASES["normal"], name, numbers, best=best).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_no_element_that_is_not_finite_is_encoded(name: str, value: float) -> None:
    _, elements, size = BLOCK_TYPES[name]
    for index in range(elements):
        x = CASES["normal"][:1, : 3 * elements].copy()
        x[0, elements + index] = value
        assert encode_block_type(x, np.empty((1, 3, size), np.uint8), name) == 1, index
        x[:] = value  # and no other one either, so that ranges begin and end with it
        assert encode_block_type(x, np.empty((1, 3, size), np.uint8), name) == 0


def test_operands_that_do_not_fit_are_refused() -> None:
    x, blocks = np.zeros((2, 256), np.float32), np.zeros((2, 1, 144), np.uint8)
    read_only = blocks.copy()
    read_only.flags.writeable = False
    for wrong, target in (
        (x.astype(np.float64), blocks),
        (x.astype(">f4"), blocks),
        (np.zeros((4, 128), np.float32), blocks),
        (x, blocks[:1]),
        (x, np.zeros((2, 1, 143), np.uint8)),
        (x[:, ::-1], blocks),
        (x, read_only),
        (x.view(np.uint8).reshape(-1)[:288].view(np.float32).reshape(1, 72), x.view(np.uint8)),
    ):
        with pytest.raises(ValueError, match=r"do not fit; give float32 in rows of whole blocks"):
            encode_block_type(wrong, target, "Q4_K")
    with pytest.raises(ValueError, match=r"read|fit"):
        decode_block_type(blocks, x[:, ::2], "Q4_K")
    with pytest.raises(ValueError, match=r'type="Q9_K" is not valid; use one of "Q4_0"'):
        encode_block_type(x, blocks, "Q9_K")
    for numbers in (np.ones(255, np.float32), np.ones(256), np.ones((1, 256), np.float32)):
        with pytest.raises(ValueError, match=r"importance of shape .* one for each of 256 columns"):
            encode_block_type(x, blocks, "Q4_K", numbers)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(
    ("shape", "axis"), [((24, 1024), -1), ((2, 3, 512), 2), ((512, 4), 0), ((3, 256, 5), -2)]
)
def test_arrays_become_blocks(name: str, shape: tuple[int, ...], axis: int) -> None:
    """Along any axis; what they decode to has the shape of the array."""
    x = CASES["normal"].reshape(-1)[: np.prod(shape)].reshape(shape)
    q = quantize(x, name.lower(), axis=axis)
    rows = np.moveaxis(x, axis, -1)
    blocks = encode(np.ascontiguousarray(rows), name)
    assert q.data.tobytes() == blocks.tobytes()
    (field,) = q.parts().values()
    assert field.shape == (*rows.shape[:-1], blocks.shape[-2] * blocks.shape[-1])
    expected = decode_type(blocks.reshape(-1, field.shape[-1]), name).reshape(rows.shape)
    np.testing.assert_array_equal(dequantize(q, "float32"), np.moveaxis(expected, -1, axis))
    for other in (
        pickle.loads(pickle.dumps(q)),  # noqa: S301
        QuantizedArray.from_parts(q.parts(), "gguf", x.shape, scheme=name.lower(), axis=axis),
    ):
        np.testing.assert_array_equal(dequantize(other, "float32"), dequantize(q, "float32"))
    _, elements, size = BLOCK_TYPES[name]
    assert q.nbytes == q.data.nbytes
    assert q.bits_per_weight == 8 * size / elements


def test_a_vector_is_one_row_of_blocks() -> None:
    x = CASES["normal"][0]
    q = quantize(x, "q4_k")
    assert q.data.tobytes() == encode(x[None], "Q4_K").tobytes()
    assert dequantize(q).shape == x.shape
    assert quantize(x[:0], "q4_k").data.shape == (0, 144)


def test_the_scale_is_a_view_of_its_blocks() -> None:
    for name, *_, place in block_types():
        q = quantize(CASES["normal"], name.lower())
        scales = q.data[..., place : place + 2].copy().view(np.float16)[..., 0]
        np.testing.assert_array_equal(q.scale, scales)
        assert np.shares_memory(q.scale, q.data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 32}, "block=32 is not valid for q4_k"),
        ({"recipe": "mlx"}, "recipe='mlx' is not valid for q4_k"),
        ({"scale_rule": "even"}, "scale_rule='even' is not valid for q4_k"),
        ({"symmetric": False}, "symmetric=False is not valid for q4_k"),
        ({"nonfinite": "nan"}, "nonfinite='nan' is not valid for q4_k"),
        ({"scales": "four_over_six"}, "scales='four_over_six' is not valid for q4_k"),
        ({"importance": np.ones(512, np.float32)}, r"has shape \(512,\); give .* \(1024,\)"),
        ({"importance": np.zeros(1024)}, "^importance has only zeros"),
        ({"importance": np.r_[1.0, np.nan, np.ones(1022)]}, r"^importance\[1\] is nan, by which"),
        ({"importance": np.r_[1.0, -2.0, np.ones(1022)]}, r"^importance\[1\] is -2\.0, by which"),
        ({"axis": 2}, "axis"),
        ({"threads": -1}, "^threads=-1 is not valid; use an int of 1 or more"),
        ({"seed": -1}, "seed=-1 is not valid; use an int from 0"),
    ],
)
def test_options_that_blocks_do_not_have_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize(CASES["normal"], "q4_k", **options)
    accepted = quantize(CASES["normal"], "q4_k", recipe="gguf", block=256)
    assert accepted.data.tobytes() == encode(CASES["normal"], "Q4_K").tobytes()


@pytest.mark.parametrize("scales", ["amax", "best"])
def test_importance_is_of_the_columns_of_each_matrix(scales: Any) -> None:
    x = CASES["normal"].reshape(2, 12, COLUMNS)
    numbers = np.stack([IMPORTANCE, IMPORTANCE[::-1] + 1])
    q = quantize(x, "q4_k", importance=numbers, scales=scales)
    for index in range(2):
        alone = encode(
            x[index], "Q4_K", np.ascontiguousarray(numbers[index]), best=scales == "best"
        )
        assert q.data[index].tobytes() == alone.tobytes()
    one = quantize(x, "q4_k", importance=IMPORTANCE, scales=scales)
    turned = quantize(x.transpose(0, 2, 1), "q4_k", importance=IMPORTANCE, scales=scales, axis=1)
    assert one.data.tobytes() == turned.data.tobytes()
    assert one.data.tobytes() == encode(x, "Q4_K", IMPORTANCE, best=scales == "best").tobytes()
    wrong = x.copy()
    wrong[1, 2, 300] = 2.0**60
    with pytest.raises(ValueError, match=r"the scale of block 1 of row 14, whose"):
        quantize(wrong, "q4_k", importance=numbers, scales=scales)
    with pytest.raises(ValueError, match=r"not valid for q8_0, .* or add scales='best'"):
        quantize(x, "q8_0", importance=IMPORTANCE)
    numbers[1] = 0
    ones = np.ones(COLUMNS, np.float32)
    q = quantize(x, "q4_k", importance=numbers, scales=scales)
    assert q.data[1].tobytes() == encode(x[1], "Q4_K", ones, best=scales == "best").tobytes()
    nothing = np.zeros((0, 4, COLUMNS), np.float32)
    assert quantize(nothing, "q4_k", importance=np.ones((0, COLUMNS), np.float32)).data.size == 0
    with pytest.raises(ValueError, match="importance has only zeros"):
        quantize(x, "q4_k", importance=np.full(COLUMNS, 1e-60))
    with pytest.raises(ValueError, match="scales"):
        quantize(x, "q4_k", scales=np.array(["best", "amax"]))  # type: ignore[arg-type]


def test_arrays_that_are_no_blocks_are_refused() -> None:
    x = CASES["normal"]
    with pytest.raises(
        ValueError, match=r"96 elements along axis -1.*of 256; pad them, or use 'q5_0'"
    ):
        quantize(x[:, :96], "q4_k")
    with pytest.raises(ValueError, match=r"100 elements along axis -1.*of 32; pad them\."):
        quantize(x[:, :100], "q4_0")
    for value in (np.nan, -np.inf):
        wrong = x.copy()
        wrong[3, 5] = value
        with pytest.raises(ValueError, match=rf"x has {value} at index \[3, 5\]"):
            quantize(wrong, "q8_0")
    with pytest.raises(
        ValueError, match=r"x cannot be q6_k: the scale of block 0 of row 0.*divide"
    ):
        quantize(x * np.float32(2.0**60), "q6_k")
    with pytest.raises(ValueError, match=r"largest magnitude is 1e\+300, is"):
        quantize(np.full((1, 256), 1e300), "q4_k")
    with pytest.raises(TypeError, match="int64"):
        quantize(x.astype(np.int64), "q4_k")
    with pytest.raises(ValueError, match=r"arithmetic='exact' is not valid for q4_k"):
        dequantize(quantize(x, "q4_k"), arithmetic="exact")
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ValueError, match=r"threads=-1 is not valid; use an int of 1"):
            dequantize(quantize(x, "q4_k"), dtype, threads=-1)


def test_parts_that_are_not_of_the_blocks_are_refused() -> None:
    q = quantize(CASES["normal"], "q4_k")
    options: Any = {"shape": q.shape, "recipe": "gguf"}
    assert dequantize(QuantizedArray("q4_k", q.data, q.scale, **options)).shape == q.shape
    for scale in (q.scale * np.float16(2), q.scale.astype(np.float32), -q.scale):
        with pytest.raises(ValueError, match=r"scale is not that of data"):
            QuantizedArray("q4_k", q.data, scale, **options)
    with pytest.raises(ValueError, match=r"data has dtype int8, but q4_k needs uint8"):
        QuantizedArray("q4_k", q.data.view(np.int8), q.scale, **options)


@pytest.mark.parametrize(
    ("scheme", "others"),
    [
        ("q4_k", "int4_group.*int5_group.*nvfp4.*q4_k"),
        ("q3_k", "int5_group.*q3_k"),
        ("q5_k", "int5_group.*q5_k"),
        ("q2_k", ""),
        ("q6_k", ""),
    ],
)
def test_blocks_that_fit_several_types_need_a_scheme(scheme: Any, others: str) -> None:
    """NVFP4 has 36 bytes, of which those of q4_k are four; bytes of scales do not decide."""
    q = quantize(CASES["normal"][:, :256], scheme)
    named = QuantizedArray.from_parts(q.parts(), "gguf", scheme=scheme)
    assert named.data.tobytes() == q.data.tobytes()
    if not others:
        assert QuantizedArray.from_parts(q.parts(), "gguf").scheme == scheme
        return
    with pytest.raises(ValueError, match=rf"parts fit several: {others}.*State scheme="):
        QuantizedArray.from_parts(q.parts(), "gguf")


def test_names_in_capitals_are_those_in_small_letters() -> None:
    x = CASES["normal"]
    q = quantize(x, "Q4_K")  # type: ignore[arg-type]
    assert q.scheme == "q4_k"
    assert q.data.tobytes() == quantize(x, "q4_k").data.tobytes()


@pytest.mark.skipif(not SUPPORTED, reason="sets MXCSR by glibc")
@pytest.mark.parametrize("bits", ENVIRONMENTS.values(), ids=[*ENVIRONMENTS])
def test_the_environment_of_the_caller_does_not_matter(bits: int) -> None:
    x = CASES["small parts"]
    ways: list[tuple[Array | None, bool]] = [(None, False), (IMPORTANCE, False), (IMPORTANCE, True)]
    for importance, best in ways:
        with mxcsr(bits):
            blocks = [encode(x, name, importance, best=best) for name in TYPES]
        for name, changed in zip(TYPES, blocks, strict=True):
            assert digest(changed) == digest(encode(x, name, importance, best=best))
