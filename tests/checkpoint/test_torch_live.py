"""Files that the real torch and transformers write, read and loaded again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
import torch
from castwise import checkpoint
from checkpoint_samples import assert_same
from numpy.typing import NDArray
from peak_memory import peak_above_import
from system_parts import need
from torch_files import FOLDER, FORMATS, expected

WAYS: dict[str, dict[str, Any]] = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    "protocol 4": {"pickle_protocol": 4},
    "protocol 5": {"pickle_protocol": 5},
    "legacy protocol 4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}


def _tensor(array: NDArray[Any], dtype: str) -> torch.Tensor:
    raw = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).copy())
    return raw.view(getattr(torch, dtype))


def _samples() -> dict[str, torch.Tensor]:
    """What `expected` describes, as torch has it."""
    arrays = expected()
    tensors = {name: _tensor(arrays[name], name) for name in FORMATS}
    codes = arrays["float4"].view(np.uint8)
    tensors["float4"] = _tensor(codes[:, ::2] | codes[:, 1::2] << 4, "float4_e2m1fn_x2")
    whole = torch.arange(24.0).reshape(2, 3, 4)
    return {
        **tensors,
        "whole": whole,
        "transposed": whole[0].T,
        "permuted": whole.permute(2, 0, 1),
        "reversed axes": whole.permute(2, 1, 0),
        "every second": whole[:, 1:, ::2],
        "expanded": torch.tensor([1.0, 2, 3]).expand(4, 3),
        "tied": whole,
        "scalar": whole[1, 2, 3],
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(whole[0]),
        "buffer": torch.nn.Buffer(whole[1]),
    }


@pytest.mark.parametrize("way", WAYS)
def test_every_dtype_and_layout(tmp_path: Path, way: str) -> None:
    path = tmp_path / "model.pt"
    torch.save(_samples(), path, **WAYS[way])
    loaded = checkpoint.load(path)
    assert list(loaded) == list(expected())
    for name, array in expected().items():
        assert_same(loaded[name], array)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_the_recorded_files() -> None:
    recorded = torch.load(FOLDER / "zip.pt")  # torch fails at the new dtypes in `legacy.pt`
    for name, sample in _samples().items():
        assert recorded[name].dtype == sample.dtype
        assert torch.equal(_codes(recorded[name]), _codes(sample))


def _codes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _training_checkpoint() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "hyper_parameters": {"lr": 0.1, "betas": (0.9, 0.99), "seed": 2**70, "names": ["a"]},
    }


def test_safetensors_of_a_model_loads_into_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    torch.save(model.state_dict(), tmp_path / "model.pth")
    checkpoint.cast_file(tmp_path / "model.pth", tmp_path / "out.safetensors", "bfloat16")
    loaded = load_file(tmp_path / "out.safetensors")
    for name, tensor in model.state_dict().items():
        wanted = tensor.bfloat16() if tensor.is_floating_point() else tensor
        assert loaded[name].dtype == wanted.dtype
        assert torch.equal(loaded[name], wanted)


class _Own(torch.nn.Module):
    """A module of a class that no other program knows."""


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a module": (lambda: torch.nn.Linear(1, 1), r"torch\.nn\.modules\.linear\.Linear.*state_dict"),
    "a class of ours": (lambda: {"a": _Own()}, "_Own"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "sparse.*to_dense"),
    "sparse rows": (lambda: torch.eye(2).to_sparse_csr(), "sparse.*to_dense"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "nested.*to_padded_tensor",
    ),
    "negated": (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, "resolve_neg"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
        "quantized.*dequantize",
    ),
    "meta": (lambda: torch.ones(2, device="meta"), "meta device"),
    "conjugated": (lambda: torch.conj(torch.ones(2, dtype=torch.complex64)), "resolve_conj"),
    "expanded far": (lambda: torch.ones(1).expand(10**12), "repeats its elements"),
    "numpy": (lambda: {"a": np.ones(2)}, r"numpy.*_reconstruct"),
    "a tuple as key": (lambda: {(1, 2): torch.ones(1)}, "neither text nor a number"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("way", ["zip", "legacy", "protocol 4"])
def test_what_is_not_dense_numbers_is_refused(tmp_path: Path, what: str, way: str) -> None:
    make, message = REFUSED[what]
    torch.save(make(), tmp_path / "in.pt", **WAYS[way])
    with pytest.raises(checkpoint.CheckpointError, match=message):
        checkpoint.load(tmp_path / "in.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "what", ["sparse", "sparse rows", "nested", "negated", "quantized", "meta", "conjugated"]
)
@pytest.mark.parametrize("way", ["zip", "legacy", "protocol 4"])
def test_it_is_named_by_its_key(tmp_path: Path, what: str, way: str) -> None:
    make, message = REFUSED[what]
    value = {"state_dict": {"a": torch.ones(2), "b": {"c.weight": make()}}, "x": 1}
    torch.save(value, tmp_path / "in.pt", **WAYS[way])
    with pytest.raises(checkpoint.CheckpointError, match=rf"tensor 'b\.c\.weight' is .*{message}"):
        checkpoint.load(tmp_path / "in.pt")
    value = {"model": {"a": torch.ones(2)}, "optimizer": {"state": make()}}
    torch.save(value, tmp_path / "in.pt", **WAYS[way])
    assert list(checkpoint.load(tmp_path / "in.pt")) == ["a"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["in.pt", "in.npz", "in.keras", "sha256-0123abcd"])
def test_a_program_is_refused(tmp_path: Path, name: str) -> None:
    torch.jit.script(torch.nn.Linear(1, 1)).save(tmp_path / name)
    with pytest.raises(checkpoint.CheckpointError, match="TorchScript program"):
        checkpoint.load(tmp_path / name)


def test_the_engine_reads_what_lies_in_the_file(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(300, 700), "b": torch.randn(700, 300).T, "c": torch.randn(50)}
    torch.save(tensors, tmp_path / "in.pt")
    for out in ("out.safetensors", "out.npz"):
        rows = checkpoint.cast_file(tmp_path / "in.pt", tmp_path / out, "float8_e4m3fn").rows
        assert [row.name for row in rows if row.report] == [row.name for row in rows]
        for name, array in checkpoint.load(tmp_path / out).items():
            assert_same(array, castwise.cast(tensors[name].numpy(), "float8_e4m3fn"))


@pytest.mark.parametrize("count", [60_000, pytest.param(200_000, marks=pytest.mark.exhaustive)])
def test_memory_grows_by_a_kibibyte_per_tensor(tmp_path: Path, count: int) -> None:
    need("/proc/self/status")
    tensors = {f"layers.{index}.weight": torch.ones(4) for index in range(count)}
    torch.save(tensors, tmp_path / "in.pt")
    assert peak_above_import(tmp_path / "in.pt", tmp_path / "out.safetensors") < 64e6 + 1024 * count


if __name__ == "__main__":  # writes the recorded files anew
    torch.save(_samples(), FOLDER / "zip.pt")
    torch.save(_samples(), FOLDER / "legacy.pt", **WAYS["legacy"])
    torch.save(_training_checkpoint(), FOLDER / "training.ckpt")


def test_diff_names_what_torch_does_beyond_the_range_of_e4m3fn(tmp_path: Path) -> None:
    array = np.array([0.3, 447, 463, 1000, -1e9, 1e-9, 1.0625], np.float32)
    cast = torch.from_numpy(array).to(torch.float8_e4m3fn)
    saturates = bool(cast[3].float() == 448)
    checkpoint.save(tmp_path / "a.safetensors", {"x": array})
    torch.save({"x": cast}, tmp_path / "b.pt")
    (tensor,) = checkpoint.diff(tmp_path / "a.safetensors", tmp_path / "b.pt").tensors
    assert tensor.explanation is not None
    assert tensor.explanation.every_element
    assert tensor.explanation.options["overflow"] == ("saturate" if saturates else "ieee")
    assert ("as torch does from 2.12" in str(tensor.explanation)) == saturates
