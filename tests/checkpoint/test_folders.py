"""Folders of folders: all safetensors files are cast, in one run that writes all or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from checkpoint_samples import assert_same, floats, write_sharded
from system_parts import LINKS, need
from torch_files import write_tensors

PIPELINE = {
    "unet/diffusion_pytorch_model.safetensors": {"conv.weight": floats(40), "norm": floats(3, 1)},
    "text_encoder/model.safetensors": {"norm": floats(5, 2), "ids": np.arange(4)},
    "vae/diffusion_pytorch_model.safetensors": {"conv.weight": floats(7, 3)},
}


def save(path: Path, tensors: dict[str, Any]) -> None:
    """Save tensors as transformers does, in a folder that may be missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, tensors, metadata={"format": "pt"}, overwrite=True)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """As diffusers writes it."""
    folder = tmp_path / "in"
    for name, tensors in PIPELINE.items():
        save(folder / name, tensors)
        (folder / name).with_name("config.json").write_text('{"torch_dtype": "float32"}')
    (folder / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    return folder


def test_every_component_is_cast_in_one_run(pipeline: Path, caplog: Any) -> None:
    out = pipeline.with_name("out")
    summary = checkpoint.cast_file(pipeline, out, "bfloat16")
    assert {(row.shard, row.name) for row in summary.rows} == {
        (shard, name) for shard, tensors in PIPELINE.items() for name in tensors
    }
    assert contents(out).keys() == contents(pipeline).keys()
    for shard, tensors in PIPELINE.items():
        alone = pipeline.with_name("alone.safetensors")
        checkpoint.cast_file(pipeline / shard, alone, "bfloat16", overwrite=True)
        assert (out / shard).read_bytes() == alone.read_bytes()
        assert checkpoint.load(out / shard).keys() == tensors.keys()
        config = (out / shard).with_name("config.json")
        assert json.loads(config.read_text()) == {"torch_dtype": "bfloat16"}
    assert caplog.text == ""


def test_the_configuration_of_each_component_follows_its_own_tensors(
    pipeline: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = pipeline.with_name("out")
    checkpoint.cast_file(
        pipeline, out, {"default": "bfloat16", "vae/.*": "keep", "unet/norm": "float16"}
    )
    stated = {
        path.parent.name: json.loads(path.read_text())["torch_dtype"]
        for path in out.glob("*/config.json")
    }
    assert stated == {"unet": "float32", "vae": "float32", "text_encoder": "bfloat16"}
    (record,) = caplog.records
    assert record.getMessage().startswith("unet/config.json was copied unchanged; its torch_dtype")


def test_names_begin_with_the_folder(pipeline: Path) -> None:
    out = pipeline.with_name("out")
    names = {
        f"{shard.partition('/')[0]}/{name}": array
        for shard, tensors in PIPELINE.items()
        for name, array in tensors.items()
    }
    assert {info.name for info in checkpoint.inspect(pipeline).tensors} == names.keys()
    loaded = checkpoint.load(pipeline)
    assert loaded.keys() == names.keys()
    for name, array in names.items():
        assert_same(loaded[name], array)
    assert checkpoint.load(pipeline, ["vae/conv.weight"]).keys() == {"vae/conv.weight"}
    summary = checkpoint.cast_file(pipeline, out, {"conv.weight": "bfloat16", ".*/norm": "float16"})
    assert list(summary.unused_patterns) == ["conv.weight"]
    assert checkpoint.load(out)["unet/norm"].dtype == np.float16


def test_a_model_with_a_folder_of_its_own_and_others_inside(tmp_path: Path) -> None:
    """As sentence-transformers writes them; hidden folders hold no model."""
    source, out = tmp_path / "in", tmp_path / "out"
    shards = {"a.safetensors": {"x": floats(3)}, "b.safetensors": {"y": floats(4)}}
    write_sharded(source, shards)
    save(source / "2_Dense" / "model.safetensors", {"x": floats(9)})
    save(source / "2_Dense" / "deeper" / "model.safetensors", {"x": floats(2)})
    save(source / ".hidden" / "model.safetensors", {"x": floats(5)})
    summary = checkpoint.cast_file(source, out, "float16")
    assert [row.shard for row in summary.rows] == [
        *("a.safetensors", "b.safetensors"),
        *("2_Dense/model.safetensors", "2_Dense/deeper/model.safetensors"),
    ]
    assert checkpoint.load(out / ".hidden" / "model.safetensors")["x"].dtype == np.float32
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * 7


def test_one_run_writes_all_or_nothing(pipeline: Path) -> None:
    out = pipeline.with_name("out")
    path = pipeline / "vae/diffusion_pytorch_model.safetensors"
    save(path, {"conv.weight": np.array([1e30], np.float32)})
    with pytest.raises(OverflowError, match=r"conv\.weight"):
        checkpoint.cast_file(pipeline, out, "float16", overflow="raise")
    assert os.listdir(pipeline.parent) == ["in"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(checkpoint.CheckpointError, match=r"vae/.*truncated"):
        checkpoint.cast_file(pipeline, out, "float16")
    assert os.listdir(pipeline.parent) == ["in"]


def test_in_place_nothing_is_left_out(pipeline: Path) -> None:
    save(pipeline / "unet" / "diffusion_pytorch_model.fp16.safetensors", {"norm": floats(2)})
    (pipeline / "optimizer.pt").write_bytes(b"state")
    before = contents(pipeline)
    checkpoint.cast_file(pipeline, pipeline, "bfloat16", overwrite=True)
    after = contents(pipeline)
    assert after.keys() == before.keys()
    assert checkpoint.load(pipeline)["unet/norm"].dtype.name == "bfloat16"
    with pytest.raises(checkpoint.CheckpointError, match=r"'optimizer\.pt': what is left out"):
        checkpoint.cast_file(pipeline, pipeline, "float16", exclude="optimizer.pt")
    assert contents(pipeline) == after


class StoppedError(Exception):
    """Raised by a listener."""


@pytest.mark.parametrize("limit", [None, 30])
def test_it_is_resumed(pipeline: Path, limit: int | None) -> None:
    out, whole = pipeline.with_name("out"), pipeline.with_name("whole")
    seen: list[str | None] = []

    def stop(progress: checkpoint.Progress) -> None:
        seen.append(progress.name)
        if len(seen) == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        checkpoint.cast_file(
            pipeline, out, "bfloat16", resumable=True, max_shard_size=limit, progress=stop
        )
    kept = out.with_name(".out.resumable.castwise-tmp")
    shards = {path: kept / path for path in contents(kept) if path.endswith(".safetensors")}
    done = next(path for path in sorted(shards) if path.startswith("text_encoder/"))
    stamps = {path: file.stat().st_mtime_ns for path, file in shards.items()}
    # What else stands there goes, also a link in the place of a folder.
    (kept / "stray").mkdir()
    (kept / "stray" / "config.json").write_text("{}")
    if not (kept / "vae").exists():
        need(LINKS)
        (kept / "vae").symlink_to(pipeline / "vae")
    seen.clear()
    checkpoint.cast_file(
        pipeline,
        out,
        "bfloat16",
        resume=True,
        max_shard_size=limit,
        progress=lambda one: seen.append(one.name),
    )
    checkpoint.cast_file(pipeline, whole, "bfloat16", max_shard_size=limit)
    assert contents(out) == contents(whole)
    assert (out / done).stat().st_mtime_ns == stamps[done]
    assert "ids" not in seen
    assert sorted(os.listdir(pipeline.parent)) == ["in", "out", "whole"]


def test_another_folder_is_not_replaced_because_checkpoints_are_inside(pipeline: Path) -> None:
    models = pipeline.with_name("models")
    save(models / "llama" / "model.safetensors", {"w": floats(3)})
    with pytest.raises(checkpoint.CheckpointError, match="holds no safetensors files"):
        checkpoint.cast_file(pipeline, models, "bfloat16", overwrite=True)
    old = pipeline.with_name("old")
    save(old / "vae" / "diffusion_pytorch_model.safetensors", {"w": floats(3)})
    with pytest.raises(checkpoint.CheckpointError, match="overwrite"):
        checkpoint.cast_file(pipeline, old, "bfloat16")
    checkpoint.cast_file(pipeline, old, "bfloat16", overwrite=True)
    assert checkpoint.load(old).keys() == checkpoint.load(pipeline).keys()


FILE_NAMES = {
    "model.onnx": "model.safetensors, or a folder such as model; onnxconverter-common",
    "model.JSON": "model.safetensors, or a folder such as model",
    "v2.tar.zip": "v2.tar.safetensors, or a folder such as v2.tar",
    "model.safetensor": "model.safetensors, or",
    "model.ggfu": "model.safetensors, or",
    "model.safetensors.index.json": "model.safetensors, or a folder such as model",
}


@pytest.mark.parametrize(("name", "hint"), FILE_NAMES.items())
def test_a_folder_does_not_get_the_name_of_a_file(pipeline: Path, name: str, hint: str) -> None:
    out = pipeline.with_name(name)
    with pytest.raises(checkpoint.CheckpointError, match=f"files; name a file such as {hint}"):
        checkpoint.cast_file(pipeline, out, "bfloat16")
    assert not out.exists()
    file = pipeline / "vae" / "diffusion_pytorch_model.safetensors"
    with pytest.raises(checkpoint.CheckpointError, match="name a folder such as"):
        checkpoint.quantize_file(file, out, "fp8_channel", max_shard_size="1MB")


@pytest.mark.parametrize(
    "name",
    ["Qwen2.5", "Qwen3-0.6B", "llama.fp8", "v1.0-final", "model.bf16", "m.hf", "m.new", "m.goof"],
)
def test_a_folder_gets_a_name_with_a_dot(pipeline: Path, name: str) -> None:
    out = pipeline.with_name(name)
    checkpoint.cast_file(pipeline, out, "bfloat16")
    assert out.is_dir()


def test_a_folder_with_the_name_of_a_file_is_replaced(pipeline: Path) -> None:
    out = pipeline.with_name("model.onnx")
    save(out / "model.safetensors", {"w": floats(3)})
    checkpoint.cast_file(pipeline, out, "bfloat16", overwrite=True)
    assert checkpoint.load(out).keys() == checkpoint.load(pipeline).keys()


def test_the_cache_of_a_repository_is_no_model(tmp_path: Path) -> None:
    root = tmp_path / "models--org--tiny"
    save(root / "snapshots" / "abc" / "model.safetensors", {"w": floats(3)})
    (root / "refs").mkdir()
    for path in (root, root / "snapshots"):
        with pytest.raises(checkpoint.CheckpointError, match=r"give one of .*shots.abc, or the"):
            checkpoint.cast_file(path, tmp_path / "out", "bfloat16")
    checkpoint.cast_file(root / "snapshots" / "abc", tmp_path / "out", "bfloat16")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_file_that_describes_a_folder_names_it(pipeline: Path, name: str) -> None:
    (pipeline / name).write_text("{}")
    with pytest.raises(checkpoint.CheckpointError, match=f"give the folder .*, {pipeline}"):
        checkpoint.inspect(pipeline / name)


FORMS: dict[str, tuple[list[str], list[str]]] = {
    "a variant": (["model.safetensors"], ["model.fp16.safetensors"]),
    "two variants": (["m.safetensors"], ["m.fp16.safetensors", "m.bf16.safetensors"]),
    "consolidated": (["model.safetensors"], ["consolidated.safetensors"]),
    "a variant alone": (["model.fp16.safetensors"], []),
    "consolidated alone": (["consolidated.safetensors"], []),
}
"""Files to be cast, and others that hold the same tensors."""


@pytest.mark.parametrize(("cast", "left_out"), FORMS.values(), ids=FORMS.keys())
def test_other_forms_of_the_same_weights_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cast: list[str], left_out: list[str]
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    for name in cast + left_out:
        save(source / name, {"w": floats(3)})
    summary = checkpoint.cast_file(source, out, "bfloat16")
    assert [row.shard for row in summary.rows] == cast
    assert sorted(os.listdir(out)) == cast
    assert all(name in caplog.text for name in left_out)
    caplog.clear()
    checkpoint.cast_file(source, tmp_path / "all", "bfloat16", include=left_out)
    assert sorted(os.listdir(tmp_path / "all")) == sorted(cast + left_out)
    assert caplog.text == ""
    for name in left_out:
        assert (tmp_path / "all" / name).read_bytes() == (source / name).read_bytes()


def test_a_variant_has_the_same_tensors(tmp_path: Path) -> None:
    """Else a part of the model would be left out because of its name."""
    source, out = tmp_path / "in", tmp_path / "out"
    save(source / "model.safetensors", {"x": floats(3), "y": floats(2)})
    save(source / "model.rest.safetensors", {"z": floats(3)})
    with pytest.raises(checkpoint.CheckpointError, match=r"model\.rest.* has other tensors"):
        checkpoint.cast_file(source, out, "bfloat16")
    checkpoint.cast_file(source, out, "bfloat16", exclude="model.rest.*")
    save(source / "model.rest.safetensors", {"y": floats(3)})
    (source / "model.pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    checkpoint.cast_file(source, out, "bfloat16", overwrite=True)
    assert os.listdir(out) == ["model.safetensors"]


@pytest.mark.parametrize("other", ["pytorch_model.bin", "model.fp16.safetensors"])
def test_tensors_that_only_another_form_has_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    save(source / "model.safetensors", {"x": floats(3)})
    if other.endswith(".bin"):
        write_tensors(source / other, x=floats(3), position_ids=floats(2))
    else:
        save(source / other, {"x": floats(3), "position_ids": floats(2)})
    checkpoint.cast_file(source, out, "bfloat16")
    assert f"{other} also holds position_ids, which model.safetensors lacks" in caplog.text
    assert os.listdir(out) == ["model.safetensors"]
    caplog.clear()
    checkpoint.cast_file(source, out, "bfloat16", exclude=other, overwrite=True)
    assert "position_ids" not in caplog.text


def test_tensors_without_one_entry_in_the_index_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Loaders that follow the index miss the one, and take the other from either shard."""
    source = tmp_path / "in"
    write_sharded(
        source,
        {
            "a.safetensors": {"x": floats(3), "both": floats(2)},
            "b.safetensors": {"y": floats(3), "both": floats(2, 1)},
        },
    )
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["y"]
    path.write_text(json.dumps(index))
    checkpoint.cast_file(source, tmp_path / "out", "bfloat16")
    assert f"{path} does not list y of its shards" in caplog.text
    assert "'a.safetensors' and 'b.safetensors' both have both, and loaders take" in caplog.text


def test_a_variant_with_an_index(tmp_path: Path) -> None:
    """As in openai/whisper-large-v3: float16 in one file, float32 in shards."""
    source, out = tmp_path / "in", tmp_path / "out"
    save(source / "model.safetensors", {"x": floats(3), "y": floats(2)})
    names = [f"model.fp32-0000{one}-of-00002.safetensors" for one in (1, 2)]
    for shard, name in zip(names, "xy", strict=True):
        save(source / shard, {name: floats(3)})
    index = "model.safetensors.index.fp32.json"
    weight_map = dict(zip("xy", names, strict=True))
    (source / index).write_text(json.dumps({"weight_map": weight_map}))
    checkpoint.cast_file(source, out, "bfloat16")
    assert os.listdir(out) == ["model.safetensors"]
    (source / "model.safetensors").unlink()
    checkpoint.cast_file(source, tmp_path / "variant", "bfloat16")
    assert sorted(os.listdir(tmp_path / "variant")) == sorted([*names, index])


def test_a_variant_in_shards_of_names_that_only_its_index_tells(tmp_path: Path) -> None:
    """As diffusers wrote them before it put the variant before the numbers."""
    source, out, stem = tmp_path / "in", tmp_path / "out", "diffusion_pytorch_model"
    save(source / f"{stem}.safetensors", {"x": floats(3), "y": floats(2)})
    names = [f"{stem}-0000{one}-of-00002.fp16.safetensors" for one in (1, 2)]
    for shard, name in zip(names, "xy", strict=True):
        save(source / shard, {name: floats(3)})
    weight_map = dict(zip("xy", names, strict=True))
    index = source / f"{stem}.safetensors.index.fp16.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    checkpoint.cast_file(source, out, "bfloat16")
    assert os.listdir(out) == [f"{stem}.safetensors"]


def test_a_whole_model_beside_a_pipeline_is_left_out(
    pipeline: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in stable-diffusion-v1-5: its loaders read only the folders."""
    for name in ("v1-5-pruned.safetensors", "v1-5-pruned-emaonly.safetensors"):
        save(pipeline / name, {"w": floats(3)})
    (pipeline / "v1-5-pruned.ckpt").write_bytes(b"pickle")
    out = pipeline.with_name("out")
    checkpoint.cast_file(pipeline, out, "bfloat16")
    assert not list(out.glob("v1-5*"))
    assert "v1-5-pruned.ckpt, v1-5-pruned.safetensors" in caplog.text


def test_files_without_an_index_are_refused_and_can_be_left_out(pipeline: Path) -> None:
    save(pipeline / "loras" / "a.safetensors", {"w": floats(3)})
    save(pipeline / "loras" / "b.safetensors", {"w": floats(3)})
    out = pipeline.with_name("out")
    with pytest.raises(
        checkpoint.CheckpointError, match=r"loras.*2 safetensors files \(a.*b.*exclude"
    ):
        checkpoint.cast_file(pipeline, out, "bfloat16")
    checkpoint.cast_file(pipeline, out, "bfloat16", exclude="b.safetensors")
    assert checkpoint.load(out)["loras/w"].dtype.name == "bfloat16"
    assert not (out / "loras" / "b.safetensors").exists()
    checkpoint.cast_file(pipeline, pipeline.with_name("less"), "bfloat16", exclude=["loras/"])
    assert not out.with_name("less").joinpath("loras").exists()


@pytest.mark.parametrize(
    "function",
    [
        checkpoint.survey_file,
        partial(checkpoint.advise, bits=8.0),
        checkpoint.inspect,
        lambda source: checkpoint.diff(source, source),
        lambda source: checkpoint.verify(source, source),
    ],
)
def test_no_argument_is_named_that_the_function_lacks(
    pipeline: Path, function: Callable[[Path], object]
) -> None:
    save(pipeline / "loras" / "a.safetensors", {"w": floats(3)})
    save(pipeline / "loras" / "b.safetensors", {"w": floats(3)})
    with pytest.raises(
        checkpoint.CheckpointError, match=r"leave out all but one \(move it elsewhere\)"
    ):
        function(pipeline)


def test_a_shard_that_an_index_names_cannot_be_left_out(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_sharded(source, {"a.safetensors": {"x": floats(3)}, "b.safetensors": {"y": floats(4)}})
    checkpoint.cast_file(source, tmp_path / "out", "bfloat16", exclude="nothing-like-it")
    with pytest.raises(checkpoint.CheckpointError, match=r"b\.safetensors.*exclude"):
        checkpoint.cast_file(source, tmp_path / "out2", "bfloat16", exclude="b.*")


def test_a_link_to_a_folder_stays_one(pipeline: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it leads to may be anywhere, or be this folder."""
    need(LINKS)
    (pipeline / "linked").symlink_to("vae")
    (pipeline / "again").symlink_to(".")
    out = pipeline.with_name("out")
    summary = checkpoint.cast_file(pipeline, out, "bfloat16")
    assert (out / "linked").readlink() == Path("vae")
    assert len(summary.rows) == 5
    assert "linked is a link and was copied as it is: tensors in the folder" in caplog.text
    assert "again is a link" not in caplog.text


UNET = {
    **{"sample_size": 8, "in_channels": 4, "out_channels": 4, "block_out_channels": (32,)},
    **{"down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("CrossAttnUpBlock2D",)},
    **{"layers_per_block": 1, "cross_attention_dim": 16, "attention_head_dim": 8},
}
VAE = {
    **{"block_out_channels": (32,), "latent_channels": 4, "sample_size": 16},
    **{"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)},
}
TEXT = {
    **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 40},
    **{"num_attention_heads": 2, "max_position_embeddings": 8, "bos_token_id": 0},
    **{"eos_token_id": 1, "pad_token_id": 1},
}


@pytest.mark.parametrize("limit", [None, "50KB"])
def test_diffusers_makes_the_same_image_of_the_result(
    tmp_path: Path, framework: Callable[[str], ModuleType], limit: str | None
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    diffusers = framework("diffusers")
    torch.manual_seed(0)
    scheduler = diffusers.DDIMScheduler(steps_offset=1, clip_sample=False)
    vocab = {"<|startoftext|>": 0, "<|endoftext|>": 1}
    pipe = diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(**VAE),
        text_encoder=transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXT)),
        tokenizer=transformers.CLIPTokenizer(vocab=vocab, merges=[]),
        unet=diffusers.UNet2DConditionModel(**UNET),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    source, out = tmp_path / "in", tmp_path / "out"
    pipe.save_pretrained(source)
    pipe.save_pretrained(source, variant="fp16")
    summary = checkpoint.cast_file(source, out, "bfloat16", max_shard_size=limit)
    assert len({row.shard for row in summary.rows}) == (3 if limit is None else 20)
    embeddings = torch.randn(2, 1, 8, 16).to(torch.bfloat16)
    images = []
    for folder in (source, out):
        loaded = diffusers.StableDiffusionPipeline.from_pretrained(folder, dtype=torch.bfloat16)
        loaded.set_progress_bar_config(disable=True)
        assert loaded.unet.dtype == loaded.vae.dtype == torch.bfloat16
        assert loaded.text_encoder.dtype == torch.bfloat16
        with torch.no_grad():
            ids = torch.arange(8)[None]
            images.append(loaded.text_encoder(ids).last_hidden_state.float().numpy())
        sides = dict.fromkeys(("height", "width"), 8 * loaded.vae_scale_factor)
        images.append(
            loaded(
                prompt_embeds=embeddings[0],
                negative_prompt_embeds=embeddings[1],
                num_inference_steps=2,
                output_type="np",
                generator=torch.Generator().manual_seed(0),
                **sides,
            ).images
        )
    np.testing.assert_array_equal(images[0], images[2])
    np.testing.assert_array_equal(images[1], images[3])
    assert images[1].std() > 0
