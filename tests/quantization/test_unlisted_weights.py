"""Weights that nothing says belong to the model: no command converts the rest and copies them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from checkpoint_samples import floats
from producer_models.deepseek import deepseek
from torch_files import write_tensors

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FP8 = ml_dtypes.float8_e4m3fn
MTP = {
    "mtp.weight": np.ones((128, 128), FP8),
    "mtp.weight_scale_inv": np.ones((1, 1), np.float32),
}
ADAPTER = {"base_model.model.a.lora_A.weight": floats(8).reshape(2, 4)}
COMMANDS: dict[str, list[str]] = {
    "cast": ["cast", "IN", "OUT", "--map", "map.toml"],
    "dequantize": ["dequantize", "IN", "OUT"],
    "transcode": ["transcode", "IN", "OUT", "--to", "compressed-tensors"],
    "quantize": ["quantize", "IN", "OUT", "--scheme", "fp8_block"],
    "part": ["dequantize", "IN", "OUT", "--part", "1/2"],
    "dry run": ["dequantize", "IN", "OUT", "--dry-run"],
    "divided": ["dequantize", "IN", "OUT", "--max-shard-size", "1KB"],
    "one file": ["dequantize", "IN", "OUT.safetensors"],
    "in place": ["dequantize", "IN", "IN"],
    "inspect": ["inspect", "IN"],
    "verify": ["verify", "IN", "IN"],
}


def save(path: Path, tensors: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, tensors, metadata={"format": "pt"}, overwrite=True)


def model(folder: Path, *, indexed: bool = True) -> dict[str, Any]:
    """Write a model in FP8 by blocks, of one file or of two shards; returns its tensors."""
    made = deepseek(np.float32)()
    rest = {"norm.weight": floats(4).astype(ml_dtypes.bfloat16)}
    if indexed:
        for shard, tensors in zip(SHARDS, (made.tensors, rest), strict=True):
            save(folder / shard, tensors)
        weight_map = dict.fromkeys(made.tensors, SHARDS[0]) | dict.fromkeys(rest, SHARDS[1])
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    else:
        save(folder / "model.safetensors", made.tensors | rest)
    config = {"model_type": "x", "torch_dtype": "bfloat16", **made.config}
    (folder / "config.json").write_text(json.dumps(config))
    return made.tensors | rest


def exclusion(command: str) -> str:
    """What leaves a file out: an option, of commands that have it."""
    return "move it elsewhere" if command in {"inspect", "verify"} else "--exclude"


def refused(folder: Path, command: str, capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    """Exit code 2, one line that names these, and nothing written."""
    (folder.parent / "map.toml").write_text('default = "keep"\nnorm = "float16"\n')
    before = {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")}
    names = {"IN": str(folder), "map.toml": str(folder.parent / "map.toml")}
    names |= {name: str(folder.parent / name) for name in ("OUT", "OUT.safetensors")}
    assert main([names.get(one, one) for one in COMMANDS[command]]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert all(part in said.err for part in parts), said.err
    assert {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")} == before


@pytest.mark.thinned(3, 1)
@pytest.mark.parametrize("prefix", ["", "text/"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_beside_an_index_that_holds_the_model_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, prefix: str
) -> None:
    """Libraries load that file, and the index says others."""
    tensors = model(tmp_path / "in" / prefix)
    save(tmp_path / "in" / prefix / "model.safetensors", tensors)
    refused(tmp_path / "in", command, capsys, "'model.safetensors'", INDEX, exclusion(command))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("prefix", ["", "text/"])
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_which_the_index_has_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, indexed: bool, prefix: str
) -> None:
    model(tmp_path / "in" / prefix, indexed=indexed)
    save(tmp_path / "in" / prefix / "mtp.safetensors", MTP)
    refused(tmp_path / "in", command, capsys, "mtp.safetensors", exclusion(command))


def named(name: str, tensors: dict[str, Any] = MTP) -> Callable[[Path], None]:
    return lambda folder: save(folder / name, tensors)


def of_torch(name: str, tensors: dict[str, Any]) -> Callable[[Path], None]:
    return lambda folder: write_tensors(folder / name, **tensors)


def text(name: str, contents: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(contents)

    return write


OTHER = {"b.weight": floats(4)}
STRAYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a stale shard": (named("model-00003-of-00003.safetensors"), "00003"),
    "one more shard": (named("model-00003-of-00002.safetensors"), "by its name a shard"),
    "a name that sorts first": (named("a.safetensors"), "'a.safetensors'"),
    "a variant of other tensors": (named("model.mtp.safetensors"), "other tensors"),
    "a copy": (named("model_old.safetensors", tensors={"a.weight": floats(2)}), "model_old"),
    "a pointer of git-lfs": (text("mtp.safetensors", "version https://git-lfs"), "mtp"),
    "torch's of other tensors": (of_torch("pytorch_model.bin", OTHER), "pytorch_model.bin"),
    "torch's shard": (of_torch("pytorch_model-00001-of-00002.bin", OTHER), "pytorch_model-0"),
    "torch's index": (
        text("pytorch_model.bin.index.json", '{"weight_map": {"b": "pytorch_model-1.bin"}}'),
        "pytorch_model.bin.index.json",
    ),
    "an adapter of the model's names": (
        named("adapter_model.safetensors", tensors={"a.weight": floats(2)}),
        "adapter_model.safetensors",
    ),
}


@pytest.mark.parametrize(("write", "message"), STRAYS.values(), ids=STRAYS)
@pytest.mark.parametrize("command", ["dequantize", "inspect"])
def test_other_strays(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    write: Callable[[Path], None],
    message: str,
) -> None:
    model(tmp_path / "in")
    write(tmp_path / "in")
    refused(tmp_path / "in", command, capsys, message, exclusion(command))


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("name", ["mtp.bin", "pytorch_model_mtp.bin"])
def test_strays_beside_torch_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, indexed: bool
) -> None:
    """Engines load all files of such a folder that end so."""
    folder, shard = tmp_path / "in", "pytorch_model-00001-of-00001.bin"
    folder.mkdir()
    write_tensors(folder / (shard if indexed else "pytorch_model.bin"), w=floats(4))
    if indexed:
        index = folder / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": {"w": shard}}))
    write_tensors(folder / "optimizer.bin", w=floats(4))
    (folder / "notes.bin").write_text("no tensors")
    checkpoint.cast_file(folder, tmp_path / "before", "float16")
    assert (tmp_path / "before" / "notes.bin").exists()
    write_tensors(folder / name, v=floats(4))
    assert main(["cast", str(folder), str(tmp_path / "out"), "--dtype", "fp16"]) == 2
    said = capsys.readouterr().err
    assert name in said
    assert "--exclude" in said
    if indexed:  # that of one file is taken by libraries before the index
        (folder / name).unlink()
        write_tensors(folder / "pytorch_model.bin", w=floats(4))
        with pytest.raises(CheckpointError, match=r"'pytorch_model\.bin', and pytorch_model.*"):
            checkpoint.cast_file(folder, tmp_path / "out", "float16")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("exclude", "files"),
    [
        ("model.safetensors", {INDEX, *SHARDS}),
        ([INDEX, "model-0*"], {"model.safetensors"}),
    ],
)
def test_one_of_both_can_be_left_out(
    tmp_path: Path, exclude: str | list[str], files: set[str]
) -> None:
    tensors = model(tmp_path / "in")
    save(tmp_path / "in" / "model.safetensors", tensors)
    checkpoint.dequantize_file(tmp_path / "in", tmp_path / "out", exclude=exclude)
    assert {*os.listdir(tmp_path / "out")} == {"config.json", *files}
    assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text()


def test_parts_are_not_put_together_with_what_came_later(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    model(source)
    checkpoint.dequantize_file(source, out, part="1/1")
    save(source / "mtp.safetensors", MTP)
    with pytest.raises(CheckpointError, match="mtp"):
        checkpoint.finish(out)
    with pytest.raises(CheckpointError, match="mtp"):
        checkpoint.load(source)
    (source / "mtp.safetensors").unlink()
    checkpoint.finish(out)
    assert checkpoint.inspect(out).quantization is None


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_beside_its_model_is_a_part_of_its_own(
    tmp_path: Path, name: str, indexed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As models of speech have it: the configuration is of the model, and so is the index."""
    source, out, plain = tmp_path / "in", tmp_path / "out", tmp_path / "plain"
    tensors = model(source, indexed=indexed)
    (adapter,) = ADAPTER
    if name.endswith(".bin"):
        write_tensors(source / name, **ADAPTER)
    else:
        save(source / name, ADAPTER)
    (source / "adapter_config.json").write_text("{}")
    checkpoint.dequantize_file(source, plain)
    assert caplog.text == ""
    loaded = checkpoint.load(plain)
    assert loaded.keys() == {"a.weight", "norm.weight", adapter}
    assert loaded[adapter].dtype == np.float32
    new = "adapter_model.safetensors"
    assert checkpoint.load(plain / new).keys() == {adapter}
    files = {INDEX, *SHARDS} if indexed else {"model.safetensors"}
    assert {*os.listdir(plain)} == {*files, new, "config.json", "adapter_config.json"}
    if indexed:
        index = json.loads((plain / INDEX).read_text())
        assert index["weight_map"].keys() == {"a.weight", "norm.weight"}
    assert checkpoint.verify(source, plain).equal
    checkpoint.cast_file(plain, out, "float16")
    assert {array.dtype for array in checkpoint.load(out).values()} == {np.dtype(np.float16)}
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "float16"
    again = tmp_path / "again"
    checkpoint.quantize_file(plain, again, "fp8_block")
    assert checkpoint.load(again).keys() == {*tensors, adapter}
    with pytest.raises(CheckpointError, match=r"adapter_model.*exclude"):
        checkpoint.dequantize_file(source, tmp_path / "one.safetensors")
    (source / name).unlink()
    scale = {f"{adapter}_scale_inv": np.ones((1, 1), np.float32)}
    save(source / new, {adapter: np.ones((2, 4), FP8), **scale})
    with pytest.raises(CheckpointError, match=r"no file states which producer stored .*lora_A"):
        checkpoint.dequantize_file(source, tmp_path / "not")


def test_a_tensor_of_a_listed_shard_that_the_index_leaves_out_is_seen(tmp_path: Path) -> None:
    """Libraries load shards as a whole."""
    source = tmp_path / "in"
    model(source)
    shard = {**checkpoint.load(source / SHARDS[1]), "extra.weight": floats(3)}
    save(source / SHARDS[1], shard)
    names = {one.name for one in checkpoint.inspect(source).tensors}
    assert checkpoint.load(source).keys() == names
    assert "extra.weight" in names
    assert list(checkpoint.load(source, ["extra.weight"])) == ["extra.weight"]
    with pytest.raises(CheckpointError, match=r"extra\.weight.* its index has it nowhere"):
        checkpoint.dequantize_file(source, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"extra\.weight.* its index has it nowhere"):
        checkpoint.verify(source, source)


def test_in_place_no_other_form_stays_that_the_configuration_contradicts(tmp_path: Path) -> None:
    source = tmp_path / "in"
    tensors = model(source, indexed=False)
    save(source / "model.fp8.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"model\.fp8\.safetensors.*another folder"):
        checkpoint.dequantize_file(source, source)
    plain = tmp_path / "plain"
    checkpoint.dequantize_file(source, plain)
    assert {*os.listdir(plain)} == {"config.json", "model.safetensors"}
    save(plain / "model.fp16.safetensors", checkpoint.load(plain))
    with pytest.raises(CheckpointError, match=r"model\.fp16\.safetensors.*another folder"):
        checkpoint.quantize_file(plain, plain, "fp8_block")


def test_transformers_loads_a_file_before_its_index(
    tmp_path: Path, framework: Callable[[str], ModuleType]
) -> None:
    """Which is why both together are refused: the file would stay as it was."""
    transformers = framework("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "in", max_shard_size="4KB")
    tensors = checkpoint.load(tmp_path / "in")
    zeros = {name: np.zeros_like(array) for name, array in tensors.items()}
    save(tmp_path / "in" / "model.safetensors", zeros)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in")
    assert not any(parameter.any() for parameter in loaded.parameters())
    with pytest.raises(CheckpointError, match="of which transformers loads the first"):
        checkpoint.cast_file(tmp_path / "in", tmp_path / "out", "bfloat16")
    checkpoint.cast_file(tmp_path / "in", tmp_path / "out", "bfloat16", exclude="model.safetensors")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert any(parameter.any() for parameter in loaded.parameters())
