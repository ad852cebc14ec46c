"""Choose the dtype in which each module computes, by a map of modules or of parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

from castwise.adapters.torch._bridge import dtype_name, torch_dtype
from castwise.adapters.torch._in_force import AUTOCAST_DTYPES, COMPUTE_DTYPES
from castwise.adapters.torch._plan import Named, NameMap, prefix_of, tensor_names
from castwise.environment.frameworks import require

torch: Any = require("torch")


class Computing(NamedTuple):
    """A module, the dtype in which it computes, and the key that matched."""

    module: Any
    dtype: Any
    key: str | None


def compute_dtypes(module: Any, names: NameMap) -> dict[str, Computing]:
    """Return the modules that compute in a dtype, under each of their names."""
    names.prefix = prefix_of(tensor_names(module))
    computing: dict[str, Computing] = {}
    seen_dtypes: dict[Any, tuple[str, Any]] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        dtype, key = _compute_dtype(path, child, names)
        seen_path, seen_dtype = seen_dtypes.setdefault(child, (path, dtype))
        if seen_dtype != dtype:
            raise ValueError(
                f"{seen_path!r} and {path!r} are one module, and are to compute in "
                f"{_dtype_text(seen_dtype)} and {_dtype_text(dtype)}; give both the same dtype."
            )
        if dtype is None or _COMPILED in child._modules:
            continue
        if isinstance(child, torch.jit.ScriptModule):
            raise TypeError(
                f"{_where(path)} is compiled by torch.jit, whose calls cannot be changed; do this "
                "before it is scripted."
            )
        computing[path] = Computing(child, dtype, key)
    for path, child in module.named_modules():
        _refuse_several_in_threads(path, child, computing)
    return computing


def _refuse_several_in_threads(path: str, module: Any, computing: dict[str, Computing]) -> None:
    """Raise ValueError for a DataParallel whose modules compute in several dtypes.

    Its threads get the state of torch's autocast, and nothing else.
    """
    if not isinstance(module, torch.nn.DataParallel) or len(module.device_ids) < 2:  # noqa: PLR2004
        return
    ids = set(map(id, module.modules()))
    dtypes = {entry.dtype: name for name, entry in computing.items() if id(entry.module) in ids}
    if len(dtypes) > 1 or (dtypes and path not in computing):
        raise ValueError(
            f"{_where(path)} is a torch.nn.DataParallel, whose threads follow one dtype, but "
            f"{' and '.join(map(repr, dtypes.values()))} compute in "
            f"{' and '.join(map(dtype_name, dtypes))}; give one dtype for all of it, or use "
            "torch.nn.parallel.DistributedDataParallel."
        )


# The name of the module within torch.compile's; inputs are cast in the inner one.
_COMPILED = "_orig_mod"


def _where(path: str) -> str:
    return f"module {path!r}" if path else "the module"


def _dtype_text(dtype: Any) -> str:
    return "the dtype of its inputs" if dtype is None else dtype_name(dtype)


def _compute_dtype(path: str, module: Any, names: NameMap) -> tuple[Any, str | None]:
    """Return the dtype in which a module computes (None for that of its caller), and the key.

    ValueError: torch stores the dtype but does not compute in it, or does not cast the parameters
    to it.
    """
    target, key, _ = names.module(path)
    parameters = _own_floating(path, module)
    if key is not None or names.is_uniform or names.of_modules:
        dtype = None if target is None else torch_dtype(target)
    else:
        dtype = _dtype_of_keys(parameters, names)
    if dtype is None:
        return None, key
    if dtype not in COMPUTE_DTYPES:
        raise ValueError(
            f"{_where(path)} would compute in {dtype}, in which torch does not; give a dtype such "
            'as "bfloat16".'
        )
    for entry in parameters:
        if dtype not in AUTOCAST_DTYPES and entry.tensor.dtype != dtype:
            raise ValueError(
                f"{_where(path)} would compute in {dtype}, but {entry.path!r} is "
                f"{dtype_name(entry.tensor.dtype)}, and torch's autocast casts to 16 bits only; "
                "cast it by cast_module, or give the module another dtype."
            )
    return dtype, key


def _own_floating(path: str, module: Any) -> list[Named]:
    """Return the floating parameters of a module itself."""
    return [
        Named(f"{path}.{name}" if path else name, path, parameter)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_floating_point()
    ]


def _dtype_of_keys(parameters: list[Named], names: NameMap) -> Any:
    """Return the dtype that keys give to a module's parameters, else that which these have.

    None where they have several, or one in which torch does not compute.
    """
    dtype = None
    for entry in parameters:
        target = names.tensor(entry).target
        candidate = entry.tensor.dtype if target is None else torch_dtype(target)
        if target is None and candidate not in COMPUTE_DTYPES:
            return None  # its author is responsible for it
        dtype = candidate if dtype is None else _promote(dtype, candidate)
    return dtype


def _promote(left: Any, right: Any) -> Any:
    """Return the dtype of a sum; torch has no sums in dtypes that it only stores."""
    if left == right or left not in COMPUTE_DTYPES:
        return left
    return torch.promote_types(left, right) if right in COMPUTE_DTYPES else right
