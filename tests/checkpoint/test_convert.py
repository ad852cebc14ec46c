"""Casting whole checkpoints: which tensors, to what bits, and everything else left alone."""

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
import safetensors
from castwise import checkpoint
from checkpoint_samples import NUMPY_FORMATS, assert_same, floats, random_array, write_sharded
from numpy.typing import NDArray
from producer_models.gguf import gguf_file
from system_parts import LINKS, PERMISSIONS, need
from torch_files import FOLDER

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = tuple(name for name in NUMPY_FORMATS if castwise.finfo(name).kind == "float")


def _model() -> dict[str, NDArray[Any]]:
    return {
        "layers.0.weight": floats(48).reshape(6, 8),
        "layers.0.norm": floats(8, 1),
        "layers.1.weight": floats(48, 2).reshape(6, 8).astype(np.float64),
        "step": np.array(16_777_217),
        "mask": np.array([True, False, True]),
        "rotation": np.array([1 + 2j], np.complex64),
        "empty": np.zeros((0, 4), np.float32),
    }


@pytest.mark.thinned(3)
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("target", NUMPY_FORMATS)
def test_floats_are_cast_and_nothing_else(tmp_path: Path, suffix: str, target: str) -> None:
    source, destination = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    model = _model()
    checkpoint.save(source, model, metadata={"format": "pt", "k": "v"})
    summary = checkpoint.cast_file(source, destination, target, as_bytes=True)
    result = checkpoint.load(destination)
    for name, array in model.items():
        cast = castwise.finfo(array.dtype).kind == "float"
        assert_same(result[name], castwise.cast(array, target) if cast else array)
    assert checkpoint.metadata(destination) == {"format": "pt", "k": "v"}
    rows = {row.name: row for row in summary.rows}
    assert rows.keys() == model.keys()
    assert {name for name, row in rows.items() if row.report} == {
        "layers.0.weight",
        "layers.0.norm",
        "layers.1.weight",
        "empty",
    }
    total = summary.total
    assert total is not None
    assert total.count == 48 + 8 + 48


@pytest.mark.parametrize("source_format", FLOATS)
def test_every_float_is_a_source(tmp_path: Path, source_format: str) -> None:
    array = random_array(source_format, (4, 6))
    for suffix in (".safetensors", ".npz"):
        path = tmp_path / f"file{suffix}"
        checkpoint.save(path, {"w": array})
        checkpoint.cast_file(path, path, "float32", overwrite=True, fail_on=())
        assert_same(checkpoint.load(path)["w"], castwise.cast(array, "float32"))


def test_options_reach_the_cast(tmp_path: Path) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    array = floats(64) * 1000
    array[3] = np.nan
    checkpoint.save(path, {"w": array, "v": array})
    options = {"rounding": "towards-zero", "overflow": "saturate", "nan": "zero"}
    checkpoint.cast_file(path, out, "float8_e4m3fn", threads=1, **options)
    assert_same(checkpoint.load(out)["w"], castwise.cast(array, "float8_e4m3fn", **options))
    summary = checkpoint.cast_file(
        path, out, "float8_e5m2", rounding="stochastic", seed=7, overwrite=True
    )
    loaded = checkpoint.load(out)
    for name in ("v", "w"):
        seed = checkpoint.tensor_seed(7, name)
        expected = castwise.cast(array, "float8_e5m2", rounding="stochastic", seed=seed)
        assert_same(loaded[name], expected)
    assert loaded["v"].tobytes() != loaded["w"].tobytes()
    drawn = checkpoint.cast_file(path, out, "float8_e5m2", rounding="stochastic", overwrite=True)
    first = out.read_bytes()
    checkpoint.cast_file(
        path, out, "float8_e5m2", rounding="stochastic", seed=drawn.options["seed"], overwrite=True
    )
    assert out.read_bytes() == first
    assert summary.options["seed"] == 7


def test_wrong_options_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(path, {"n": np.arange(3)})
    for wrong in ({"rounding": "up"}, {"overflow": "wrap"}, {"nan": "drop"}, {"seed": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            checkpoint.cast_file(path, out, "bfloat16", **wrong)
    with pytest.raises(checkpoint.CheckpointError, match="either dtype, dtype_map or policy"):
        checkpoint.cast_file(path, out)
    with pytest.raises(TypeError, match="bfloat16"):
        checkpoint.cast_file(path, out, "bfloat61")
    assert not out.exists()


def test_a_map_decides_by_whole_names(tmp_path: Path) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(path, _model())
    summary = checkpoint.cast_file(
        path,
        out,
        dtype_map={
            "default": "float8_e4m3fn",
            r"layers\.\d+\.norm": "keep",
            r"layers\.1\..*": "bf16",
            "step": "float64",
            "weight": "float16",
        },
    )
    formats = {info.name: info.format for info in checkpoint.inspect(out).tensors}
    assert formats == {
        "layers.0.weight": "float8_e4m3fn",
        "layers.0.norm": "float32",
        "layers.1.weight": "bfloat16",
        "step": "float64",
        "mask": "bool",
        "rotation": "complex64",
        "empty": "float8_e4m3fn",
    }
    assert summary.unused_patterns == {"weight": "layers.1.weight"}


def test_without_a_default_unnamed_tensors_are_kept(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, a=floats(4), b=floats(4).astype(">f4"), c=np.asfortranarray(np.eye(3, 2)))
    checkpoint.cast_file(path, out, dtype_map={"a": BF16})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out) as new:
        for name in ("b.npy", "c.npy"):
            assert old.read(name) == new.read(name)
    assert checkpoint.load(out)["a"].dtype == BF16


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            {"a.*": "bfloat16", ".*b": "float16"},
            r"'a\.b' is matched by 2 keys, 'a\.\*' and '\.\*b'",
        ),
        ({"layer[": "bfloat16"}, r"key 'layer\[' is not a regular expression.*position 5"),
        ({"a": "bfloat61"}, r"key 'a'.*bfloat61.*bfloat16"),
        ({"a": 16}, "key 'a'"),
        ({"a": ["bfloat16"]}, "key 'a'"),
        ({"model": {"norm": "bfloat16"}}, "in quotes"),
        ({"z": "bfloat16"}, "imaginary"),
        ({"text": "bfloat16"}, "holds no numbers"),
        ({"raw": "bfloat16"}, "assume"),
        ({"default": "bfloat16"}, "assume"),
    ],
)
def test_maps_that_make_no_sense(tmp_path: Path, mapping: dict[str, Any], message: str) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    arrays = {"a.b": floats(2), "z": np.zeros(2, np.complex128), "text": np.array(["x"])}
    np.savez(path, raw=floats(2).astype(BF16), **arrays)
    with pytest.raises((ValueError, TypeError), match=message):
        checkpoint.cast_file(path, out, dtype_map=mapping)
    assert not out.exists()


def test_map_files(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, **{"a.b": floats(2), "c": floats(2)})
    (tmp_path / "map.json").write_text(r'{"default": "keep", "a\\..*": "bfloat16"}')
    (tmp_path / "map.toml").write_text("default = 'keep'\n'a\\..*' = 'bfloat16'\n")
    for name in ("map.json", "map.toml"):
        checkpoint.cast_file(path, out, dtype_map=tmp_path / name, overwrite=True)
        formats = {info.name: info.format for info in checkpoint.inspect(out).tensors}
        assert formats == {"a.b": "bfloat16", "c": "float32"}
    wrong = {
        "twice.json": ('{"a": "keep", "a": "bfloat16"}', "'a' stands twice"),
        "cut.json": ('{"a": ', "line 1"),
        "list.json": ('["bfloat16"]', "one object"),
        "bad.toml": ("a = \n", "line 1"),
        "map.yaml": ("a: bfloat16", "json or .toml"),
        "deep.json": ("[" * 100_000, "deep.json"),
        "latin.json": (b'{"\xe9": "keep"}', r"latin.json is not UTF-8 \(byte 0xe9 at 2\); save it"),
        "utf16.toml": ("a = 'keep'".encode("utf-16"), "save it as UTF-8"),
    }
    for name, (text, message) in wrong.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises((ValueError, TypeError), match=message):
            checkpoint.cast_file(path, out, dtype_map=tmp_path / name)


def test_raw_bytes_are_cast_when_told_what_they_are(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    array = floats(8).astype(BF16)
    np.savez(path, w=array)
    checkpoint.cast_file(path, out, "float32", assume="bfloat16")
    assert_same(checkpoint.load(out)["w"], array.astype(np.float32))


def test_containers_can_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = _model()
    checkpoint.save(tmp_path / "a.safetensors", model, metadata={"k": "v"})
    checkpoint.cast_file(tmp_path / "a.safetensors", tmp_path / "b.npz", "bfloat16")
    checkpoint.cast_file(tmp_path / "b.npz", tmp_path / "c.safetensors", dtype_map={})
    checkpoint.cast_file(tmp_path / "a.safetensors", tmp_path / "d.safetensors", "bfloat16")
    c, d = tmp_path / "c.safetensors", tmp_path / "d.safetensors"
    assert c.read_bytes() == d.read_bytes()
    with zipfile.ZipFile(tmp_path / "b.npz", "a") as archive:
        archive.writestr("notes.txt", "hello")
    checkpoint.cast_file(tmp_path / "b.npz", c, "bfloat16", overwrite=True)
    assert "notes.txt" in caplog.text
    np.save(tmp_path / "e.npy", floats(3))
    with pytest.raises(checkpoint.CheckpointError, match=r"\.npy can only"):
        checkpoint.cast_file(tmp_path / "e.npy", tmp_path / "f.npz", "bfloat16")


def test_npy(tmp_path: Path) -> None:
    path, out = tmp_path / "weights.npy", tmp_path / "out.npy"
    array = np.asfortranarray(floats(6).reshape(2, 3))
    np.save(path, array)
    checkpoint.cast_file(path, out, dtype_map={"weights": "bfloat16"})
    loaded = checkpoint.load(out)
    assert_same(loaded, castwise.cast(array, "bfloat16"))
    assert loaded.flags.f_contiguous
    checkpoint.cast_file(path, out, dtype_map={"weights": "keep"}, overwrite=True)
    assert out.read_bytes() == path.read_bytes()


def test_compressed_members_stay_compressed_and_others_are_carried(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez_compressed(path, a=np.zeros(10_000), n=np.arange(10_000))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "hello")
    checkpoint.cast_file(path, out, "bfloat16")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out) as new:
        assert new.read("notes.txt") == b"hello"
        assert new.read("n.npy") == old.read("n.npy")
        assert {one.filename: one.compress_type for one in new.infolist()} == {
            "a.npy": zipfile.ZIP_DEFLATED,
            "n.npy": zipfile.ZIP_DEFLATED,
            "notes.txt": zipfile.ZIP_STORED,
        }


def test_source_and_destination_may_be_one(tmp_path: Path) -> None:
    need(LINKS, PERMISSIONS)
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, _model())
    path.chmod(0o640)
    link = tmp_path / "link.safetensors"
    link.symlink_to(path.name)
    checkpoint.cast_file(link, link, "bfloat16", overwrite=True)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert checkpoint.load(path)["layers.0.norm"].dtype == BF16
    assert sorted(os.listdir(tmp_path)) == ["link.safetensors", "model.safetensors"]


def test_overflow_that_raises_names_the_tensor_and_writes_nothing(tmp_path: Path) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(path, {"a": floats(4), "b.weight": np.array([1, 2, 1e30], np.float32)})
    out.write_bytes(b"old")
    with pytest.raises(OverflowError, match=r"'b\.weight'.*2"):
        checkpoint.cast_file(path, out, "float16", overflow="raise", overwrite=True)
    checkpoint.save(path, {"c": np.array([1, np.nan], np.float32)}, overwrite=True)
    with pytest.raises(ValueError, match=r"'c'.*1"):
        checkpoint.cast_file(path, out, "float16", nan="raise", overwrite=True)
    assert out.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "out.safetensors"]


def test_progress_counts_the_bytes_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    checkpoint.save(path, {"a": floats(4), "b": np.zeros(3)})
    seen: list[checkpoint.Progress] = []
    checkpoint.cast_file(path, tmp_path / "out.safetensors", "bfloat16", progress=seen.append)
    assert [(one.done, one.total, one.name) for one in seen] == [
        (0, 40, "a"),
        (16, 40, "b"),
        (40, 40, None),
    ]


def test_progress_moves_within_a_tensor(tmp_path: Path) -> None:
    path, seen = tmp_path / "in.npz", []
    checkpoint.save(path, {"a": np.zeros(700_000, np.float32), "b": np.zeros(3)})
    checkpoint.cast_file(path, tmp_path / "out.npz", "bfloat16", progress=seen.append)
    within = [(one.done, one.name) for one in seen if 0 < one.done < 2_800_000]
    assert within == [(1 << 20, "a"), (2 << 20, "a")]


def _sharded(folder: Path) -> dict[str, NDArray[Any]]:
    shards = {
        "model-00001-of-00002.safetensors": {"z": floats(8).reshape(2, 4), "ids": np.arange(3)},
        "model-00002-of-00002.safetensors": {"a": floats(6, 1), "norm": floats(2, 2)},
    }
    write_sharded(folder, shards)
    return {name: array for tensors in shards.values() for name, array in tensors.items()}


def test_a_sharded_folder(tmp_path: Path) -> None:
    source, destination = tmp_path / "model", tmp_path / "model-bf16"
    tensors = _sharded(source)
    (source / "config.json").chmod(0o600)
    summary = checkpoint.cast_file(
        source, destination, dtype_map={"default": "bfloat16", "norm": "keep"}
    )
    loaded = checkpoint.load(destination)
    assert list(loaded) == ["z", "ids", "a", "norm"]
    for name, array in tensors.items():
        expected = array if name in {"ids", "norm"} else castwise.cast(array, BF16)
        assert_same(loaded[name], expected)
        (row,) = [row for row in summary.rows if row.name == name]
        assert row.shard == (
            "model-00001-of-00002.safetensors"
            if name in {"z", "ids"}
            else "model-00002-of-00002.safetensors"
        )
    index = json.loads((destination / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 16 + 24 + 12 + 8, "made_by": "test"}
    assert list(index["weight_map"]) == ["z", "ids", "a", "norm"]
    assert (destination / "tokenizer" / "vocab.txt").read_text() == "a\nb\n"
    assert (destination / "config.json").stat().st_mode & 0o777 == 0o600
    for shard in index["weight_map"].values():
        with safetensors.safe_open(destination / shard, "np") as opened:
            assert opened.metadata() == {"format": "np"}
    assert checkpoint.metadata(destination) == {"format": "np"}
    assert [info.name for info in checkpoint.inspect(destination).tensors] == [
        "ids", "z", "norm", "a",
    ]  # fmt: skip
    assert list(checkpoint.load(destination, ["a"])) == ["a"]
    assert sorted(os.listdir(tmp_path)) == ["model", "model-bf16"]


def test_a_sharded_folder_in_place_and_over_another(tmp_path: Path) -> None:
    source, other = tmp_path / "model", tmp_path / "other"
    _sharded(source)
    checkpoint.cast_file(source, source, "bfloat16", overwrite=True)
    assert checkpoint.load(source)["z"].dtype == BF16
    assert (source / "tokenizer" / "vocab.txt").exists()
    _sharded(other)
    with pytest.raises(checkpoint.CheckpointError, match="overwrite"):
        checkpoint.cast_file(source, other, "float16")
    checkpoint.cast_file(source, other, "float16", overwrite=True)
    assert checkpoint.load(other)["z"].dtype == np.float16
    empty = tmp_path / "empty"
    empty.mkdir()
    checkpoint.cast_file(source, empty, "float16")
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.txt").write_text("years of work")
    for wrong in (documents, source / "inside", source / "one.safetensors", tmp_path):
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.cast_file(source, wrong, "float16", overwrite=True)
    assert (documents / "thesis.txt").exists()


@pytest.mark.parametrize("kind", ["checkpoint", "documents", "file"])
def test_what_appears_at_the_destination_during_the_run_is_not_replaced(
    tmp_path: Path, kind: str
) -> None:
    source, destination = tmp_path / "model", tmp_path / "out"
    _sharded(source)

    def appear(_: checkpoint.Progress) -> None:
        if destination.exists():
            return
        if kind == "file":
            destination.write_text("mine")
            return
        destination.mkdir()
        name = "mine.safetensors" if kind == "checkpoint" else "mine.txt"
        (destination / name).write_text("mine")

    with pytest.raises(checkpoint.CheckpointError, match=re.escape(str(destination))) as during:
        checkpoint.cast_file(source, destination, "bfloat16", progress=appear)
    with pytest.raises(checkpoint.CheckpointError) as before:
        checkpoint.cast_file(source, destination, "bfloat16")
    assert str(during.value) == str(before.value)
    (mine,) = [destination] if kind == "file" else destination.iterdir()
    assert mine.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["model", "out"]


@pytest.mark.parametrize("name", ["in.safetensors", "in.npz", "in.npy", "model"])
def test_a_source_that_changes_while_it_is_read_is_an_error(tmp_path: Path, name: str) -> None:
    source, destination = tmp_path / name, tmp_path / f"out{Path(name).suffix}"
    changed = source
    if name == "model":
        _sharded(source)
        changed = source / "model-00002-of-00002.safetensors"
    else:
        checkpoint.save(source, floats(8) if name == "in.npy" else {"in": floats(8)})
    seen: list[str] = []

    def change(progress: checkpoint.Progress) -> None:
        seen.append(progress.name or "")
        if progress.name in {"in", "norm"}:  # a tensor of the file that changes
            os.utime(changed, (1, 1))

    with pytest.raises(checkpoint.CheckpointError, match="changed while it was read; run again"):
        checkpoint.cast_file(source, destination, "bfloat16", progress=change)
    assert {"in", "norm"}.intersection(seen)
    assert os.listdir(tmp_path) == [name]


def test_a_folder_with_one_file_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    checkpoint.save(tmp_path / "model" / "model.safetensors", {"w": floats(3)})
    (tmp_path / "model" / "config.json").write_text("{}")
    checkpoint.cast_file(tmp_path / "model", tmp_path / "out", "bfloat16")
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.safetensors"]
    assert checkpoint.load(tmp_path / "out")["w"].dtype == BF16
    checkpoint.save(tmp_path / "model" / "more.safetensors", {"w": floats(3)})
    with pytest.raises(checkpoint.CheckpointError, match="2 safetensors files"):
        checkpoint.cast_file(tmp_path / "model", tmp_path / "out", "bfloat16")


def test_links_in_a_folder_are_followed_and_strays_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    need(LINKS, "os.mkfifo")
    source = tmp_path / "snapshot"
    _sharded(source)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name in ("model-00001-of-00002.safetensors", "config.json"):
        (source / name).rename(blobs / name)
        (source / name).symlink_to(Path("..") / "blobs" / name)
    (source / "linked").symlink_to("tokenizer")
    checkpoint.save(source / "nothing.safetensors", {})
    os.mkfifo(source / "pipe")
    checkpoint.cast_file(source, tmp_path / "out", "bfloat16")
    assert not (tmp_path / "out" / "model-00001-of-00002.safetensors").is_symlink()
    assert not (tmp_path / "out" / "config.json").is_symlink()
    assert (tmp_path / "out" / "linked").readlink() == Path("tokenizer")
    assert "nothing.safetensors is not in the index" in caplog.text
    assert "pipe is neither a file nor a folder" in caplog.text


def test_a_mapping_in_the_place_of_dtype_is_a_map(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, a=floats(2), b=floats(2))
    for mapping in ({"a": "bfloat16"}, checkpoint.DtypeMap.from_mapping({"a": "bfloat16"})):
        checkpoint.cast_file(path, out, mapping, overwrite=True)
        assert [one.format for one in checkpoint.inspect(out).tensors] == ["bfloat16", "float32"]


def test_copied_files_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "model"
    _sharded(source)
    synced = set()
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", record)
    checkpoint.cast_file(source, tmp_path / "out", "bfloat16")
    written = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert [path.name for path in written if path.stat().st_ino not in synced] == []


CONTENTS = ("x.safetensors", "x.npz", "x.npy", "zip.pt", "legacy.pt", "x.gguf")


@pytest.mark.parametrize(
    "name", ["sha256-0123abcd", "x.pth.tar", "x.ckpt.pt", "x.bin", "X.SAFETENSORS"]
)
@pytest.mark.parametrize("file", CONTENTS)
def test_the_first_bytes_tell_what_a_file_is(tmp_path: Path, file: str, name: str) -> None:
    """Names of ollama, of trainings in torch, and any other."""
    path, other = tmp_path / file, tmp_path / name
    if file.endswith(".pt"):
        path = FOLDER / file
    elif file == "x.gguf":
        gguf_file(path, {"w": (8, (2, 64), bytes(34 * 4)), "b": (0, (3,), bytes(12))})
    else:
        checkpoint.save(path, floats(48) if file == "x.npy" else _model())
    other.write_bytes(path.read_bytes())
    if file == "x.npy":  # whose tensor is named after the file
        (tmp_path / f"{other.stem}.npy").write_bytes(path.read_bytes())
        path = tmp_path / f"{other.stem}.npy"
    assert checkpoint.inspect(other).tensors == checkpoint.inspect(path).tensors
    suffix = ".npy" if file == "x.npy" else ".safetensors"
    made = [tmp_path / f"{folder}/out{suffix}" for folder in ("one", "two")]
    for source, out in zip((path, other), made, strict=True):
        out.parent.mkdir()
        if file == "x.gguf":
            checkpoint.dequantize_file(source, out, "float32")
        else:
            checkpoint.cast_file(source, out, "bfloat16", as_bytes=True)
    assert made[0].read_bytes() == made[1].read_bytes()
    if suffix == ".npy":
        with pytest.raises(checkpoint.CheckpointError, match=r"\.npy can only become \.npy"):
            checkpoint.cast_file(other, tmp_path / "out.npz", "bfloat16")
        assert_same(checkpoint.load(other), floats(48))
    elif file != "x.gguf":
        checkpoint.cast_file(
            other, tmp_path / "folder", "bfloat16", max_shard_size=10**6, as_bytes=True
        )


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"\x80\x02.", b"text", bytes(600)])
@pytest.mark.parametrize("name", ["sha256-0123abcd", "x.pth.tar"])
def test_a_file_of_which_neither_name_nor_bytes_tell(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match="names no container; use"):
        checkpoint.inspect(tmp_path / name)


def test_of_several_unknown_options_the_first_is_named() -> None:
    """Not one that follows from PYTHONHASHSEED."""
    options = {f"unknown_{number}": 1 for number in range(30)}
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'unknown_0'"):
        checkpoint.cast_file("source", "destination", "bfloat16", **options)
