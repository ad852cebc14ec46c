"""What torchao saves through safetensors is decoded by its metadata, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning.decode import decode
from checkpoint_samples import assert_same
from numpy.typing import NDArray
from scheme_oracle import pack, swizzle

Array = NDArray[Any]
BF16 = ml_dtypes.bfloat16
NAME = "model.layers.0.mlp.up_proj.weight"
PREFIX = "model.layers.0.mlp.up_proj._weight_"
KEPT = {"model.norm.weight": np.arange(4, dtype=np.float32)}


class Saved:
    """One weight as `flatten_tensor_state_dict` of torchao 0.18 saves it."""

    def __init__(
        self,
        kind: str,
        shape: tuple[int, ...],
        block: tuple[int, ...],
        *,
        zero: bool = False,
        scales: Any = np.float32,
        **data: Any,
    ) -> None:
        draw = np.random.default_rng([*shape, *block, zero])
        grid = tuple(count // size for count, size in zip(shape, block, strict=True))
        scale = np.exp(draw.standard_normal(grid)).astype(scales)
        if kind == "Float8Tensor":
            codes = draw.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn)
        else:
            codes = draw.integers(-128, 128, shape, dtype=np.int8)
        self.parts: dict[str, Array] = {"qdata": codes, "scale": scale}
        wide = codes.astype(np.float32)
        if zero:
            self.parts["zero_point"] = draw.integers(-128, 128, grid, dtype=np.int8)
            wide = wide - spread(self.parts["zero_point"], block)
        self.plain = wide * spread(scale, block)
        self.described = {
            "_type": kind,
            "_data": {"block_size": [*block], **data},
            "_tensor_data_names": [*self.parts],
        }
        self.names = [NAME, *KEPT]

    def write(self, path: Path) -> Path:
        metadata = {NAME: json.dumps(self.described), "tensor_names": json.dumps(self.names)}
        metadata |= dict.fromkeys(KEPT, '{"_type": "Tensor"}')
        tensors = {PREFIX + name: part for name, part in self.parts.items()}
        checkpoint.save(path, tensors | KEPT, metadata={**metadata, "format": "pt"})
        return path


class Blocks(Saved):
    """One weight in blocks of rows, as `MXTensor` and `NVFP4Tensor` save it."""

    def __init__(
        self, element: str, shape: tuple[int, ...], *, tiled: bool, level: int | None = None
    ) -> None:
        draw, is_mx = np.random.default_rng([*shape, tiled]), element != "nvfp4"
        size = 32 if is_mx else 16
        grid = (*shape[:-1], shape[-1] // size)
        raw = draw.integers(100, 140, grid, np.uint8)
        scale = raw.view(ml_dtypes.float8_e8m0fnu if is_mx else ml_dtypes.float8_e4m3fn)
        if element.startswith("float8"):
            codes = draw.standard_normal(shape).astype(element)
            self.plain = codes.astype(np.float32)
        elif element.startswith("fp6"):
            codes = draw.integers(0, 64, shape, np.uint8)  # one in a byte
            self.plain = codes.view(f"float6_{element[4:]}fn").astype(np.float32)
        else:
            codes = draw.integers(0, 16, shape, np.uint8)
            self.plain = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
            codes = pack(codes, 4)
        self.parts = {"qdata": codes, "scale": scale}
        wide = scale.astype(np.float32)
        if level is not None:
            levels = np.float32([0.01, 0.3])[:level].reshape((level, 1, 1) if level > 1 else ())
            self.parts["per_tensor_scale"] = levels
            wide = levels * wide
        if tiled:
            matrices = raw.reshape(-1, *grid[-2:])
            tiles = np.stack([swizzle(one) for one in matrices]).view(scale.dtype)
            rows, columns = tiles.shape[-2:]
            self.parts["scale"] = tiles.reshape(*shape[:-2], rows // 4, columns * 4)
        self.plain = self.plain * np.repeat(wide, size, axis=-1)
        data: dict[str, Any] = {"block_size": size, "is_swizzled_scales": tiled}
        if is_mx:
            name = "float4_e2m1fn_x2" if element == "float4" else element
            known = {"_type": "torch.dtype", "_data": name}
            data["elem_dtype"] = name if element.startswith("fp6") else known
        self.described = {
            "_type": "MXTensor" if is_mx else "NVFP4Tensor",
            "_data": data,
            "_tensor_data_names": [*self.parts],
        }
        self.names = [NAME, *KEPT]


def spread(values: Array, block: tuple[int, ...]) -> Array:
    """Repeat what each block has for its elements."""
    wide = values.astype(np.float32)
    for axis, size in enumerate(block):
        wide = wide.repeat(size, axis)
    return np.asarray(wide)


SAVED: dict[str, Callable[[], Saved]] = {
    "float8, rows": lambda: Saved("Float8Tensor", (48, 64), (1, 64)),
    "float8, tensor": lambda: Saved("Float8Tensor", (48, 64), (48, 64)),
    "float8, blocks": lambda: Saved("Float8Tensor", (48, 64), (16, 32)),
    "float8, experts": lambda: Saved("Float8Tensor", (3, 48, 64), (1, 1, 64)),
    "int8, rows": lambda: Saved("Int8Tensor", (48, 64), (1, 64)),
    "int8, zero points": lambda: Saved("Int8Tensor", (48, 64), (1, 64), zero=True),
    "int8, tensor": lambda: Saved("Int8Tensor", (48, 64), (48, 64), zero=True),
    "int8, groups": lambda: Saved("Int8Tensor", (48, 64), (1, 32), zero=True, scales=BF16),
    "intx, groups": lambda: Saved(
        "IntxUnpackedToInt8Tensor",
        (6, 64),
        (1, 16),
        zero=True,
        scales=BF16,
        target_dtype={"_type": "torch.dtype", "_data": "int4"},
    ),
    "mxfp4": lambda: Blocks("float4", (48, 64), tiled=False),
    "mxfp4, tiles": lambda: Blocks("float4", (200, 160), tiled=True),
    "mxfp8, tiles": lambda: Blocks("float8_e4m3fn", (130, 64), tiled=True),
    "mxfp8 of e5m2, tiles of experts": lambda: Blocks("float8_e5m2", (2, 128, 160), tiled=True),
    "mxfp6": lambda: Blocks("fp6_e2m3", (48, 64), tiled=False),
    "mxfp6 of e3m2, tiles": lambda: Blocks("fp6_e3m2", (200, 160), tiled=True),
    "nvfp4": lambda: Blocks("nvfp4", (48, 80), tiled=False),
    "nvfp4, tiles": lambda: Blocks("nvfp4", (200, 80), tiled=True, level=1),
    "nvfp4, tiles of experts": lambda: Blocks("nvfp4", (2, 128, 80), tiled=True, level=2),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SAVED)
def test_a_weight_is_decoded(tmp_path: Path, name: str, dtype: str) -> None:
    saved = SAVED[name]()
    source, out = saved.write(tmp_path / "in.safetensors"), tmp_path / "out.safetensors"
    (weight,) = checkpoint.inspect(source).quantization.weights  # type: ignore[union-attr]
    assert (weight.name, weight.recipes) == (NAME, ("torchao",))
    checkpoint.dequantize_file(source, out, dtype)
    found = checkpoint.load(out)
    assert_same(found.pop(NAME), saved.plain.astype(dtype if dtype == "float32" else BF16))
    assert found.keys() == KEPT.keys()
    assert checkpoint.metadata(out) == {"format": "pt"}
    assert checkpoint.inspect(out).quantization is None


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    """Beside metadata, config.json states the method and no blocks."""
    saved, folder = SAVED["int8, groups"](), tmp_path / "model"
    folder.mkdir()
    saved.write(folder / "model.safetensors")
    section = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnly"}}}
    config = {"model_type": "llama", "dtype": "bfloat16", "quantization_config": section}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint.dequantize_file(folder, tmp_path / "out")
    assert_same(checkpoint.load(tmp_path / "out")[NAME], saved.plain.astype(BF16))
    text = json.loads((tmp_path / "out" / "config.json").read_text())
    assert text == {"model_type": "llama", "dtype": "bfloat16"}


def described(**changes: Any) -> Callable[[Saved], None]:
    def change(saved: Saved) -> None:
        saved.described |= changes

    return change


def blocks(value: Any) -> Callable[[Saved], None]:
    return lambda saved: saved.described["_data"].update(block_size=value)  # type: ignore[attr-defined]


def part(name: str, change: Callable[[Array], Array] | None) -> Callable[[Saved], None]:
    def apply(saved: Saved) -> None:
        old = saved.parts.pop(name)
        if change is not None:
            saved.parts[name] = change(old)

    return apply


FAULTS: dict[str, tuple[Callable[[Saved], None], str]] = {
    "no scale": (part("scale", None), "payload without its scale|metadata state .*_scale"),
    "no zero points": (part("zero_point", None), r"metadata state .*_weight_zero_point, .* there"),
    "no codes": (part("qdata", None), "without its payload"),
    "a scale turned": (part("scale", np.transpose), r"'.*_scale' has the shape \(2, 48\).* needs"),
    "a scale too few": (part("scale", lambda x: x[:-1]), r"'.*_scale' has the shape \(47, 2\)"),
    "zero points of one": (part("zero_point", lambda x: x[:1, :1]), "'.*_zero_point' has the sh"),
    "scales of ints": (
        part("scale", lambda x: x.astype(np.int32)),
        "_scale' is int32, and torchao's is",
    ),
    "float zero points": (
        part("zero_point", lambda x: x.astype(np.float32)),
        "is float32, .* int8",
    ),
    "codes of float8": (
        part("qdata", lambda x: x.view(ml_dtypes.float8_e4m3fn)),
        "states int8_.*, but the payload is float8_e4m3fn",
    ),
    "codes without a sign": (
        part("qdata", lambda x: x.view(np.uint8)),
        "state Int8Tensor, and '.*_qdata' is uint8",
    ),
    "another class": (described(_type="Float8Tensor"), "states fp8_.*, but the payload is int8"),
    "int4": (described(_type="Int4Tensor"), "cannot decode torchao's Int4Tensor yet; torchao"),
    "no class": (described(_type=None), "torchao's None"),
    "no data": (described(_data=None), "no metadata state"),
    "no names": (described(_tensor_data_names=None), "no metadata state"),
    "blocks of another size": (blocks([1, 16]), "'.*' has the shape .* needs|need a scale of"),
    "blocks that do not divide": (blocks([1, 24]), "do not divide the shape"),
    "a block of one number": (blocks([32]), r"block_size=\[32\] of the shape \(48, 64\)"),
    "a block of text": (blocks("all"), "block_size='all'"),
    "a block of nothing": (blocks([1, 0]), r"block_size=\[1, 0\]"),
}


def stated(**data: Any) -> Callable[[Saved], None]:
    return lambda saved: saved.described["_data"].update(data)  # type: ignore[attr-defined]


FAULTS_OF_TILES: dict[str, tuple[Callable[[Saved], None], str]] = {
    "no scale": (part("scale", None), "without its scale|metadata state"),
    "no global scale": (part("per_tensor_scale", None), "metadata state .*per_tensor_scale"),
    "a scale turned": (part("scale", np.transpose), r"\(32, 64\), and the shape \(64, 32\)"),
    "a tile too few": (part("scale", lambda x: x[:32]), r"\(32, 32\), and the shape \(64, 32\)"),
    "plain scales": (
        stated(is_swizzled_scales=False),
        r"\(64, 32\), and the shape \(200, 5\)",
    ),
    "no scales but tiles": (stated(is_swizzled_scales="yes"), "is_swizzled_scales='yes'"),
    "blocks of another size": (stated(block_size=32), "block_size=32 .* nvfp4 are of 16"),
    "scales of another format": (
        part("scale", lambda x: x.view(np.uint8)),
        "_scale' is uint8, and torchao's NVFP4Tensor of nvfp4 has float8_e4m3fn",
    ),
    "codes of another format": (
        part("qdata", lambda x: x.view(np.int8)),
        "the payload is int8|_qdata' is int8",
    ),
    "one axis": (part("qdata", np.ravel), "which is not a matrix"),
    "a column too few": (part("qdata", lambda x: x[:, :-1]), "_scale' has the shape"),
    "elements of 5 bits": (
        lambda saved: saved.described.update(
            _type="MXTensor", _data={"elem_dtype": "fp5", "block_size": 32}
        ),
        "its per_tensor_scale|MXTensor of fp5 yet",
    ),
}


def assert_refused(saved: Saved, folder: Path, words: str) -> None:
    """Check the message, and that nothing is written."""
    source = saved.write(folder / "in.safetensors")
    with pytest.raises(CheckpointError, match=words):
        checkpoint.dequantize_file(source, folder / "out.safetensors")
    assert [one.name for one in folder.iterdir()] == ["in.safetensors"]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", FAULTS_OF_TILES)
def test_a_fault_of_tiles_is_refused(tmp_path: Path, name: str) -> None:
    change, words = FAULTS_OF_TILES[name]
    saved = Blocks("nvfp4", (200, 80), tiled=True, level=1)
    change(saved)
    assert_refused(saved, tmp_path, words)


def test_codes_of_more_bits_are_refused(tmp_path: Path) -> None:
    saved = SAVED["mxfp6"]()
    saved.parts["qdata"][3, 5] |= 64
    words = (
        r"in\.safetensors cannot be decoded: '.*_weight_qdata' has codes of more than 6 bits; save"
    )
    assert_refused(saved, tmp_path, words)


def test_tiles_in_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slab may begin and end inside a tile."""
    monkeypatch.setattr(decode, "_SLAB_ELEMENTS", 80 * 30)
    saved = SAVED["nvfp4, tiles of experts"]()
    source, out = saved.write(tmp_path / "in.safetensors"), tmp_path / "out.safetensors"
    checkpoint.dequantize_file(source, out)
    assert_same(checkpoint.load(out)[NAME], saved.plain.astype(BF16))


def test_a_weight_without_rows(tmp_path: Path) -> None:
    saved = Blocks("nvfp4", (200, 80), tiled=True)
    for name, part in saved.parts.items():
        saved.parts[name] = part[:0]
    source, out = saved.write(tmp_path / "in.safetensors"), tmp_path / "out.safetensors"
    checkpoint.dequantize_file(source, out)
    assert checkpoint.load(out)[NAME].shape == (0, 80)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(tmp_path: Path, name: str) -> None:
    change, words = FAULTS[name]
    saved = SAVED["int8, groups"]()
    change(saved)
    assert_refused(saved, tmp_path, words)


def test_scaled_inputs_are_refused(tmp_path: Path) -> None:
    saved = SAVED["int8, rows"]()
    saved.parts["act_pre_scale"] = np.ones(64, np.float32)
    saved.described["_tensor_data_names"] = [*saved.parts]
    with pytest.raises(CheckpointError, match="cannot decode with its act_pre_scale yet"):
        checkpoint.dequantize_file(
            saved.write(tmp_path / "in.safetensors"), tmp_path / "out.safetensors"
        )
