"""Let modules compute in the dtypes of a map, by torch's own autocast around their calls."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from castwise.adapters.torch._bridge import dtype_name, torch_dtype
from castwise.adapters.torch._checkpointing import FollowedCheckpoints
from castwise.adapters.torch._in_force import (
    AUTOCAST_DTYPES,
    COMPUTE_DTYPES,
    Force,
    Region,
    force_of_thread,
    is_in_backward,
    use_force,
)
from castwise.adapters.torch._plan import (
    Named,
    NameMap,
    Summary,
    TensorCast,
    prefix_of,
    refuse_lazy,
    refuse_unused,
    tensor_names,
)
from castwise.environment.frameworks import require

torch: Any = require("torch")

# The name of the module within torch.compile's; inputs are cast in the inner one.
_COMPILED = "_orig_mod"

_CACHED: list[Any] = []  # the dtype of each block that caches
_CACHE_LOCK = threading.RLock()


def autocast(module: Any, dtype_or_policy_or_map: Any) -> Autocast:
    r"""Let the modules of a model compute in the dtypes of a map, by `torch.autocast`.

    While a module of a 16-bit dtype runs, `torch.autocast` is in force with that dtype. While one
    of float32 or float64 runs, it is off, and the module's floating inputs of fewer bits are cast
    up. With one dtype for all, outputs and gradients have the bits of `torch.autocast`.

    Parameters
    ----------
    module : torch.nn.Module
        With all its submodules.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype or policy
        A dtype or the compute dtype of a policy, for every module. With a `DTypePolicyMap`, each
        module has the policy of its path. With a mapping of dtypes, a module has the dtype of the
        key that matches its path, else that of its own parameters, and without parameters it runs
        as the module that calls it. Keys are torch's names, with dots, or paths with "/" if any key
        has one; with or without the names that torch.compile, DataParallel and the like add.

    Returns
    -------
    Autocast
        A context manager, in force in each ``with`` and in the thread that entered it.

    Raises
    ------
    TypeError, ValueError
        `module` is not a module, or torch.jit compiled its calls; torch does not compute in a
        dtype; a module's parameters are not in the float32 or float64 that it would compute in;
        two keys match a path, or no key matches a module or tensor; a module has two names with
        different dtypes; torch.nn.DataParallel would lose a dtype in its threads.

    Notes
    -----
    - Of several on the same module, the innermost is in force.
    - Code outside of the model's calls and copies of the model, by torch.jit.script too, are not
      changed. Within a call, what the model's own code does with `torch.autocast` is obeyed.
    - Enter it outside of functions that torch.compile compiles: calls within it compile to as many
      graphs as under `torch.autocast`.
    - What `torch.utils.checkpoint` runs again in backward computes as in its first run, also after
      the end, as under `torch.autocast`.
    - While one is in force, its modules have another `forward`, and so have the two functions of
      torch that begin a checkpoint.
    - In other threads it is not in force; those of torch.nn.DataParallel follow torch's autocast.

    Examples
    --------
    >>> with autocast(model, {r"encoder\..*": "bfloat16"}):  # doctest: +SKIP
    ...     loss = model(x).float().sum()

    """
    return Autocast(module, dtype_or_policy_or_map)


class Autocast:
    """The dtypes in which a model's modules compute, in force in each ``with``; see `autocast`.

    Attributes
    ----------
    summary : Summary
        The modules by name, each with the dtype that it computes in and the key that matched, and
        the unused keys.

    """

    summary: Summary

    def __init__(self, module: Any, dtype_or_policy_or_map: Any) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module is of type {type(module).__name__}; give a torch.nn.Module.")
        names = NameMap.of(dtype_or_policy_or_map, "compute")
        for path, parameter in module.named_parameters():
            refuse_lazy(path, parameter)
        computing = compute_dtypes(module, names)
        refuse_unused(names, module)
        self.summary = names.summary(
            {
                path: TensorCast("", dtype_name(entry.dtype), entry.key)
                for path, entry in computing.items()
            }
        )
        self._module = module
        self._computing: list[Computing] = list(computing.values())
        self._blocks = threading.local()

    def __enter__(self) -> Autocast:
        devices = _devices(self._module)
        with ExitStack() as stack:
            states = [
                (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
                for device in devices
            ]
            dtypes = {dtype for _, dtype, _ in self._computing if dtype in AUTOCAST_DTYPES}
            dtypes.update(dtype for _, dtype, is_on in states if is_on)
            # Before the cache is used, and until it is cleared.
            caches = stack.enter_context(cached_dtypes(dtypes))
            # As in one `with` of torch's: its cache lasts for all calls of the block.
            for device, dtype, is_on in states:
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=is_on))
            stack.enter_context(FollowedCheckpoints())
            stack.enter_context(use_force(self._force(devices, caches)))
            self._blocks.__dict__.setdefault("stacks", []).append(stack.pop_all())
        return self

    def __exit__(self, *_: object) -> None:
        stacks = self._blocks.__dict__.get("stacks")
        if not stacks:
            raise RuntimeError(
                "this autocast has not begun in this thread; end it in the thread that began it."
            )
        stacks.pop().close()

    def _force(self, devices: tuple[str, ...], caches: bool) -> Force:
        outer = force_of_thread() or Force((), {})
        modules = {id(module): module for module, _, _ in self._computing}
        dtypes = {dtype for _, dtype, _ in self._computing}
        of_dtype = {dtype: Region(dtype, devices, caches) for dtype in dtypes}
        regions = {id(module): of_dtype[dtype] for module, dtype, _ in self._computing}
        return Force(
            (*outer.modules, *modules.values()),
            {**outer.regions, **regions},
            in_backward=is_in_backward(),
        )


def _devices(module: Any) -> tuple[str, ...]:
    """Return the types of the devices of a model's tensors for which torch has an autocast."""
    # A model without tensors has the types of the processor and of the accelerator in use.
    tensors = [*module.parameters(), *module.buffers()]
    devices = {tensor.device.type for tensor in tensors}
    if not tensors:
        devices = {"cpu", torch._C._get_accelerator().type}
    return tuple(sorted(filter(torch.amp.is_autocast_available, devices)))


@contextmanager
def cached_dtypes(dtypes: Collection[Any]) -> Iterator[bool]:
    """Tell whether torch may cache in a block that casts to these: no other dtype is cached."""
    # torch's cache of cast tensors is one for all threads, and finds a cast by its source alone: a
    # second dtype would get the casts to the first.
    with _CACHE_LOCK:
        is_free = len({*dtypes, *_CACHED}) <= 1
        if is_free:
            _CACHED.extend(dtypes)
    try:
        yield is_free
    finally:
        with _CACHE_LOCK:
            for dtype in dtypes if is_free else ():
                _CACHED.remove(dtype)


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
    """Raise ValueError for a DataParallel whose modules compute in several dtypes."""
    # Its threads get the state of torch's autocast, and nothing else.
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


def _where(path: str) -> str:
    return f"module {path!r}" if path else "the module"


def _dtype_text(dtype: Any) -> str:
    return "the dtype of its inputs" if dtype is None else dtype_name(dtype)


def _compute_dtype(path: str, module: Any, names: NameMap) -> tuple[Any, str | None]:
    """Return the dtype in which a module computes (None for that of its caller), and the key."""
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
    return [
        Named(f"{path}.{name}" if path else name, path, parameter)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_floating_point()
    ]


def _dtype_of_keys(parameters: list[Named], names: NameMap) -> Any:
    """Return the dtype that keys give to a module's parameters, else that which these have."""
    # None where the parameters have several dtypes, or one in which torch does not compute.
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
