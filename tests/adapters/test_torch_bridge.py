"""numpy and torch share memory in every dtype both have, and say why where they cannot."""

from __future__ import annotations

import time
from typing import Any

import castwise
import numpy as np
import pytest
import real_frameworks
from castwise.adapters.torch import from_numpy, to_numpy
from castwise.adapters.torch._bridge import torch_dtype

torch = real_frameworks.torch()

SHARED = [name for name in castwise.formats() if torch_dtype(name) is not None]


# torch warns of its small complex dtypes when it makes one.
pytestmark = pytest.mark.filterwarnings("ignore:.*support is experimental.*:UserWarning")


def codes(size: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Random bits, but for bool, whose bytes are 0 and 1."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 2 if dtype == np.bool_ else 256, size * dtype.itemsize, np.uint8)
    return data.view(dtype)


def test_both_sides_have_the_dtypes_that_matter() -> None:
    assert {"bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu"} < set(SHARED)
    assert {"uint16", "uint64", "complex64", "complex128", "bool", "float16"} < set(SHARED)
    assert not {"int4", "float4_e2m1fn", "float8_e3m4"} & set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_one_memory_both_ways(name: str) -> None:
    dtype = castwise.finfo(name).dtype
    assert dtype is not None
    array = codes(24, dtype).reshape(4, 6)
    for view in (
        array,
        array.T,
        array[::2, 1::3],
        array[1],
        array[2, 3:3],
        np.asarray(array[0, 0]),
    ):
        tensor = from_numpy(np.asarray(view))
        assert (str(tensor.dtype), tensor.shape) == (f"torch.{name}", view.shape)
        if view.size:
            assert tensor.data_ptr() == view.ctypes.data
            assert tuple(step * view.itemsize for step in tensor.stride()) == view.strides
        back = to_numpy(tensor)
        assert (back.dtype, back.shape, back.flags.writeable) == (dtype, view.shape, True)
        assert back.tobytes() == view.tobytes()
        if view.size:
            assert (back.ctypes.data, back.strides) == (view.ctypes.data, view.strides)
    to_numpy(from_numpy(array))[1, 2] = array[3, 3]
    assert array[1, 2].tobytes() == array[3, 3].tobytes()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "bfloat16", "uint16", "complex64"])
def test_values_are_torchs_own(name: str) -> None:
    tensor = torch.tensor([1.0, 2.0, 24.0]).to(getattr(torch, name))
    assert to_numpy(tensor).astype(np.complex64).tolist() == [1, 2, 24]
    assert from_numpy(to_numpy(tensor)).to(torch.complex64).tolist() == [1, 2, 24]


def test_a_tensor_keeps_the_memory_of_its_array_and_the_other_way_round() -> None:
    tensor = from_numpy(np.full(1000, 3, castwise.finfo("bfloat16").dtype))
    array = to_numpy(torch.full((1000,), 3.0, dtype=torch.bfloat16))
    np.full(100_000, 7.0)
    assert tensor.float().sum() == 3000
    assert array.astype(np.float32).sum() == 3000


def test_expanded_tensors_and_subclasses_of_arrays() -> None:
    assert to_numpy(torch.ones(1, 3, dtype=torch.bfloat16).expand(4, 3)).strides == (0, 2)

    class Own(np.ndarray):
        pass

    assert from_numpy(np.ones(2, np.float32).view(Own)).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_memory_that_torch_cannot_look_at(dtype: str) -> None:
    array = castwise.cast(np.arange(12.0).reshape(3, 4), dtype)
    read_only = array.copy()
    read_only.flags.writeable = False
    for refused, words in (
        (array[::-1], "negative strides"),
        (array[:, ::-1], "negative strides"),
        (read_only, "read-only"),
        (np.broadcast_to(array[0], (2, 4)), "read-only"),
    ):
        with pytest.raises(ValueError, match=words) as raised:
            from_numpy(refused)
        assert "copy=None" in str(raised.value)
        copied = from_numpy(refused, copy=None)
        assert to_numpy(copied).tolist() == refused.tolist()
        assert not np.shares_memory(to_numpy(copied), refused)
    assert from_numpy(array[:0:-1, :0]).shape == (2, 0)


def test_other_byte_orders_and_odd_strides() -> None:
    swapped = np.arange(3, dtype=">f4")
    with pytest.raises(ValueError, match="byte order"):
        from_numpy(swapped)
    assert from_numpy(swapped, copy=None).tolist() == [0, 1, 2]
    odd = np.zeros(4, [("a", "u1"), ("b", "<f4")])["b"]
    with pytest.raises(ValueError, match="not multiples of 4 bytes"):
        from_numpy(odd)
    assert from_numpy(odd, copy=None).tolist() == [0] * 4


@pytest.mark.parametrize("code", "bBhHiIlLqQ?")
def test_all_of_cs_integers(code: str) -> None:
    array = np.ones(3, code)
    tensor = from_numpy(array)
    assert (to_numpy(tensor).dtype, tensor.data_ptr()) == (array.dtype, array.ctypes.data)


def test_copies_on_demand() -> None:
    array = np.ones(3, np.float32)
    assert from_numpy(array, copy=True).data_ptr() != array.ctypes.data
    assert from_numpy(array, copy=None).data_ptr() == array.ctypes.data
    with pytest.raises(ValueError, match="copy='no' is not valid"):
        from_numpy(array, copy="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "refused",
    [
        np.zeros(2, "M8[s]"),
        np.zeros(2, np.longdouble),
        np.zeros(2, castwise.finfo("float8_e3m4").dtype),
        np.zeros(2, castwise.finfo("int4").dtype),
        np.zeros(2, object),
        np.zeros(2, "f4,f4"),
        np.ma.zeros(2),
        np.float32(1),
        [1.0],
        None,
    ],
    ids=repr,
)
def test_no_array_of_torchs(refused: Any) -> None:
    with pytest.raises(TypeError, match=r"^array (is of type|has dtype).*;"):
        from_numpy(refused)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.ones(2, requires_grad=True), r"autograd; give tensor\.detach\(\)"),
        (lambda: torch.ones(2, device="meta"), r"device meta; give tensor\.cpu\(\)"),
        (lambda: torch.eye(2).to_sparse(), r"to_dense\(\)"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), r"nested; give .*unbind\(\)"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
            r"nested; give .*unbind\(\)",
        ),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), r"resolve_conj\(\)"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, r"resolve_neg\(\)"),
    ],
)
def test_tensors_that_numpy_cannot_look_at(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_numpy(make())


@pytest.mark.parametrize(
    "refused", [np.ones(2), [1.0], 1.0, None, torch.zeros(2, dtype=torch.float4_e2m1fn_x2)]
)
def test_no_tensor_of_numpys(refused: Any) -> None:
    with pytest.raises(TypeError, match=r"^tensor (is of type|has dtype).*"):
        to_numpy(refused)


def test_the_time_does_not_grow_with_the_size() -> None:
    # 2**31 elements, for which there may be no memory: a bridge that looked at them would be
    # minutes in this test, or killed.
    large = torch.empty(1, dtype=torch.bfloat16).expand(2**31)
    start = time.perf_counter()
    array = to_numpy(large)
    assert array.shape == (2**31,)
    untouched = np.empty(2**32, castwise.finfo("float8_e5m2").dtype)
    assert to_numpy(from_numpy(untouched)).ctypes.data == untouched.ctypes.data
    assert time.perf_counter() - start < 10
