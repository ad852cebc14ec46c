"""Share memory between torch and numpy in every dtype that both have, without copies.

torch's `numpy` and `from_numpy` refuse the dtypes of ml_dtypes, and numpy's DLPack does, too. So an
array of integers of the same size is handed over, and viewed in the other library's dtype.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo, formats
from castwise.environment.frameworks import require

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = require("torch")


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Return a numpy array that shares a tensor's memory: writing to one changes the other.

    Parameters
    ----------
    tensor : torch.Tensor
        On the CPU, with any strides, of a dtype that numpy or ml_dtypes has.

    Returns
    -------
    ndarray
        Same shape, same strides, nothing copied.

    Raises
    ------
    TypeError
        `tensor` is not a tensor, or has a dtype that only torch has.
    ValueError
        The elements are on another device, not laid out by strides, nested, tracked by autograd, or
        not yet conjugated or negated; the message says what to call.

    Examples
    --------
    >>> import torch
    >>> from castwise.adapters import torch as torch_adapter
    >>> torch_adapter.to_numpy(torch.ones(2, dtype=torch.bfloat16))
    array([1, 1], dtype=dtype(bfloat16))

    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is of type {type(tensor).__name__}; give a torch.Tensor.")
    if (obstacle := _obstacle_of_numpy(tensor)) is not None:
        raise ValueError(f"tensor {obstacle}.")
    return plain_array(tensor)


def plain_array(tensor: Any) -> NDArray[Any]:
    """Do what `to_numpy` does, without its checks."""
    numpy_dtype_of = _numpy_dtypes().get(tensor.dtype)
    if numpy_dtype_of is None:
        raise TypeError(
            f"tensor has dtype {tensor.dtype}, which numpy and ml_dtypes lack; convert it first."
        )
    dtype, carrier = numpy_dtype_of
    if carrier is None:
        array: NDArray[Any] = tensor.numpy()
        return array
    codes: NDArray[Any] = tensor.view(carrier).numpy()
    return codes.view(dtype)


def from_numpy(array: NDArray[Any], *, copy: bool | None = False) -> Tensor:
    """Return a tensor that shares a numpy array's memory: writing to one changes the other.

    Parameters
    ----------
    array : ndarray
        Of a dtype that torch has, too.
    copy : bool or None
        False: never copy. None: copy where torch cannot use the memory, because it is read-only,
        in the other byte order, or has strides that are negative or not a multiple of the
        element's size. True: always copy.

    Returns
    -------
    torch.Tensor
        Of the same shape, on the CPU; unless copied, with the same strides.

    Raises
    ------
    TypeError
        `array` is not an array, or has a dtype that torch lacks.
    ValueError
        torch cannot use the memory, and `copy` is False.

    Examples
    --------
    >>> import torch
    >>> from castwise.adapters import torch as torch_adapter
    >>> import ml_dtypes
    >>> torch_adapter.from_numpy(np.ones(2, ml_dtypes.bfloat16))
    tensor([1., 1.], dtype=torch.bfloat16)

    """
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"array is of type {type(array).__name__}; give a numpy array (np.asarray makes one)."
        )
    if copy not in (True, False, None):
        raise ValueError(f"copy={copy!r} is not valid; use True, False or None.")
    dtype = torch_dtype(array.dtype)
    if dtype is None:
        raise TypeError(
            f"array has dtype {array.dtype}, which torch lacks; castwise.cast it to another."
        )
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    obstacle = _obstacle_of_torch(array)
    if obstacle is not None and copy is False:
        raise ValueError(
            f"array {obstacle}, which torch cannot look at; use copy=None or True, which copies it."
        )
    if copy or obstacle is not None:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    if array.dtype.isbuiltin == 1:
        # numpy has two dtypes for one of C's integers; torch knows the one of `finfo` only.
        return torch.from_numpy(array.view(_numpy_dtypes()[dtype][0]))
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)


def numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the numpy dtype of a torch dtype; None if neither numpy nor ml_dtypes has it."""
    numpy_dtype_of = _numpy_dtypes().get(dtype)
    return None if numpy_dtype_of is None else numpy_dtype_of[0]


@functools.cache
def dtype_name(dtype: Any) -> str:
    """Return the name of a torch dtype's format, else torch's own name."""
    numpy_dtype_of = numpy_dtype(dtype)
    return str(dtype).removeprefix("torch.") if numpy_dtype_of is None else numpy_dtype_of.name


def torch_dtype(dtype: Any) -> Any:
    """Return the torch dtype of a numpy dtype or a format's name, or None."""
    try:
        return _torch_dtypes().get(finfo(dtype).name)
    except TypeError:
        return None


@functools.cache
def _torch_dtypes() -> dict[str, Any]:
    """Return the dtypes of torch by the name of their format, which both libraries share."""
    # Dtypes of less than a byte are left out, because torch only has their names.
    dtypes = {}
    for name in formats():
        row, dtype = finfo(name), getattr(torch, name, None)
        whole = row.kind == "bool" or row.bits % 8 == 0
        if isinstance(dtype, torch.dtype) and row.dtype is not None and whole:
            dtypes[name] = dtype
    return dtypes


@functools.cache
def _numpy_dtypes() -> dict[Any, tuple[np.dtype[Any], Any]]:
    """Return the numpy dtypes by torch's, each with the integer dtype that is handed over."""
    dtypes = {}
    for name, dtype in _torch_dtypes().items():
        numpy_dtype: np.dtype[Any] = finfo(name).dtype  # type: ignore[assignment]
        carrier = (
            None
            if numpy_dtype.isbuiltin == 1
            else _torch_dtypes()[f"int{8 * numpy_dtype.itemsize}"]
        )
        dtypes[dtype] = numpy_dtype, carrier
    return dtypes


def _obstacle_of_numpy(tensor: Any) -> str | None:
    """Say why numpy cannot use a tensor's memory, and what to call; None if it can."""
    if tensor.requires_grad:
        return "is tracked by autograd; give tensor.detach()"
    if not tensor.is_cpu:
        return f"is on device {tensor.device}; give tensor.cpu()"
    if (obstacle := layout_obstacle(tensor)) is not None:
        return "; ".join(obstacle)
    if tensor.is_conj():
        return "waits to be conjugated; give tensor.resolve_conj()"
    return "waits to be negated; give tensor.resolve_neg()" if tensor.is_neg() else None


def layout_obstacle(tensor: Any) -> tuple[str, str] | None:
    """Say which layout without strides a tensor has, and the remedy; None if it has strides."""
    if tensor.is_nested:  # torch.jagged, too, of which torch makes no dense tensor
        return "is nested", "give tensor.to_padded_tensor(0.0), or the tensors of tensor.unbind()"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}", "give tensor.to_dense()"
    return None


def _obstacle_of_torch(array: NDArray[Any]) -> str | None:
    """Say why torch cannot use an array's memory; None if it can."""
    if not array.flags.writeable:
        return "is read-only"
    if not array.dtype.isnative:
        return f"is in the other byte order ({array.dtype.str})"
    if any(step < 0 for step in array.strides):
        return f"has negative strides {array.strides}"
    if any(step % array.itemsize for step in array.strides):
        return f"has strides {array.strides} that are not multiples of {array.itemsize} bytes"
    return None
