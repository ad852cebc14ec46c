"""Elements of less than a byte in safetensors files: the first in the lowest bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import castwise
import ml_dtypes
import numpy as np
import pytest
import safetensors
from castwise import checkpoint
from castwise.checkpoint.containers.array_bytes import unpack
from checkpoint_samples import assert_same, random_array, safetensors_file

F6 = {"F6_E2M3": ml_dtypes.float6_e2m3fn, "F6_E3M2": ml_dtypes.float6_e3m2fn}
BY_ONNX = bytes.fromhex("4120 0c3e 6de7"), [0x01, 0x01, 0x02, 0x03, 0x3E, 0x34, 0x36, 0x39]
"""What onnx 1.23.2 stores as the raw data of a FLOAT6E2M3 tensor, and its codes."""


def element(packed: bytes, bits: int, index: int) -> int:
    """An element by the definition in `dlpack.h`."""
    return (int.from_bytes(packed, "little") >> (index * bits)) & (2**bits - 1)


@pytest.mark.parametrize("bits", range(1, 9))
def test_bits_are_unpacked_as_dlpack_defines_them(bits: int) -> None:
    for size in (0, bits, 3 * bits):
        packed = np.random.default_rng(bits).integers(0, 256, size, np.uint8)
        count = packed.size * 8 // bits
        expected = [element(packed.tobytes(), bits, index) for index in range(count)]
        assert unpack(packed, bits).tolist() == expected
        assert unpack(packed, bits).dtype == np.uint8


def f6_file(path: Path, shapes: dict[str, tuple[str, list[int]]]) -> dict[str, bytes]:
    """Write random tensors of a code and a shape; the packed bytes by name."""
    header, packed, begin = {}, {}, 0
    for name, (code, shape) in shapes.items():
        size = int(np.prod(shape)) * 6 // 8
        packed[name] = np.random.default_rng(size).bytes(size)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    path.write_bytes(safetensors_file(header, b"".join(packed.values())))
    stored = dict(safetensors.deserialize(path.read_bytes()))
    assert {name: bytes(tensor["data"]) for name, tensor in stored.items()} == packed
    return packed


def test_f6_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "f6.safetensors"
    shapes = {
        f"{code} {shape}": (code, shape)
        for code in F6
        for shape in ([4], [64], [2, 6], [4, 3, 5], [0], [3, 0, 7], [128, 32])
    }
    packed = f6_file(path, shapes)
    loaded = checkpoint.load(path)
    described = {info.name: info for info in checkpoint.inspect(path).tensors}
    for name, (code, shape) in shapes.items():
        codes = [element(packed[name], 6, index) for index in range(int(np.prod(shape)))]
        assert_same(loaded[name], np.array(codes, np.uint8).reshape(shape).view(F6[code]))
        info = described[name]
        assert (info.format, info.kind, info.stored) == (np.dtype(F6[code]).name, "float", code)
        assert (info.shape, info.nbytes) == (tuple(shape), len(packed[name]))


def test_f6_tensors_are_read_as_onnx_packs_them(tmp_path: Path) -> None:
    packed, codes = BY_ONNX
    path = tmp_path / "f6.safetensors"
    entry = {"dtype": "F6_E2M3", "shape": [2, 4], "data_offsets": [0, 6]}
    path.write_bytes(safetensors_file({"w": entry}, packed))
    expected = np.array(codes, np.uint8).reshape(2, 4).view(ml_dtypes.float6_e2m3fn)
    assert_same(checkpoint.load(path)["w"], expected)


def test_f6_tensors_are_converted_and_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "f6.safetensors", tmp_path / "out.safetensors"
    f6_file(source, {"a": ("F6_E2M3", [2, 4]), "b": ("F6_E3M2", [8])})
    arrays = checkpoint.load(source)
    checkpoint.cast_file(source, out, dtype_map={"a": "float32"})
    converted = checkpoint.load(out)
    assert_same(converted["a"], castwise.cast(arrays["a"], "float32"))
    assert_same(converted["b"], arrays["b"])
    stored = {info.name: info.stored for info in checkpoint.inspect(out).tensors}
    assert stored == {"a": "F32", "b": "F6_E3M2"}
    checkpoint.cast_file(source, tmp_path / "out.npz", dtype_map={})
    for name, array in checkpoint.load(tmp_path / "out.npz").items():
        assert_same(array, arrays[name])


@pytest.mark.parametrize("shape", [[], [1], [3], [5, 2]])
def test_f6_tensors_that_do_not_end_at_a_byte_are_refused(tmp_path: Path, shape: list[int]) -> None:
    path = tmp_path / "f6.safetensors"
    size = -(-int(np.prod(shape)) * 6 // 8)
    entry = {"dtype": "F6_E2M3", "shape": shape, "data_offsets": [0, size]}
    path.write_bytes(safetensors_file({"w": entry}, bytes(size)))
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(path.read_bytes())
    with pytest.raises(checkpoint.CheckpointError, match=r'"w".*whole number of bytes'):
        checkpoint.load(path)


@pytest.mark.parametrize("code", F6)
def test_f6_is_not_written_since_safetensors_cannot_load_it(tmp_path: Path, code: str) -> None:
    path, theirs = tmp_path / "ours.safetensors", tmp_path / "f6.safetensors"
    array = random_array(np.dtype(F6[code]).name, (2, 4))
    checkpoint.save(path, {"w": array})
    with safetensors.safe_open(path, "np") as opened:
        assert opened.get_tensor("w").tobytes() == array.tobytes()
    assert_same(checkpoint.load(path)["w"], array)
    f6_file(theirs, {"w": (code, [2, 4])})
    with (
        safetensors.safe_open(theirs, "np") as opened,
        pytest.raises(safetensors.SafetensorError, match=rf"not understood: {code}"),
    ):
        opened.get_tensor("w")


def test_f4_tensors_of_torch_are_read(
    tmp_path: Path, framework: Callable[[str], ModuleType]
) -> None:
    torch = framework("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    save_file = framework("safetensors.torch").save_file
    path = tmp_path / "f4.safetensors"
    packed = torch.arange(12, dtype=torch.uint8).mul(21).reshape(2, 6)
    save_file({"w": packed.view(torch.float4_e2m1fn_x2)}, path)
    codes = unpack(packed.numpy().reshape(-1), 4).reshape(2, 12)
    assert_same(checkpoint.load(path)["w"], codes.view(ml_dtypes.float4_e2m1fn))
