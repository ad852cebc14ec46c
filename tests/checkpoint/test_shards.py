"""Tensors divided anew into shards, and joined into one file: the same bytes, names as on hubs."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.running.sharding import shard_bytes
from checkpoint_samples import (
    NUMPY_FORMATS,
    assert_same,
    floats,
    random_array,
    safetensors_file,
    write_sharded,
)

INDEX = "model.safetensors.index.json"
SIZES = (30, 2, 7, 400, 11, 1, 1, 60, 0, 25)


def tensors() -> dict[str, Any]:
    """Tensors of many sizes."""
    return {f"t{number}": floats(size, number) for number, size in enumerate(SIZES)}


def shards_of(folder: Path) -> dict[str, list[str]]:
    """The tensors of each file, in their order."""
    return {
        path.name: [info.name for info in checkpoint.inspect(path).tensors]
        for path in sorted(folder.glob("*.safetensors"))
    }


def same(actual: Path, expected: Path) -> None:
    """The same tensors, whatever files they are in."""
    left, right = checkpoint.load(actual), checkpoint.load(expected)
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert_same(array, right[name])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "model.safetensors"
    path.parent.mkdir()
    checkpoint.save(path, tensors(), metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("limit", [1, 8, 60, 121, 500, 800, 10_000])
@pytest.mark.parametrize("from_folder", [True, False])
def test_shards_are_as_full_as_the_limit_allows(
    file: Path, limit: int, *, from_folder: bool
) -> None:
    out, whole = file.parent.with_name("out"), file.with_name("whole.safetensors")
    expected = checkpoint.cast_file(file, whole, "float16")
    source = file.parent if from_folder else file
    whole.rename(file.parent.with_name("whole.safetensors"))
    summary = checkpoint.cast_file(source, out, "float16", max_shard_size=limit)
    order = [info.name for info in checkpoint.inspect(file).tensors]
    found = shards_of(out)
    sizes = {name: 2 * SIZES[int(name[1:])] for name in order}
    if limit == 10_000:
        assert sorted(os.listdir(out)) == ["model.safetensors"]
    else:
        count = len(found)
        names = [f"model-{one:05d}-of-{count:05d}.safetensors" for one in range(1, count + 1)]
        assert list(found) == names
        index = json.loads((out / INDEX).read_text())
        assert list(index["weight_map"]) == sorted(order)
        assert index["weight_map"] == {
            name: shard for shard, inside in found.items() for name in inside
        }
        assert index["metadata"] == {"total_size": sum(sizes.values())}
    large = [name for name in order if sizes[name] > limit]
    small = [name for name in order if name not in large]
    assert [inside for inside in found.values() if set(inside) & set(large)] == [
        [name] for name in large
    ]
    packed = [inside for inside in found.values() if not set(inside) & set(large)]
    # In the file zeros come where they come; the order of the others is kept.
    assert sorted(name for inside in packed for name in inside) == sorted(small)
    for inside, after in itertools.pairwise(packed):
        size = sum(sizes[name] for name in inside)
        first = min(after, key=order.index)
        assert size <= limit < size + sizes[first]
    for shard in found:
        assert checkpoint.metadata(out / shard) == {"format": "pt"}
    same(out, file.parent.with_name("whole.safetensors"))
    assert summary.total == expected.total
    reports = {row.name: row.report for row in expected.rows}
    assert {row.name: row.report for row in summary.rows} == reports
    assert {row.name: row.shard for row in summary.rows} == {
        name: shard for shard, inside in found.items() for name in inside
    }


@pytest.mark.parametrize("limit", [1, 50, 120, 700, 10_000])
def test_huggingface_hub_divides_alike(
    file: Path, framework: Callable[[str], ModuleType], limit: int
) -> None:
    hub = framework("huggingface_hub")
    out = file.parent.with_name("out")
    checkpoint.cast_file(file, out, "float32", max_shard_size=limit)
    order = [info.name for info in checkpoint.inspect(file).tensors]
    split = hub.split_state_dict_into_shards_factory(
        {name: floats(SIZES[int(name[1:])]) for name in order},
        get_storage_size=lambda array: array.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=limit,
    )
    found = shards_of(out)
    assert {name: set(inside) for name, inside in found.items()} == {
        name: set(inside) for name, inside in split.filename_to_tensors.items()
    }
    assert (out / INDEX).exists() == split.is_sharded


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (5, 5),
        ("7", 7),
        (" 33000000 ", 33_000_000),
        (str(2**53 + 1), 2**53 + 1),
        (np.int64(9), 9),
        ("0", None),
        ("7.5", None),
        ("1e6", None),
        ("-7", None),
        ("8B", 8),
        ("5GB", 5_000_000_000),
        ("5 GB", 5_000_000_000),
        ("1.5kB", 1500),
        ("1.5KB", 1500),
        ("1.5kb", 1500),
        ("2GiB", 2 << 30),
        ("2gib", 2 << 30),
        ("3MiB", 3 << 20),
        ("1TB", 10**12),
        ("5Gb", None),  # bits
        ("GB", None),
        ("", None),
        ("-5GB", None),
        ("0GB", None),
        ("0.0001B", None),
        (0, None),
        (-1, None),
        (1.5, None),
        (True, None),
        ("٣GB", None),
    ],
)
def test_sizes(text: Any, size: int | None) -> None:
    if size is None:
        with pytest.raises((ValueError, TypeError), match="max_shard_size"):
            shard_bytes(text)
    else:
        assert shard_bytes(text) == size
    assert shard_bytes(None) is None


def test_names_of_shards(tmp_path: Path) -> None:
    names = {
        "model.safetensors": "model-00001-of-00002.safetensors",
        "model-00003-of-00004.safetensors": "model-00001-of-00002.safetensors",
        "llama.safetensors": "model-00001-of-00002.safetensors",
        "diffusion_pytorch_model.safetensors": "diffusion_pytorch_model-00001-of-00002.safetensors",
        "model.fp16.safetensors": "model.fp16-00001-of-00002.safetensors",
    }
    for number, (name, expected) in enumerate(names.items()):
        file, out = tmp_path / str(number) / name, tmp_path / f"out{number}"
        file.parent.mkdir()
        checkpoint.save(file, {"a": floats(8), "b": floats(8)})
        checkpoint.cast_file(file, out, "float16", max_shard_size=16)
        assert expected in os.listdir(out)
        assert len(os.listdir(out)) == 3
    assert "model.safetensors.index.fp16.json" in os.listdir(out)
    # In a folder the name that a file has is the one its loader knows.
    checkpoint.cast_file(tmp_path / "2", tmp_path / "kept", "float16", max_shard_size=16)
    assert "llama-00002-of-00002.safetensors" in os.listdir(tmp_path / "kept")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards with every format, also those that are stored as tagged bytes, or packed."""
    shards: dict[str, dict[str, Any]] = {f"{one}.safetensors": {} for one in "abcd"}
    for number, name in enumerate(NUMPY_FORMATS):
        shard = f"{'abcd'[number % 4]}.safetensors"
        shards[shard][name] = random_array(name, (3, 4))
        shards[shard][f"{name} odd"] = random_array(name, (5,))
    write_sharded(tmp_path / "in", shards)
    return tmp_path / "in"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("limit", [100, 700, 10**6])
@pytest.mark.parametrize("mapping", [{"default": "keep"}, {".*int.*": "float32"}, "float8_e4m3fn"])
def test_every_format_survives_division(folder: Path, limit: int, mapping: Any) -> None:
    out, again, whole = (folder.with_name(name) for name in ("out", "again", "whole"))
    options = {"max_shard_size": limit}
    checkpoint.cast_file(folder, whole, mapping)
    checkpoint.cast_file(folder, out, mapping, **options)
    same(out, whole)
    index = json.loads((folder / INDEX).read_text())
    if (out / INDEX).exists():
        new = json.loads((out / INDEX).read_text())
        assert new["metadata"]["made_by"] == index["metadata"]["made_by"]
    checkpoint.cast_file(out, again, {"default": "keep"}, max_shard_size=2 * limit)
    same(again, whole)
    joined = folder.with_name("joined.safetensors")
    checkpoint.cast_file(again, joined, {"default": "keep"})
    same(joined, whole)
    assert checkpoint.metadata(joined) == {"format": "np"}


def test_packed_bytes_are_carried(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    packed = {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}
    for name in "ab":
        (source / f"{name}.safetensors").write_bytes(
            safetensors_file({name: packed}, name.encode() * 3)
        )
    weight_map = {name: f"{name}.safetensors" for name in "ab"}
    (source / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    joined = tmp_path / "joined.safetensors"
    checkpoint.cast_file(source, joined, {"default": "keep"})
    assert joined.read_bytes().endswith(b"aaabbb")


def test_a_folder_becomes_one_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    joined, out = folder.with_name("joined.safetensors"), folder.with_name("out")
    summary = checkpoint.cast_file(folder, joined, "bfloat16")
    expected = checkpoint.cast_file(folder, out, "bfloat16")
    same(joined, out)
    assert all(row.shard is None for row in summary.rows)
    reports = {row.name: row.report for row in expected.rows}
    assert {row.name: row.report for row in summary.rows} == reports
    assert "has only the tensors, not config.json, tokenizer" in caplog.text


def test_bits_do_not_depend_on_the_files(folder: Path) -> None:
    """Stochastic rounding draws by name and place, wherever a tensor comes to stand."""
    options = {"rounding": "stochastic", "seed": 3}
    whole, out = folder.with_name("whole.safetensors"), folder.with_name("out")
    checkpoint.cast_file(folder, whole, "float8_e5m2", **options)
    checkpoint.cast_file(folder, out, "float8_e5m2", max_shard_size=64, **options)
    same(out, whole)


def test_an_npz_becomes_shards(tmp_path: Path) -> None:
    source, out = tmp_path / "in.npz", tmp_path / "out"
    np.savez_compressed(source, **tensors())
    checkpoint.cast_file(source, out, "float16", max_shard_size=100)
    assert len(shards_of(out)) > 2
    loaded = checkpoint.load(out)
    for name, array in tensors().items():
        assert_same(loaded[name], array.astype(np.float16))


@pytest.mark.parametrize(
    ("source", "out", "options", "message"),
    [
        ("in", "out.npz", {}, "one .safetensors file"),
        ("in", "out.npy", {"max_shard_size": 5}, "one .safetensors file"),
        ("in", "out.safetensors", {"max_shard_size": 5}, "name a folder to divide"),
        ("in", "out.safetensors", {"resumable": True}, "resumable and resume are for folders"),
        ("in", "in/out.safetensors", {}, "inside"),
        ("in/model.safetensors", "out.safetensors", {"include": "*"}, "for folders"),
        ("in/model.safetensors", "out", {"exclude": "*", "max_shard_size": 9}, "for folders"),
        ("in", "out.safetensors", {"include": "*"}, "one file, which has only tensors"),
        ("in/model.safetensors", "out.safetensors", {"max_shard_size": 5}, "name a folder"),
        ("in/model.safetensors", "in", {"max_shard_size": 5}, "inside the other"),
        ("x.npy", "out", {"max_shard_size": 5}, ".npy can only become .npy"),
        ("in/model.safetensors", "out", {}, "without suffix"),
        ("in/model.safetensors", "in", {}, "is a folder, and .* name a file in it"),
    ],
)
def test_refusals(file: Path, source: str, out: str, options: dict[str, Any], message: str) -> None:
    root = file.parent.parent
    np.save(root / "x.npy", floats(3))
    before = sorted(root.rglob("*"))
    for extra in ({}, {"dry_run": True}):
        with pytest.raises((checkpoint.CheckpointError, ValueError), match=message):
            checkpoint.cast_file(root / source, root / out, "float16", **options, **extra)
        assert sorted(root.rglob("*")) == before


def test_components_do_not_become_one_file(tmp_path: Path) -> None:
    for name in ("unet", "vae"):
        (tmp_path / "in" / name).mkdir(parents=True)
        checkpoint.save(tmp_path / "in" / name / "model.safetensors", {"w": floats(3)})
    with pytest.raises(checkpoint.CheckpointError, match=r"unet/, vae/.*keep apart"):
        checkpoint.cast_file(tmp_path / "in", tmp_path / "out.safetensors", "float16")


def test_a_tensor_in_two_shards_is_not_joined(tmp_path: Path) -> None:
    twice = {"x": floats(3), "z": floats(1)}, {"x": floats(4), "y": floats(2)}
    shards = {"a.safetensors": twice[0], "b.safetensors": twice[1]}
    write_sharded(tmp_path / "in", shards)
    for out, options in (("out.safetensors", {}), ("out", {"max_shard_size": "1GB"})):
        with pytest.raises(checkpoint.CheckpointError, match=r"'x' is in a\.safe.* and in b\.safe"):
            checkpoint.cast_file(tmp_path / "in", tmp_path / out, "float16", **options)
    assert os.listdir(tmp_path) == ["in"]


def test_metadata_on_which_shards_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, out = tmp_path / "in", tmp_path / "out.safetensors"
    write_sharded(source, {"a.safetensors": {"x": floats(3)}, "b.safetensors": {"y": floats(4)}})
    checkpoint.save(
        source / "b.safetensors",
        {"y": floats(4)},
        metadata={"format": "pt", "k": "v"},
        overwrite=True,
    )
    checkpoint.cast_file(source, out, "float16")
    assert checkpoint.metadata(out) == {"format": "np", "k": "v"}
    assert "metadata 'format' of b.safetensors" in caplog.text


def test_transformers_loads_shards_that_were_divided_anew(
    tmp_path: Path, framework: Callable[[str], ModuleType]
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 40},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True},
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "in", max_shard_size="5KB")
    ids = torch.arange(12).reshape(2, 6)
    cls = transformers.LlamaForCausalLM
    expected = cls.from_pretrained(tmp_path / "in", dtype=torch.bfloat16)(ids).logits
    for name, limit in (("out", "3KB"), ("more", "1KiB"), ("one", "1GB")):
        checkpoint.cast_file(tmp_path / "in", tmp_path / name, "bfloat16", max_shard_size=limit)
        loaded = cls.from_pretrained(tmp_path / name, dtype="auto")
        assert loaded.dtype == torch.bfloat16
        assert torch.equal(loaded(ids).logits, expected)
    assert not (tmp_path / "one" / INDEX).exists()
    metadata = json.loads((tmp_path / "in" / INDEX).read_text())["metadata"]
    new = json.loads((tmp_path / "out" / INDEX).read_text())["metadata"]
    assert new == {**metadata, "total_size": metadata["total_size"] // 2}
