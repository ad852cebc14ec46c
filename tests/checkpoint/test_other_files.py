"""Which files beside the tensors a cast copies: those of the model, and those asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from castwise import checkpoint
from castwise.cli import main
from checkpoint_samples import floats, write_sharded
from processes import run_python
from system_parts import LINKS, PERMISSIONS, need
from torch_files import write_tensors

OF_THE_MODEL = (
    *("generation_config.json", "tokenizer.json", "merges.txt", "README.md", ".gitattributes"),
    *("modeling_custom.py", "vocab/words.txt", "original/params.json", "onnx/config.json"),
    *("docs/model.onnx.md", "notes.bin", "trainer_state.json"),
)
LEFT_OUT = {
    ".git/": (".git/config", ".git/lfs/objects/ab/cd"),
    ".cache/": (".cache/huggingface/download/config.json.metadata",),
    "optimizer.pt": ("optimizer.pt",),
    "scheduler.pt": ("scheduler.pt",),
    "rng_state_0.pth": ("rng_state_0.pth",),
    "training_args.bin": ("training_args.bin",),
    "global_step500/": ("global_step500/mp_rank_00_model_states.pt", "global_step500/zero/a.pt"),
    "checkpoint-5/optimizer.pt": ("checkpoint-5/optimizer.pt",),
    "pytorch_model.bin": ("pytorch_model.bin",),
    "pytorch_model-00001-of-00002.bin": ("pytorch_model-00001-of-00002.bin",),
    "pytorch_model.bin.index.json": ("pytorch_model.bin.index.json",),
    "flax_model.msgpack": ("flax_model.msgpack",),
    "tf_model.h5": ("tf_model.h5",),
    "model.onnx": ("model.onnx",),
    "onnx/model_q4.onnx": ("onnx/model_q4.onnx",),
    "onnx/model.onnx_data": ("onnx/model.onnx_data",),
    "openvino/": ("openvino/model.bin",),
    "model-q4.gguf": ("model-q4.gguf",),
    "original/consolidated.00.pth": ("original/consolidated.00.pth",),
    "consolidated.00.pth": ("consolidated.00.pth",),
    "rust_model.ot": ("rust_model.ot",),
}
"""What the message calls it, and the files."""


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"contents of {name}")


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    write(folder, *OF_THE_MODEL, *(name for names in LEFT_OUT.values() for name in names))
    checkpoint.save(folder / "model.safetensors", {"w": floats(5)})
    return folder


def cast(source: Path, name: str = "out", **options: Any) -> set[str]:
    """The files beside the tensors after a cast."""
    checkpoint.cast_file(source, source.with_name(name), "float16", **options)
    return files(source.with_name(name)) - {"model.safetensors"}


def test_what_is_left_out(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cast(source) == set(OF_THE_MODEL)
    for name in OF_THE_MODEL:
        assert (source.with_name("out") / name).read_text() == f"contents of {name}"
    (record,) = caplog.records
    message = record.getMessage()
    assert "\n" not in message
    size = sum((source / name).stat().st_size for names in LEFT_OUT.values() for name in names)
    assert message.startswith(
        f"left out, {size:,} bytes: consolidated.00.pth, flax_model.msgpack, "
    )
    assert message.endswith(f"and {len(LEFT_OUT) - 8} more; include copies them too")
    assert not (source.with_name("out") / ".git").exists()
    plan = checkpoint.cast_file(source, source.with_name("plan"), "float16", dry_run=True)
    assert isinstance(plan, checkpoint.CastPlan)
    assert set(plan.left_out) == LEFT_OUT.keys()


@pytest.mark.parametrize("name", LEFT_OUT)
def test_each_is_copied_if_asked_for(source: Path, name: str) -> None:
    # A name without a folder holds in every folder.
    more = {
        one for key, names in LEFT_OUT.items() if f"/{key}".endswith(f"/{name}") for one in names
    }
    assert cast(source, include=name) == {*OF_THE_MODEL, *more}


@pytest.mark.parametrize(
    ("options", "more", "fewer"),
    [
        ({"include": "*"}, {name for names in LEFT_OUT.values() for name in names}, set()),
        ({"include": ["*.gguf", "global_step*"]},
         {"model-q4.gguf", *LEFT_OUT["global_step500/"]}, set()),
        ({"include": ".git/config"}, {".git/config"}, set()),
        ({"include": "*.bin", "exclude": "training_args.bin"},
         {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "openvino/model.bin"}, set()),
        ({"exclude": "*.md"}, set(), {"README.md", "docs/model.onnx.md"}),
        ({"exclude": "vocab"}, set(), {"vocab/words.txt"}),
        ({"exclude": "vocab/"}, set(), {"vocab/words.txt"}),
        ({"exclude": "vocab/*"}, set(), {"vocab/words.txt"}),
        ({"exclude": "./merges.txt"}, set(), {"merges.txt"}),
        ({"exclude": ["m*.txt", "mod*.py"]}, set(), {"merges.txt", "modeling_custom.py"}),
        ({"exclude": "[!.]*"}, set(), {*OF_THE_MODEL} - {".gitattributes"}),
    ],
)  # fmt: skip
def test_globs(source: Path, options: dict[str, Any], more: set[str], fewer: set[str]) -> None:
    if options == {"exclude": "[!.]*"}:
        with pytest.raises(checkpoint.CheckpointError, match="holds no safetensors files"):
            cast(source, **options)
        options = {"exclude": "[!.m]*"}
        fewer = {name for name in OF_THE_MODEL if name[0] not in ".m"}
    assert cast(source, **options) == {*OF_THE_MODEL, *more} - fewer


def test_a_glob_that_matches_nothing(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    cast(source, include=["*", "*.ggfu"], exclude=["tokenizer.jsn", "*.py"])
    assert [record.getMessage() for record in caplog.records] == [
        f"include '*.ggfu' matches nothing in {source}",
        f"exclude 'tokenizer.jsn' matches nothing in {source}",
    ]


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize("wrong", ["", [3], 3, [""]])
def test_what_is_not_a_glob(source: Path, option: str, wrong: Any) -> None:
    with pytest.raises((TypeError, checkpoint.CheckpointError), match=option):
        cast(source, **{option: wrong})
    assert os.listdir(source.parent) == ["in"]


def test_weights_of_another_format_stay_where_there_are_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Left out, they would be lost: a part of a pipeline, or of a sentence-transformer."""
    source = tmp_path / "in"
    write(source, "safety_checker/flax_model.msgpack", "2_Dense/tf_model.h5", "model_index.json")
    (source / "unet").mkdir()
    checkpoint.save(source / "unet" / "diffusion_pytorch_model.safetensors", {"w": floats(2)})
    write(source, "unet/diffusion_pytorch_model.bin")
    left = "unet/diffusion_pytorch_model.bin"
    assert cast(source) == files(source) - {left}
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:2] == [
        f"{source / name} was copied as it is: there is no file of its tensors that can be cast"
        for name in ("2_Dense/tf_model.h5", "safety_checker/flax_model.msgpack")
    ]
    assert messages[2].startswith(f"left out, {len('contents of ' + left)} bytes: {left};")


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "extra.pth", "extra.bin"])
def test_tensors_of_torch_beside_the_model_are_said_to_stay(
    source: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They may be anything: libraries do not load them with the safetensors files."""
    write_tensors(source / name, w=floats(3))
    (source / "voices").mkdir()
    write_tensors(source / "voices" / name, w=floats(3))
    assert cast(source) == {*OF_THE_MODEL, name, f"voices/{name}"}
    said = [one.getMessage() for one in caplog.records if "as it is" in one.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"{source / name} was copied as it is: its tensors are beside")
    caplog.clear()
    cast(source, "asked", include=name)
    assert "as it is" not in caplog.text
    caplog.clear()
    write_tensors(source / "optimizer.pt", w=floats(3))
    checkpoint.cast_file(source, source, "float16", overwrite=True)
    assert "optimizer.pt" not in caplog.text


def test_in_place_everything_stays(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint.save(source / "model.fp16.safetensors", {"w": floats(5)})
    before = files(source)
    checkpoint.cast_file(source, source, "float16", overwrite=True)
    assert files(source) == before
    (record,) = caplog.records
    message = f"{source / 'model.fp16.safetensors'} is not in the index and was copied as it is"
    assert record.getMessage() == message


def test_what_is_left_out_need_not_be_readable(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def refuse(path: Path) -> Any:
        if path.name == "vocab":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert cast(source, exclude="vocab") == {*OF_THE_MODEL} - {"vocab/words.txt"}
    with pytest.raises(PermissionError, match="vocab"):
        cast(source, "other")
    assert sorted(os.listdir(source.parent)) == ["in", "out"]


def test_what_is_copied_is_readable_before_the_work() -> None:
    need(PERMISSIONS)
    program = """
import os, tempfile
from pathlib import Path
import numpy as np
from castwise import checkpoint
if os.getuid() == 0:
    os.setuid(65534)  # whom permissions hold for
with tempfile.TemporaryDirectory() as folder:
    source = Path(folder, "in")
    source.mkdir()
    checkpoint.save(source / "model.safetensors", {"w": np.ones(8, "f4")})
    (source / "notes.txt").touch(mode=0)
    try:
        checkpoint.cast_file(source, Path(folder, "out"), "bfloat16", progress=print)
    except PermissionError as error:
        print(os.path.basename(error.filename), os.listdir(folder))
"""
    result = run_python("-c", program)
    assert result.stdout == "notes.txt ['in']\n", result.stderr


@pytest.mark.thinned(3)
@pytest.mark.parametrize("to", ["nowhere", "../gone/model", "itself", "/nowhere"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.model", "vocab/more.txt", "itself"])
def test_a_link_that_leads_nowhere_is_refused(source: Path, name: str, to: str) -> None:
    need(LINKS)
    (source / name).symlink_to(to)
    text = re.escape(f"{source / name} is a link to {to}, where nothing is")
    for options in ({}, {"dry_run": True}, {"part": "1/2"}, {"include": "*"}, {"resumable": True}):
        with pytest.raises(checkpoint.CheckpointError, match=text):
            cast(source, **options)
    with pytest.raises(checkpoint.CheckpointError, match=text):
        checkpoint.cast_file(source, source, "float16", overwrite=True)
    assert os.listdir(source.parent) == ["in"]
    assert name not in cast(source, exclude=name)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_weights_that_are_links_to_nowhere(tmp_path: Path, name: str) -> None:
    need(LINKS)
    source = tmp_path / "in"
    write_sharded(source, {"model.safetensors": {"w": floats(5)}})
    (source / name).unlink()
    (source / name).symlink_to("../blobs/0a1b")
    for read in (checkpoint.inspect, checkpoint.load):
        with pytest.raises(checkpoint.CheckpointError, match=r"a link to \.\./blobs/0a1b, where"):
            read(source)


def test_a_configuration_that_is_a_link_to_nowhere_may_state_anything(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need(LINKS)
    (source / "config.json").symlink_to("../blobs/gone")
    out = str(source.with_name("out"))
    assert main(["inspect", str(source)]) == 0
    assert "config.json is a link to ../blobs/gone" in capsys.readouterr().out
    for arguments in (["dequantize"], ["quantize", "--scheme", "nvfp4"]):
        assert main([*arguments[:1], str(source), out, *arguments[1:]]) == 2
        assert "config.json is a link to ../blobs/gone" in capsys.readouterr().err


def test_links_to_nowhere_that_are_left_out_are_not_missed(source: Path) -> None:
    """As of weights in another form that a user has removed from the cache of a hub."""
    need(LINKS)
    for name in ("pytorch_model.bin", "optimizer.pt"):
        (source / name).unlink()
    for name in ("pytorch_model.bin", "model.fp16.safetensors", "optimizer.pt", ".git/link"):
        (source / name).symlink_to("../blobs/gone")
    assert cast(source) == set(OF_THE_MODEL)


def test_links_to_folders_lead_to_the_same(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also from another place; what leads to a folder that is left out is left out."""
    need(LINKS)
    (source.parent / "shared").mkdir()
    (source / "vocab" / "shared").symlink_to("../../shared")
    (source / "words").symlink_to("vocab")
    (source / "git").symlink_to(".git")
    out = source.parent / "deep" / "out"
    for destination, target in ((out, source.parent / "shared"), (source.with_name("out"), None)):
        destination.parent.mkdir(exist_ok=True)
        checkpoint.cast_file(source, destination, "float16")
        link = destination / "vocab" / "shared"
        assert link.readlink() == (target or Path("../../shared"))
        assert link.samefile(source.parent / "shared")
        assert (destination / "words").readlink() == Path("vocab")
        assert not (destination / "git").is_symlink()
    assert f"{source / 'git'} leads to what was left out" in caplog.text
