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
from checkpoint_samples import assert_same
from numpy.typing import NDArray

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


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(tmp_path: Path, name: str) -> None:
    change, words = FAULTS[name]
    saved = SAVED["int8, groups"]()
    change(saved)
    source = saved.write(tmp_path / "in.safetensors")
    with pytest.raises(CheckpointError, match=words):
        checkpoint.dequantize_file(source, tmp_path / "out.safetensors")
    assert [one.name for one in tmp_path.iterdir()] == ["in.safetensors"]


def test_scaled_inputs_are_refused(tmp_path: Path) -> None:
    saved = SAVED["int8, rows"]()
    saved.parts["act_pre_scale"] = np.ones(64, np.float32)
    saved.described["_tensor_data_names"] = [*saved.parts]
    with pytest.raises(CheckpointError, match="cannot decode with its act_pre_scale yet"):
        checkpoint.dequantize_file(
            saved.write(tmp_path / "in.safetensors"), tmp_path / "out.safetensors"
        )
