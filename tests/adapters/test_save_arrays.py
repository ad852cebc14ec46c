"""Checkpoints of tensors and arrays of other libraries, saved as they are."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import peers
import pytest
import real_frameworks
import safetensors
import safetensors.torch
from castwise import checkpoint
from castwise.adapters.torch._bridge import from_numpy, torch_dtype

torch = real_frameworks.torch()
jax = real_frameworks.jax()
jnp = jax.numpy

TORCH_FORMATS = [name for name in castwise.formats() if torch_dtype(name) is not None]


# torch warns of its small complex dtypes when it makes one.
pytestmark = pytest.mark.filterwarnings("ignore:.*support is experimental.*:UserWarning")


def codes(name: str, shape: tuple[int, ...]) -> Any:
    """Random bits of a format, but for bool, whose bytes are 0 and 1."""
    dtype = castwise.finfo(name).dtype
    assert dtype is not None
    raw = np.random.default_rng(1).integers(
        0, 2 if name == "bool" else 256, (*shape, dtype.itemsize), np.uint8
    )
    return raw.reshape(-1).view(dtype).reshape(shape)


def assert_saved(path: Path, given: Any, expected: Any) -> None:
    if path.suffix == ".npy":
        checkpoint.save(path, given, overwrite=True)
        found = checkpoint.load(path)
    else:
        checkpoint.save(path, {"w": given}, overwrite=True)
        found = checkpoint.load(path)["w"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
@pytest.mark.parametrize("name", TORCH_FORMATS)
def test_tensors_of_every_dtype(tmp_path: Path, suffix: str, name: str) -> None:
    path = tmp_path / f"f{suffix}"
    for array in (codes(name, (4, 6)), codes(name, ()), codes(name, (0, 3))):
        assert_saved(path, from_numpy(array), array)
    array = codes(name, (4, 6))
    tensor = from_numpy(array)
    for given, expected in (
        (tensor.T, array.T),
        (tensor[:, ::2], array[:, ::2]),
        (tensor[1], array[1]),
        (tensor[:1].expand(3, 6), np.broadcast_to(array[:1], (3, 6))),
    ):
        assert_saved(path, given, expected)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_tensors_of_a_model(tmp_path: Path, suffix: str) -> None:
    """Parameters, gradients, and views that torch has yet to conjugate or negate."""
    path = tmp_path / f"f{suffix}"
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    assert_saved(path, weight, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert_saved(path, weight.T * 2, 2 * np.arange(6, dtype=np.float32).reshape(2, 3).T)
    imaginary = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    expected = np.array([1 - 2j, 3 + 4j], np.complex64)
    assert_saved(path, imaginary.conj(), expected)
    assert_saved(path, imaginary.conj().imag, expected.imag.copy())
    assert weight.requires_grad


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_a_state_dict_is_saved_as_by_safetensors(tmp_path: Path, dtype: str) -> None:
    model = torch.nn.Linear(4, 3).to(getattr(torch, dtype))
    path = tmp_path / "ours.safetensors"
    checkpoint.save(path, model.state_dict(), metadata={"format": "pt"}, overwrite=True)
    theirs = safetensors.torch.save(model.state_dict(), metadata={"format": "pt"})
    assert path.read_bytes() == theirs
    checkpoint.save(path, dict(model.named_parameters()), metadata={"format": "pt"}, overwrite=True)
    assert path.read_bytes() == theirs


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_arrays_of_jax(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    for name in ("float32", "bfloat16", "float8_e4m3fn", "int4", "complex64", "bool"):
        array = castwise.cast(np.arange(6).reshape(2, 3) % 2, name)
        assert_saved(path, jnp.asarray(array), array)
        assert_saved(path, jnp.asarray(array).T, array.T)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_variables_of_keras_and_tensors_of_tensorflow(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    tf, variable = peers.tensorflow(), peers.keras().Variable
    for name in ("float32", "bfloat16", "int32"):
        array = castwise.cast(np.arange(6).reshape(2, 3), name)
        for given in (variable(array, dtype=name), tf.constant(array), tf.Variable(array)):
            assert_saved(path, given, array)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
def test_nothing_is_copied_that_need_not_be(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f{suffix}"
    size = 1 << 22
    for tensor in (torch.ones(size, requires_grad=True), jnp.ones(size, jnp.float32)):
        tracemalloc.start()
        try:
            checkpoint.save(path, tensor if suffix == ".npy" else {"w": tensor}, overwrite=True)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < size


def refused() -> dict[str, tuple[Any, type[Exception], str]]:
    return {
        "no elements": (torch.ones(2, device="meta"), ValueError, "meta"),
        "sparse": (torch.eye(2).to_sparse(), ValueError, r"to_dense\(\)"),
        "only torch's": (
            torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
            TypeError,
            "float4_e2m1fn_x2.*convert",
        ),
        "a key": (jax.random.key(0), TypeError, "key_data"),
        "a module": (torch.nn.Linear(1, 1), checkpoint.CheckpointError, "objects"),
    }


@pytest.mark.parametrize("case", ["no elements", "sparse", "only torch's", "a key", "a module"])
def test_what_has_no_elements_to_save_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "f.npz"
    given, error, message = refused()[case]
    with pytest.raises(error, match=rf"(tensor|array) 'w'.*{message}"):
        checkpoint.save(path, {"fine": np.ones(1), "w": given}, overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_what_jax_traces_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    with pytest.raises(TypeError, match=r"tensor 'w'.*traced"):
        jax.jit(lambda x: checkpoint.save(path, {"w": x}))(jnp.ones(2))
    assert list(tmp_path.iterdir()) == []
