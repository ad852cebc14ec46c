"""Files of torch, read without torch: recorded ones, and ones that lie."""

from __future__ import annotations

import logging
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
import support
from bad_files import assert_refused, damaged
from castwise import checkpoint
from checkpoint_samples import assert_same, byte_swapped
from processes import run_limited
from torch_files import (
    FLOATS,
    FOLDER,
    FORMATS,
    Call,
    Global,
    Storage,
    expected,
    pickled,
    plain_zip,
    state_dict,
    tensor,
    torch_file,
)

EIGHT = np.arange(8, dtype=np.float32)


@pytest.mark.parametrize("file", ["zip.pt", "legacy.pt"])
def test_what_torch_wrote(tmp_path: Path, file: str) -> None:
    loaded = checkpoint.load(FOLDER / file)
    assert list(loaded) == list(expected())
    for name, array in expected().items():
        assert_same(loaded[name], array)
    for suffix in (".safetensors", ".npz"):
        out = tmp_path / f"out{suffix}"
        summary = checkpoint.cast_file(FOLDER / file, out, "bfloat16", as_bytes=True)
        assert len(summary.rows) == len(loaded)
        for name, array in checkpoint.load(out).items():
            floating = castwise.finfo(loaded[name].dtype).kind == "float"
            assert_same(
                array, castwise.cast(loaded[name], "bfloat16") if floating else loaded[name]
            )


@pytest.mark.parametrize("options", [{"overflow": "raise"}, {"rounding": "stochastic", "seed": 1}])
def test_strided_tensors_are_cast_as_their_copies(tmp_path: Path, options: dict[str, Any]) -> None:
    names = ("transposed", "permuted", "reversed axes", "every second", "expanded", "whole")
    checkpoint.save(tmp_path / "a.safetensors", {name: expected()[name] for name in names})
    rules = {**dict.fromkeys(names, "float8_e5m2")}
    checkpoint.cast_file(tmp_path / "a.safetensors", tmp_path / "b.npz", dtype_map=rules, **options)
    checkpoint.cast_file(FOLDER / "zip.pt", tmp_path / "c.npz", dtype_map=rules, **options)
    others = checkpoint.load(tmp_path / "b.npz")
    for name, array in checkpoint.load(tmp_path / "c.npz", names).items():
        assert_same(array, others[name])


def test_a_training_checkpoint_gives_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        checkpoint.cast_file(FOLDER / "training.ckpt", tmp_path / "out.safetensors", "float16")
    assert sorted(checkpoint.load(tmp_path / "out.safetensors")) == ["bias", "weight"]
    assert checkpoint.metadata(tmp_path / "out.safetensors") == {"format": "pt"}
    said = [record.getMessage() for record in caplog.records]
    assert said[0].endswith("under 'state_dict'; left out: optimizer_states (6 tensors)")
    assert said[1].endswith("left out, not arrays: epoch, hyper_parameters")


def test_names_are_keys(tmp_path: Path) -> None:
    path = tmp_path / "in.pt"
    one = tensor((2,), (1,))
    for value, names in (
        (one, ["in"]),
        ([one, {"b": one}], ["0", "1.b"]),
        ({"a": {"b": {5: one}}, "c": 1, "d": None}, ["a.b.5"]),
        (
            {"generator": {"w": one}, "discriminator": {"w": one}},
            ["generator.w", "discriminator.w"],
        ),
        ({"model": {"w": one}, "w": one}, ["model.w", "w"]),
        ({"model": {"w": one}, "state_dict": {"w": one}}, ["model.w", "state_dict.w"]),
        ({"module": {"a": {"w": one}}, "step": 3}, ["a.w"]),
        ({}, []),
    ):
        path.write_bytes(torch_file(value))
        assert list(checkpoint.load(path)) == names


def test_the_byte_order_of_the_file(tmp_path: Path) -> None:
    """Rewrites a recorded file in the other byte order, as torch writes it on such machines."""
    with zipfile.ZipFile(FOLDER / "zip.pt") as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    for index, name in enumerate(FORMATS):
        array = expected()[name]
        members[f"data/{index}"] = byte_swapped(array).view(np.uint8).tobytes()
    members["byteorder"] = b"big"
    path = tmp_path / "in.pt"
    path.write_bytes(plain_zip(members))
    checkpoint.cast_file(path, tmp_path / "out.npz", dtype_map={".*": "keep"})
    for name in FORMATS:
        assert_same(checkpoint.load(path, [name])[name], expected()[name])
        assert_same(checkpoint.load(tmp_path / "out.npz", [name])[name], expected()[name])


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_nothing_is_written_as_torch(tmp_path: Path, suffix: str) -> None:
    source, out = tmp_path / "in.pth", tmp_path / f"out{suffix}"
    source.write_bytes(torch_file(state_dict(a=tensor((8,), (1,)))))
    with pytest.raises(checkpoint.CheckpointError, match=rf"only reads {suffix}; it writes \.saf"):
        checkpoint.cast_file(source, out, "bfloat16")
    assert not out.exists()


@pytest.mark.parametrize(("suffix", "tool"), [(".onnx", "onnxconv")])
def test_other_tools_are_named(tmp_path: Path, suffix: str, tool: str) -> None:
    path = tmp_path / f"in{suffix}"
    path.write_bytes(b"\x08\x0a")
    for action in (checkpoint.load, checkpoint.inspect):
        with pytest.raises(checkpoint.CheckpointError, match=f"does not read {suffix}; {tool}"):
            action(path)


class _Evil:
    def __reduce__(self) -> Any:
        return eval, ("open('owned', 'w')",)


def _deep(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def _doubled(levels: int) -> bytes:
    """Lists of two times the same list: few bytes that would be walked through forever."""
    body = b"".join(
        b"](h%ch%ce" % (level - 1, level - 1) + b"q%c" % level for level in range(1, levels)
    )
    return b"\x80\x02]q\0" + body + b"."


def _repeated(levels: int) -> dict[str, Any]:
    """Mappings with the same mapping at two keys, whose values are many more than are stored."""
    value: dict[str, Any] = {"a": 1.0}
    for _ in range(levels):
        value = {"x": value, "y": value}
    return value


def _float(name: str = "0", size: Any = 8) -> Storage:
    return Storage("torch FloatStorage", name, size)


def test_a_memo_of_python_2(tmp_path: Path) -> None:
    """Its numbers begin at 1."""
    path = tmp_path / "in.pt"
    one = pickled(tensor((8,), (1,)))[2:-1]
    body = b"X\1\0\0\0aq\1" + one + b"q\2" + b"X\1\0\0\0bq\3h\2"
    path.write_bytes(torch_file(b"\x80\x02}(" + body + b"u."))
    loaded = checkpoint.load(path)
    assert list(loaded) == ["a", "b"]
    assert_same(loaded["b"], EIGHT)


BIG = 2**70
LIES: dict[str, tuple[bytes, str]] = {
    "a memo that skips": (torch_file(b"\x80\x02}q\5."), "damaged"),
    "a memo that is empty": (torch_file(b"\x80\x02}q\1h\0."), "damaged"),
    "empty": (b"", "neither like a zip file nor like a pickle"),
    "text": (b"version https://git-lfs.github.com/spec/v1\n", "neither like"),
    "cut zip": (torch_file({})[:-30], "damaged"),
    "another zip": (plain_zip({"a.json": b""}), "no data.pkl"),
    "deflated": (plain_zip({"data.pkl": pickled({})}, zipfile.ZIP_DEFLATED), "compressed"),
    "lzma": (plain_zip({"data.pkl": pickled({})}, zipfile.ZIP_LZMA), "neither stored"),
    "TorchScript": (torch_file({}, **{"constants.pkl": b""}), "TorchScript"),
    "a pickle": (pickle.dumps({"a": 1}), "not a file of torch.save"),
    "a pickle that runs": (pickle.dumps(_Evil()), r"builtins\.eval"),
    "a zip that runs": (torch_file(pickle.dumps(_Evil(), 2)), r"__builtin__\.eval.*torch\.save"),
    "another class": (torch_file(pickle.dumps(zipfile.ZipInfo("a"), 4)), r"zipfile\.ZipInfo"),
    "protocol 0": (torch_file(pickle.dumps({"a": 1}, 0)), "instruction"),
    "no stop": (torch_file(b"\x80\x02}"), "truncated"),
    "nothing on the stack": (torch_file(b"\x80\x02."), "damaged"),
    "no mark": (torch_file(b"\x80\x02t."), "damaged"),
    "no memo": (torch_file(b"\x80\x02h\x05."), "damaged"),
    "append to nothing": (torch_file(b"\x80\x02NNa."), "damaged"),
    "a text of 2**63": (torch_file(b"\x80\x04\x8d" + b"\xff" * 8 + b"a."), "truncated"),
    "a number of 2**31": (torch_file(b"\x80\x02\x8b\xff\xff\xff\x7f."), "truncated"),
    "an endless name": (torch_file(b"\x80\x02c" + b"a" * 999), "without an end"),
    "a text not UTF-8": (torch_file(b"\x80\x02X\x01\0\0\0\xff."), "damaged"),
    "deep": (torch_file(_deep(100_000)), "deep"),
    "doubled": (torch_file(_doubled(200)), "deep|values"),
    "a few values 2**30 times": (
        torch_file(pickle.dumps(_repeated(30), 2)),
        "refers to 61 values so often.*65,536 places",
    ),
    "inside of itself": (torch_file(b"\x80\x02]q\0h\0a."), "inside of themselves"),
    "a call of a dict": (torch_file(b"\x80\x02})R."), "not a function"),
    "a call without arguments": (torch_file(Call("torch._utils _rebuild_tensor_v2")), "arguments"),
    "deep calls": (
        torch_file(
            b"\x80\x02" + b"ctorch._tensor\n_rebuild_from_type_v2\n(" * 5000 + b"t" * 5000 + b"."
        ),
        "deep|name 'in'|damaged|tensor",
    ),
    "no storage": (
        torch_file(Call("torch._utils _rebuild_tensor_v2", 1, 0, (), (), 0, 0)),
        "no st",
    ),
    "no dtype": (
        torch_file(tensor((8,), (1,), 0, Storage("torch.storage UntypedStorage", "0", 32))),
        "no dtype",
    ),
    "shape of text": (torch_file(tensor(("a",), (1,))), "not numbers"),
    "bool in a shape": (torch_file(tensor((True,), (1,))), "not numbers"),
    "negative stride": (torch_file(tensor((2,), (-1,), 4)), "not numbers"),
    "negative offset": (torch_file(tensor((2,), (1,), -1)), "not numbers"),
    "negative axis": (torch_file(tensor((-2,), (1,))), "not numbers"),
    "axis beyond 64 bits": (torch_file(tensor((BIG,), (1,))), "not numbers"),
    "fewer strides": (torch_file(tensor((2, 4), (1,))), "2 axes and 1"),
    "65 axes": (torch_file(tensor((1,) * 65, (1,) * 65)), "65 axes"),
    "too large": (torch_file(tensor((2**40, 2**40), (0, 0))), "too large"),
    "repeated": (torch_file(tensor((2**40,), (0,))), "repeats its elements"),
    "beyond the storage": (torch_file(tensor((9,), (1,))), "beyond its storage"),
    "offset beyond it": (torch_file(tensor((1,), (1,), 8)), "beyond its storage"),
    "stride beyond it": (torch_file(tensor((2,), (8,))), "beyond its storage"),
    "conjugated": (torch_file(tensor((2,), (1,), 0, None, ({"conj": True},))), "resolve_conj"),
    "storage of another size": (torch_file(tensor((8,), (1,), 0, _float("0", 9))), "36 bytes"),
    "storage of size 2**70": (torch_file(tensor((8,), (1,), 0, _float("0", BIG))), "does not have"),
    "storage that is missing": (torch_file(tensor((8,), (1,), 0, _float("1"))), "not in the zip"),
    "storage elsewhere": (torch_file(tensor((8,), (1,), 0, _float("../data/0"))), "not in the zip"),
    "storage in two ways": (
        torch_file([tensor((8,), (1,)), tensor((4,), (1,), 0, _float("0", 4))]),
        "two ways",
    ),
    "a view of a storage": (
        torch_file(tensor((8,), (1,), 0, Storage("torch FloatStorage", "0", 8, ("1", 0, 8)))),
        "a view",
    ),
    "storage of a class": (
        torch_file(tensor((8,), (1,), 0, Storage("torch float32", "0", 8))),
        "does",
    ),
    "a name twice": (
        torch_file({"a": {"b": tensor((1,), (1,))}, "a.b": tensor((1,), (1,))}),
        "'a.b'",
    ),
    "byte order": (torch_file({}, byteorder=b"middle"), "middle"),
    "sparse": (torch_file(Call("torch._utils _rebuild_sparse_tensor", 1)), "sparse"),
    "quantized": (torch_file(Call("torch._utils _rebuild_qtensor", 1)), "quantized"),
}


@pytest.mark.parametrize("case", LIES)
def test_files_that_lie(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, message = LIES[case]
    monkeypatch.chdir(tmp_path)
    path, out = tmp_path / "in.pt", tmp_path / "out.safetensors"
    path.write_bytes(content)
    assert_refused(path, out, message)
    assert [each.name for each in tmp_path.iterdir()] == ["in.pt"]


def test_overlapping_storages(tmp_path: Path) -> None:
    """The directory of the zip file leads to a member that stands inside of another one."""
    inner = b"PK\3\4" + bytes(14) + struct.pack("<IIHH", 32, 32, 14, 0) + b"archive/data/1" + FLOATS
    count = len(inner) // 4
    both = [
        tensor((count,), (1,), 0, _float("0", count)),
        tensor((8,), (1,), 0, _float("1")),
    ]
    members = {"data.pkl": pickled(both), "data/0": inner, "data/1": FLOATS}
    content = bytearray(plain_zip(members))
    path = tmp_path / "in.pt"
    path.write_bytes(content)
    assert_same(checkpoint.load(path)["1"], EIGHT)
    last = content.rindex(b"PK\1\2")
    content[last + 42 : last + 46] = struct.pack("<I", content.index(inner))
    path.write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match="'1' overlaps another one"):
        checkpoint.load(path)


def test_a_flipped_bit_of_data_is_refused_by_every_command(tmp_path: Path) -> None:
    content = (FOLDER / "zip.pt").read_bytes()
    path, out = tmp_path / "in.pt", tmp_path / "out.safetensors"
    with zipfile.ZipFile(FOLDER / "zip.pt") as archive:
        members = [one for one in archive.infolist() if one.file_size and "/data" in one.filename]
    for member in members[:12]:
        begin = content.index(b"PK\3\4", member.header_offset)
        names = struct.unpack_from("<HH", content, begin + 26)
        place = begin + 30 + sum(names) + member.file_size // 2
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        message = f"{path}: the bytes of member '{member.filename}' do not have the checksum"
        for read in (
            lambda: checkpoint.load(path),
            lambda: checkpoint.cast_file(path, out, dtype_map={".*": "keep"}, as_bytes=True),
        ):
            with pytest.raises(checkpoint.CheckpointError) as refused:
                read()
            assert str(refused.value).startswith(message)
        assert not out.exists()
    assert len(members) > 12


def test_files_without_checksums_are_read(tmp_path: Path) -> None:
    """As torch saves under `set_crc32_options(False)`: 0 in the place of each."""
    content = bytearray((FOLDER / "zip.pt").read_bytes())
    with zipfile.ZipFile(FOLDER / "zip.pt") as archive:
        place = archive.start_dir
        for _ in archive.infolist():
            content[place + 16 : place + 20] = bytes(4)
            place += 46 + sum(struct.unpack_from("<HHH", content, place + 28))
    path = tmp_path / "in.pt"
    path.write_bytes(content)
    loaded = checkpoint.load(path)
    checkpoint.cast_file(path, tmp_path / "out.npz", dtype_map={".*": "keep"})
    for name in FORMATS:
        assert_same(loaded[name], expected()[name])


@pytest.mark.parametrize("file", ["zip.pt", "legacy.pt", "training.ckpt"])
def test_damage_of_any_kind_gives_no_other_error(tmp_path: Path, file: str) -> None:
    content = (FOLDER / file).read_bytes()
    path, out, refused = tmp_path / file, tmp_path / "out.safetensors", 0
    cuts = range(0, len(content), support.FEWER * (7 if file == "training.ckpt" else 67))
    for each in damaged(content, cuts, 150 // support.FEWER, seed=2):
        path.write_bytes(each)
        try:
            checkpoint.cast_file(path, out, dtype_map={".*": "keep"}, overwrite=True)
        except checkpoint.CheckpointError:
            refused += 1
    assert refused > len(cuts) - 1


@pytest.mark.thinned(10)
@pytest.mark.parametrize(
    "filling",
    [b"]", b"(", b"}", b")", b"K\1", b"]q\1", b"X\2\0\0\0ab", b"\x8f", b"(]", b"](K\1K\1e"],
)
def test_pickles_take_bounded_memory(tmp_path: Path, filling: bytes) -> None:
    path = tmp_path / "in.pt"
    path.write_bytes(torch_file(b"\x80\x02" + filling * (2**20 // len(filling)) + b"."))
    result = run_limited("RLIMIT_DATA", 440 * 2**20, "inspect", path)
    assert "Memory" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_no_container_can_hold(tmp_path: Path, suffix: str, dry_run: bool) -> None:
    storage = Storage("torch.storage UntypedStorage", "0", 32)
    bits = Call(
        "torch._utils _rebuild_tensor_v3",
        *(storage, 0, (2,), (1,), False, Call("collections OrderedDict"), Global("torch bits16")),
    )
    (tmp_path / "in.pt").write_bytes(torch_file(state_dict(a=bits)))
    with pytest.raises(checkpoint.CheckpointError, match=r"'a' is stored as bits16, which .* hold"):
        checkpoint.cast_file(
            tmp_path / "in.pt", tmp_path / f"out{suffix}", dtype_map={"a": "keep"}, dry_run=dry_run
        )
