"""Two checkpoints have the same values, or the largest differences are named."""

from __future__ import annotations

import json
import math
import mmap
import tracemalloc
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint, quantization
from castwise._core import compare, compare_stored, report_losses
from castwise.checkpoint.comparison._sides import in_pieces
from castwise.cli import main
from castwise.quantization.arrays.comparison import compare_rows, report_rows
from castwise.quantization.arrays.views import views_of
from producer_models import MODELS, Decodable, Draw, write


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", MODELS)
def test_a_quantized_model_and_its_decoding(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    source, out = write(tmp_path / "model", model), tmp_path / "out"
    checkpoint.dequantize_file(source, out)
    for pair in ((source, out), (out, source), (source, source)):
        found = checkpoint.verify(*pair)
        assert found.equal
        assert found.differences == ()
        assert found.tensors == len(model.plain) + 2
        assert found.values == sum(array.size for array in model.plain.values()) + 7
    key, array = next(iter(model.plain.items()))
    changed = array.copy()
    changed.view(np.uint16).reshape(-1)[-3] ^= 1
    checkpoint.save(
        out / "model.safetensors", checkpoint.load(out) | {key: changed}, overwrite=True
    )
    found = checkpoint.verify(source, out)
    (one,) = found.differences
    assert not found.equal
    place = tuple(int(axis) for axis in np.unravel_index(array.size - 3, array.shape))
    assert (one.name, one.reason, one.different, one.index) == (key, "values", 1, place)
    assert one.max_ulp == 1
    assert one.values == (float(array[place]), float(changed[place]))
    assert one.max_abs == abs(one.values[0] - one.values[1])


def saved(path: Path, **tensors: Any) -> Path:
    checkpoint.save(
        path, {name: np.asarray(array) for name, array in tensors.items()}, overwrite=True
    )
    return path


def compared(tmp_path: Path, one: Any, other: Any) -> Any:
    first = saved(tmp_path / "one.safetensors", x=one)
    found = checkpoint.verify(first, saved(tmp_path / "other.safetensors", x=other))
    return found.differences[0] if found.differences else None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_floats(tmp_path: Path, dtype: Any) -> None:
    one = np.array([1, -1, 0, np.nan, np.inf, 2], dtype)
    assert compared(tmp_path, one, one) is None
    other = one.copy()
    other.view(f"u{other.itemsize}")[3] ^= 1  # another NaN
    assert compared(tmp_path, one, other) is None
    other[0] = np.nextafter(one[0], one[5])
    found = compared(tmp_path, one, other)
    assert (found.different, found.max_ulp, found.index) == (1, 1, (0,))
    assert found.max_abs == float(other[0]) - 1
    other = one.copy()
    other[2] = -other[2]  # a zero of the other sign
    found = compared(tmp_path, one, other)
    assert (found.different, found.max_abs, found.max_ulp, found.index) == (1, 0, 0, (2,))
    other = one.copy()
    other[1], other[3] = 1, 3
    found = compared(tmp_path, one, other)
    assert (found.different, found.max_abs, found.index) == (2, math.inf, (3,))
    assert found.max_ulp == 2 * int(np.array(1, dtype).view(f"u{one.itemsize}"))


def test_ulps_of_all_of_float64() -> None:
    largest = np.finfo(np.float64).max
    expected = 2 * int(np.float64(largest).view(np.uint64))
    assert compare(np.array([largest]), np.array([-largest])).largest_ulps == (expected, 0)


def test_other_formats(tmp_path: Path) -> None:
    for dtype in (np.int64, np.uint8, np.bool_, np.complex64, ml_dtypes.float8_e4m3fn):
        one = np.array([1, 0, 1], dtype)
        assert compared(tmp_path, one, one) is None
        other = np.array([1, 0, 0], dtype)
        found = compared(tmp_path, one, other)
        assert (found.reason, found.different, found.index) == ("values", 1, (2,))
        assert (found.max_abs, found.max_ulp) == (1, None)
    wide = np.array([1, 2.5], np.float32)
    assert compared(tmp_path, wide, wide.astype(ml_dtypes.bfloat16)) is None
    assert compared(tmp_path, wide, wide.astype(ml_dtypes.float8_e4m3fn)) is None
    found = compared(tmp_path, np.array([1, 1 / 3]), np.array([1, 1 / 3], np.float32))
    assert (found.format, found.different, found.index) == ("float64", 1, (1,))
    found = compared(tmp_path, wide, wide.astype(np.int32))
    assert (found.reason, found.format, found.max_abs, found.max_ulp) == (
        *("values", "float64"),
        *(0.5, None),
    )
    assert compared(tmp_path, np.arange(9), np.arange(9, dtype=np.float32)) is None
    assert compared(tmp_path, wide, wide.astype(np.complex64)).reason == "formats"
    assert compared(tmp_path, wide, wide.reshape(2, 1)).reason == "shapes"
    assert compared(tmp_path, np.zeros((0, 3)), np.zeros((0, 3))) is None


def test_streams_are_cut_at_the_same_places() -> None:
    whole = np.arange(20)
    for cuts in ([3, 3, 11], [1, 12, 19], [], [7, 14]):
        pieces = [*in_pieces(iter(np.split(whole, cuts)), repeat(7))]
        assert [piece.size for piece in pieces] == [7, 7, 6]
        assert np.concatenate(pieces).tolist() == whole.tolist()


def test_memory_does_not_grow_with_tensors(tmp_path: Path) -> None:
    """Of all that differs, only what is compared at a time takes more than a slab."""
    draw, config = Draw(), MODELS["deepseek, scales of float32"]().config
    threads, slab = 2, (1 + 2) * (1 << 20)  # bytes, before and after
    for rows in (1024, 4096):
        pair = []
        for name in ("one", "other"):
            tensors = {
                "a.weight": draw.float8(rows, 4096),
                "a.weight_scale_inv": draw.scales(rows // 128, 32),
            }
            pair.append(write(tmp_path / f"{name} {rows}", Decodable(tensors, {}, config)))
        del tensors
        tracemalloc.start()
        found = checkpoint.verify(*pair, threads=threads)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found.differences[0].different > rows * 4000
        assert peak < 2 * (threads + 2) * slab + (8 << 20)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = saved(tmp_path / "a.safetensors", x=np.ones((2, 3), np.float32), y=[1], gone=[1])
    other = np.ones((2, 3), np.float32)
    other[1, 2] = 1.5
    second = saved(tmp_path / "b.npz", x=other, y=[1], new=[1])
    assert main(["verify", str(one), str(one)]) == 0
    assert capsys.readouterr().out == "3 tensors compared, 8 values: all the same\n"
    assert main(["verify", str(one), str(second)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["x", "float32", "1,2", "1", "1.5", "1", "6", "0.5", "4,194,304"]
    assert lines[3:] == [
        "gone: only in the first",
        "new: only in the second",
        "2 tensors compared, 7 values: 3 tensors differ",
    ]
    assert main(["verify", "--quiet", str(one), str(second)]) == 1
    assert capsys.readouterr().out == ""
    assert main(["verify", "--json", str(one), str(second)]) == 1
    found = checkpoint.verify(one, second)
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    assert main(["verify", str(one), str(tmp_path / "none")]) == 2
    model = MODELS["awq"]()
    folder = write(
        tmp_path / "model", Decodable({"a.qweight": model.tensors["a.qweight"]}, {}, model.config)
    )
    assert main(["verify", str(one), str(folder)]) == 2
    assert "a.qweight" in capsys.readouterr().err


def test_progress(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.safetensors", x=np.ones(10**6, np.float32))
    seen: list[Any] = []
    checkpoint.verify(one, one, progress=seen.append)
    assert seen[0].done == 0
    assert (seen[-1].done, seen[-1].name) == (4 * 10**6, None)
    assert len(seen) > 3


SHAPES = {"small": (32, 256), "in parts": (528, 512), "within blocks": (272, 1280)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("row", quantization.schemes(), ids=lambda row: row.name)
def test_stored_rows_are_compared_as_decoded_ones(row: Any, shape: tuple[int, int]) -> None:
    """Whether a recipe made them is told by codes and scales, and one bit of them is found."""
    weight = (np.random.default_rng(0).standard_normal(shape)).astype(ml_dtypes.bfloat16)
    weight[3, 5:9] = 0
    most = float(np.abs(weight.astype(np.float32)).max())
    known = row.global_scale or row.name.endswith("_tensor")
    for recipe in row.recipes:
        q = quantization.quantize(weight, row.name, recipe=recipe)
        options = {"scheme": row.name, "recipe": recipe, "block": None, "scale_rule": None}
        for part in ("none", "data", "scale"):
            stored = q if part == "none" else changed(q, part)
            amax = most if known and q.global_scale is not None else None
            found = compare_rows(weight, stored, "peer", options, amax)
            if found is None:
                continue  # of columns, or of blocks of all elements in a row
            values = quantization.dequantize(stored, weight.dtype)
            assert found.comparison == compare(weight, values, measure=True)
            assert found.values == {index: values.reshape(-1)[index] for index in found.values}
            assert found.is_made <= (part == "none")
            # Blocks with a zero point or a bias, and scales that are rounded, are decoded.
            is_decoded = q.zero_point is not None or q.extras or views_of(q).storage.inner
            assert found.is_made or part != "none" or is_decoded


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("row", quantization.schemes(), ids=lambda row: row.name)
def test_stored_rows_are_measured_as_decoded_ones(
    row: Any, shape: tuple[int, int], dtype: Any
) -> None:
    """Whether a zero has a sign makes no difference."""
    weight = (np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    weight[3, 5:9] = 0
    weight[4, :40] *= -1e-6
    for recipe in row.recipes:
        q = quantization.quantize(weight, row.name, recipe=recipe)
        if (report := report_rows(weight, q, np.float32)) is not None:
            values = quantization.dequantize(q, np.float32)
            assert report == report_losses(weight, values)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("scheme", ["fp8_block", "mxfp8_e4m3", "nvfp4", "int4_group"])
def test_the_first_of_equal_losses_is_found_among_all_parts(scheme: Any) -> None:
    """Parts repeat those before them: what is largest was known, or comes in the last one alone."""
    part = np.random.default_rng(1).standard_normal((128, 1024)).astype(ml_dtypes.bfloat16)
    part[5, 7:90] = 0
    part[6, ::3] = 1e-6  # which no scale holds beside the others
    part[9, ::5] *= -0.0
    weight = np.tile(part, (4, 1))
    q = quantization.quantize(weight, scheme)
    for changes in ([], [(300, 11, np.nan)], [(511, 1000, 3e4), (511, 1001, -3e4)]):
        for row, column, value in changes:
            weight[row, column] = value
        found = compare_rows(weight, q, "peer")
        assert found is not None
        values = quantization.dequantize(q, weight.dtype)
        assert found.comparison == compare(weight, values, measure=True)
        difference = found.comparison.largest_difference
        assert difference is not None
        assert difference[1] in found.values
        assert {values.reshape(-1)[place] for place in found.values} == {*found.values.values()}


def test_scales_of_columns_of_a_square_matrix() -> None:
    """Its shape does not tell that the core sees it turned."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(ml_dtypes.bfloat16)
    q = quantization.quantize(weight, "mxfp4", axis=-2)
    values = quantization.dequantize(q, weight.dtype)
    found = compare_rows(values, q, "peer")
    assert found is None or found.comparison.different == 0


@pytest.mark.parametrize("rows", [8, 600], ids=["at once", "in parts"])
@pytest.mark.parametrize("part", ["data", "scale", "zero_point", "bias"])
def test_stored_parts_of_other_rows_are_refused(part: str, rows: int) -> None:
    """The core takes rows of each part for rows of the matrix, a few at a time."""
    x = np.ones((rows, 512), np.float32)
    parts: dict[str, Any] = {"data": np.ones((rows, 512), np.uint8)}
    parts["scale"] = parts["bias"] = np.ones((rows, 16), np.float32)
    parts["zero_point"] = np.ones((rows, 16), np.uint8)

    def compared() -> Any:
        shift = "bias" if part == "bias" else "zero_point"
        decoding = {"element": "uint8", "bits": 8, "block": (1, 32), shift: parts[shift]}
        return compare_stored(x, parts["data"], parts["scale"], x.dtype, (decoding, None))[0]

    assert compared().different == x.size
    for length in (rows - 1, 1, 0):
        parts[part] = parts[part][:length]
        refusal = rf"{part} has shape \[{length}, .*must begin with \[{rows}\]"
        with pytest.raises(ValueError, match=refusal):
            compared()


def test_a_stack_is_no_matrix_to_compare() -> None:
    """The refusal names its shape."""
    x, data = np.ones((2, 3, 4), np.float32), np.ones((3, 4), np.uint8)
    scale = np.ones((3, 1), np.float32)
    decoding: Any = {"element": "uint8", "bits": 8, "block": (1, 0)}
    with pytest.raises(ValueError, match=r"x has shape \[2, 3, 4\]; give a matrix"):
        compare_stored(x, data, scale, x.dtype, (decoding, None))


def test_a_row_that_no_memory_holds_is_refused() -> None:
    """Arrays with strides of 0 take no memory, but decoded rows do."""
    x, data, scale = (
        np.broadcast_to(np.ones((), dtype), (1, length))
        for dtype, length in (("int8", 2**62), ("uint8", 2**59), ("float32", 1))
    )
    decoding: Any = {"element": "uint1", "bits": 1, "block": (1, 0)}
    with pytest.raises(ValueError, match=r"x has shape \[1, 4611686018427387904\], .* no memory"):
        compare_stored(x, data, scale, "float64", (decoding, None))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="tells how much memory is in use")
def test_a_comparison_of_a_large_block_keeps_no_memory() -> None:
    """With one scale all elements are decoded at once, 32 MiB of them."""
    weight = np.ones((2048, 4096), np.float32)
    q = quantization.quantize(weight, "fp8_tensor", threads=1)

    def mebibytes() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * mmap.PAGESIZE / 2**20

    before = mebibytes()
    found = compare_rows(weight, q, "peer", measure=False)
    assert found is not None
    assert found.comparison.count == weight.size
    assert mebibytes() - before < 8


def changed(q: Any, part: str) -> Any:
    """Change a bit of a part."""
    array = getattr(q, part).copy()
    array.reshape(-1).view(np.uint8)[0] ^= 1
    return replace(q, **{part: array})
