"""What a path names is one value, whether a file or a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.containers import open_checkpoint


def test_a_file_is_a_checkpoint_of_one_component(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"x": np.zeros(2)})
    opened = open_checkpoint(path)
    (component,) = opened.components
    assert not opened.is_folder
    assert (component.prefix, component.names(), [*opened.shards]) == ("", ["x"], [path.name])
    assert opened.file is opened.shards[path.name]
    assert (opened.path_of(component), component.folder) == (path, tmp_path)
    opened.close()


def test_a_folder_is_a_checkpoint_of_many(tmp_path: Path) -> None:
    for folder in ("unet", "vae"):
        (tmp_path / folder).mkdir()
        checkpoint.save(tmp_path / folder / "model.safetensors", {"x": np.zeros(2)})
    opened = open_checkpoint(tmp_path)
    assert opened.is_folder
    assert opened.file is None
    assert [component.prefix for component in opened.components] == ["unet/", "vae/"]
    assert [*opened.shards] == ["unet/model.safetensors", "vae/model.safetensors"]
    unet = opened.components[0]
    assert opened.path_of(unet) == unet.folder == tmp_path / "unet"


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_block_holds_the_single_file_open(tmp_path: Path, is_folder: bool) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, {"x": np.zeros(2)})
    with open_checkpoint(tmp_path if is_folder else path) as opened:
        (reader,) = opened.shards.values()
        placed = reader.place("x")
        assert placed is not None
        assert placed[0].closed is is_folder
    placed = reader.place("x")
    assert placed is not None
    assert placed[0].closed
