"""What one scheme of a library gives: numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch
from scheme_oracle import Array

Parts = dict[str, Array]


_TORCH = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
}


_SAME_SIZE = {1: torch.uint8, 2: torch.int16}


def tensor(x: Array) -> torch.Tensor:
    """A torch tensor with the same elements."""
    known = {np.dtype(ours): theirs for theirs, ours in _TORCH.items()}
    if x.dtype not in known:
        return torch.from_numpy(np.ascontiguousarray(x).copy())
    plain = np.uint8 if x.dtype.itemsize == 1 else np.int16
    return torch.from_numpy(np.ascontiguousarray(x).view(plain).copy()).view(known[x.dtype])


def array(t: Any) -> Array:
    """A numpy array with the same elements."""
    t = t.detach().contiguous()
    if t.dtype in _TORCH:
        found: Array = t.view(_SAME_SIZE[t.element_size()]).numpy().view(_TORCH[t.dtype])
        return found
    plain: Array = t.numpy()
    return plain


def arrays(parts: Mapping[str, Any]) -> Parts:
    return {name: array(part) for name, part in parts.items()}


FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Producer:
    """One scheme of one library."""

    scheme: str
    recipe: str
    encode: Callable[[Array], tuple[Parts, Array | None]]
    """The parts, and what the library decodes them to in its own dtype, if it can."""
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = FLOATS
    columns: int = 32
    """Of which columns are a multiple."""
    rows: int = 1
    only_read: bool = False
