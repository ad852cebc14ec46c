"""List numpy's functions that move or copy elements, but do not compute with them."""

from __future__ import annotations

import numpy as np
from numpy.lib import stride_tricks

_VIEWS = """
    array_split atleast_1d atleast_2d atleast_3d broadcast_arrays broadcast_to diag diagonal dsplit
    expand_dims flip fliplr flipud hsplit imag ix_ matrix_transpose meshgrid moveaxis permute_dims
    ravel real reshape rollaxis rot90 split squeeze swapaxes transpose trim_zeros unstack vsplit
"""
_COPIES = """
    astype compress copy delete empty_like extract full_like ones_like repeat resize roll take
    take_along_axis tile tril triu zeros_like
"""
_WRITES = "copyto fill_diagonal place put put_along_axis putmask"
_DESCRIBES = """
    array2string array_repr array_str can_cast iscomplexobj isrealobj may_share_memory
    min_scalar_type ndim result_type save savetxt savez savez_compressed shape shares_memory size
"""

MOVES = frozenset(
    getattr(np, name)
    for names in (_VIEWS, _COPIES, _WRITES, _DESCRIBES)
    for name in names.split()
    if hasattr(np, name)  # some exist in newer versions only
) | {
    stride_tricks.as_strided,
    stride_tricks.sliding_window_view,
    np.linalg.diagonal,
    np.linalg.matrix_transpose,
}
"""Functions whose results are views of an argument, copies of its elements, or without elements,
and functions that write elements into an argument. Those that join arrays are not among them: numpy
has no common dtype of a narrow float and a 64-bit integer."""
