"""HDF5 and Keras files: those of the real Keras and h5py, loaded again, and ones that lie."""

from __future__ import annotations

import io
import logging
import os
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import castwise
import h5py
import keras
import numpy as np
import pytest
from bad_files import damaged
from castwise import checkpoint
from castwise.checkpoint.containers import _hdf5_objects, _hdf5_trial
from checkpoint_samples import assert_same, floats, random_array
from processes import run_python
from system_parts import need

# Keras on numpy makes arrays of variables in a way that numpy 2 no longer likes.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

IMAGES = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
NATIVE = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
)


def _model() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def _saved(model: Any, path: Path) -> Path:
    if path.name.endswith(".weights.h5"):
        model.save_weights(path)
    else:
        model.save(path)
    return path


def _loaded(path: Path) -> Any:
    if not path.name.endswith(".weights.h5"):
        return keras.models.load_model(path, compile=False)
    model = keras.models.clone_model(_model())
    model.load_weights(path)
    return model


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("suffix", [".weights.h5", ".keras", ".h5"])
def test_keras_loads_what_is_written(tmp_path: Path, suffix: str, dtype: str) -> None:
    model = _model()
    source, out = _saved(model, tmp_path / f"in{suffix}"), tmp_path / f"out{suffix}"
    if suffix == ".h5" and dtype == "bfloat16":
        with pytest.raises(
            checkpoint.CheckpointError, match=r"Keras cannot load bfloat16.*\.keras"
        ):
            checkpoint.cast_file(source, out, dtype)
        assert not out.exists()
        return
    summary = checkpoint.cast_file(source, out, dtype)
    wanted = keras.models.clone_model(model)
    wanted.set_weights([np.float32(castwise.cast(w, dtype)) for w in model.get_weights()])
    loaded = _loaded(out)
    assert {str(weight.dtype) for weight in loaded.weights} <= {"float32", "uint32"}
    np.testing.assert_array_equal(loaded(IMAGES), wanted(IMAGES))
    assert summary.total is not None
    before, after = checkpoint.load(source), checkpoint.load(out)
    assert list(before) == list(after)
    for name, array in before.items():
        is_floating = castwise.finfo(array.dtype).kind == "float"
        assert_same(after[name], castwise.cast(array, dtype) if is_floating else array)


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_a_model_of_bfloat16(tmp_path: Path, suffix: str) -> None:
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = _model()
        source = _saved(model, tmp_path / f"in{suffix}")
        for name in ("out.safetensors", "out.npz", f"out{suffix}"):
            checkpoint.cast_file(source, tmp_path / name, dtype_map={".*": "keep"})
            arrays = checkpoint.load(tmp_path / name)
            assert {str(array.dtype) for array in arrays.values()} <= {"bfloat16", "uint32"}
        np.testing.assert_array_equal(_loaded(tmp_path / f"out{suffix}")(IMAGES), model(IMAGES))
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_keras_file_keeps_its_other_members(tmp_path: Path) -> None:
    source, out = _saved(_model(), tmp_path / "in.keras"), tmp_path / "out.keras"
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr("assets/words.txt", "a b c", zipfile.ZIP_DEFLATED)
    checkpoint.cast_file(source, out, "float16")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out) as new:
        assert new.testzip() is None
        assert sorted(old.namelist()) == sorted(new.namelist())
        for name in old.namelist():
            assert name == "model.weights.h5" or old.read(name) == new.read(name)
    _loaded(out)


def test_the_configuration_in_a_keras_file_is_read(tmp_path: Path) -> None:
    assert checkpoint.inspect(_saved(_model(), tmp_path / "in.keras")).quantization is None


def test_what_has_no_place_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = _saved(_model(), tmp_path / "in.keras")
    with caplog.at_level(logging.WARNING):
        checkpoint.cast_file(source, tmp_path / "out.safetensors", "float16")
    assert caplog.records[0].getMessage().endswith("not arrays: metadata.json, config.json")
    weights = tmp_path / "out.weights.h5"
    checkpoint.cast_file(source, weights, "float16")
    np.testing.assert_array_equal(_loaded(weights)(IMAGES), np.asarray(_float16(_model())(IMAGES)))
    with pytest.raises(checkpoint.CheckpointError, match=r"write \.weights\.h5"):
        checkpoint.cast_file(tmp_path / "out.safetensors", tmp_path / "out.keras", "float16")


def _float16(model: Any) -> Any:
    model.set_weights([np.float32(np.float16(weight)) for weight in model.get_weights()])
    return model


def _every_kind(path: Path) -> dict[str, Any]:
    """Write a file with all that h5py stores; returns its tensors by name."""
    arrays = {name: random_array(name, (3, 4)) for name in NATIVE if name != "bfloat16"}
    large = floats(700_000).reshape(700, 1000)
    with h5py.File(path, "w", track_order=True) as file:
        file.attrs["author"] = "us"
        file.attrs["count"] = 3
        group = file.create_group("z", track_order=True)
        group.attrs["units"] = ["m", "s"]
        for name, array in arrays.items():
            group[name] = array
        group["swapped"] = arrays["float32"].astype(">f4")
        group["words"] = ["a", "b"]
        group["nothing"] = h5py.Empty("f4")
        file.create_dataset("chunks", data=large, chunks=(100, 300))
        file.create_dataset("gzip", data=large, compression="gzip", shuffle=True)
        file.create_dataset("lzf", data=large[:10], compression="lzf", fletcher32=True)
        file.create_dataset("one row", data=large.reshape(1, -1), chunks=(1, 1000))
        file["scalar"] = np.float64(1 / 3)
        file["empty"] = np.empty((0, 4), np.float32)
        file["again"] = group["float64"]
        tensors = {f"z/{name}": array for name, array in arrays.items()}
    tensors |= {"z/swapped": arrays["float32"], "chunks": large, "gzip": large, "lzf": large[:10]}
    tensors |= {"one row": large.reshape(1, -1), "scalar": np.array(1 / 3)}
    return {**tensors, "empty": np.empty((0, 4), np.float32), "again": arrays["float64"]}


@pytest.mark.parametrize("out", ["out.h5", "out.safetensors", "out.npz"])
@pytest.mark.parametrize("target", ["bfloat16", "float16", "keep"])
def test_every_dtype_and_layout(
    tmp_path: Path, out: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "in.h5"
    arrays = _every_kind(source)
    loaded = checkpoint.load(source)
    assert set(loaded) == set(arrays)
    for name, array in loaded.items():
        assert_same(array, arrays[name])
    rule = {".*": "keep"} if target == "keep" else {"default": target}
    checkpoint.cast_file(source, tmp_path / out, dtype_map=rule, as_bytes=True)
    written = checkpoint.load(tmp_path / out)
    assert list(written) == list(loaded) or out != "out.h5"
    for name, array in written.items():
        cast = target != "keep" and arrays[name].dtype.kind == "f"
        wanted = castwise.cast(arrays[name], target) if cast else arrays[name]
        assert_same(array.astype(array.dtype.newbyteorder("=")), wanted)
    assert checkpoint.metadata(tmp_path / out)["author"] == "us"
    if out == "out.h5":
        with h5py.File(tmp_path / out) as file:
            assert file.attrs["count"] == 3
            assert list(file["z"].attrs["units"]) == ["m", "s"]
            assert [word.decode() for word in file["z/words"]] == ["a", "b"]
            assert file["gzip"].compression is None
    else:
        said = caplog.records[-1].getMessage()
        assert "attribute /@count, attribute z/@units" in said
        assert "z/words" in said


def test_saved_arrays(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    arrays = {f"layer/{name}": random_array(name, (2, 3)) for name in NATIVE}
    checkpoint.save(path, arrays, metadata={"key": "text"})
    assert checkpoint.metadata(path) == {"key": "text"}
    loaded = checkpoint.load(path)
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert_same(loaded[name], array)
    for name in ("float8_e4m3fn", "int4", "complex32"):
        with pytest.raises(checkpoint.CheckpointError, match=rf"cannot hold {name}"):
            checkpoint.save(path, {"a": random_array(name, (2,))}, overwrite=True)
    for tensors in ({"a//b": floats(1)}, {"../a": floats(1)}, {"a": floats(1), "a/b": floats(1)}):
        with pytest.raises(checkpoint.CheckpointError, match="HDF5"):
            checkpoint.save(path, tensors, overwrite=True)
    assert_same(checkpoint.load(path)["layer/float16"], arrays["layer/float16"])


def test_processes_do_not_share_a_file(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "source.h5", {"a": floats(5000)})
    with pytest.raises(checkpoint.CheckpointError, match=r"new\.h5 cannot be converted in parts"):
        checkpoint.cast_file(tmp_path / "source.h5", tmp_path / "new.h5", "float16", part="1/1")
    assert [one.name for one in tmp_path.iterdir()] == ["source.h5"]
    alone = checkpoint.cast_file(tmp_path / "source.h5", tmp_path / "alone.h5", "float16")
    with ThreadPoolExecutor(2) as executor:
        summary = checkpoint.cast_file(
            tmp_path / "source.h5", tmp_path / "new.h5", "float16", executor=executor
        )
    assert summary.rows == alone.rows
    assert (tmp_path / "new.h5").read_bytes() == (tmp_path / "alone.h5").read_bytes()
    with h5py.File(tmp_path / "new.h5") as file:  # else the second of a run is in its bytes
        assert h5py.h5g.get_objinfo(file.id, b"a").mtime == 0


def test_raw_bytes_are_what_the_caller_says(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    codes = random_array("float8_e5m2fnuz", (8,))
    with h5py.File(path, "w") as file:
        file["w"] = codes.view("V1")
    with pytest.raises(checkpoint.CheckpointError, match="assume"):
        checkpoint.cast_file(path, tmp_path / "out.h5", "float16")
    assert_same(checkpoint.load(path, assume="float8_e5m2fnuz")["w"], codes)


def _lie(change: Callable[[Any], object]) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["w"] = floats(100)
        change(file)
    return buffer.getvalue()


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4,))
    file.create_virtual_dataset("v", layout)


def _plugin(file: Any) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((4,))
    properties.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
    space = h5py.h5s.create_simple((4,))
    h5py.h5d.create(file.id, b"blosc", h5py.h5t.IEEE_F32LE, space, properties)


def _inside_of_itself(file: Any) -> None:
    group = file.create_group("g")
    group["g"] = group


def _repeated(file: Any) -> None:
    file.create_group("g0")
    for number in range(1, 40):
        group = file.create_group(f"g{number}")
        group["x"] = group["y"] = file[f"g{number - 1}"]


LIES: dict[str, tuple[Callable[[Any], object], str]] = {
    "external link": (
        lambda file: file.__setitem__("l", h5py.ExternalLink("/x.h5", "/y")),
        "'l'.*ano",
    ),
    "soft link": (lambda file: file.__setitem__("l", h5py.SoftLink("/w")), "'l' is a link"),
    "soft link that climbs": (
        lambda file: file.__setitem__("l", h5py.SoftLink("/../../w")),
        "link",
    ),
    "virtual": (_virtual, "'v' is a view"),
    "external data": (
        lambda file: file.create_dataset("e", (4,), "f4", external=[("/etc/passwd", 0, 16)]),
        "the data of 'e' is in another file, /etc/passwd; copy it into this file",
    ),
    "plugin": (_plugin, "filter 32001, a plugin.*h5repack"),
    "huge": (lambda file: file.create_dataset("h", (2**40,), "f4", chunks=(1024,)), "cannot hold"),
    "groups in themselves": (_inside_of_itself, "two places"),
    "a group by 2**39 paths": (_repeated, "'g1/x' stands at two places"),
}


@pytest.mark.parametrize("case", LIES)
def test_files_that_lie(tmp_path: Path, case: str) -> None:
    change, message = LIES[case]
    content = _lie(change)
    (tmp_path / "in.h5").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "in.keras", "w") as archive:
        archive.writestr("model.weights.h5", content)
    for path in (tmp_path / "in.h5", tmp_path / "in.keras"):
        out = path.with_stem("out")
        for action in (
            checkpoint.load,
            checkpoint.inspect,
            lambda path, out=out: checkpoint.cast_file(path, out, "bfloat16"),
        ):
            with pytest.raises(checkpoint.CheckpointError, match=message) as caught:
                action(path)
            assert str(path) in str(caught.value)
        assert not out.exists()


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


WEIGHTS = "model.weights.h5"
KERAS_LIES = {
    "no zip": (b"abc", "zip file is damaged"),
    "no weights": (_zip({"config.json": b"{}"}), WEIGHTS),
    "deflated": (_zip({WEIGHTS: bytes(1000)}, zipfile.ZIP_DEFLATED), "compressed"),
    "no HDF5": (_zip({WEIGHTS: b"abc"}), "HDF5"),
    **{
        name: (_zip({WEIGHTS: b"", name: b""}), "the zip file has .* could lead out of it")
        for name in ("assets/../../x", "/etc/x", "c:x", "a\\..\\..\\x", "assets//x", "./x")
    },
}


@pytest.mark.parametrize("case", KERAS_LIES)
def test_keras_files_that_lie(tmp_path: Path, case: str) -> None:
    content, message = KERAS_LIES[case]
    path, out = tmp_path / "in.keras", tmp_path / "out.keras"
    path.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match=message) as caught:
        checkpoint.cast_file(path, out, "float16")
    assert str(caught.value).count(str(path)) == 1
    assert not out.exists()


def test_a_heap_whose_free_space_is_empty_does_not_loop(tmp_path: Path) -> None:
    content = bytearray(_lie(lambda file: file.attrs.__setitem__("a", "text")))
    heap = content.index(b"GCOL")
    content[heap + 48 : heap + 56] = bytes(8)  # the size of what follows "text"
    (tmp_path / "in.h5").write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match="heap"):
        checkpoint.load(tmp_path / "in.h5")


def test_a_file_on_which_libhdf5_crashes(tmp_path: Path) -> None:
    file = io.BytesIO()
    with h5py.File(file, "w") as tree:
        group = tree.create_group("layers/dense/vars")
        group.attrs["name"] = "dense"
        tree.attrs["layer_names"] = ["a", "bb", "ccc"]
        group["0"] = np.arange(24, dtype="f4").reshape(4, 6)
        group["1"] = np.arange(6, dtype="f4")
        tree.attrs["keras_version"] = "3.15"
        tree.create_dataset("z", (64,), "f4", chunks=(16,), compression=1)[:] = 1
    content = bytearray(file.getvalue())
    # Found by changing bytes at random; with h5py 3.14 to 3.16 it is a segmentation fault.
    for place, value in (
        (8145, 220),
        (11217, 89),
        (10668, 25),
        (3167, 120),
        (8561, 174),
        (9010, 252),
        (3815, 8),
        (5669, 14),
    ):
        content[place] = value
    (tmp_path / "in.h5").write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match=r"in\.h5: the HDF5 file is damaged"):
        checkpoint.cast_file(tmp_path / "in.h5", tmp_path / "out.h5", "float16")
    assert os.listdir(tmp_path) == ["in.h5"]


def test_a_file_that_is_cut_off_is_to_be_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as tree:
        tree["w"] = np.zeros(999, "f4")
    whole = path.read_bytes()
    for size in (9, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(checkpoint.CheckpointError, match=r"fetch the file again$"):
            checkpoint.inspect(path)


@pytest.mark.parametrize(
    ("program", "message"),
    [("import os; os.abort()", "libhdf5 crashes on it"), ("while True: pass", "never ends")],
)
def test_a_trial_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    monkeypatch.setattr(_hdf5_trial, "_PROGRAM", program)
    monkeypatch.setattr(_hdf5_trial, "_SECONDS", 0.5)
    with h5py.File(tmp_path / "in.h5", "w") as tree:
        tree["w"] = np.zeros(3, "f4")
    with pytest.raises(checkpoint.CheckpointError, match=message):
        checkpoint.load(tmp_path / "in.h5")


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("int8", "payload 'layers/dense/vars/0' is int_channel .* with the scale"),
        ("int4", "payload 'layers/dense/vars/0' is int_group .* with the scale"),
        ("float8", r"'layers/dense/vars/2' is a scale of it; .* \(12 such tensors would change\)"),
    ],
)
@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_quantized_layers(tmp_path: Path, suffix: str, mode: str, message: str) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(4, use_bias=False)]
    )
    for layer in model.layers:
        layer.quantize(mode)
    source, out = _saved(model, tmp_path / f"in{suffix}"), tmp_path / f"out{suffix}"
    found = checkpoint.inspect(source).quantization
    assert found is not None
    stored = {name for weight in found.weights for name in (weight.payload, *weight.parts)}
    for action in (
        lambda: checkpoint.cast_file(source, out, "float16"),
        lambda: checkpoint.cast_file(source, out, dtype_map={".*": "float16"}, dry_run=True),
    ):
        with pytest.raises(checkpoint.CheckpointError, match=message):
            action()
        assert not out.exists()
    kept = dict.fromkeys({*stored, *found.others}, "keep")
    rows = checkpoint.cast_file(source, out, dtype_map={**kept, "default": "float16"}).rows
    changed = {row.name for row in rows if row.target is not None}
    assert changed == {row.name for row in rows} - kept.keys()
    assert checkpoint.cast_file(source, out, "float16", raw=True, overwrite=True).changed


@pytest.mark.thinned(9)
@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("suffix", [".weights.h5", ".keras", ".h5"])
def test_damage_of_any_kind_gives_no_other_error(tmp_path: Path, suffix: str, seed: int) -> None:
    content = _saved(_model(), tmp_path / f"in{suffix}").read_bytes()
    path, out, refused = tmp_path / f"bad{suffix}", tmp_path / f"out{suffix}", 0
    for each in damaged(content, range(0, len(content), 9973), 12, seed):
        path.write_bytes(each)
        try:
            checkpoint.cast_file(path, out, "float16")
        except checkpoint.CheckpointError:
            refused += 1
    assert refused > len(content) // 9973


def test_memory_does_not_grow_with_tensors(tmp_path: Path) -> None:
    need("/proc/self/status")
    block = floats(1 << 18)
    with h5py.File(tmp_path / "in.weights.h5", "w") as file:
        file["w"] = np.tile(block, 80)
        zipped = file.create_dataset("z", (80 << 18,), "f4", chunks=(1 << 18,), compression=1)
        for first in range(0, 80 << 18, 1 << 18):
            zipped[first : first + (1 << 18)] = block
    program = (
        "import resource, sys; from castwise.checkpoint import cast_file; import h5py\n"
        "import castwise.checkpoint.containers.keras\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); cast_file(sys.argv[1], sys.argv[2], 'bfloat16'); print(peak() - before)"
    )
    for out in ("out.weights.h5", "out.safetensors"):
        result = run_python("-c", program, tmp_path / "in.weights.h5", tmp_path / out)
        assert result.returncode == 0, result.stderr
        assert int(result.stdout) < 64 * 1024


@pytest.mark.parametrize("chunks", [(40, 6), (7, 4), (100, 6)])
def test_chunks_larger_than_the_cache(
    tmp_path: Path, chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of chunks are read once, and cut by the end of the dataset."""
    monkeypatch.setattr(_hdf5_objects, "_CHUNK_CACHE_BYTES", 100)
    array = floats(600).reshape(100, 6)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        dataset = file.create_dataset("x", data=array, chunks=chunks, compression=1)
        found = list(_hdf5_objects.blocks(dataset, array.shape))
    assert [len(one) for one in found] == [
        min(chunks[0], 100 - first) for first in range(0, 100, chunks[0])
    ]
    np.testing.assert_array_equal(np.concatenate(found), array)
    checkpoint.cast_file(tmp_path / "in.h5", tmp_path / "out.h5", {"x": "float16"})
    assert_same(checkpoint.load(tmp_path / "out.h5")["x"], array.astype(np.float16))


def test_without_h5py_the_remedy_is_named(tmp_path: Path) -> None:
    """Nor has the process that tries the file first h5py: that is no damage."""
    (tmp_path / "h5py.py").write_text("raise ImportError")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = floats(6)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from castwise.cli import main; sys.exit(main())"
    )
    result = run_python("-c", program, "inspect", tmp_path / "in.h5")
    assert result.returncode == 2
    assert "pip install 'castwise[h5]'" in result.stderr


@pytest.mark.parametrize("name", ["sha256-0123abcd", "x.keras.bak", "x.bin"])
def test_the_first_bytes_tell_what_a_file_is(tmp_path: Path, name: str) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.save(tmp_path / "x.keras")
    model.save_weights(tmp_path / "x.weights.h5")
    for file in ("x.keras", "x.weights.h5"):
        path, other = tmp_path / file, tmp_path / name
        other.write_bytes(path.read_bytes())
        checkpoint.cast_file(path, tmp_path / "one.npz", "bfloat16", overwrite=True)
        checkpoint.cast_file(other, tmp_path / "two.npz", "bfloat16", overwrite=True)
        assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    other.write_bytes((tmp_path / "x.keras").read_bytes())
    checkpoint.cast_file(other, tmp_path / "new.keras", "float16")
    assert keras.saving.load_model(tmp_path / "new.keras").summary
