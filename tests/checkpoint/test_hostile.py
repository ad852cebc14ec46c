"""Files that lie: each is refused with a clear error, and nothing is written."""

import errno
import io
import json
import os
import random
import re
import shutil
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals
import support
from bad_files import assert_refused
from castwise import checkpoint, dtype_policies
from castwise.checkpoint.files.source_files import SourceFile
from castwise.checkpoint.running import _batches
from castwise.cli import main
from checkpoint_samples import floats, random_array, safetensors_file, write_sharded
from processes import run_limited
from system_parts import LINKS, need
from torch_files import FOLDER, state_dict, torch_file

BYTE = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def _entry(**changes: object) -> dict[str, object]:
    return {"w": {**BYTE, **changes}}


SAFETENSORS = {
    "empty": (b"", "the file is empty"),
    "cut in the length": (b"\x08\0\0", "truncated"),
    "cut in the header": (safetensors_file(_entry(), length=1000), "promise"),
    "length beyond 2**63": (b"\xff" * 8 + b"{}", "promise"),
    "length beyond the limit": ((100_000_001).to_bytes(8, "little") + b"{}", "limit"),
    "another format": (b"RIFF" + b"\0" * 60, "promise|JSON"),
    "not JSON": (safetensors_file(b"not json"), "JSON"),
    "not UTF-8": (safetensors_file(b'{"\xff":1}'), "UTF-8"),
    "a list": (safetensors_file([]), "JSON"),
    "deep": (safetensors_file(b'{"w":' + b"[" * 50_000), "JSON"),
    "name twice": (
        safetensors_file(b'{"w":%b,"w":%b}' % ((json.dumps(BYTE).encode(),) * 2), b"1234"),
        "twice",
    ),
    "unknown code": (safetensors_file(_entry(dtype="Q4"), b"1234"), "Q4"),
    "negative axis": (safetensors_file(_entry(shape=[-4]), b"1234"), "'?\"?w"),
    "shape overflows": (safetensors_file(_entry(shape=[2**40, 2**40]), b"1234"), "64 bits"),
    "shape beyond integers": (safetensors_file(_entry(shape=[2**70]), b"1234"), "JSON"),
    "axes of nothing": (
        safetensors_file(_entry(shape=[0, 2**62, 4], data_offsets=[0, 0])),
        "too large for numpy",
    ),
    "too many axes": (safetensors_file(_entry(shape=[1] * 65 + [4]), b"1234"), "66 axes"),
    "offsets swapped": (safetensors_file(_entry(data_offsets=[4, 0]), b"1234"), "'?\"?w"),
    "other size than offsets": (safetensors_file(_entry(shape=[5]), b"1234"), "another number"),
    "overlap": (
        safetensors_file({"a": BYTE, "b": {**BYTE, "data_offsets": [2, 6]}}, b"123456"),
        "overlap",
    ),
    "hole": (
        safetensors_file({"a": BYTE, "b": {**BYTE, "data_offsets": [5, 9]}}, b"123456789"),
        "hole",
    ),
    "hole at the start": (safetensors_file(_entry(data_offsets=[1, 5]), b"12345"), "hole"),
    "truncated data": (safetensors_file(_entry(), b"123"), "truncated"),
    "bytes left over": (safetensors_file(_entry(), b"12345"), "no tensor"),
    "metadata not strings": (safetensors_file({"__metadata__": {"a": 1}}), "metadata"),
    "tags not JSON": (safetensors_file({"__metadata__": {"castwise.dtypes": "{"}}), "not JSON"),
    "tags no object": (safetensors_file({"__metadata__": {"castwise.dtypes": "[1]"}}), "object"),
    "tag of another size": (
        safetensors_file(
            {"__metadata__": {"castwise.dtypes": '{"w": "complex128"}'}, **_entry()}, b"1234"
        ),
        "last axis",
    ),
}


@pytest.mark.parametrize(("content", "message"), SAFETENSORS.values(), ids=SAFETENSORS.keys())
def test_safetensors(tmp_path: Path, content: bytes, message: str) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    path.write_bytes(content)
    assert_refused(path, out, message)
    assert not out.exists()


def _npy(descr: str, shape: str, data: bytes = b"", order: str = "False") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


NPY = {
    "empty": (b"", "does not start"),
    "version 9": (b"\x93NUMPY\x09\x00\x00\x00", "version"),
    "cut in the header": (_npy("'<f4'", "(1,)")[:20], "damaged"),
    "long header": (b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little"), "limit"),
    "truncated": (_npy("'<f4'", "(2,)", b"1234"), "8 bytes, the file has 4"),
    "bytes left over": (_npy("'<f4'", "(1,)", b"12345678"), "4 bytes, the file has 8"),
    "huge": (_npy("'<f4'", "(9999999999999,)"), "needs"),
    "negative": (_npy("'<f4'", "(-1,)"), "damaged"),
    "overflow": (_npy("'<f4'", f"({2**62}, 4)"), "too large"),
    "overflow beside nothing": (_npy("'<f4'", f"(0, {2**62}, 4)"), "too large"),
    "axes": (_npy("'<f4'", "(" + "1," * 65 + ")", b"1234"), "65 axes"),
    "bool as an axis": (_npy("'<f4'", "(True,)", b"1234"), "damaged"),
    "a call": (_npy("__import__('os').getcwd()", "()"), "damaged"),
    "deep": (_npy("(" * 3000 + ")" * 3000, "()"), "damaged"),
    "deep minus": (_npy("-" * 9000 + "1", "()"), "damaged"),
    "a long sum": (_npy("1+" * 9000 + "1", "()"), "damaged"),
    "a power": (_npy("9**9**9", "()"), "damaged"),
    "text after it": (_npy("'<f4'", "()}, {'a': (1,)"), "damaged"),
    "no comma": (_npy("'<f4' '<f4'", "()"), "damaged"),
    "a wrong bracket": (_npy("['a')", "()"), "damaged"),
    "an open text": (_npy("'<f4", "()"), "damaged"),
    "a list as key": (_npy("{[]: 1}", "()"), "damaged"),
    "a wrong escape": (_npy(r"'\x1'", "()"), "damaged"),
    "no dtype": (_npy("'nonsense'", "()"), "nonsense"),
    "a dtype of lists": (_npy("[['a', ['b', 3]]]", "()"), "dtype"),
    "a dtype that begins with a comma": (_npy("',f4'", "(1,)", b"1234"), "numpy knows no dtype"),
    "elements that are arrays": (_npy("('<f4', (2,))", "(3,)", bytes(24)), "arrays themselves"),
    "elements that are many arrays": (_npy("'(2,)f4'", "(1,)", bytes(8)), "arrays themselves"),
    "a dict as dtype": (_npy("{'a': 1}", "()"), "dtype"),
    "a wrong order": (_npy("'<f4'", "()", b"1234", "1"), "damaged"),
    "nothing many times": (_npy("'|V0'", f"({2**62}, 2)"), "too large"),
}


def _long_npy(descr: str) -> bytes:
    """A header of just what is allowed, of version 2.0."""
    start = "{'fortran_order': False, 'shape': (), 'descr': "
    header = (start + descr * (2**20 // len(descr)))[: 2**20].encode()
    return b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header


@pytest.mark.thinned(4)
@pytest.mark.parametrize("descr", ["(", "()", "-", "1+", "[],", "'',", "{1:'a'},", "'", "\\", " "])
def test_the_longest_headers_take_little_memory(tmp_path: Path, descr: str) -> None:
    path = tmp_path / "in.npy"
    path.write_bytes(_long_npy(descr))
    result = run_limited("RLIMIT_DATA", 340 * 2**20, "inspect", path)
    assert result.returncode == 2
    assert "the .npy header is damaged" in result.stderr


def _cast_to_out(path: Path) -> None:
    checkpoint.cast_file(path, path.with_stem("out"), "bfloat16")


@pytest.mark.parametrize(("content", "message"), NPY.values(), ids=NPY.keys())
def test_npy_and_members_of_npz(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "in.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("in.npy", content)
    for path in (tmp_path / "in.npy", tmp_path / "in.npz"):
        for action in (checkpoint.inspect, _cast_to_out):
            with pytest.raises(checkpoint.CheckpointError, match=message) as caught:
                action(path)
            assert str(path) in str(caught.value)
        assert not path.with_stem("out").exists()


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    for path in (tmp_path / "in.npy", tmp_path / "in.npz"):
        content = _npy("'|O'", "(1,)", b"cos\nsystem\n(S'touch owned'\ntR.")
        if path.suffix == ".npz":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("in.npy", content)
        else:
            path.write_bytes(content)
        with pytest.raises(checkpoint.CheckpointError, match="pickle"):
            checkpoint.load(path)
        with pytest.raises(checkpoint.CheckpointError, match="no numbers"):
            checkpoint.cast_file(path, path.with_stem("out"), dtype_map={"in": "bfloat16"})
    assert not Path("owned").exists()


def _patched(archive: bytes, member: str, offset: int, value: bytes) -> bytes:
    """A zip file with some bytes of a member's entry in the central directory replaced."""
    entry = archive.index(b"PK\x01\x02")
    while archive[entry + 46 :][: len(member)] != member.encode():
        entry = archive.index(b"PK\x01\x02", entry + 1)
    return archive[: entry + offset] + value + archive[entry + offset + len(value) :]


def _npz(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in ("a", "b"):
            member = io.BytesIO()
            np.save(member, np.zeros(1000))
            archive.writestr(f"{name}.npy", member.getvalue())
    return buffer.getvalue()


def _two_members_of_one_name() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", _npy("'<f4'", "()", b"1234"))
        archive.writestr("a", b"")
    return buffer.getvalue()


ZIPS = {
    "no zip": (b"PK no", "damaged"),
    "cut": (_npz()[:-30], "damaged"),
    "claims more than deflate can": (
        _patched(_npz(), "b.npy", 24, (2**31).to_bytes(4, "little")),
        "claims 2,147,483,648",
    ),
    "claims more than it stores": (
        _patched(_npz(zipfile.ZIP_STORED), "b.npy", 24, (2**31).to_bytes(4, "little")),
        "claims",
    ),
    "members overlap": (
        _patched(_npz(zipfile.ZIP_STORED), "b.npy", 20, (15_000).to_bytes(4, "little")),
        "overlap",
    ),
    "one starts at another": (_patched(_npz(), "b.npy", 42, b"\0\0\0\0"), "damaged"),
    "encrypted": (_patched(_npz(), "b.npy", 8, b"\x01"), "encrypted"),
    "unusual method": (_npz(zipfile.ZIP_LZMA), "stored nor deflated"),
    "unknown method": (_patched(_npz(), "b.npy", 10, b"\x63"), "stored nor deflated"),
    "one name twice": (_two_members_of_one_name(), "'a'"),
    "no arrays": (
        _npz().replace(b".npy", b".txt"),
        r"no arrays \(\.npy\), but a\.txt, b\.txt; give",
    ),
}


@pytest.mark.parametrize(("content", "message"), ZIPS.values(), ids=ZIPS.keys())
@pytest.mark.filterwarnings("ignore:Overlapped entries:UserWarning")  # of zipfile, Python 3.13
def test_zip_files(tmp_path: Path, content: bytes, message: str) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    path.write_bytes(content)
    for action in (checkpoint.load, lambda p: checkpoint.cast_file(p, out, "bfloat16")):
        with pytest.raises(checkpoint.CheckpointError, match=message):
            action(path)
    assert not out.exists()


def test_a_member_that_does_not_match_its_checksum(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, a=floats(1000))
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    out.write_bytes(b"old")
    with pytest.raises(checkpoint.CheckpointError, match="damaged"):
        checkpoint.cast_file(path, out, "bfloat16", overwrite=True)
    assert out.read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == 2


def test_a_zip_file_that_is_cut_off_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, a=floats(500_000), b=floats(500_000))

    def cut_off(progress: checkpoint.Progress) -> None:
        if progress.name == "b":
            os.truncate(path, 2_000_000)

    with pytest.raises(
        checkpoint.CheckpointError, match=r"damaged: it ends early; fetch the file again$"
    ):
        checkpoint.cast_file(path, tmp_path / "out.npz", "bfloat16", progress=cut_off)
    assert os.listdir(tmp_path) == ["in.npz"]


def _samples(folder: Path) -> dict[str, bytes]:
    arrays = {"a": floats(5), "b": random_array("bfloat16", (2, 3)), "c": np.array(["x"])}
    samples = {}
    for name, keys in (("f.safetensors", "ab"), ("f.npz", "abc"), ("f.npy", "b")):
        path = folder / name
        tensors = {key: arrays[key] for key in keys}
        checkpoint.save(path, tensors if len(keys) > 1 else arrays["b"])
        samples[path.suffix] = path.read_bytes()
    return samples


def test_damage_of_any_kind_never_gives_another_error(tmp_path: Path) -> None:
    generator = random.Random(1)
    for suffix, content in _samples(tmp_path).items():
        path, out = tmp_path / f"damaged{suffix}", tmp_path / f"out{suffix}"
        refused = 0
        for _ in range(600 // support.FEWER):
            damaged = bytearray(content)
            for _ in range(generator.choice((1, 1, 2, 8))):
                damaged[generator.randrange(len(damaged))] = generator.choice(
                    (0, 1, 255, 0x5B, 0x7B, 0x2D, 0x39, generator.randrange(256))
                )
            if generator.random() < 0.2:
                del damaged[generator.randrange(len(damaged)) :]
            path.write_bytes(damaged)
            try:
                checkpoint.load(path)
                checkpoint.cast_file(path, out, "bfloat16", overwrite=True)
            except checkpoint.CheckpointError:
                refused += 1
        assert refused > 50


SHARDS = {
    "one.safetensors": {"a": floats(4)},
    "two.safetensors": {"b": floats(4)},
}


def _index(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    changed = change(index)
    path.write_text(changed if isinstance(changed, str) else json.dumps(index))


INDEXES: dict[str, tuple[Callable[[dict[str, object]], object], str]] = {
    "not JSON": (lambda index: "{", "not JSON"),
    "deep": (lambda index: "[" * 100_000, "not JSON"),
    "a list": (lambda index: "[]", "no weight_map"),
    "no map": (lambda index: index.pop("weight_map"), "no weight_map"),
    "map of numbers": (lambda index: index.update(weight_map={"a": 1}), "no weight_map"),
    "metadata no object": (lambda index: index.update(metadata=[1]), "metadata"),
    "name twice": (lambda index: '{"weight_map": {"a": "x", "a": "y"}}', "twice"),
    "missing shard": (
        lambda index: index.update(weight_map={"a": "three.safetensors"}),
        "'three.safetensors' is missing.*'a'",
    ),
    "tensor in the wrong shard": (
        lambda index: index.update(weight_map={"a": "two.safetensors"}),
        "'a' is not in this shard",
    ),
    **{
        f"shard {name!r}": (
            lambda index, name=name: index.update(weight_map={"a": name}),
            "not the name of a file",
        )
        for name in ("../in.safetensors", "/etc/passwd", "..", ".", "", "a\\b", "sub/x", "a\0b")
    },
}


@pytest.mark.parametrize(("change", "message"), INDEXES.values(), ids=INDEXES.keys())
def test_indexes(
    tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    source, out = tmp_path / "model", tmp_path / "out"
    write_sharded(source, SHARDS)
    checkpoint.save(tmp_path / "in.safetensors", {"a": floats(4)})
    _index(source, change)
    assert_refused(source, out, message)
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "model"]


def _whole(name: str) -> bytes:
    """Return a whole file of a container."""
    buffer, array = io.BytesIO(), np.ones((9, 9), np.float32)
    match name:
        case "zip.pt" | "legacy.pt":
            return (FOLDER / name).read_bytes()
        case "in.safetensors":
            return safetensors_file(_entry(), b"1234")
        case "in.npy":
            np.save(buffer, array)
        case _:
            np.savez(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["in.safetensors", "in.npy", "in.npz", "zip.pt", "legacy.pt"])
def test_a_file_that_is_cut_off_is_to_be_fetched_again(tmp_path: Path, name: str) -> None:
    whole, path = _whole(name), tmp_path / name
    for size in (9, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(checkpoint.CheckpointError, match=r"fetch the file again$"):
            checkpoint.inspect(path)


def test_every_refusal_of_a_damaged_file_has_a_remedy() -> None:
    """In the record, with which the tests that provoke these refusals compare them."""
    provoked = re.compile(
        r"checkpoint/test_hostile\.py::test_(safetensors|npy_and_members_of_npz|zip_files|indexes)\["
        r"|checkpoint/test_torch\.py::test_files_that_lie\["
        r"|quantization/test_gguf\.py::test_headers_that_lie"
    )
    texts = {
        text
        for name, refused in refusals.record().items()
        if provoked.match(name)
        for text in refused
    }
    assert len(texts) > 100
    assert not [text for text in sorted(texts) if "; " not in text]


def test_a_damaged_shard_stops_everything_before_it_starts(tmp_path: Path) -> None:
    source, out = tmp_path / "model", tmp_path / "out"
    write_sharded(source, SHARDS)
    shard = source / "two.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(checkpoint.CheckpointError, match=r"two\.safetensors.*truncated"):
        checkpoint.cast_file(source, out, "bfloat16")
    assert os.listdir(tmp_path) == ["model"]


def test_several_indexes_are_ambiguous(tmp_path: Path) -> None:
    source = tmp_path / "model"
    write_sharded(source, SHARDS)
    (source / "other.safetensors.index.json").write_text("{}")
    with pytest.raises(checkpoint.CheckpointError, match="several indexes"):
        checkpoint.load(source)


def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    need(LINKS, "os.mkfifo", "/dev/full")
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(checkpoint.CheckpointError, match="not a regular file"):
        checkpoint.load(pipe)
    good = tmp_path / "good.safetensors"
    checkpoint.save(good, {"a": floats(4)})
    full = tmp_path / "full.safetensors"
    full.symlink_to("/dev/full")
    with pytest.raises(checkpoint.CheckpointError, match=f"^{full} is not a regular file"):
        checkpoint.cast_file(good, full, "bfloat16")
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    with pytest.raises(checkpoint.CheckpointError, match="is a folder"):
        checkpoint.cast_file(good, folder, "bfloat16")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        checkpoint.cast_file(good, tmp_path / "nowhere" / "x.safetensors", "bfloat16")
    with pytest.raises(FileNotFoundError, match="missing"):
        checkpoint.load(tmp_path / "missing.safetensors")
    assert Path("/dev/full").is_char_device()


def test_what_is_missing_beside_a_name_that_is_no_text(tmp_path: Path) -> None:
    need("os.fsencode")
    for folder in (b"names", b"\xe9t\xe9"):
        place = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), folder)))
        place.mkdir()
        Path(os.fsdecode(os.path.join(os.fsencode(place), b"mod\xffel.npz"))).touch()
        for name in (b"model.npz", b"mo\xff.npz"):
            path = os.fsdecode(os.path.join(os.fsencode(place), name))
            for read in (checkpoint.load, checkpoint.inspect):
                with pytest.raises(FileNotFoundError):
                    read(path)


@pytest.mark.parametrize("name", ["link", "link.safetensors"])
def test_a_link_to_itself_is_named(tmp_path: Path, name: str) -> None:
    need(LINKS)
    link = tmp_path / name
    link.symlink_to(link)
    for read in (checkpoint.load, checkpoint.inspect):
        with pytest.raises(OSError, match=str(link)) as caught:
            read(link)
        assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("kind", ["x.safetensors", "x.npz", "x.npy", "folder"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, kind: str) -> None:
    source, out = tmp_path / f"in-{kind}", tmp_path / f"out-{kind}"
    if kind == "folder":
        write_sharded(source, {"one.safetensors": {"a": floats(400_000)}})
    elif kind == "x.npy":
        np.save(source, floats(400_000))
    else:
        checkpoint.save(source, {"a": floats(400_000)})
        out.write_bytes(b"old")
    before = sorted(os.listdir(tmp_path))
    words = ("cast", source, out, "--dtype", "bfloat16", "--overwrite")
    result = run_limited("RLIMIT_FSIZE", 100_000, *words)
    assert result.returncode == 2
    assert result.stderr == f"castwise: error: {out}: File too large\n"
    assert sorted(os.listdir(tmp_path)) == before
    if kind in {"x.safetensors", "x.npz"}:
        assert out.read_bytes() == b"old"


@pytest.mark.parametrize(
    "command", ["quantize_file", "dequantize_file", "transcode_file", "diff", "verify"]
)
def test_a_file_that_is_cut_off_while_small_weights_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The tensor at the end is named, though it is read with the others of its stack."""
    plain, quantized = tmp_path / "plain.safetensors", tmp_path / "quantized.safetensors"
    arrays = {f"layers.{number}.mlp.up_proj.weight": floats(16 * 64) for number in range(6)}
    checkpoint.save(plain, {name: array.reshape(16, 64) for name, array in arrays.items()})
    checkpoint.quantize_file(plain, quantized, "fp8_channel", recipe="compressed-tensors")
    cut_path = quantized if command in {"dequantize_file", "transcode_file"} else plain
    content = cut_path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    name = "layers.3.mlp.up_proj.weight"
    end = start + json.loads(content[8:start])[name]["data_offsets"][0] + 5
    read_into = SourceFile.read_into

    def read_as_cut(self: SourceFile, data: memoryview, begin: int) -> int:
        room = len(data) if self.path != cut_path else max(end - begin, 0)
        return read_into(self, data[:room], begin)

    monkeypatch.setattr(SourceFile, "read_into", read_as_cut)
    out = tmp_path / "out.safetensors"
    arguments: dict[str, tuple[Any, ...]] = {
        "quantize_file": (plain, out, "nvfp4"),
        "dequantize_file": (quantized, out),
        "transcode_file": (quantized, out, "modelopt"),
        "diff": (plain, quantized),
        "verify": (plain, quantized),
    }
    with pytest.raises(checkpoint.CheckpointError, match=f"truncated .*; tensor '{name}'"):
        getattr(checkpoint, command)(*arguments[command])
    assert not out.exists()


@pytest.mark.parametrize(
    ("stage", "kind", "message"),
    [
        ("read", checkpoint.CheckpointError, "in.npy: truncated while it was read; tensor 'in'"),
        ("write", OSError, "no more can be written: .*out.npy"),
    ],
)
def test_failures_without_a_number_of_the_system(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    kind: type[Exception],
    message: str,
) -> None:
    # No file system here takes none of the bytes without saying why.
    failed = ([], (0, stage, None, None))
    monkeypatch.setattr(
        _batches, "convert_tensors", lambda _source, _target, jobs, *_: (list(jobs), failed)[1]
    )
    np.save(tmp_path / "in.npy", floats(8))
    with pytest.raises(kind, match=message):
        checkpoint.cast_file(tmp_path / "in.npy", tmp_path / "out.npy", "bfloat16")
    assert os.listdir(tmp_path) == ["in.npy"]


def npz_bytes() -> bytes:
    """An npz of two arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(5.0), b=np.arange(3))
    return buffer.getvalue()


def test_no_flipped_bit_of_an_npz_changes_what_is_loaded(tmp_path: Path) -> None:
    content, path = npz_bytes(), tmp_path / "x.npz"
    path.write_bytes(content)
    right = checkpoint.load(path)
    begin = content.index(b"PK\1\2")
    for place in range(begin, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            loaded = checkpoint.load(path)
        except checkpoint.CheckpointError:
            continue
        assert list(loaded) == list(right), place
        assert all(np.array_equal(loaded[name], right[name]) for name in right), place


def test_an_npz_that_lists_no_members_is_empty_or_damaged(tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz")
    assert checkpoint.load(tmp_path / "empty.npz") == {}
    content, path = npz_bytes(), tmp_path / "x.npz"
    end = content.rindex(b"PK\5\6")
    for damaged in (
        content[: content.index(b"PK\1\2")] + b"PK\5\6" + bytes(18),
        content[: end + 8] + bytes(4) + content[end + 12 :],
    ):
        path.write_bytes(damaged)
        with pytest.raises(checkpoint.CheckpointError, match="the zip file is damaged"):
            checkpoint.load(path)


def test_a_flipped_bit_of_a_keras_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    checkpoint.save(tmp_path / "w.weights.h5", {"layers/dense/vars/0": floats(256)})
    weights = (tmp_path / "w.weights.h5").read_bytes()
    path = tmp_path / "x.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", weights)
    content = bytearray(path.read_bytes())
    content[content.index(floats(256).tobytes()) + 100] ^= 1
    path.write_bytes(content)
    message = "member 'model.weights.h5' do not have the checksum"
    with pytest.raises(checkpoint.CheckpointError, match=message):
        checkpoint.load(path)
    with pytest.raises(checkpoint.CheckpointError, match=message):
        checkpoint.cast_file(path, tmp_path / "out.keras", "bf16")


def test_a_toml_map_of_deep_keys_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    path.write_text("a" + 20_000 * ".a" + "=1\n")
    checkpoint.save(tmp_path / "in.safetensors", {"w": floats(4)})
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="20,000 dots outside of quotes, and a map needs none"):
            checkpoint.cast_file(tmp_path / "in.safetensors", tmp_path / "o.npz", dtype_map=path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    path.write_text("# a.b.c\n'" + 2_000 * "a." + "b' = 'float16'\n\"w.\\\"x\" = 'float16'\n")
    summary = checkpoint.cast_file(tmp_path / "in.safetensors", tmp_path / "o.npz", dtype_map=path)
    assert len(summary.unused_patterns) == 2


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"policy_map": "x"}, "policy_map='x' must be a dict of keys to policies"),
        ({"policy_map": 3}, "policy_map=3 must be a dict"),
        ({"policy_map": [1]}, "policy_map=[1] must be a dict"),
        ({"policy_map": True}, "policy_map=True must be a dict"),
        ({"policy_map": ""}, "policy_map='' must be a dict"),
        ({}, "it has no 'policy_map'"),
    ],
)
def test_a_policy_file_of_wrong_types_is_refused_in_one_line(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    checkpoint.save(tmp_path / "in.safetensors", {"w": floats(4)})
    path = tmp_path / "policy.json"
    whole = {"class_name": "DTypePolicyMap", "config": {"default_policy": "float32", **config}}
    path.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=re.escape(f"{path} holds no policy's config: {said}")):
        checkpoint.cast_file(tmp_path / "in.safetensors", tmp_path / "o.npz", policy=path)
    path.write_text(json.dumps({**whole, "class_name": [1]}))
    with pytest.raises(ValueError, match=r"config has class_name=\[1\], which must be a str"):
        checkpoint.cast_file(tmp_path / "in.safetensors", tmp_path / "o.npz", policy=path)


@pytest.mark.parametrize("kind", [{}, [], [{}], 3, None])
def test_a_model_type_of_another_type_is_as_good_as_none(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "model").mkdir()
    weight = floats(64 * 64).reshape(64, 64)
    checkpoint.save(tmp_path / "model" / "model.safetensors", {"l.q_proj.weight": weight})
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": kind}))
    summary = checkpoint.quantize_file(tmp_path / "model", tmp_path / "out", "nvfp4")
    assert [row.name for row in summary.rows if row.target is not None]


LEADING_OUT = ("../x", "a/../../x", "/etc/x", "C:x", "a\\..\\..\\x", "a//x", "./x")


@pytest.mark.parametrize("name", [*LEADING_OUT, "C:x.npy", "C:/x.npy", "a/C:x/w.npy"])
@pytest.mark.parametrize("suffix", [".npz", ".bin"])
def test_members_that_lead_out_of_their_archive(tmp_path: Path, suffix: str, name: str) -> None:
    """Whoever unpacks what castwise writes would write them elsewhere."""
    path, out = tmp_path / f"in{suffix}", tmp_path / "out.npz"
    buffer = io.BytesIO(_npz(zipfile.ZIP_STORED) if suffix == ".npz" else torch_file(state_dict()))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(name, b"evil")
    path.write_bytes(buffer.getvalue())
    assert_refused(path, out, "the zip file has .* could lead out of it; rename it there")
    assert not out.exists()


def test_names_of_arrays_that_lead_out_of_their_archive(tmp_path: Path) -> None:
    for name in ("../x", "/x", "a//x", "a\\x", "C:x", "C:/x"):
        source = tmp_path / "in.safetensors"
        checkpoint.save(source, {name: floats(4)}, overwrite=True)
        with pytest.raises(checkpoint.CheckpointError, match="could lead out of it"):
            checkpoint.cast_file(source, tmp_path / "out.npz", "bfloat16")
    assert os.listdir(tmp_path) == ["in.safetensors"]
    names = [
        "w:0",
        "a/w:12",
        "dense/kernel:0",
        "onnx::MatMul_1",
        "linear/~/w",
        "a.b",
    ]  # of TensorFlow, ...
    np.savez(tmp_path / "in.npz", **dict.fromkeys(names, floats(4)))
    checkpoint.cast_file(tmp_path / "in.npz", tmp_path / "out.npz", "float16")
    assert sorted(np.load(tmp_path / "out.npz")) == sorted(names)


def test_a_file_whose_name_leads_out_on_another_system(tmp_path: Path) -> None:
    need("os.fork")  # Windows has no such names
    source = tmp_path / "in"
    write_sharded(source, SHARDS)
    (source / "a\\..\\..\\x").write_bytes(b"evil")
    with pytest.raises(checkpoint.CheckpointError, match=r"in lists 'a.*could lead out of it"):
        checkpoint.cast_file(source, tmp_path / "out", "bfloat16")
    assert os.listdir(tmp_path) == ["in"]


PATTERN_DOORS: dict[str, Callable[[Path, str], list[str]]] = {
    "cast --map": lambda path, key: ["cast", "--map", map_file(path, {key: "bfloat16"})],
    "cast --policy": lambda path, key: ["cast", "--policy", policy_file(path, key)],
    "quantize --map": lambda path, key: [
        "quantize",
        "--map",
        map_file(path, {key: "int8_channel"}),
    ],
    "quantize --ignore": lambda _, key: ["quantize", "--scheme", "int8_channel", "--ignore", key],
    "dequantize --only": lambda _, key: ["dequantize", "--only", key],
    "verify --map": lambda path, key: ["verify", "--map", map_file(path, {key: "bfloat16"})],
    "diff --map": lambda path, key: ["diff", "--map", map_file(path, {key: "bfloat16"})],
    "advise --groups": lambda path, key: [
        "advise",
        "--bits",
        "40",
        "--groups",
        map_file(path, [key]),
    ],
}
"""Commands with a pattern, without source and destination."""


def map_file(folder: Path, content: Any) -> str:
    path = folder / "map.json"
    path.write_text(json.dumps(content))
    return str(path)


def policy_file(folder: Path, key: str) -> str:
    """Write a map of policies as Keras does."""
    policies = dtype_policies.serialize(dtype_policies.DTypePolicyMap("float32", {"a": "bfloat16"}))
    policy = policies["config"]["policy_map"].pop("a")
    policies["config"]["policy_map"][key] = policy
    return map_file(folder, policies)


@pytest.mark.parametrize("door", PATTERN_DOORS)
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("(a+)+b", None),
        ("(a|aa)*$", None),
        ("(?=a)(a+)+b", "cannot be matched in linear time"),
        ("(?!b)(a+)+b", "cannot be matched in linear time"),
        (r"(a)(\1|a)+b", "cannot be matched in linear time"),
        ("(" * 150 + "a" + ")" * 150, "cannot be matched in linear time"),
        ("(" * 2000 + "a" + ")" * 2000, "write it with fewer groups and repetitions"),
    ],
)
def test_every_door_matches_patterns_in_linear_time_or_refuses_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], door: str, key: str, reason: str | None
) -> None:
    name = "a" * 5000 + "!.weight"  # `re` would not come to an end
    source, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    checkpoint.save(source, {name: floats(64 * 64).reshape(64, 64)})
    command, *options = PATTERN_DOORS[door](tmp_path, key)
    if command == "dequantize":
        checkpoint.quantize_file(source, other, "fp8_tensor", recipe="comfy")
        source, other = other, tmp_path / "c.safetensors"
    files = [str(source)] if command == "advise" else [str(source), str(other)]
    if command in {"verify", "diff"}:
        shutil.copy(source, other)
    before = sorted(os.listdir(tmp_path))
    began = time.process_time()
    code = main([command, *files, *options])
    assert time.process_time() - began < 5
    said = capsys.readouterr().err
    if reason is not None:
        assert code == 2
        assert reason in said
        assert sorted(os.listdir(tmp_path)) == before
    else:
        assert "Traceback" not in said
        assert "cannot be matched" not in said
