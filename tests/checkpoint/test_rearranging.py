"""Tensors that are not in C order: the same bytes and reports as in C order, in bounded memory."""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
from castwise import checkpoint
from castwise.checkpoint.containers.interface import Arrangement
from castwise.checkpoint.running import _rearranging
from castwise.checkpoint.running._rearranging import rearrange
from checkpoint_samples import floats
from numpy.typing import NDArray
from processes import run_limited, run_python
from recount import alike
from system_parts import need
from torch_files import Storage, state_dict, tensor, torch_file


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rearranging, "_BLOCK_BYTES", 5000)


@pytest.mark.parametrize("block", [16, 100, 1000, 1 << 20])
def test_any_strides(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(_rearranging, "_BLOCK_BYTES", block)
    pick = random.Random(block)
    for _ in range(40 // support.FEWER):
        axes = pick.randrange(6)
        shape = tuple(
            pick.choice((0, 1, 2, 3, 5, 7, 17)[pick.random() < 0.95 :]) for _ in range(axes)
        )
        item, begin = pick.choice((1, 2, 3, 4, 8, 16)), pick.choice((0, 13))
        strides = [0] * axes
        step = item * pick.choice((1, 1, 2, 3000))
        for axis in pick.sample(range(axes), axes):
            strides[axis] = step
            step = step * max(shape[axis], 1) + item * pick.choice((0, 0, 3))
        if axes and pick.random() < 0.2:
            strides[pick.randrange(axes)] = 0
        reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        raw = np.random.default_rng(0).integers(0, 256, begin + max(reach, 0) + item, np.uint8)
        old = Arrangement(item, shape, tuple(strides))
        expected = np.ndarray(shape, f"V{item}", raw, begin, strides)
        with tempfile.TemporaryFile(buffering=0) as file, tempfile.TemporaryFile() as new:
            file.write(raw.data)
            rearrange(old, old.in_c_order(), (file, begin), new)
            assert new.read() == expected.tobytes()


ARRAYS = {
    "square": floats(12_000).reshape(100, 120),
    "wide": floats(12_001).reshape(1, 12_001),
    "two rows": floats(30_000).reshape(2, -1),
    "two columns": floats(30_000).reshape(-1, 2),
    "four axes": floats(30_030).reshape(3, 11, 70, 13),
    "wide elements": floats(8000).astype(np.complex128).reshape(20, 400),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "float8_e4m3fn"},
    "stochastic": {"dtype": "bfloat16", "rounding": "stochastic", "seed": 3},
    "kept": {"dtype_map": {"other": "bfloat16"}},
}
SAVERS = {".npz": np.savez, "deflated.npz": np.savez_compressed}


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", SAVERS)
def test_members_of_npz(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    save, rows = SAVERS[kind], []
    save(tmp_path / "c.npz", **ARRAYS)
    save(tmp_path / "f.npz", **{name: np.asfortranarray(one) for name, one in ARRAYS.items()})
    for name in "cf":
        new = tmp_path / f"{name}.safetensors"
        path = tmp_path / f"{name}.npz"
        rows.append(checkpoint.cast_file(path, new, as_bytes=True, **options).rows)
    assert (tmp_path / "f.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()
    assert rows[0] == rows[1]


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_fortran_order_stays(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    array, loaded, rows = ARRAYS["four axes"], [], []
    for order in "CF":
        path, out = tmp_path / f"{order}/in{suffix}", tmp_path / f"{order}/out{suffix}"
        path.parent.mkdir()
        # castwise's own writer keeps the order of an array.
        one: Any = np.array(array, order=order)
        checkpoint.save(path, one if suffix == ".npy" else {"in": one})
        rows.append(checkpoint.cast_file(path, out, **options).rows)
        found: Any = checkpoint.load(out)
        loaded.append(found if suffix == ".npy" else found["in"])
    assert loaded[1].flags.f_contiguous
    assert loaded[1].tobytes() == loaded[0].tobytes()
    assert alike(rows[0][0].report, rows[1][0].report)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_views_of_torch(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    views = {"transposed": ((40, 50), (1, 40)), "every third": ((30, 20), (60, 3))}
    views |= {"swapped": ((10, 4, 50), (50, 500, 1)), "repeated": ((4, 300), (0, 1))}
    data = floats(2000)
    storage = Storage("torch FloatStorage", "0", data.size)
    calls = {name: tensor(*view, storage=storage) for name, view in views.items()}
    (tmp_path / "in.pt").write_bytes(torch_file(state_dict(**calls), data__0=data.tobytes()))
    plain = {name: view_of(data, *view) for name, view in views.items()}
    checkpoint.save(tmp_path / "c.npz", plain)
    rows = []
    for name in ("in.pt", "c.npz"):
        out = tmp_path / f"{name}{suffix}"
        rows.append(checkpoint.cast_file(tmp_path / name, out, **options).rows)
    one, other = (checkpoint.load(tmp_path / f"{name}{suffix}") for name in ("in.pt", "c.npz"))
    assert {name: array.tobytes() for name, array in one.items()} == {
        name: array.tobytes() for name, array in other.items()
    }
    if suffix == ".safetensors":
        assert rows[0] == rows[1]
    # `.npz` keeps Fortran order, so sums are of other tiles.
    for row, expected in zip(*rows, strict=True):
        assert row._replace(report=None) == expected._replace(report=None)
        assert alike(row.report, expected.report)


def view_of(
    data: NDArray[np.float32], shape: tuple[int, ...], strides: tuple[int, ...]
) -> NDArray[np.float32]:
    view = np.lib.stride_tricks.as_strided(data, shape, [4 * stride for stride in strides])
    return np.ascontiguousarray(view)


def test_a_refused_value_is_named_by_its_place_in_c_order(tmp_path: Path) -> None:
    array = np.ones((3, 5), np.float32)
    array[1, 2] = 1e30
    np.savez(tmp_path / "in.npz", w=np.asfortranarray(array))
    for out in ("out.safetensors", "out.npz"):
        with pytest.raises(OverflowError, match=r"tensor 'w': .* at flat index 7"):
            checkpoint.cast_file(tmp_path / "in.npz", tmp_path / out, "float16", overflow="raise")
    assert [one.name for one in tmp_path.iterdir()] == ["in.npz"]


@pytest.mark.parametrize("limit", [1000, 150_000, 170_000])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, limit: int) -> None:
    """The limit is met at the begin of the first temporary file, and before its end."""
    need("resource")
    np.savez(tmp_path / "in.npz", w=np.asfortranarray(floats(45_000).reshape(150, 300)))
    (tmp_path / "out.npz").write_bytes(b"old")
    arguments = ("cast", tmp_path / "in.npz", tmp_path / "out.npz", "--dtype", "bfloat16")
    options = ("--rounding", "stochastic", "--seed", "1", "--overwrite")
    result = run_limited("RLIMIT_FSIZE", limit, *arguments, *options)
    assert result.returncode == 2
    assert result.stderr == f"castwise: error: {tmp_path / 'out.npz'}: File too large\n"
    assert (tmp_path / "out.npz").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("in.npz", "out.safetensors"),
        pytest.param("in.npy", "out.npy", marks=pytest.mark.exhaustive),
    ],
)
def test_memory_does_not_grow_with_tensors(tmp_path: Path, old: str, new: str) -> None:
    need("/proc/self/status")
    block = floats(1 << 18)
    wide = np.asfortranarray(np.tile(block, 80).reshape(-1, 4096))
    if old == "in.npz":
        np.savez(tmp_path / old, w=wide)
    else:
        np.save(tmp_path / old, wide)
    program = (
        "import resource, sys; from castwise.checkpoint import cast_file\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); cast_file(sys.argv[1], sys.argv[2], 'bfloat16',\n"
        "    rounding='stochastic', seed=1); print(peak() - before)"
    )
    result = run_python("-c", program, tmp_path / old, tmp_path / new)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 64 * 1024


def test_a_file_that_is_cut_off_while_it_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.asfortranarray(floats(10_000).reshape(100, 100)))

    def cut_off(progress: checkpoint.Progress) -> None:
        (tmp_path / "in.npy").write_bytes(b"")

    with pytest.raises(
        checkpoint.CheckpointError, match="truncated while it was read; tensor 'in'"
    ):
        checkpoint.cast_file(
            *(tmp_path / "in.npy", tmp_path / "out.npy", "bfloat16"),
            rounding="stochastic",
            progress=cut_off,
        )
    assert [one.name for one in tmp_path.iterdir()] == ["in.npy"]
