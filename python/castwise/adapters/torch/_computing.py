"""Which module computes in which dtype, by a map of modules or of their parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

from castwise._core import finfo
from castwise._frameworks import require
from castwise.adapters.torch._bridge import dtype_name, numpy_dtype, torch_dtype
from castwise.adapters.torch._plan import Named, NameMap

torch: Any = require("torch")


class Computing(NamedTuple):
    """A module with what it computes in, and the key that says so."""

    module: Any
    dtype: Any
    key: str | None


def compute_dtypes(module: Any, names: NameMap) -> dict[str, Computing]:
    """The modules that compute in a dtype, under each of their names.

    Raises
    ------
    TypeError
        torch.jit has compiled the calls of one.
    ValueError
        It is a dtype that torch only stores; a module has two names that are given two dtypes.

    """
    found: dict[str, Computing] = {}
    first: dict[Any, tuple[str, Any]] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        dtype, key = _compute_dtype(path, child, names)
        other_path, other = first.setdefault(child, (path, dtype))
        if other != dtype:
            raise ValueError(
                f"{other_path!r} and {path!r} are one module, and are to compute in "
                f"{_shown(other)} and {_shown(dtype)}; give both the same dtype."
            )
        if dtype is None or _COMPILED in child._modules:
            continue
        if isinstance(child, torch.jit.ScriptModule):
            raise TypeError(
                f"{_where(path)} is compiled by torch.jit, whose calls cannot be changed; do this "
                "before it is scripted, or give cast_module inputs=False."
            )
        found[path] = Computing(child, dtype, key)
    return found


_COMPILED = "_orig_mod"
"""What torch.compile calls the module that its own one runs; inputs are cast in there."""


def _where(path: str) -> str:
    return f"module {path!r}" if path else "the module"


def _shown(dtype: Any) -> str:
    return "the dtype of its inputs" if dtype is None else dtype_name(dtype)


def _compute_dtype(path: str, module: Any, names: NameMap) -> tuple[Any, str | None]:
    """What a module computes in, and the key that says so; None for no dtype in particular.

    Raises
    ------
    ValueError
        It is a dtype that torch only stores.

    """
    target, key = names.module(path)
    if key is not None or names.single or names.of_modules:
        dtype = None if target is None else torch_dtype(target)
    else:
        dtype = None
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_floating_point():
                full = f"{path}.{name}" if path else name
                own = names.tensor(Named(full, path, parameter)).target
                other = parameter.dtype if own is None else torch_dtype(own)
                if own is None and not _computable(other):
                    continue  # whoever put it there sees to it
                dtype = other if dtype is None else _promoted(dtype, other)
    if dtype is not None and not _computable(dtype):
        raise ValueError(
            f"{_where(path)} would compute in {dtype}, in which torch does not; say what to "
            "compute in, as inputs='bfloat16' of cast_module."
        )
    return dtype, key


def _computable(dtype: Any) -> bool:
    known = numpy_dtype(dtype)
    if known is None:
        return False
    row = finfo(known)
    return row.kind == "float" and row.itemsize >= 2  # noqa: PLR2004 - no arithmetic in 8 bits


def _promoted(first: Any, second: Any) -> Any:
    """The dtype of a sum; torch has none for those that it only stores."""
    if first == second or not _computable(first):
        return first
    return torch.promote_types(first, second) if _computable(second) else second
