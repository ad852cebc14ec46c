"""One memory seen by torch and numpy, for every dtype that both know; in a time without a size.

torch's `numpy` and `from_numpy` refuse the dtypes that numpy has from ml_dtypes, and DLPack those
of numpy's arrays; so integers of the same width cross over, and each side takes them for its own.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo, formats
from castwise.adapters.framework import require

__all__ = ["from_numpy", "to_numpy"]


def to_numpy(tensor: Any) -> NDArray[Any]:
    """A numpy array in the memory of a tensor: writing to one is writing to the other.

    Parameters
    ----------
    tensor : torch.Tensor
        On the CPU, with strides of any kind, of a dtype that numpy or ml_dtypes has.

    Returns
    -------
    ndarray
        Same shape, same strides, nothing copied.

    Raises
    ------
    TypeError
        It is no tensor, or of a dtype that only torch has.
    ValueError
        Its elements are on another device, not laid out by strides, tracked by autograd, or still
        to be conjugated or negated; the message has what to call.

    """
    torch = require("torch")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is of type {type(tensor).__name__}; give a torch.Tensor.")
    for reason, remedy in (
        (tensor.requires_grad, "is tracked by autograd; give tensor.detach()"),
        (tensor.layout is not torch.strided, "has no strides; give tensor.to_dense()"),
        (tensor.device.type != "cpu", f"is on device {tensor.device}; give tensor.cpu()"),
        (tensor.is_conj(), "waits to be conjugated; give tensor.resolve_conj()"),
        (tensor.is_neg(), "waits to be negated; give tensor.resolve_neg()"),
    ):
        if reason:
            raise ValueError(f"tensor {remedy}.")
    dtype = numpy_dtype(tensor.dtype)
    if dtype is None:
        raise TypeError(
            f"tensor has dtype {tensor.dtype}, which numpy and ml_dtypes lack; convert it first."
        )
    if dtype.isbuiltin == 1:
        array: NDArray[Any] = tensor.numpy()
        return array
    codes: NDArray[Any] = tensor.view(_carrier(dtype.itemsize)).numpy()
    return codes.view(dtype)


def from_numpy(array: NDArray[Any], *, copy: bool | None = False) -> Any:
    """A tensor in the memory of a numpy array: writing to one is writing to the other.

    Parameters
    ----------
    array : ndarray
        Of a dtype that torch has too.
    copy : bool or None
        False: never copy. None: copy where torch cannot look at the memory, because it is
        read-only, in the other byte order, or has negative strides or such as are no multiple of
        the element. True: always copy.

    Returns
    -------
    torch.Tensor
        Same shape, on the CPU; unless copied, same strides.

    Raises
    ------
    TypeError
        It is no array, or of a dtype that torch lacks.
    ValueError
        torch cannot look at the memory, and `copy` is False.

    """
    torch = require("torch")
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"array is of type {type(array).__name__}; give a numpy array (np.asarray makes one)."
        )
    if copy not in (True, False, None):
        raise ValueError(f"copy={copy!r} is not valid; use True, False or None.")
    if torch_dtype(array.dtype) is None:
        raise TypeError(
            f"array has dtype {array.dtype}, which torch lacks; castwise.cast it to another."
        )
    if not array.size:
        return torch.empty(array.shape, dtype=torch_dtype(array.dtype))
    obstacle = _obstacle(array)
    if obstacle is not None and copy is False:
        raise ValueError(
            f"array {obstacle}, which torch cannot look at; give array.copy(), or copy=None."
        )
    if copy or obstacle is not None:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    carrier = torch.from_numpy(array.view(f"i{array.itemsize}"))
    return carrier.view(torch_dtype(array.dtype))


def numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """The numpy dtype of a torch dtype; None if neither numpy nor ml_dtypes has it."""
    return _numpy_dtypes().get(dtype)


def torch_dtype(dtype: Any) -> Any:
    """The torch dtype of a numpy dtype or a format's name; None if torch does not have it."""
    try:
        return _torch_dtypes().get(finfo(dtype).name)
    except TypeError:
        return None


@functools.cache
def _torch_dtypes() -> dict[str, Any]:
    """The dtypes of torch by the name of their format, which is the same in both libraries.

    Those that are no whole bytes are names only in torch; it computes with none of them.
    """
    torch = require("torch")
    found = {}
    for name in formats():
        row, dtype = finfo(name), getattr(torch, name, None)
        whole = row.kind == "bool" or row.bits % 8 == 0
        if isinstance(dtype, torch.dtype) and row.dtype is not None and whole:
            found[name] = dtype
    return found


@functools.cache
def _numpy_dtypes() -> dict[Any, np.dtype[Any]]:
    """The numpy dtypes by torch's."""
    return {dtype: finfo(name).dtype for name, dtype in _torch_dtypes().items()}  # type: ignore[misc]


@functools.cache
def _carrier(itemsize: int) -> Any:
    return torch_dtype(f"int{8 * itemsize}")


def _obstacle(array: NDArray[Any]) -> str | None:
    """Why torch cannot look at an array's memory; None if it can."""
    if not array.flags.writeable:
        return "is read-only"
    if not array.dtype.isnative:
        return f"is in the other byte order ({array.dtype.str})"
    if any(step < 0 for step in array.strides):
        return f"has negative strides {array.strides}"
    if any(step % array.itemsize for step in array.strides):
        return f"has strides {array.strides} that are no multiple of {array.itemsize} bytes"
    return None
