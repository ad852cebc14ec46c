"""Folders whose weights are files of torch: they become folders of safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import castwise
import pytest
from castwise import checkpoint
from castwise.cli import main
from checkpoint_samples import assert_same, floats
from torch_files import state_dict, tensor, torch_file, write_tensors

INDEX = "pytorch_model.bin.index.json"
NEW_INDEX = "model.safetensors.index.json"
SHARDS = {
    "pytorch_model-00001-of-00002.bin": {"x": floats(6).reshape(2, 3), "y": floats(5, 1)},
    "pytorch_model-00002-of-00002.bin": {"z": floats(4, 2)},
}
NEW_SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
TENSORS = {name: array for tensors in SHARDS.values() for name, array in tensors.items()}


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    index = {"metadata": {"total_size": 60, "made_by": "test"}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    for shard, tensors in SHARDS.items():
        write_tensors(folder / shard, **tensors)
    # In another order than that of the shards.
    write_index(folder, {"z": NAMES[1], "y": NAMES[0], "x": NAMES[0]})
    (folder / "config.json").write_text('{"torch_dtype": "float32"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tf_model.h5").write_text("the same weights")
    return folder


NAMES = list(SHARDS)


def check(loaded: dict[str, Any], prefix: str = "") -> None:
    assert loaded.keys() == {prefix + name for name in TENSORS}
    for name, array in TENSORS.items():
        assert_same(loaded[prefix + name], castwise.cast(array, "bfloat16"))


def test_shards_become_shards(sharded: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = sharded.with_name("out")
    summary = checkpoint.cast_file(sharded, out, "bfloat16")
    assert [row.shard for row in summary.rows] == [NEW_SHARDS[0]] * 2 + [NEW_SHARDS[1]]
    assert sorted(os.listdir(out)) == ["config.json", *NEW_SHARDS, NEW_INDEX, "tokenizer.json"]
    assert json.loads((out / NEW_INDEX).read_text()) == {
        "metadata": {"total_size": 30, "made_by": "test"},
        "weight_map": {"z": NEW_SHARDS[1], "y": NEW_SHARDS[0], "x": NEW_SHARDS[0]},
    }
    assert json.loads((out / "config.json").read_text()) == {"torch_dtype": "bfloat16"}
    for shard in NEW_SHARDS:
        assert checkpoint.metadata(out / shard) == {"format": "pt"}
    check(checkpoint.load(out))
    (record,) = caplog.records
    assert record.getMessage().startswith("left out, 16 bytes: tf_model.h5;")


@pytest.mark.parametrize(
    ("names", "cast"),
    [
        (["pytorch_model.bin"], "model.safetensors"),
        (["diffusion_pytorch_model.bin"], "diffusion_pytorch_model.safetensors"),
        (["adapter_model.bin"], "adapter_model.safetensors"),
        (["pytorch_model.fp16.bin"], "model.fp16.safetensors"),
        (["pytorch_model.bin", "pytorch_model.fp16.bin"], "model.safetensors"),
    ],
)
def test_one_file(tmp_path: Path, names: list[str], cast: str) -> None:
    for name in names:
        write_tensors(tmp_path / "in" / name, **TENSORS)
    (tmp_path / "in" / "training_args.bin").write_text("left out")
    (tmp_path / "in" / "notes.bin").write_text("copied")
    for _ in range(2):  # the second time it is there
        checkpoint.cast_file(tmp_path / "in", tmp_path / "out", "bfloat16", overwrite=True)
        assert sorted(os.listdir(tmp_path / "out")) == sorted([cast, "notes.bin"])
        check(checkpoint.load(tmp_path / "out"))


def test_a_variant_with_an_index(sharded: Path) -> None:
    (sharded / INDEX).rename(sharded / "pytorch_model.bin.index.fp16.json")
    out = sharded.with_name("out")
    checkpoint.cast_file(sharded, out, "bfloat16")
    assert {*NEW_SHARDS, "model.safetensors.index.fp16.json"} < {*os.listdir(out)}
    check(checkpoint.load(out))


def test_a_tree_of_both_kinds(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write_tensors(source / "unet" / "diffusion_pytorch_model.bin", **TENSORS)
    write_tensors(source / "unet" / "diffusion_pytorch_model.fp16.bin", **TENSORS)
    write_tensors(source / "safety_checker" / "pytorch_model.bin", w=floats(3))
    (source / "vae").mkdir()
    checkpoint.save(source / "vae" / "model.safetensors", {"w": floats(3)})
    write_tensors(source / "vae" / "pytorch_model.bin", w=floats(3, 1))
    write_tensors(source / "pytorch_model.bin", w=floats(3, 1))
    (source / "model_index.json").write_text("{}")
    plan = checkpoint.cast_file(source, out, "bfloat16", dry_run=True)
    assert isinstance(plan, checkpoint.CastPlan)
    assert sorted(plan.left_out) == [
        *("pytorch_model.bin", "unet/diffusion_pytorch_model.fp16.bin", "vae/pytorch_model.bin"),
    ]
    summary = checkpoint.cast_file(source, out, "bfloat16")
    assert [(row.shard, row.name) for row in plan.rows] == [
        (row.shard, row.name) for row in summary.rows
    ]
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.*")} == {
        *("unet/diffusion_pytorch_model.safetensors", "safety_checker/model.safetensors"),
        *("vae/model.safetensors", "model_index.json"),
    }
    loaded = checkpoint.load(out)
    check({name: loaded[name] for name in loaded if name.startswith("unet/")}, "unet/")
    assert_same(loaded["vae/w"], castwise.cast(floats(3), "bfloat16"))


def test_load_and_inspect(sharded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = checkpoint.load(sharded)
    assert list(loaded) == ["z", "y", "x"]
    for name, array in TENSORS.items():
        assert_same(loaded[name], array)
    assert [info.name for info in checkpoint.inspect(sharded).tensors] == ["x", "y", "z"]
    assert checkpoint.load(sharded, ["y"]).keys() == {"y"}
    assert main(["inspect", str(sharded)]) == 0
    assert "float32" in capsys.readouterr().out


@pytest.mark.parametrize("limit", [16, "1GB"])
def test_shards_are_divided_anew_or_joined(sharded: Path, limit: Any) -> None:
    out = sharded.with_name("out")
    checkpoint.cast_file(sharded, out, "bfloat16", max_shard_size=limit)
    check(checkpoint.load(out))
    assert (out / NEW_INDEX).exists() == (limit == 16)
    assert (out / "model.safetensors").exists() == (limit == "1GB")
    one = sharded.with_name("one.safetensors")
    checkpoint.cast_file(sharded, one, "bfloat16")
    check(checkpoint.load(one))


class StoppedError(Exception):
    """Raised by a listener."""


def test_it_is_resumed(sharded: Path) -> None:
    out, whole = sharded.with_name("out"), sharded.with_name("whole")

    def stop(progress: checkpoint.Progress) -> None:
        if progress.name == "z":
            raise StoppedError

    with pytest.raises(StoppedError):
        checkpoint.cast_file(sharded, out, "bfloat16", resumable=True, progress=stop)
    seen: list[str | None] = []
    checkpoint.cast_file(
        sharded, out, "bfloat16", resume=True, progress=lambda one: seen.append(one.name)
    )
    assert "x" not in seen
    checkpoint.cast_file(sharded, whole, "bfloat16")
    for name in os.listdir(whole):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_by_parts_it_is_the_same(sharded: Path) -> None:
    out, whole = sharded.with_name("out"), sharded.with_name("whole")
    for number in (1, 2):
        checkpoint.cast_file(sharded, out, "bfloat16", part=(number, 2))
    checkpoint.finish(out)
    checkpoint.cast_file(sharded, whole, "bfloat16")
    assert sorted(os.listdir(out)) == sorted(os.listdir(whole))
    for name in os.listdir(whole):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_in_place(sharded: Path) -> None:
    checkpoint.cast_file(sharded, sharded, "bfloat16", overwrite=True)
    kept = ["config.json", *NEW_SHARDS, NEW_INDEX, "tf_model.h5", "tokenizer.json"]
    assert sorted(os.listdir(sharded)) == sorted(kept)
    check(checkpoint.load(sharded))


@pytest.mark.parametrize(
    ("more", "lost", "told"),
    [
        ({"epoch": 3}, "epoch", "left out, not arrays: epoch"),
        ({"state": {"a": tensor((8,), (1,))}}, "state .1 tensor.", "left out: state (1 tensor)"),
    ],
)
def test_in_place_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], lost: str, told: str
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    value = {"state_dict": state_dict(w=tensor((8,), (1,))), **more}
    (source / "pytorch_model.bin").write_bytes(torch_file(value))
    with pytest.raises(checkpoint.CheckpointError, match=f"also holds {lost}, which would be lost"):
        checkpoint.cast_file(source, source, "bfloat16")
    assert os.listdir(source) == ["pytorch_model.bin"]
    checkpoint.cast_file(source, out, "bfloat16")
    assert checkpoint.load(out).keys() == {"w"}
    assert told in caplog.text


LIES: dict[str, tuple[dict[str, str], str]] = {
    "a missing shard": ({"x": "pytorch_model-00009-of-00002.bin"}, "'pytorch_model-00009.* is mis"),
    "a missing tensor": ({"w": NAMES[0]}, "tensor 'w' is not in this shard"),
    "a path that climbs out": ({"x": "../in/" + NAMES[0]}, "not the name of a file in its folder"),
    "a folder": ({"x": ".."}, "not the name of a file in its folder"),
    "two names become one": (
        {"x": NAMES[0], "z": NAMES[1], "v": NAMES[0].removeprefix("pytorch_")},
        "would have the same name",
    ),
}


@pytest.mark.parametrize(("weight_map", "message"), LIES.values(), ids=LIES)
def test_an_index_that_lies(sharded: Path, weight_map: dict[str, str], message: str) -> None:
    write_tensors(sharded / NAMES[0].removeprefix("pytorch_"), v=floats(4))
    write_index(sharded, weight_map)
    with pytest.raises(checkpoint.CheckpointError, match=message):
        checkpoint.cast_file(sharded, sharded.with_name("out"), "bfloat16")
    assert os.listdir(sharded.parent) == ["in"]


def test_shards_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    with pytest.raises(
        checkpoint.CheckpointError, match=r"has 2 bin files .* no \*\.bin\.index\.json"
    ):
        checkpoint.load(sharded)


def test_a_file_that_is_not_of_torch_is_named(sharded: Path) -> None:
    (sharded / NAMES[1]).write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(checkpoint.CheckpointError, match=f"{NAMES[1]}.*not a file of torch"):
        checkpoint.cast_file(sharded, sharded.with_name("out"), "bfloat16")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_transformers_loads_the_result(
    tmp_path: Path, framework: Callable[[str], ModuleType], *, tied: bool, shards: int
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 40},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": tied},
    )
    source, out = tmp_path / "in", tmp_path / "out"
    config.save_pretrained(source)
    state = transformers.LlamaForCausalLM(config).state_dict()
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= state.keys()
    # transformers writes no files of torch any more; these are as it wrote them.
    weight_map = {}
    for number in range(shards):
        name = f"pytorch_model-{number + 1:05d}-of-{shards:05d}.bin"
        if shards == 1:
            name = "pytorch_model.bin"
        part = {key: state[key] for key in list(state)[number::shards]}
        torch.save(part, source / name)
        weight_map |= dict.fromkeys(part, name)
    if shards > 1:
        write_index(source, weight_map)
    checkpoint.cast_file(source, out, "bfloat16")
    assert not list(out.glob("*.bin*"))
    ids = torch.arange(12).reshape(2, 6)
    cls = transformers.LlamaForCausalLM
    expected = cls.from_pretrained(source, dtype=torch.bfloat16)(ids).logits
    loaded, told = cls.from_pretrained(out, dtype="auto", output_loading_info=True)
    assert not any(told.values())
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded(ids).logits, expected)


def test_diffusers_loads_the_result(tmp_path: Path, framework: Callable[[str], ModuleType]) -> None:
    torch, diffusers = framework("torch"), framework("diffusers")
    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(block_out_channels=(32,), latent_channels=4, sample_size=16)
    source, out = tmp_path / "in", tmp_path / "out"
    model.save_pretrained(source / "vae", safe_serialization=False)
    assert (source / "vae" / "diffusion_pytorch_model.bin").exists()
    checkpoint.cast_file(source, out, "float16")
    loaded = [
        diffusers.AutoencoderKL.from_pretrained(folder / "vae", torch_dtype=torch.float16)
        for folder in (source, out)
    ]
    old, new = (one.state_dict() for one in loaded)
    assert list((out / "vae").glob("*.safetensors"))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
