"""GGUF files are decoded, and headers that lie are refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import cast, checkpoint
from castwise._core import parse_gguf_array, parse_gguf_header
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from castwise.quantization import QuantizedArray, dequantize, quantize
from checkpoint_samples import assert_same, floats
from producer_models.gguf import TYPES, gguf_file, header, sample, text

Array = Any


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_type_of_blocks(tmp_path: Path, name: str, dtype: str) -> None:
    tensor, values = sample(name)
    plain = floats(12).reshape(3, 4)
    kinds = {"f32": (0, plain), "f16": (1, plain.astype(np.float16))}
    kinds["bf16"] = (30, plain.astype(ml_dtypes.bfloat16))
    tensors = {kind: (code, (3, 4), array.tobytes()) for kind, (code, array) in kinds.items()}
    source = gguf_file(tmp_path / "model.gguf", {"blk.0.weight": tensor, **tensors})
    out = tmp_path / "out.safetensors"
    # Of random scales some are 0.
    assert main(["dequantize", str(source), str(out), "--dtype", dtype, "--max-zeros", "5%"]) == 0
    found = checkpoint.load(out)
    assert_same(found.pop("blk.0.weight"), values.astype(dtype))
    for kind, (_, array) in kinds.items():
        assert_same(found.pop(kind), array)
    assert found == {}
    assert checkpoint.metadata(out) == {"general.architecture": "llama", "size": "7"}
    assert checkpoint.verify(source, out).equal


SCHEMES = {"Q4_0": "int4_group", "Q4_1": "int4_group", "Q5_0": "int5_group", "Q5_1": "int5_group"}
SCHEMES |= {"Q8_0": "int8_group", "MXFP4": "mxfp4", "NVFP4": "nvfp4"}
LONG = [(3, 300), (70, 3), (513, 1), (1, 2100)]
"""Rows and blocks: pieces end within rows, or go on with the next one."""


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("rows", "blocks"), LONG)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_of_blocks(name: str, rows: int, blocks: int, threads: int) -> None:
    (_, shape, data), values = sample(name, rows, blocks)
    size = TYPES[name][2]
    raw = np.frombuffer(data, np.uint8).reshape(rows, blocks * size)
    apart = np.zeros((rows + 2, blocks * size + 3), np.uint8)[1:-1, 2:-1]
    apart[...] = raw
    for array in (raw, apart):
        q = QuantizedArray.from_parts({"blocks": array}, "gguf", shape, scheme=SCHEMES[name])
        assert_same(dequantize(q, "float32", threads=threads), values)
        out = np.zeros((shape[0], shape[1] + 5), ml_dtypes.bfloat16)
        dequantize(q, out=out[:, 2:-3], threads=threads)
        assert_same(out[:, 2:-3].copy(), values.astype(ml_dtypes.bfloat16))
        assert not out[:, :2].any()
        assert not out[:, -3:].any()


@pytest.mark.parametrize("scheme", ["int8_group", "mxfp4"])
@pytest.mark.parametrize(("rows", "blocks"), LONG)
@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_do_not_depend_on_others(scheme: str, rows: int, blocks: int, threads: int) -> None:
    values = np.random.default_rng(1).normal(size=(rows, blocks * 32))
    for dtype in (np.float32, ml_dtypes.bfloat16, np.float64):
        x = values.astype(dtype)
        found = quantize(x, scheme, recipe="gguf", threads=threads).data
        each = quantize(x.reshape(-1, 32), scheme, recipe="gguf", threads=1).data
        assert_same(np.ascontiguousarray(found).reshape(-1), np.ascontiguousarray(each).reshape(-1))


def test_other_commands_name_this_one(tmp_path: Path) -> None:
    source = gguf_file(tmp_path / "model.gguf", {"w": sample("Q8_0")[0]})
    for run in (
        lambda: checkpoint.survey_file(source, ["float16"]),
        lambda: checkpoint.load(source),
        lambda: checkpoint.cast_file(source, tmp_path / "out.safetensors", "bfloat16"),
    ):
        with pytest.raises(CheckpointError, match="castwise dequantize makes"):
            run()
    with pytest.raises(CheckpointError, match=r"plain weights as a folder or a \.safetensors file"):
        checkpoint.dequantize_file(source, tmp_path / "out.gguf")


@pytest.mark.parametrize(("kind", "name"), [(9, "Q8_1"), (15, "Q8_K"), (99, "99")])
def test_other_types_are_refused_by_name(tmp_path: Path, kind: int, name: str) -> None:
    source = gguf_file(tmp_path / "model.gguf", {"w": (kind, (1, 256), bytes(256))})
    with pytest.raises(CheckpointError, match=f"'w' is of the type {name}, .*llama-quantize"):
        checkpoint.dequantize_file(source, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("name", TYPES)
def test_inspection(tmp_path: Path, name: str) -> None:
    (kind, shape, raw), _ = sample(name)
    source = gguf_file(tmp_path / "model.gguf", {"w": (kind, shape, raw)})
    inspection = checkpoint.inspect(source)
    assert [info.stored for info in inspection.tensors] == [name]
    assert inspection.bits_per_weight() == {"w": len(raw) * 8 / np.prod(shape)}
    assert inspection.quantization is not None
    assert [weight.scheme for weight in inspection.quantization.weights] == [SCHEMES[name]]
    assert f"  {name}  " in str(inspection)


def test_reports_name_types(tmp_path: Path) -> None:
    source = gguf_file(tmp_path / "model.gguf", {"w": sample("Q8_0")[0]})
    rows = checkpoint.dequantize_file(source, tmp_path / "out.safetensors").rows
    assert [row.source for row in rows] == ["Q8_0"]


def number(*values: float) -> tuple[int, tuple[int, ...], bytes]:
    return 0, (len(values),), struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("arithmetic", ["peer", "exact"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_factors_beside_weights(tmp_path: Path, name: str, arithmetic: Any, dtype: str) -> None:
    """As llama.cpp's converter writes `weight_scale_2` of ModelOpt: one number for each expert."""
    (kind, shape, raw), values = sample(name)
    factors = np.array([0.3, -7e-5, 1.7e3], np.float32)
    tensors = {
        "blk.0.attn_q.weight": (kind, shape, raw),
        "blk.0.attn_q.scale": number(float(factors[0])),
        "blk.0.attn_q.input_scale": number(3.0),
        "blk.0.ffn_up_exps.weight": (kind, (3, *shape), raw * 3),
        "blk.0.ffn_up_exps.scale": number(*map(float, factors)),
        "blk.0.attn_k.weight": (kind, shape, raw),
    }
    source, out = gguf_file(tmp_path / "model.gguf", tensors), tmp_path / "out.safetensors"
    checkpoint.dequantize_file(source, out, dtype, arithmetic=arithmetic)
    wide = np.float64 if arithmetic == "exact" else np.float32
    products = values.astype(wide) * factors.astype(wide)[:, None, None]
    found = checkpoint.load(out)
    assert_same(found.pop("blk.0.attn_q.weight"), cast(products[0], dtype))
    assert_same(found.pop("blk.0.ffn_up_exps.weight"), cast(products, dtype))
    assert_same(found.pop("blk.0.attn_k.weight"), cast(values, dtype))
    assert found == {}
    if arithmetic == "peer":
        assert checkpoint.verify(source, out).equal


FACTORS: dict[str, tuple[tuple[int, tuple[int, ...], bytes], str]] = {
    "two": (number(1.0, 2.0), r"'a\.scale' has the shape \(2,\), and the shape \(1,\)"),
    "of rows": (number(*[1.0] * 6), r"has the shape \(6,\)"),
    "none": (number(), r"has the shape \(0,\)"),
    "float16": ((1, (1,), bytes(2)), r"'a\.scale' belongs to it and is float16, .* to float32"),
    "blocks": ((8, (32,), bytes(34)), r"'a\.scale' belongs to it and is Q8_0, .* to float32"),
}


@pytest.mark.parametrize("case", FACTORS.values(), ids=FACTORS)
def test_other_factors_are_refused(
    tmp_path: Path, case: tuple[tuple[int, tuple[int, ...], bytes], str]
) -> None:
    factor, match = case
    tensors = {"a.weight": sample("NVFP4")[0], "a.scale": factor}
    source = gguf_file(tmp_path / "model.gguf", tensors)
    with pytest.raises(CheckpointError, match=match) as raised:
        checkpoint.dequantize_file(source, tmp_path / "out.safetensors")
    assert "remove" not in str(raised.value)  # which would scale the weight wrongly
    assert not (tmp_path / "out.safetensors").exists()


def test_one_factor_beside_experts_is_refused(tmp_path: Path) -> None:
    kind, shape, raw = sample("NVFP4")[0]
    tensors = {"a.weight": (kind, (3, *shape), raw * 3), "a.scale": number(2.0)}
    source = gguf_file(tmp_path / "model.gguf", tensors)
    with pytest.raises(CheckpointError, match=r"and the shape \(3,\)"):
        checkpoint.dequantize_file(source, tmp_path / "out.safetensors")


def test_headers_that_lie(tmp_path: Path) -> None:
    whole = gguf_file(tmp_path / "model.gguf", {"w": sample("Q8_0")[0]}).read_bytes()
    path, out = tmp_path / "bad.gguf", tmp_path / "out.safetensors"

    def refused(data: bytes, match: str | None = None) -> None:
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=match):
            checkpoint.dequantize_file(path, out)

    for size in range(0, len(whole), 7):
        refused(whole[:size])
    refused(b"GGML" + whole[4:], "does not begin with GGUF")
    refused(whole[:4] + struct.pack("<I", 1) + whole[8:], "version 1")
    refused(whole[:8] + struct.pack("<Q", 2**63) + whole[16:])
    refused(whole[:16] + struct.pack("<Q", 2**63) + whole[24:])
    for tensors, match in (
        ([("w", (1, 33), 8, 0)], "rows are not blocks of 32"),
        ([("w", (1, 32), 8, 1)], "not a multiple of 32"),
        ([("w", (2**40, 32), 8, 0)], "leaves no room"),
        ([("w", (2**62, 2**62), 0, 0)], "too large"),
        ([("w", (1, 1, 1, 1, 32), 8, 0)], "5 axes"),
        ([("w", (1, 32), 8, 0)] * 2, "twice"),
    ):
        refused(header(tensors, b"", 0) + bytes(4096), match)
    pair = text("general.alignment") + struct.pack("<II", 4, 3)
    refused(header([], pair, 1), "not a multiple of 8")
    nested = text("a") + struct.pack("<IIQ", 9, 9, 1)
    refused(header([], nested, 1), "an array of arrays")
    refused(header([], text("a") + struct.pack("<I", 77), 1), "type 77")
    refused(header([], text("a") + struct.pack("<IIQ", 9, 6, 2**60), 1), "truncated")
    refused(header([], struct.pack("<Q", 2**40), 1), "a text of")
    refused(header([], struct.pack("<Q", 2) + b"\xff\xfe", 1), "not UTF-8")
    assert not out.exists()


NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"}
NUMBERS |= {10: "Q", 11: "q", 12: "d"}


@pytest.mark.parametrize("length", [1, 1 << 18, (1 << 18) + 1])
def test_headers_give_what_was_packed(length: int) -> None:
    words = ["é", "", "x" * length, "😀"]
    texts = struct.pack("<IIQ", 9, 8, len(words)) + b"".join(map(text, words))
    pairs, expected = text("texts") + texts, {}
    for kind, code in NUMBERS.items():
        number = struct.pack(f"<{code}", 1) if code == "?" else b"\xa5" * struct.calcsize(code)
        expected[code] = struct.unpack(f"<{code}", number)[0]
        pairs += text(code) + struct.pack("<I", kind) + number
        pairs += text(f"{code}s") + struct.pack("<IIQ", 9, kind, 3) + 3 * number
    data = header([("w", (3, 5), 1, 64)], pairs, 1 + 2 * len(NUMBERS))
    places: list[tuple[Any, ...]] = []

    def read(begin: int, count: int) -> bytes:
        return data[begin : begin + count]

    values, arrays, (begins, end), start, alignment = parse_gguf_header(
        read, len(data), lambda *tensor: places.append(tensor), CheckpointError
    )
    assert repr(values) == repr(expected)
    assert (start, alignment) == (-(-len(data) // 32) * 32, 32)
    assert places == [("w", (3, 5), 1, 64)]
    assert all(data[begin:].startswith(text(key)) for key, begin in begins.items())
    assert [*begins] == [key for key in begins if key in {*values, *arrays}]
    assert data[24:end] == pairs
    items = {
        key: parse_gguf_array(read, len(data), begin, CheckpointError)
        for key, begin in arrays.items()
    }
    assert items.pop("texts") == words
    assert repr(items) == repr({f"{code}s": [number] * 3 for code, number in expected.items()})


@pytest.mark.parametrize("raw", [b"a\x80", b"\xc3", b"\xe2\x28\xa1", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_texts_are_refused_with_the_reason_of_the_decoder(raw: bytes) -> None:
    data = header([], struct.pack("<Q", len(raw)) + raw, 1)
    with pytest.raises(UnicodeDecodeError) as decoding:
        raw.decode()
    with pytest.raises(KeyError) as refusal:
        parse_gguf_header(lambda begin, count: data[begin:][:count], len(data), print, KeyError)
    assert refusal.value.args == (f"a text in its header is not UTF-8: {decoding.value.reason}",)
    assert str(refusal.value.__cause__) == str(decoding.value)


def test_what_a_callable_raises_is_raised() -> None:
    data = header([("w", (3, 5), 1, 64)], b"", 0)
    with pytest.raises(ZeroDivisionError):
        parse_gguf_header(lambda begin, count: bytes(begin // 0), 100, print, ValueError)
    with pytest.raises(ZeroDivisionError):
        parse_gguf_header(lambda *_: data, len(data), lambda *_: 1 // 0, ValueError)
