"""Quantized checkpoints are decoded weight by weight, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning.decode import decode
from checkpoint_samples import assert_same
from producer_models import KEPT, MODELS, Draw, write
from producer_models.deepseek import two_weights


@pytest.mark.parametrize("name", MODELS)
def test_a_weight_is_decoded(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    source, out = write(tmp_path / "model", model), tmp_path / "out"
    summary = checkpoint.dequantize_file(source, out)
    found = checkpoint.load(out)
    assert set(found) == set(model.plain) | set(KEPT)
    for key, array in (model.plain | KEPT).items():
        assert_same(found[key], array)
    decoded = {row.name for row in summary.rows if row.target is not None}
    assert decoded == {key for key in model.plain if not key.endswith("bias")}
    assert checkpoint.inspect(out).quantization is None
    assert {one.name for one in out.iterdir()} == {"model.safetensors", "config.json"}
    config = json.loads((out / "config.json").read_text())
    assert config == {"model_type": "llama", "dtype": "bfloat16"}
    assert set(checkpoint.metadata(out)) <= {"kept"}


@pytest.mark.thinned(7)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("elements", [1, 5000])
def test_slabs_do_not_matter(
    tmp_path: Path, name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "_SLAB_ELEMENTS", elements)
    model = MODELS[name]()
    out = tmp_path / "out"
    checkpoint.dequantize_file(write(tmp_path / "model", model), out)
    found = checkpoint.load(out)
    for key, array in model.plain.items():
        assert_same(found[key], array)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("modelopt, int4", "a.weight_scale"),
        ("modelopt, w4a8, scaled inputs", "a.pre_quant_scale"),
        ("gptq, 4 bits", "a.scales"),
        ("gptq, 4 bits", "a.g_idx"),
        ("compressed-tensors, words of 4, zero points", "a.weight_zero_point"),
        ("bitsandbytes, nf4", "a.weight.quant_map"),
    ],
)
def test_a_last_axis_of_one_element_does_not_matter(tmp_path: Path, name: str, part: str) -> None:
    model = MODELS[name]()
    model.tensors[part] = np.asarray(model.tensors[part])[..., None]
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")
    assert_same(checkpoint.load(tmp_path / "out")["a.weight"], model.plain["a.weight"])


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4, 5), (0, 3)])
def test_one_scale_for_any_number_of_axes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weight, scale = Draw().float8(*shape), np.float32(0.25).reshape(())
    model = MODELS["autofp8"]()
    model.tensors = {"a.weight": weight.reshape(shape), "a.weight_scale": scale}
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out", "float32")
    expected = (weight.astype(np.float32) * scale).reshape(shape)
    assert_same(checkpoint.load(tmp_path / "out")["a.weight"], expected)


ROWS, COLUMNS = 256, 384
SHAPES: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {
    "tensor": ((ROWS, COLUMNS), ()),
    "tensor, one axis": ((ROWS, COLUMNS), (1,)),
    "rows": ((ROWS, COLUMNS), (ROWS, 1)),
    "rows, one axis": ((ROWS, COLUMNS), (ROWS,)),
    "rows of a square": ((ROWS, ROWS), (ROWS, 1)),
    "blocks of 128": ((ROWS, COLUMNS), (2, 3)),
    "blocks of 64 in a square": ((ROWS, ROWS), (4, 4)),
    "blocks in one column": ((ROWS, 128), (2, 1)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("has_inputs", [False, True])
def test_float8_that_shapes_tell(
    tmp_path: Path, shapes: tuple[tuple[int, int], tuple[int, ...]], has_inputs: bool
) -> None:
    """Nothing states how it is stored, and every producer of such shapes means the same."""
    shape, grid = shapes
    weight, scale = Draw().float8(*shape), Draw().scales(*grid)
    tensors = {"a.weight": weight, "a.weight_scale": scale}
    if has_inputs:
        tensors["a.input_scale"] = np.float32(1).reshape(())
    checkpoint.save(tmp_path / "in.safetensors", tensors)
    checkpoint.dequantize_file(tmp_path / "in.safetensors", tmp_path / "out.safetensors", "float32")
    found = checkpoint.load(tmp_path / "out.safetensors")
    spread = scale.reshape(-1, 1) if grid == (ROWS,) else scale
    if spread.ndim == 2:
        high, wide = (length // count for length, count in zip(shape, spread.shape, strict=True))
        spread = np.repeat(np.repeat(spread, high, 0), wide, 1)
    assert_same(found.pop("a.weight"), weight.astype(np.float32) * spread)
    assert found == {}


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ((ROWS, ROWS), (ROWS,)),  # of rows or of columns
        ((200, COLUMNS), (2, 3)),  # blocks of 100 to 199 rows
        ((200, 300), (2, 3)),  # squares of 100, or of 128 with less at the ends
        ((ROWS, COLUMNS), (2, 6)),
        ((ROWS, COLUMNS), (COLUMNS,)),
        ((2, ROWS, COLUMNS), (2, ROWS, 1)),
    ],
)
def test_float8_that_shapes_do_not_tell(
    tmp_path: Path, shape: tuple[int, ...], grid: tuple[int, ...]
) -> None:
    tensors = {"a.weight": Draw().float8(*shape), "a.weight_scale": Draw().scales(*grid)}
    checkpoint.save(tmp_path / "in.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"no file states which producer stored 'a\.weight'"):
        checkpoint.dequantize_file(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_only_some_weights_beside_the_list_of_minimax(tmp_path: Path) -> None:
    """`ignored_layers` counts for transformers only where no other list is."""
    model = two_weights()
    model.config["quantization_config"]["ignored_layers"] = ["lm_head"]
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out", only="b.*")
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert section["modules_to_not_convert"] == ["lm_head", "b"]


@pytest.mark.parametrize("value", [5, "lm_head", {"lm_head": 1}])
def test_only_some_weights_beside_a_list_that_is_none(tmp_path: Path, value: object) -> None:
    """A value of another type counts as if it were not there."""
    model = two_weights()
    model.config["quantization_config"]["modules_to_not_convert"] = value
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out", only="b.*")
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert section["modules_to_not_convert"] == ["b"]


def test_only_some_weights_where_a_section_is_in_another(tmp_path: Path) -> None:
    """The outer section is the first form of compressed-tensors."""
    model = MODELS["compressed-tensors, float8 channel"]()
    for tensors in (model.tensors, model.plain):
        tensors |= {f"b{name[1:]}": array for name, array in tensors.items()}
    section = model.config.pop("quantization_config")
    stated = {"compression_config": {"quantization_config": section, "sparsity_config": {}}}
    model.config |= {
        "text_config": stated,
        "vision_config": {"quantization_config": None, "depth": 2},
        **stated,
        "last": 1,
    }
    out = tmp_path / "out"
    checkpoint.dequantize_file(write(tmp_path / "model", model), out, only="b.*")
    excepted = section | {"ignore": ["lm_head", "b"]}
    config = json.loads((out / "config.json").read_text())
    for part in (config, config["text_config"]):
        assert part["compression_config"]["quantization_config"] == excepted
    assert config["vision_config"] == model.config["vision_config"]
    assert config["last"] == 1
    assert_same(checkpoint.load(out)["b.weight"], model.plain["b.weight"])


def test_only_some_weights(tmp_path: Path) -> None:
    """The others stay quantized, and the configuration says so."""
    model, out = two_weights(), tmp_path / "out"
    source = write(tmp_path / "model", model)
    checkpoint.dequantize_file(source, out, only="b.*")
    found = checkpoint.load(out)
    kept = {name: array for name, array in model.tensors.items() if name.startswith("a.")}
    for key, array in ({"b.weight": model.plain["b.weight"]} | kept | KEPT).items():
        assert_same(found[key], array)
    assert len(found) == 1 + len(kept) + len(KEPT)
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["modules_to_not_convert"] == ["b"]
    assert config["dtype"] == "float32"
    again = tmp_path / "again"
    checkpoint.dequantize_file(out, again)
    for key, array in (model.plain | KEPT).items():
        assert_same(checkpoint.load(again)[key], array)
    awq = MODELS["awq"]()
    awq.tensors |= {f"b{name[1:]}": array for name, array in awq.tensors.items()}
    source = write(tmp_path / "awq", awq)
    with pytest.raises(CheckpointError, match="cannot except single modules"):
        checkpoint.dequantize_file(source, tmp_path / "no", only="b.*")
