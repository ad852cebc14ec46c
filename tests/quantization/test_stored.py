"""Boxes of stored tensors are read, whatever runs of bytes they are."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.containers import open_checkpoint
from castwise.checkpoint.planning import stored_tensors
from castwise.checkpoint.planning.stored_tensors import StoredTensors, _Recent, _runs
from checkpoint_samples import assert_same


@pytest.mark.parametrize("short", [0, 1 << 20])
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_every_box(
    tmp_path: Path, suffix: str, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tensors, "_SHORT_BYTES", short)
    array = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5)
    path = tmp_path / f"a{suffix}"
    checkpoint.save(path, {"x": array, "empty": np.zeros((0, 3)), "one": np.float32(2).reshape(())})
    with open_checkpoint(path) as source:
        stored = StoredTensors(source.shards)
        for ranges in product(*(list(combinations(range(n + 1), 2)) for n in array.shape)):
            assert_same(stored.box("x", ranges), array[tuple(slice(*one) for one in ranges)])
        assert stored.read("empty").shape == (0, 3)
        assert stored.read("one") == 2
        assert sorted(stored) == ["empty", "one", "x"]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", ["<i2", ">i2", "V2"])
@pytest.mark.parametrize("chunks", [None, (1, 1, 1), (2, 3, 2), (3, 4, 5)])
def test_every_box_of_hdf5(tmp_path: Path, chunks: tuple[int, ...] | None, dtype: str) -> None:
    """Chunks may be cut off by the end of an axis, and bfloat16 is opaque there."""
    h5py = pytest.importorskip("h5py")
    array = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        kept = array.view("V2") if dtype == "V2" else array.astype(dtype)
        dataset = file.create_dataset("x", data=kept, chunks=chunks)
        if dtype == "V2":
            dataset.attrs["dtype"] = "bfloat16"
        file["one"] = np.float32(2)
    with open_checkpoint(path) as source:
        stored = StoredTensors(source.shards)
        for ranges in product(*(list(combinations(range(n + 1), 2)) for n in array.shape)):
            found = stored.box("x", ranges)
            assert found.dtype == (ml_dtypes.bfloat16 if dtype == "V2" else np.int16)
            assert_same(found.view(np.int16), array[tuple(slice(*one) for one in ranges)])
        assert_same(stored.read("one"), np.float32(2).reshape(()))


@pytest.mark.parametrize("limit", [0, 40, 80, 200, 1 << 20])
def test_a_part_of_a_matrix_is_kept(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes of short runs are read some at a time, as many as half the limit has room for."""
    monkeypatch.setattr(stored_tensors, "_RECENT_BYTES", limit)
    array = np.arange(2 * 5 * 12, dtype=np.int16).reshape(2, 5, 12)
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"x": array})
    reads = []
    read = stored_tensors._read
    monkeypatch.setattr(stored_tensors, "_read", lambda *given: reads.append(given) or read(*given))
    with open_checkpoint(path) as source:
        stored = StoredTensors(source.shards)
        for place, first in product(range(2), range(0, 12, 2)):
            ranges = [(place, place + 1), (0, 5), (first, first + 2)]
            assert_same(stored.box("x", ranges), array[place : place + 1, :, first : first + 2])
        stored.box("x", [(0, 1), (0, 5), (3, 7)])
        stored.box("x", [(0, 1), (1, 4), (10, 12)])
    assert len(reads) == {0: 14, 40: 14, 80: 8, 200: 3, 1 << 20: 2}[limit]


def test_runs_are_as_long_as_they_can_be() -> None:
    assert list(_runs((3, 4, 5), [(1, 3), (0, 4), (0, 5)])) == [(20, 40)]
    assert list(_runs((3, 4, 5), [(1, 3), (1, 3), (0, 5)])) == [(25, 10), (45, 10)]
    assert list(_runs((2, 3), [(0, 2), (1, 2)])) == [(1, 1), (4, 1)]
    assert list(_runs((), [])) == [(0, 1)]


def test_what_was_read_last_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_tensors, "_RECENT_BYTES", 100)
    recent, read = _Recent(), []

    def get(name: str, nbytes: int) -> None:
        recent.get((name,), lambda: read.append(name) or np.zeros(nbytes, np.uint8))

    for name, nbytes in (("a", 60), ("b", 40), ("a", 60), ("c", 40), ("a", 60), ("b", 40)):
        get(name, nbytes)
    assert read == ["a", "b", "c", "b"]
    for name, nbytes in (("large", 1000), ("scale", 100), ("large", 1000), ("scale", 100)):
        get(name, nbytes)
    assert read[4:] == ["large", "scale"]


def test_a_name_in_two_shards(tmp_path: Path) -> None:
    for name in ("a", "b"):
        checkpoint.save(tmp_path / f"{name}.safetensors", {"x": np.zeros(2)})
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("a", "b")}
    shards = {name: open_checkpoint(path).shards[path.name] for name, path in paths.items()}
    with pytest.raises(CheckpointError, match="tensor 'x' is in a and in b"):
        StoredTensors(shards)
    for reader in shards.values():
        reader.__exit__(None, None, None)
