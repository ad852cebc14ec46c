"""Choose the dtype in which each module computes, by a map of modules or of parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

from castwise._core import finfo
from castwise._frameworks import require
from castwise.adapters.torch._bridge import dtype_name, numpy_dtype, torch_dtype
from castwise.adapters.torch._plan import Named, NameMap, prefix_of, tensor_names

torch: Any = require("torch")


class Computing(NamedTuple):
    """A module, the dtype in which it computes, and the key that matched."""

    module: Any
    dtype: Any
    key: str | None


def compute_dtypes(module: Any, names: NameMap) -> dict[str, Computing]:
    """Return the modules that compute in a dtype, under each of their names.

    Raises
    ------
    TypeError
        torch.jit has compiled the calls of one.
    ValueError
        torch stores a dtype but does not compute in it; a module has two names with different
        dtypes.

    """
    names.prefix = prefix_of(tensor_names(module))
    computing: dict[str, Computing] = {}
    seen_dtypes: dict[Any, tuple[str, Any]] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        dtype, key = _compute_dtype(path, child, names)
        seen_path, seen_dtype = seen_dtypes.setdefault(child, (path, dtype))
        if seen_dtype != dtype:
            raise ValueError(
                f"{seen_path!r} and {path!r} are one module, and are to compute in "
                f"{_shown(seen_dtype)} and {_shown(dtype)}; give both the same dtype."
            )
        if dtype is None or _COMPILED in child._modules:
            continue
        if isinstance(child, torch.jit.ScriptModule):
            raise TypeError(
                f"{_where(path)} is compiled by torch.jit, whose calls cannot be changed; do this "
                "before it is scripted, or give cast_module inputs=False."
            )
        computing[path] = Computing(child, dtype, key)
    return computing


_COMPILED = "_orig_mod"
"""The name of the module within torch.compile's; inputs are cast in the inner one."""


def _where(path: str) -> str:
    return f"module {path!r}" if path else "the module"


def _shown(dtype: Any) -> str:
    return "the dtype of its inputs" if dtype is None else dtype_name(dtype)


def _compute_dtype(path: str, module: Any, names: NameMap) -> tuple[Any, str | None]:
    """Return the dtype in which a module computes (None for that of its inputs), and the key.

    Raises
    ------
    ValueError
        torch stores the dtype but does not compute in it.

    """
    target, key, _ = names.module(path)
    if key is not None or names.is_uniform or names.of_modules:
        dtype = None if target is None else torch_dtype(target)
    else:
        dtype = None
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_floating_point():
                full = f"{path}.{name}" if path else name
                map_dtype = names.tensor(Named(full, path, parameter)).target
                parameter_dtype = parameter.dtype if map_dtype is None else torch_dtype(map_dtype)
                if map_dtype is None and not _computable(parameter_dtype):
                    continue  # its author is responsible for it
                dtype = parameter_dtype if dtype is None else _promoted(dtype, parameter_dtype)
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


def _promoted(left: Any, right: Any) -> Any:
    """Return the dtype of a sum; torch has no sums in dtypes that it only stores."""
    if left == right or not _computable(left):
        return left
    return torch.promote_types(left, right) if _computable(right) else right
