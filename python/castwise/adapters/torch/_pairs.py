"""Cast tensors of `torch.float4_e2m1fn_x2`, of which an element is a byte that holds two numbers.

The pairs lie along the last dimension, the first number in the low half of the byte: (M, K) numbers
are (M, K / 2) elements, as in torch's pull request 191928. torch has the dtype, but no casts of it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast, finfo
from castwise.environment.frameworks import require
from castwise.quantization import pack, unpack

torch: Any = require("torch")

_NAME = "float4_e2m1fn_x2"
PAIRS: Any = getattr(torch, _NAME, None)
"""The dtype, or None if torch is older than 2.8."""

NUMBERS = _NAME.removesuffix("_x2")  # the format of the numbers in a pair

_NUMBER: Any = finfo(NUMBERS).dtype


def unpack_pairs(tensor: Any) -> NDArray[Any]:
    """Return the numbers of a tensor of pairs, with twice its last dimension."""
    _check_dimensions("tensor", tensor.shape)
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"tensor of {PAIRS} has strides {tensor.stride()}, so that its pairs may lie along "
            "another dimension than the last; give the tensor that it is a transpose of, or "
            "tensor.contiguous() if they lie along the last."
        )
    codes = unpack(tensor.view(torch.uint8).numpy(), 4)
    return codes.view(_NUMBER)


def cast_to_pairs(source: NDArray[Any], out: Any, options: dict[str, Any]) -> Any:
    """Cast an array to a tensor of pairs, a new one or `out`; with a report, if asked for."""
    _check_dimensions("tensor", source.shape)
    if source.shape[-1] % 2:
        raise ValueError(
            f"tensor has shape {source.shape}, of which the last dimension is odd; {PAIRS} holds "
            "pairs of it, so append a zero."
        )
    if options.pop("order", "K") not in ("K", "C"):
        raise ValueError(
            f"order is not for {PAIRS}, whose pairs lie along the last dimension; leave it out."
        )
    shape = (*source.shape[:-1], source.shape[-1] // 2)
    if out is not None and tuple(out.shape) != shape:
        raise ValueError(f"out has shape {tuple(out.shape)}; give one of shape {shape}.")
    outcome = cast(source, _NUMBER, **options)
    numbers, *report = outcome if options.get("report") else (outcome,)
    bytes_of_pairs = pack(numbers.view(np.uint8), 4)
    if out is None:
        out = torch.from_numpy(bytes_of_pairs).view(PAIRS)
    else:
        out.view(torch.uint8).numpy()[...] = bytes_of_pairs
    return (out, *report) if report else out


def _check_dimensions(name: str, shape: Any) -> None:
    if not shape:
        raise ValueError(f"{name} has no dimension along which {PAIRS} holds pairs; reshape it.")
