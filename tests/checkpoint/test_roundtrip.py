"""Every format through every container, and what the libraries at home there make of the files."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from castwise import checkpoint
from checkpoint_samples import (
    NUMPY_FORMATS,
    assert_same,
    byte_swapped,
    floats,
    random_array,
    write_sharded,
)
from system_parts import no_such_file

SHAPES = {"matrix": (4, 6), "odd": (3, 5), "scalar": (), "empty": (0, 3), "cube": (2, 3, 4)}
METADATA = {"format": "np", "note": 'é\n"quoted"'}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("name", NUMPY_FORMATS)
def test_every_format_and_shape_comes_back(tmp_path: Path, suffix: str, name: str) -> None:
    path = tmp_path / f"file{suffix}"
    arrays = {key: random_array(name, shape) for key, shape in SHAPES.items()}
    checkpoint.save(path, arrays, metadata=METADATA)
    loaded = checkpoint.load(path)
    assert loaded.keys() == arrays.keys()
    for key, array in arrays.items():
        assert_same(loaded[key], array)
        loaded[key][...] = 0  # writable
    assert checkpoint.metadata(path) == METADATA
    described = {info.name: info for info in checkpoint.inspect(path).tensors}
    for key, array in arrays.items():
        assert described[key].format == name
        assert described[key].shape == array.shape


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NUMPY_FORMATS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_npy_keeps_format_and_order(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    path = tmp_path / "array.npy"
    array = random_array(name, shape)
    for layout in (array, array.copy("F"), array[..., ::-1] if shape else array):
        checkpoint.save(path, layout, overwrite=True)
        loaded = checkpoint.load(path)
        assert_same(loaded, layout)
        assert loaded.flags.f_contiguous == (layout.flags.f_contiguous or loaded.ndim < 2)
        by_numpy = np.load(path, allow_pickle=False)
        assert by_numpy.shape == shape
        assert by_numpy.tobytes() == layout.tobytes()
        assert_same(by_numpy.view(array.dtype), layout)


@pytest.mark.parametrize("name", NUMPY_FORMATS)
def test_numpy_reads_our_npz(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.npz"
    array = random_array(name, (4, 6))
    checkpoint.save(path, {"layer/weight": array}, metadata=METADATA, compressed=True)
    with np.load(path, allow_pickle=False) as archive:
        assert_same(archive["layer/weight"].view(array.dtype), array)
        assert json.loads(archive["__metadata__.json"]) == METADATA


@pytest.mark.parametrize("name", NUMPY_FORMATS)
def test_safetensors_reads_our_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.safetensors"
    info = castwise.finfo(name)
    array = random_array(name, (4, 6))
    checkpoint.save(path, {"weight": array}, metadata={"format": "np"})
    ((key, tensor),) = safetensors.deserialize(path.read_bytes())
    assert key == "weight"
    if info.safetensors is None:
        assert tensor["dtype"] == "U8"
        assert tensor["shape"] == [4, 6] + ([info.itemsize] if info.itemsize > 1 else [])
    else:
        assert tensor["shape"] == [4, 6]
    if info.bits == 4 and info.safetensors is not None:
        codes = array.reshape(-1).view(np.uint8)
        assert bytes(tensor["data"]) == bytes(codes[0::2] | codes[1::2] << 4)
    else:
        assert bytes(tensor["data"]) == array.tobytes()
    with safetensors.safe_open(path, "np") as opened:
        assert opened.keys() == ["weight"]
        assert opened.metadata()["format"] == "np"


def _written_by_safetensors(name: str) -> bool:
    try:
        safetensors.numpy.save({"w": random_array(name, (2, 4))})
    except (KeyError, ValueError, safetensors.SafetensorError):
        return False
    return castwise.finfo(name).safetensors is not None


@pytest.mark.parametrize("name", list(filter(_written_by_safetensors, NUMPY_FORMATS)))
def test_both_libraries_write_the_same_bytes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ours.safetensors"
    arrays = {"b": random_array(name, (3, 4)), "a": random_array(name, (5,)), "c": floats(3)}
    checkpoint.save(path, arrays, metadata={"format": "np"})
    assert path.read_bytes() == safetensors.numpy.save(arrays, metadata={"format": "np"})


def test_nibbles_have_the_first_element_low(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    codes = np.array([[0x1, 0x2, 0x3, 0xF]], np.uint8)
    checkpoint.save(path, {"w": codes.view(ml_dtypes.float4_e2m1fn)})
    assert path.read_bytes().endswith(b"\x21\xf3")


def test_numpy_files_are_read(tmp_path: Path) -> None:
    arrays = {
        "plain": floats(6).reshape(2, 3),
        "swapped": floats(4).astype(">f4"),
        "fortran": np.asfortranarray(floats(6).reshape(2, 3)),
        "text": np.array(["one", "two"]),
        "record": np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")]),
        "date": np.array(["2024-01-01"], "M8[D]"),
        "no bytes": np.zeros(3, "U0"),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "file.npz", **arrays)
        loaded = checkpoint.load(tmp_path / "file.npz")
        for key, array in arrays.items():
            assert_same(loaded[key], array)
    kinds = {info.name: info.kind for info in checkpoint.inspect(tmp_path / "file.npz").tensors}
    assert [kinds[key] for key in ("plain", "swapped", "text", "record")] == [
        "float",
        "float",
        "other",
        "other",
    ]


def test_a_record_of_the_other_byte_order_is_read(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    codes = np.arange(6, dtype=np.uint16)
    np.save(path, codes.astype(">u2").view([("bfloat16", ">u2")]))
    assert_same(checkpoint.load(path), codes.view(ml_dtypes.bfloat16))


@pytest.mark.parametrize("name", [n for n in NUMPY_FORMATS if hasattr(ml_dtypes, n)])
def test_raw_bytes_become_a_format_only_when_told(tmp_path: Path, name: str) -> None:
    array = random_array(name, (4, 6))
    np.save(tmp_path / "array.npy", array)
    np.savez(tmp_path / "file.npz", w=array)
    (info,) = checkpoint.inspect(tmp_path / "array.npy").tensors
    assert (info.kind, info.format) == ("unknown", None)
    assert checkpoint.load(tmp_path / "array.npy").dtype.kind == "V"
    assert_same(checkpoint.load(tmp_path / "array.npy", assume=name), array)
    assert_same(checkpoint.load(tmp_path / "file.npz", assume={"w": name})["w"], array)
    wrong = next(n for n in NUMPY_FORMATS if castwise.finfo(n).itemsize == 16)
    assert checkpoint.load(tmp_path / "file.npz", assume=wrong)["w"].dtype.kind == "V"
    with pytest.raises(checkpoint.CheckpointError, match="'w' has elements of"):
        checkpoint.load(tmp_path / "file.npz", assume={"w": wrong})


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, objects=np.array([{"a": 1}, None], object), w=floats(3))
    with pytest.raises(checkpoint.CheckpointError, match="pickle"):
        checkpoint.load(path)
    assert_same(checkpoint.load(path, ["w"])["w"], floats(3))
    with pytest.raises(checkpoint.CheckpointError, match="objects"):
        checkpoint.save(tmp_path / "out.npz", {"o": np.array([None])})
    assert not (tmp_path / "out.npz").exists()


def test_members_of_an_npz_that_are_no_arrays_do_not_disturb(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, w=floats(3))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "hello")
        archive.writestr("__metadata__.json", "[1, 2]")
    assert checkpoint.load(path).keys() == {"w"}
    assert checkpoint.metadata(path) == {}


def test_an_unknown_tag_is_carried_and_a_stale_one_ignored(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    tags = json.dumps({"later": "float9_e9m0", "recast": "int4", "gone": "int4", "half": "\ud800"})
    raw = np.arange(4, dtype=np.uint8)
    arrays = {"later": raw, "recast": floats(4), "half": raw}
    path.write_bytes(safetensors.numpy.save(arrays, metadata={"castwise.dtypes": tags}))
    loaded = {info.name: info for info in checkpoint.inspect(path).tensors}
    assert loaded["later"].kind == loaded["half"].kind == "unknown"
    assert_same(checkpoint.load(path, ["recast"])["recast"], floats(4))
    checkpoint.cast_file(path, path, dtype_map={"recast": "bfloat16"}, overwrite=True)
    assert b"float9_e9m0" in path.read_bytes()


def test_names_select_and_order(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    checkpoint.save(path, {"a": floats(2), "b": floats(3)})
    assert list(checkpoint.load(path, ["b", "a"])) == ["b", "a"]
    with pytest.raises(checkpoint.CheckpointError, match="no tensor 'c'"):
        checkpoint.load(path, ["c"])


def test_what_a_container_cannot_hold_is_refused(tmp_path: Path) -> None:
    refused = [
        ("f.safetensors", {"t": np.array(["text"])}, None, "cannot hold"),
        ("f.safetensors", {"__metadata__": floats(1)}, None, "reserved"),
        ("f.safetensors", {"t": floats(1)}, {"castwise.dtypes": "{}"}, "castwise's own"),
        ("f.safetensors", floats(1), None, "a mapping"),
        ("f.npy", {"t": floats(1)}, None, "one array"),
        ("f.npy", floats(1), {"k": "v"}, "no metadata"),
        ("f.npz", {"a\0b": floats(1)}, None, "name of a member"),
        ("f.bin", {"t": floats(1)}, None, "only reads"),
        ("f.txt", {"t": floats(1)}, None, "no container"),
    ]
    for file, tensors, metadata, message in refused:
        with pytest.raises(checkpoint.CheckpointError, match=message):
            checkpoint.save(tmp_path / file, tensors, metadata=metadata)
    with pytest.raises(TypeError, match="'t' is a masked array"):
        checkpoint.save(tmp_path / "f.npz", {"t": np.ma.masked_array([1.0], [True])})
    assert list(tmp_path.iterdir()) == []


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    arrays = {name: random_array(name, (3, 4)) for name in NUMPY_FORMATS}
    for suffix in (".safetensors", ".npz"):
        written = []
        for _ in range(2):
            path = tmp_path / f"file{suffix}"
            checkpoint.save(path, arrays, metadata={"b": "1", "a": "2", "c": "3"}, overwrite=True)
            written.append(path.read_bytes())
        assert written[0] == written[1]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
@pytest.mark.parametrize("name", NUMPY_FORMATS)
def test_arrays_of_the_other_byte_order_are_saved_as_what_they_say(
    tmp_path: Path, suffix: str, name: str
) -> None:
    path = tmp_path / f"file{suffix}"
    array = random_array(name, (4, 6))
    if name in {"complex32", "bcomplex32"}:  # numpy's swapped ones have no clear meaning
        swapped = byte_swapped(array)
        with pytest.raises(TypeError, match=r"tensor '\w+'.*byte order"):
            checkpoint.save(path, swapped if suffix == ".npy" else {"w": swapped})
        assert not path.exists()
        return
    for swapped in (byte_swapped(array), byte_swapped(array.T).T):
        if suffix == ".npy":
            checkpoint.save(path, swapped, overwrite=True)
            assert_same(checkpoint.load(path), array)
        else:
            checkpoint.save(path, {"w": swapped, "v": swapped[1:2]}, overwrite=True)
            assert_same(checkpoint.load(path)["w"], array)
            assert_same(checkpoint.load(path)["v"], array[1:2])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_is_no_text_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(b"old")
    tensors = {"w": floats(1)}
    refused: list[tuple[Any, Any, str]] = [
        (tensors, {"epoch": 3}, "metadata key 'epoch'"),
        (tensors, {3: "three"}, "metadata key 3"),
        (tensors, {"bad": "\ud800"}, "metadata key 'bad'"),
        (tensors, [("a", "b")], "metadata must be"),
        ({7: floats(1)}, None, "tensor name 7"),
        ({"\ud800": floats(1)}, None, "tensor name"),
    ]
    for arrays, metadata, message in refused:
        with pytest.raises(checkpoint.CheckpointError, match=message):
            checkpoint.save(path, arrays, metadata=metadata, overwrite=True)
        assert path.read_bytes() == b"old"


def test_no_tensor_takes_the_place_of_the_metadata(tmp_path: Path) -> None:
    arrays, out = {"__metadata__.json": floats(2)}, tmp_path / "out.npz"
    with pytest.raises(checkpoint.CheckpointError, match=r"cannot be named '__metadata__\.json'"):
        checkpoint.save(out, arrays)
    checkpoint.save(tmp_path / "in.safetensors", arrays, metadata={"k": "v"})
    with pytest.raises(checkpoint.CheckpointError, match=r"cannot be named '__metadata__\.json'"):
        checkpoint.cast_file(tmp_path / "in.safetensors", out, "bfloat16")
    assert not out.exists()


def test_assume_is_always_checked(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "f.safetensors", {"w": floats(1)})
    checkpoint.save(tmp_path / "f.npz", {"w": floats(1)})
    write_sharded(tmp_path / "folder", {"one.safetensors": {"w": floats(1)}})
    wrong: list[tuple[Any, str]] = [
        ("bfloat61", "assume: .*bfloat61.*bfloat16"),
        ({"gone": "bfloat61"}, "assume: key 'gone': .*bfloat61"),
        ({3: "bfloat16"}, "assume: key 3"),
        (16, "assume must be"),
        (["bfloat16"], "assume must be"),
    ]
    for name in ("f.safetensors", "f.npz", "folder"):
        path = tmp_path / name
        for assume, message in wrong:
            with pytest.raises(TypeError, match=message):
                checkpoint.load(path, assume=assume)
            with pytest.raises(TypeError, match=message):
                checkpoint.inspect(path, assume=assume)
            with pytest.raises(TypeError, match=message):
                checkpoint.cast_file(path, tmp_path / "out", "bfloat16", assume=assume)


def test_paths_that_name_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sharded(tmp_path / "here", {"one.safetensors": {"w": floats(1)}})
    monkeypatch.chdir(tmp_path / "here")  # a checkpoint, if "" meant "."
    for action in (
        checkpoint.load,
        checkpoint.inspect,
        checkpoint.metadata,
        lambda path: checkpoint.save(path, {}),
        lambda path: checkpoint.cast_file(path, tmp_path / "out", "bfloat16"),
        lambda path: checkpoint.cast_file(".", path, "bfloat16"),
    ):
        with pytest.raises(checkpoint.CheckpointError, match="path is empty"):
            action("")
    for action in (
        checkpoint.load,
        checkpoint.inspect,
        lambda path: checkpoint.cast_file(path, tmp_path / "out", "bfloat16"),
    ):
        with pytest.raises(FileNotFoundError, match=f"{no_such_file(tmp_path / 'none')}.*none"):
            action(tmp_path / "none")


def test_what_is_not_a_path_is_refused_by_the_name_of_its_argument(tmp_path: Path) -> None:
    here, out = tmp_path / "f.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(here, {"w": floats(1)})
    calls: list[tuple[str, Any]] = [
        ("path", checkpoint.load),
        ("path", checkpoint.inspect),
        ("path", checkpoint.metadata),
        ("path", lambda path: checkpoint.save(path, {})),
        ("source", lambda path: checkpoint.cast_file(path, out, "bfloat16")),
        ("destination", lambda path: checkpoint.cast_file(here, path, "bfloat16")),
        ("destination", checkpoint.finish),
        ("source", lambda path: checkpoint.dequantize_file(path, out)),
        ("destination", lambda path: checkpoint.dequantize_file(here, path)),
        ("source", lambda path: checkpoint.quantize_file(path, out, "fp8_tensor")),
        ("destination", lambda path: checkpoint.quantize_file(here, path, "fp8_tensor")),
        ("source", lambda path: checkpoint.transcode_file(path, out, "modelopt")),
        ("destination", lambda path: checkpoint.transcode_file(here, path, "modelopt")),
        ("first", lambda path: checkpoint.verify(path, here)),
        ("second", lambda path: checkpoint.verify(here, path)),
    ]
    for value, shown in ((None, "None"), (b"a" * 1000, r"b'a+\.\.\.a+'"), (3, "3")):
        for argument, call in calls:
            message = rf"^{argument} must be a str or an os\.PathLike, not {shown}$"
            with pytest.raises(TypeError, match=message):
                call(value)


def test_progress_is_a_function(tmp_path: Path) -> None:
    here, out = tmp_path / "f.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(here, {"w": floats(1)})
    progress: Any = 3
    for call in (
        lambda: checkpoint.cast_file(here, out, "bfloat16", progress=progress),
        lambda: checkpoint.cast_file(here, out, "bfloat16", part="1/2", progress=progress),
        lambda: checkpoint.verify(here, here, progress=progress),
    ):
        with pytest.raises(TypeError, match=r"progress must be a function of a Progress.* not 3"):
            call()
    assert os.listdir(tmp_path) == ["f.safetensors"]


def test_names_are_a_list_and_slips_are_explained(tmp_path: Path) -> None:
    arrays = {"layer.weight": floats(1), "layer.bias": floats(1)}
    checkpoint.save(tmp_path / "f.npz", arrays)
    write_sharded(tmp_path / "folder", {"one.safetensors": arrays})
    names: Any
    for path in (tmp_path / "f.npz", tmp_path / "folder"):
        with pytest.raises(TypeError, match=r"load\(path, \['layer.weight'\]\)"):
            checkpoint.load(path, "layer.weight")
        for names in ([3], [None]):
            with pytest.raises(TypeError, match="is not a str"):
                checkpoint.load(path, names)
        with pytest.raises(checkpoint.CheckpointError, match=r"did you mean 'layer\.weight'"):
            checkpoint.load(path, ["layer.wieght"])
