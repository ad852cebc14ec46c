"""One memory seen by torch and numpy, for every dtype that both know; in a time without a size.

torch's `numpy` and `from_numpy` refuse the dtypes that numpy has from ml_dtypes, and DLPack those
of numpy's arrays; so integers of the same width cross over, and each side takes them for its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo, formats
from castwise._frameworks import require

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = require("torch")

__all__ = ["from_numpy", "to_numpy"]


def to_numpy(tensor: Tensor) -> NDArray[Any]:
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
        Its elements are on another device, not laid out by strides, nested, tracked by autograd, or
        still to be conjugated or negated; the message has what to call.

    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is of type {type(tensor).__name__}; give a torch.Tensor.")
    if (
        tensor.requires_grad
        or not tensor.is_cpu
        or tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        raise ValueError(f"tensor {_hidden(tensor)}.")
    return plain_array(tensor)


def plain_array(tensor: Any) -> NDArray[Any]:
    """As `to_numpy`, of a tensor that is known to be one that numpy can look at."""
    known = _numpy_dtypes().get(tensor.dtype)
    if known is None:
        raise TypeError(
            f"tensor has dtype {tensor.dtype}, which numpy and ml_dtypes lack; convert it first."
        )
    dtype, carrier = known
    if carrier is None:
        array: NDArray[Any] = tensor.numpy()
        return array
    codes: NDArray[Any] = tensor.view(carrier).numpy()
    return codes.view(dtype)


def from_numpy(array: NDArray[Any], *, copy: bool | None = False) -> Tensor:
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
    obstacle = _obstacle(array)
    if obstacle is not None and copy is False:
        raise ValueError(
            f"array {obstacle}, which torch cannot look at; give array.copy(), or copy=None."
        )
    if copy or obstacle is not None:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    if array.dtype.isbuiltin == 1:
        # numpy has two names for one of C's integers; torch knows the one of `finfo` only.
        return torch.from_numpy(array.view(_numpy_dtypes()[dtype][0]))
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)


def numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """The numpy dtype of a torch dtype; None if neither numpy nor ml_dtypes has it."""
    known = _numpy_dtypes().get(dtype)
    return None if known is None else known[0]


@functools.cache
def dtype_name(dtype: Any) -> str:
    """A torch dtype's name: that of its format, else torch's own."""
    known = numpy_dtype(dtype)
    return str(dtype).removeprefix("torch.") if known is None else known.name


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
    found = {}
    for name in formats():
        row, dtype = finfo(name), getattr(torch, name, None)
        whole = row.kind == "bool" or row.bits % 8 == 0
        if isinstance(dtype, torch.dtype) and row.dtype is not None and whole:
            found[name] = dtype
    return found


@functools.cache
def _numpy_dtypes() -> dict[Any, tuple[np.dtype[Any], Any]]:
    """The numpy dtypes by torch's, with the integer of torch that crosses over in their place."""
    found = {}
    for name, dtype in _torch_dtypes().items():
        own: np.dtype[Any] = finfo(name).dtype  # type: ignore[assignment]
        carrier = None if own.isbuiltin == 1 else _torch_dtypes()[f"int{8 * own.itemsize}"]
        found[dtype] = own, carrier
    return found


def _hidden(tensor: Any) -> str:
    """Why numpy cannot look at a tensor's elements, and what to call."""
    if tensor.requires_grad:
        return "is tracked by autograd; give tensor.detach()"
    if not tensor.is_cpu:
        return f"is on device {tensor.device}; give tensor.cpu()"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}; give tensor.to_dense()"
    if tensor.is_nested:
        return "is nested; give tensor.to_padded_tensor(0.0), or those of tensor.unbind()"
    if tensor.is_conj():
        return "waits to be conjugated; give tensor.resolve_conj()"
    return "waits to be negated; give tensor.resolve_neg()"


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
