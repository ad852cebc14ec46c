"""What is in force in a thread: the regions of modules, and the one that runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from castwise._trees import is_node, map_leaves
from castwise.adapters.torch._forwards import replace_forwards, restore_forwards
from castwise.environment.frameworks import require

torch: Any = require("torch")

# The dtypes that `torch.autocast` has on every device.
AUTOCAST_DTYPES = (torch.bfloat16, torch.float16)

# The dtypes in which torch computes; others it only stores.
COMPUTE_DTYPES = (*AUTOCAST_DTYPES, torch.float32, torch.float64)


class Region(NamedTuple):
    """How a module computes: what its calls give to `torch.autocast`."""

    # In another dtype than `AUTOCAST_DTYPES`, torch's autocast is off and inputs are cast up.
    dtype: Any
    devices: tuple[str, ...]
    caches: bool  # whether torch may keep the weights that it casts


@dataclass(eq=False)
class Force:
    """The regions in force in a thread; torch.compile reads it, and guards what it read."""

    modules: Sequence[Any]  # those of the regions
    regions: Mapping[int, Region]  # each by the identity of its module
    running: Any = None  # the dtype of the innermost region that runs; None outside of all
    # Whether it is in force in backward: it was noted for calls there, or began there. Other
    # calls in backward are those that began outside of any autocast.
    in_backward: bool = False

    def note(self) -> Force:
        """Return what is in force now, for a call that may run again in backward."""
        return Force(self.modules, self.regions, self.running, in_backward=True)


_thread = threading.local()


def force_of_thread() -> Force | None:
    """Return what is in force in this thread."""
    force: Force | None = getattr(_thread, "force", None)
    return force


@contextmanager
def use_force(force: Force | None) -> Iterator[None]:
    """Put this in force in this thread for a block, and nothing else."""
    outer = force_of_thread()
    modules = () if force is None else force.modules
    replace_forwards(modules, call)
    _thread.force = force
    try:
        yield
    finally:
        _thread.force = outer
        restore_forwards(modules)


def call(module: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a `forward` in the region of its module; where that runs already, as it is."""
    # Code of the model that leaves torch's autocast, or changes it, is obeyed by what it calls.
    force: Force | None = getattr(_thread, "force", None)
    region = None if force is None else force.regions.get(id(module))
    if force is None or region is None or (is_in_backward() and not force.in_backward):
        return forward(*args, **kwargs)
    if region.dtype not in AUTOCAST_DTYPES:
        args = tuple(cast_floating(value, region.dtype, up=True) for value in args)
        kwargs = {key: cast_floating(value, region.dtype, up=True) for key, value in kwargs.items()}
    running = force.running
    if region.dtype is running:
        return forward(*args, **kwargs)
    force.running = region.dtype
    try:
        return _within(region.devices, region, forward, args, kwargs)
    finally:
        force.running = running


def is_in_backward() -> bool:
    """Tell whether autograd calls this."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _within(devices: Any, region: Region, forward: Any, args: Any, kwargs: Any) -> Any:
    if not devices:
        return forward(*args, **kwargs)
    is_enabled = region.dtype in AUTOCAST_DTYPES
    dtype = region.dtype if is_enabled else None
    caches = None if region.caches else False
    with torch.autocast(devices[0], dtype=dtype, enabled=is_enabled, cache_enabled=caches):
        return _within(devices[1:], region, forward, args, kwargs)


def cast_floating(value: Any, dtype: Any, *, up: bool = False) -> Any:
    """Cast floating tensors, also inside of dicts, lists, tuples and dataclasses."""
    # With `up`, only those of fewer bytes. A container in which nothing is cast stays the caller's.
    tensor_class = torch.Tensor

    def cast(leaf: Any, path: str = "") -> Any:
        del path
        if not isinstance(leaf, tensor_class) or not leaf.is_floating_point():
            return leaf
        return leaf if up and leaf.dtype.itemsize >= dtype.itemsize else leaf.to(dtype)

    if isinstance(value, tensor_class):
        return cast(value)
    return map_leaves(value, cast, shared=True) if is_node(value) else value
