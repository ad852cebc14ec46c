"""What is read beside the tensors: regular files only, and no more of them than they may hold."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from castwise import checkpoint
from castwise.text.parsed_files import NotRegularError, open_regular, read_regular
from checkpoint_samples import floats
from support import run_castwise as run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no devices and pipes as files")


def to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_pipe(path: Path) -> None:
    os.mkfifo(path)


def to_folder(path: Path) -> None:
    path.mkdir()


ENDLESS = pytest.mark.parametrize("make", [to_device, to_pipe])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with one file of weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    checkpoint.save(folder / "model.safetensors", {"w": floats(4)})
    return folder


@pytest.mark.parametrize("make", [to_device, to_pipe, to_folder])
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    with pytest.raises(NotRegularError, match="x is not a regular file"):
        open_regular(tmp_path / "x")
    (tmp_path / "y").write_bytes(b"1234")
    assert read_regular(tmp_path / "y", 4) == b"1234"
    with pytest.raises(NotRegularError, match="y has more than 3 bytes"):
        read_regular(tmp_path / "y", 3)


@ENDLESS
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
@pytest.mark.parametrize("command", ["cast", "inspect", "dequantize", "quantize", "verify"])
def test_an_index_without_end_is_refused(
    tmp_path: Path, make: Callable[[Path], None], index: str, command: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make(folder / index)
    name = "model-00001-of-00001.safetensors" if "safe" in index else "pytorch_model-00001.bin"
    checkpoint.save(tmp_path / "w.safetensors", {"w": floats(4)})
    (tmp_path / "w.safetensors").rename(folder / name)
    options = {
        "cast": (tmp_path / "out", "--dtype", "bf16"),
        "dequantize": (tmp_path / "out", "--dtype", "bf16"),
        "quantize": (tmp_path / "out", "--scheme", "nvfp4"),
        "verify": (folder,),
        "inspect": (),
    }[command]
    assert f"{index} is not a regular file" in run(command, folder, *options, code=2).stderr
    assert not (tmp_path / "out").exists()


@ENDLESS
@pytest.mark.parametrize("option", ["--map", "--policy"])
def test_a_map_or_policy_without_end_is_refused(
    tmp_path: Path, model: Path, make: Callable[[Path], None], option: str
) -> None:
    make(tmp_path / "map.json")
    said = run("cast", model, tmp_path / "out", option, tmp_path / "map.json", code=2).stderr
    assert "map.json is not a regular file" in said
    (tmp_path / "large.json").write_text(json.dumps({"x" * 5_000_000: "float16"}))
    said = run("cast", model, tmp_path / "out", option, tmp_path / "large.json", code=2).stderr
    assert "large.json has more than 4,194,304 bytes" in said


@ENDLESS
@pytest.mark.parametrize("name", ["config.json", "quantize_config.json", "hf_quant_config.json"])
def test_a_configuration_without_end_is_not_read(
    tmp_path: Path, model: Path, make: Callable[[Path], None], name: str
) -> None:
    make(model / name)
    run("inspect", model)
    (model / name).unlink()
    with (model / name).open("wb") as file:
        file.truncate(1 << 40)
    run("inspect", model)
    run("dequantize", model, tmp_path / "out", "--dtype", "bf16", code=2)


@ENDLESS
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_without_end_is_refused(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    from castwise.checkpoint.containers.gguf._vocabulary import _parse_file  # noqa: PLC0415

    make(tmp_path / name)
    with pytest.raises(checkpoint.CheckpointError, match=f"{name} is not a regular file"):
        _parse_file(tmp_path / name)
