"""A cast refuses to touch codes and scales unless it is told to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from checkpoint_samples import assert_same, floats, write_sharded
from ml_dtypes import float8_e4m3fn
from plain_models import CONFIGS, save
from producer_models import LAYOUTS, RECORDED, Model, in_config, recorded, write_zeros
from producer_models.deepseek import BLOCKS_OF_128

BLOCK = {
    "model.layers.0.q_proj.weight": floats(256 * 256).reshape(256, 256).astype(float8_e4m3fn),
    "model.layers.0.q_proj.weight_scale_inv": floats(4).reshape(2, 2),
    "model.norm.weight": floats(8),
}
WEIGHT, SCALE, NORM = BLOCK


def deepseek(folder: Path, **more: Any) -> Path:
    """A folder with one weight of float8 in blocks of 128x128, and a norm."""
    folder.mkdir()
    checkpoint.save(folder / "model.safetensors", BLOCK | more)
    (folder / "config.json").write_text(json.dumps(BLOCKS_OF_128["config.json"]))
    return folder


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [*RECORDED, *LAYOUTS])
def test_no_quantized_model_is_cast(tmp_path: Path, name: str) -> None:
    model = recorded(name) if name in RECORDED else LAYOUTS[name][0]
    folder = write_zeros(tmp_path / "model", model)
    found = checkpoint.inspect(folder).quantization
    assert found is not None
    parts = [name for one in found.weights for name in (one.payload, *one.parts)]
    codes = {model.tensors[name][0] for name in parts}
    if codes <= {"U8", "I8", "I32", "U32", "I64"}:  # integers stay as they are
        checkpoint.cast_file(folder, tmp_path / "out", "bfloat16")
        return
    dtype = "bfloat16" if codes - {"BF16", "U8", "I8", "I32", "U32", "I64"} else "float32"
    first = found.weights[0]
    with pytest.raises(CheckpointError, match="is quantized") as error:
        checkpoint.cast_file(folder, tmp_path / "out", dtype)
    assert not (tmp_path / "out").exists()
    for part in (first.scheme or "unknown scheme", first.payload, "'keep'", "raw=True"):
        assert part in str(error.value)
    checkpoint.cast_file(folder, tmp_path / "out", dtype, raw=True)


def test_the_message(tmp_path: Path) -> None:
    folder = deepseek(tmp_path / "model")
    with pytest.raises(CheckpointError) as error:
        checkpoint.cast_file(folder, tmp_path / "out", "bfloat16")
    assert str(error.value) == (
        f"{folder} is quantized: the payload 'model.layers.0.q_proj.weight' is fp8_block in blocks "
        "of 128x128 (deepseek) with the scale 'model.layers.0.q_proj.weight_scale_inv'; "
        "'model.layers.0.q_proj.weight' would become bfloat16 (1 of 1 weights would change). "
        "To decode it: checkpoint.dequantize_file. Else map payloads and scales to 'keep' "
        "(dtype_map), or cast them as if they were plain numbers (raw=True)"
    )


def test_a_scale_alone_is_refused_and_what_keeps_both_is_not(tmp_path: Path) -> None:
    folder, out = deepseek(tmp_path / "model"), tmp_path / "out"
    keep = {r".*q_proj\.weight": "keep", "default": "bfloat16"}
    with pytest.raises(CheckpointError, match=r"weight_scale_inv' would become bfloat16"):
        checkpoint.cast_file(folder, out, dtype_map=keep)
    checkpoint.cast_file(folder, out, dtype_map={r".*norm.*": "bfloat16"})
    written = checkpoint.load(out)
    assert written[NORM].dtype == "bfloat16"
    assert_same(written[WEIGHT], BLOCK[WEIGHT])
    assert_same(written[SCALE], BLOCK[SCALE])
    assert checkpoint.inspect(out).quantization == checkpoint.inspect(folder).quantization
    # The format that a tensor has already changes nothing.
    same = {WEIGHT: "float8_e4m3fn", SCALE: "float32", NORM: "float16"}
    checkpoint.cast_file(folder, out, dtype_map=same, overwrite=True)
    assert_same(checkpoint.load(out)[WEIGHT], BLOCK[WEIGHT])


def test_raw_casts_codes_and_scales_as_numbers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    checkpoint.cast_file(deepseek(tmp_path / "model"), out, "bfloat16", raw=True)
    written = checkpoint.load(out)
    for name, array in BLOCK.items():
        assert_same(written[name], array.astype("bfloat16"))


def test_a_plain_cast_to_float8_is_not_quantized(tmp_path: Path) -> None:
    folder, narrow, back = (tmp_path / name for name in ("model", "narrow", "back"))
    folder.mkdir()
    tensors = {"a.weight": floats(64).reshape(8, 8), "a.scale": floats(8), "norm": floats(8)}
    checkpoint.save(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text('{"dtype": "float32"}')
    for dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3", "int8", "uint8"):
        checkpoint.cast_file(folder, narrow, {r".*": dtype}, overwrite=True, as_bytes=True)
        assert checkpoint.inspect(narrow).quantization is None
        checkpoint.cast_file(narrow, back, {r".*": "float32"}, overwrite=True, as_bytes=True)
    checkpoint.cast_file(folder, narrow, {r".*weight": "float8_e4m3fn"}, overwrite=True)
    assert checkpoint.inspect(narrow).quantization is None


def test_a_scale_in_another_shard_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shards = {"a.safetensors": {WEIGHT: BLOCK[WEIGHT]}, "b.safetensors": {SCALE: BLOCK[SCALE]}}
    write_sharded(folder, shards)
    (folder / "config.json").write_text(json.dumps(BLOCKS_OF_128["config.json"]))
    found = checkpoint.inspect(folder).quantization
    assert found is not None
    assert [(one.payload, one.scale) for one in found.weights] == [(WEIGHT, SCALE)]
    with pytest.raises(CheckpointError, match="1 of 1 weights"):
        checkpoint.cast_file(folder, tmp_path / "out", "float16")
    # One shard by itself: the configuration beside it says that more is expected.
    with pytest.raises(CheckpointError, match=f"{WEIGHT}' is a payload without its scale '{SCALE}"):
        checkpoint.cast_file(folder / "a.safetensors", tmp_path / "a.safetensors", "float16")
    with pytest.raises(CheckpointError, match=f"{SCALE}' is a scale without its payload '{WEIGHT}"):
        checkpoint.cast_file(folder / "b.safetensors", tmp_path / "b.safetensors", "float16")


def test_the_scales_of_a_cache_are_kept(tmp_path: Path) -> None:
    folder = deepseek(tmp_path / "model", **{"model.layers.0.k_proj.k_scale": floats(1)})
    for key, what in ((r".*\.k_scale", "'model.layers.0.k_proj.k_scale' is a scale of it"),):
        with pytest.raises(CheckpointError, match=what):
            checkpoint.cast_file(folder, tmp_path / "out", {key: "bfloat16"})
    # Of a model that is not quantized they are tensors like any other.
    plain = write_zeros(tmp_path / "plain", Model({"a.k_scale": ("F32", (1,))}, {}, {}))
    checkpoint.cast_file(plain, tmp_path / "out", "bfloat16")


def test_a_method_that_is_not_known_refuses_every_change(tmp_path: Path) -> None:
    tensors: Any = {"a.indices": ("I8", (8, 2)), "a.vectors": ("F16", (8,)), "norm": ("F32", (8,))}
    folder = write_zeros(tmp_path / "model", Model(tensors, in_config(quant_method="vptq"), {}))
    match = r"does not know the method \(config.json: vptq\); 'a.vectors' would become bfloat16"
    with pytest.raises(CheckpointError, match=match):
        checkpoint.cast_file(folder, tmp_path / "out", "bfloat16")
    checkpoint.cast_file(folder, tmp_path / "out", {"default": "keep"})
    checkpoint.cast_file(folder, tmp_path / "out", "bfloat16", raw=True, overwrite=True)


def test_other_containers(tmp_path: Path) -> None:
    codes = {"a.qweight": np.ones((16, 64), np.int32), "a.scales": floats(128).reshape(2, 64)}
    checkpoint.save(tmp_path / "model.npz", codes)
    with pytest.raises(CheckpointError, match=r"'a.qweight' is int_group \(gptq\)"):
        checkpoint.cast_file(tmp_path / "model.npz", tmp_path / "out.safetensors", "bfloat16")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = deepseek(tmp_path / "model"), tmp_path / "out"
    cast = ["cast", str(folder), str(out), "--dtype", "bfloat16"]
    assert main(cast) == 2
    assert "is fp8_block in blocks of 128x128 (deepseek)" in capsys.readouterr().err
    assert not out.exists()
    assert main([*cast, "--raw"]) == 0


def test_inspect_shows_what_is_quantized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = deepseek(tmp_path / "model", **{"lost.weight_scale_inv": floats(1)})
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out.split("\n\n")[2].splitlines()
    assert [" ".join(line.split()) for line in shown if "---" not in line] == [
        "quantized weights, stated in config.json: fp8",
        "inputs are quantized while the model runs",
        "weight scheme block producer payload with bits number",
        "model.layers.*.q_proj.weight fp8_block 128x128 deepseek weight weight_scale_inv 8.00 1",
        "orphan: lost.weight_scale_inv: a scale without its payload lost.weight",
    ]
    assert main(["inspect", "--json", str(folder)]) == 0
    found = checkpoint.inspect(folder)
    assert found.quantization is not None
    assert json.loads(capsys.readouterr().out)["quantization"] == found.quantization.to_dict()
    assert found.quantization.to_dict() == {
        "stated": ["config.json: fp8"],
        "unknown": None,
        "inputs": "dynamic",
        "weights": [
            {
                "name": WEIGHT,
                "scheme": "fp8_block",
                "block": [128, 128],
                "recipes": ["deepseek"],
                "payload": WEIGHT,
                "parts": {SCALE: "scale"},
                "problem": None,
                "foreign": [],
            }
        ],
        "orphans": [
            {
                "name": "lost.weight_scale_inv",
                "is_payload": False,
                "missing": ["lost.weight"],
                "plain": None,
            }
        ],
        "others": [],
        "unreadable": [],
    }


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("a.up_proj_scales", np.full((2, 8, 1), 127, np.uint8)),
        ("a.g_idx", np.arange(8, dtype=np.int32)),
        ("a.scale_weight", np.ones(1, np.float32)),
        ("a.qscale_weight", np.ones((), np.float32)),
        ("a.weight_scale_inv", np.ones((1, 1), np.float32)),
    ],
)
def test_what_is_left_of_a_weight_is_named_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, array: Any
) -> None:
    """Nothing else of the model is quantized, or says that anything is."""
    folder, out = tmp_path / "model", str(tmp_path / "out")
    tensors = {"a.other.weight": floats(64, 64), name: array}
    write_sharded(folder, {"model.safetensors": tensors})
    for command in (
        ["dequantize", str(folder), out],
        ["quantize", str(folder), out, "--scheme", "fp8_tensor"],
        ["transcode", str(folder), out, "--to", "compressed-tensors"],
        ["verify", str(folder), str(folder)],
    ):
        assert main(command) == 2
        said = capsys.readouterr()
        assert (said.out, repr(name) in said.err) == ("", True), said.err
        assert [one.name for one in tmp_path.iterdir()] == ["model"]
    assert main(["inspect", str(folder)]) == 0
    assert f"orphan: {name}: a scale without its payload" in capsys.readouterr().out


def quantized_lines(
    folder: Path, tensors: Any, config: Any, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What the command shows of quantized weights, without its table."""
    assert main(["inspect", str(write_zeros(folder, Model(tensors, config, {})))]) == 0
    shown = capsys.readouterr().out.split("\n\n")[2].splitlines()
    return [line for line in shown if ":" in line or line.startswith(("  ", "quantized"))]


def test_inspect_shows_what_is_wrong_once_for_all_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors: dict[str, Any] = {}
    for layer in range(3):
        name = f"layers.{layer}"
        tensors |= {f"{name}.a.weight": ("F8_E4M3", (192, 8))}
        tensors |= {f"{name}.a.weight_scale_inv": ("F32", (3, 1))}
        tensors |= {f"{name}.b.weight": ("F8_E4M3", (8, 8)), f"{name}.k_scale": ("F32", (1,))}
    assert quantized_lines(tmp_path / "a", tensors, BLOCKS_OF_128, capsys) == [
        "quantized weights, stated in config.json: fp8",
        "  inputs are quantized while the model runs",
        "problem: layers.*.a.weight: blocks of 128x128 need a scale of shape (2, 1), and it has "
        "(3, 1) (3 times)",
        "orphan: layers.*.b.weight: a payload without its scale layers.*.b.weight_scale_inv "
        "(3 times)",
        "other scale or marker: layers.*.k_scale (3 times)",
    ]
    plain = {"a.weight": ("BF16", (8, 8))}
    assert quantized_lines(tmp_path / "b", plain, BLOCKS_OF_128, capsys) == [
        "quantized weights, stated in config.json: fp8",
        "  no tensor is stored so",
    ]
    codes = {"a.codes": ("I8", (8, 8))}
    shown = quantized_lines(tmp_path / "c", codes, in_config(quant_method="aqlm"), capsys)
    assert "  'aqlm' is not known to castwise: any tensor may be part of it" in shown


@pytest.mark.parametrize("name", CONFIGS)
def test_models_of_transformers_are_cast(
    tmp_path: Path, framework: Callable[[str], ModuleType], name: str
) -> None:
    framework("torch"), framework("transformers")
    model, narrow, out = (tmp_path / part for part in ("model", "narrow", "out"))
    save(name, model)
    assert checkpoint.inspect(model).quantization is None
    checkpoint.cast_file(model, narrow, "float8_e4m3fn")
    assert checkpoint.inspect(narrow).quantization is None
    checkpoint.cast_file(narrow, out, "float32")
    checkpoint.cast_file(model, narrow, {".*weight": "float8_e4m3fn"}, overwrite=True)
    assert checkpoint.inspect(narrow).quantization is None


def test_float8_of_transformers_is_not_cast(
    tmp_path: Path, framework: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    framework("torch")
    transformers = framework("transformers")
    save("LlamaModel", tmp_path / "plain")
    quantizer = transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING["fp8"]
    # It refuses a machine without a GPU; quantizing needs none.
    monkeypatch.setattr(quantizer, "validate_environment", lambda *_, **__: None)
    config = transformers.FineGrainedFP8Config(weight_block_size=(8, 8))
    made = transformers.LlamaModel.from_pretrained(tmp_path / "plain", quantization_config=config)
    made.save_pretrained(tmp_path / "model")
    found = checkpoint.inspect(tmp_path / "model").quantization
    assert found is not None
    assert {(one.scheme, one.block) for one in found.weights} == {("fp8_block", (8, 8))}
    assert len(found.weights) == 7
    with pytest.raises(CheckpointError, match="7 of 7 weights"):
        checkpoint.cast_file(tmp_path / "model", tmp_path / "out", "bfloat16")
