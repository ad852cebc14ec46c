"""K-quants and other types of GGUF that the package gguf decodes: the same values, in slabs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning.decode import decode
from castwise.cli import main
from castwise.quantization.producers.block_types import BLOCK_TYPES
from checkpoint_samples import assert_same
from numpy.typing import NDArray
from producer_models.gguf import TYPES, gguf_file
from whole_models import model

Array = NDArray[Any]
Framework = Callable[[str], ModuleType]
NAMES = [name for name in BLOCK_TYPES if name not in TYPES]
DTYPES = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}
# Where the halves that scale a block begin.
SCALES = {
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
    **{"TQ1_0": (52,), "TQ2_0": (64,)},
}


def random_blocks(name: str, shape: tuple[int, ...], *, finite: bool = True) -> Array:
    """Return rows of random blocks, whose scales are small if they are to be finite."""
    size = BLOCK_TYPES[name][2]
    raw = np.random.default_rng(len(name)).integers(0, 256, (*shape, size), np.uint8)
    if finite and name == "IQ1_M":  # its half is in four parts
        raw[..., 49:56:2] &= 0x0F
        raw[..., 55] |= 0x20
    elif finite:
        for at in SCALES.get(name, (0,)):
            raw[..., at + 1] = raw[..., at + 1] & 0x83 | 0x20
    return raw


def values_of(gguf: ModuleType, name: str, raw: Array) -> Array:
    """Decode blocks by the package, all at once."""
    with np.errstate(all="ignore"):
        kind = gguf.GGMLQuantizationType[name]
        values: Array = gguf.quants.dequantize(raw.reshape(*raw.shape[:-2], -1), kind)
    return values


def stored(name: str, raw: Array) -> tuple[int, tuple[int, ...], bytes]:
    kind, elements, _ = BLOCK_TYPES[name]
    return kind, (*raw.shape[:-2], raw.shape[-2] * elements), raw.tobytes()


def test_sizes_are_those_of_the_package(framework: Framework) -> None:
    gguf = framework("gguf")
    kinds = {name: gguf.GGMLQuantizationType[name] for name in BLOCK_TYPES}
    sizes = {name: (int(kind), *gguf.GGML_QUANT_SIZES[kind]) for name, kind in kinds.items()}
    assert sizes == BLOCK_TYPES


@pytest.fixture
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_SLAB_ELEMENTS", 1 << 11)


@pytest.mark.usefixtures("small_slabs")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4,), (7, 3), (2, 3, 2)])
def test_values_are_those_of_the_package(
    tmp_path: Path, name: str, dtype: str, shape: tuple[int, ...], framework: Framework
) -> None:
    """In files that the package writes; slabs are a few rows."""
    gguf = framework("gguf")
    raw = random_blocks(name, shape)
    expected = values_of(gguf, name, raw)
    assert np.isfinite(expected).all()
    source, out = tmp_path / "model.gguf", tmp_path / "out.safetensors"
    writer = gguf.GGUFWriter(source, "llama")
    kind = gguf.GGMLQuantizationType[name]
    writer.add_tensor("w.weight", raw.reshape(*shape[:-1], -1), raw_dtype=kind)
    for write in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{write}")()
    writer.close()
    summary = checkpoint.dequantize_file(source, out, dtype, threads=2)
    (row,) = summary.rows
    assert (row.source, row.target) == (name, dtype)
    assert_same(checkpoint.load(out)["w.weight"], expected.astype(DTYPES[dtype]))
    assert checkpoint.verify(source, out).equal
    assert main(["diff", str(source), str(out)]) == 0


def test_files_that_the_package_splits(tmp_path: Path, framework: Framework) -> None:
    gguf = framework("gguf")
    for name, limit in (("whole", 0), ("model", 2)):
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", "llama", split_max_tensors=limit)
        for index in range(5):
            raw = random_blocks("Q4_K", (index + 1, 2))
            kind = gguf.GGMLQuantizationType.Q4_K
            writer.add_tensor(f"{index}.weight", raw.reshape(index + 1, -1), raw_dtype=kind)
        for write in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
            getattr(writer, f"write_{write}")()
        writer.close()
    first, out = tmp_path / "model-00001-of-00003.gguf", tmp_path / "out.safetensors"
    checkpoint.dequantize_file(first, out, "float32")
    assert len(checkpoint.load(out)) == 5
    assert checkpoint.verify(tmp_path / "whole.gguf", out).equal
    assert checkpoint.metadata(out) == checkpoint.metadata(tmp_path / "whole.gguf")


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "IQ3_S"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_are_counted(
    tmp_path: Path, name: str, dtype: str, framework: Framework, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = random_blocks(name, (30, 2), finite=False)
    exact = values_of(framework("gguf"), name, raw)
    with np.errstate(all="ignore"):
        values = exact.astype(DTYPES[dtype]).astype(np.float32)
    source, out = tmp_path / "model.gguf", tmp_path / "out.safetensors"
    gguf_file(source, {"w": stored(name, raw)})
    summary = checkpoint.dequantize_file(source, out, dtype)
    report = summary.rows[0].report
    assert report is not None
    assert (report.count, report.nan_out) == (values.size, np.isnan(values).sum())
    assert report.overflowed == np.isinf(values).sum()
    assert report.underflowed == ((values == 0) & (exact != 0)).sum()
    assert np.isnan(values).any()
    assert main(["dequantize", str(source), str(out), "--dtype", dtype, "--overwrite"]) == 1
    assert "are NaN" in capsys.readouterr().err


@pytest.mark.usefixtures("small_slabs")
def test_matrices_of_experts_are_transposed(tmp_path: Path, framework: Framework) -> None:
    """Those that are not named as a weight, as transformers has them."""
    raw = random_blocks("Q4_K", (2, 5, 3))
    expected = values_of(framework("gguf"), "Q4_K", raw).transpose(0, 2, 1)
    source = gguf_file(tmp_path / "model.gguf", {"experts.down_proj": stored("Q4_K", raw)})
    checkpoint.dequantize_file(source, tmp_path / "out.safetensors", "float32")
    loaded = checkpoint.load(tmp_path / "out.safetensors")["experts.down_proj"]
    assert_same(loaded, expected)


@pytest.mark.parametrize("name", NAMES)
def test_inspection_needs_no_package(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    raw = random_blocks(name, (3, 2))
    source = gguf_file(tmp_path / "model.gguf", {"w": stored(name, raw)})
    inspection = checkpoint.inspect(source)
    assert inspection.bits_per_weight() == {"w": raw.nbytes * 8 / (6 * BLOCK_TYPES[name][1])}
    assert f"  {name}  " in str(inspection)


def test_without_the_package_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: Framework
) -> None:
    """Of types that castwise writes none is needed, and the values are those of the package."""
    raw = {name: random_blocks(name, (3, 2)) for name in ("Q5_K", "IQ4_XS")}
    expected = values_of(framework("gguf"), "Q5_K", raw["Q5_K"])
    monkeypatch.setitem(sys.modules, "gguf", None)
    paths = {
        name: gguf_file(tmp_path / f"{name}.gguf", {"w": stored(name, blocks)})
        for name, blocks in raw.items()
    }
    out = tmp_path / "out.safetensors"
    with pytest.raises(
        CheckpointError, match=r"'w': it is IQ4_XS, .*pip install 'castwise\[gguf\]'"
    ):
        checkpoint.dequantize_file(paths["IQ4_XS"], out)
    assert not out.exists()
    checkpoint.dequantize_file(paths["Q5_K"], out, "float32")
    assert_same(checkpoint.load(out)["w"], expected)


def test_without_the_package_models_keep_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a whole model the error names the extra, either way; the names of llama.cpp need none."""
    folder, file = model(tmp_path / "model"), tmp_path / "model.gguf"
    checkpoint.transcode_file(folder, file, "gguf")
    checkpoint.dequantize_file(file, tmp_path / "before.safetensors")
    monkeypatch.setitem(sys.modules, "gguf", None)
    install = r"the package gguf .*pip install 'castwise\[gguf\]'"
    with pytest.raises(CheckpointError, match=install):
        checkpoint.transcode_file(folder, tmp_path / "out.gguf", "gguf")
    with pytest.raises(CheckpointError, match=rf"{install}; a \.safetensors file keeps"):
        checkpoint.dequantize_file(file, tmp_path / "out")
    for compare in (checkpoint.verify, checkpoint.diff):
        with pytest.raises(CheckpointError, match=rf"{install}; another \.gguf file, or a"):
            compare(folder, file)
        compare(file, tmp_path / "before.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("before.safetensors", "model", "model.gguf")
    ]
    checkpoint.dequantize_file(file, tmp_path / "after.safetensors")
    before, after = ((tmp_path / f"{one}.safetensors").read_bytes() for one in ("before", "after"))
    assert before == after
    assert not checkpoint.verify_loading(file, "llama.cpp").problems


def test_what_is_refused(tmp_path: Path) -> None:
    source = gguf_file(
        tmp_path / "model.gguf", {"w": stored("Q5_K", random_blocks("Q5_K", (1, 1)))}
    )
    out = tmp_path / "out.safetensors"
    with pytest.raises(
        CheckpointError, match=r"'w': it is Q5_K, .*arithmetic 'exact' is for other"
    ):
        checkpoint.dequantize_file(source, out, arithmetic="exact")
    short = gguf_file(tmp_path / "short.gguf", {"w": (13, (1, 128), bytes(88))})
    with pytest.raises(CheckpointError, match="rows are not blocks of 256"):
        checkpoint.dequantize_file(short, out)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(source.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="leaves no room"):
        checkpoint.inspect(cut)
    assert not out.exists()


def invalid_scales(name: str, scales: range) -> Array:
    """Return a row of random blocks for each byte that their scales may be."""
    raw = random_blocks(name, (len(scales), 3), finite=False)
    raw[..., : 4 if name == "NVFP4" else 1] = np.array(scales)[:, None, None]
    return raw


@pytest.mark.parametrize(
    ("name", "scales"), [("NVFP4", range(0x80)), ("MXFP4", range(0xFF))], ids=["NVFP4", "MXFP4"]
)
def test_every_scale_of_four_bits(
    framework: Framework, tmp_path: Path, name: str, scales: range
) -> None:
    """0x7F of NVFP4, no number, is 0 as in llama.cpp; zeros keep the sign of their codes."""
    raw = invalid_scales(name, scales)
    values = values_of(framework("gguf"), name, raw)
    source = gguf_file(tmp_path / "model.gguf", {"w": stored(name, raw)})
    checkpoint.dequantize_file(source, tmp_path / "out.npz", "float32")
    found = checkpoint.load(tmp_path / "out.npz")["w"]
    assert found.shape == values.shape
    assert (found == values).all()
    assert (np.signbit(found) == np.signbit(values))[values != 0].all()


def test_a_scale_that_no_encoder_writes(framework: Framework, tmp_path: Path) -> None:
    framework("gguf")
    source = gguf_file(
        tmp_path / "model.gguf", {"w": stored("NVFP4", invalid_scales("NVFP4", range(0x7F, 0x81)))}
    )
    with pytest.raises(CheckpointError, match=r"'w'.*a scale is the byte 0x80, which has a sign"):
        checkpoint.dequantize_file(source, tmp_path / "out.npz", "float32")
    assert not (tmp_path / "out.npz").exists()
    source = gguf_file(
        tmp_path / "model.gguf", {"w": stored("MXFP4", invalid_scales("MXFP4", range(0xFF, 0x100)))}
    )
    checkpoint.dequantize_file(source, tmp_path / "out.npz", "float32")
    assert np.isnan(checkpoint.load(tmp_path / "out.npz")["w"]).all()
