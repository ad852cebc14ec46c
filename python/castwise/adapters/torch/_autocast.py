"""Let modules compute in the dtypes of a map, while their variables keep theirs.

During the outermost call, casts take the place of the parameters and buffers below it. Autograd
records the casts, so that gradients have the dtype of the parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakSet

from castwise._frameworks import require
from castwise._trees import is_node, map_leaves
from castwise.adapters.torch._bridge import dtype_name
from castwise.adapters.torch._computing import compute_dtypes
from castwise.adapters.torch._plan import NameMap, Summary, TensorCast, refuse_lazy

torch: Any = require("torch")

__all__ = ["Autocast", "autocast"]


def autocast(module: Any, dtype_or_policy_or_map: Any) -> Autocast:
    r"""Let the modules of a model compute in the dtypes of a map.

    Each call of a module casts its floating inputs to the compute dtype of that module, and sees
    its floating parameters and buffers in that dtype. Outside of calls they keep their own dtype,
    which optimizers and `state_dict` see.

    Parameters
    ----------
    module : torch.nn.Module
        With all its submodules.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype or policy
        A dtype or the compute dtype of a policy, for every module. With a `DTypePolicyMap`, each
        module has the policy of its path. With a mapping of dtypes, a module has the dtype of the
        key that matches its path, else that of its own parameters, and without parameters it does
        not cast its inputs. Keys are torch's names, with dots, or paths with "/" if any key has
        one.

    Returns
    -------
    Autocast
        A context manager. It is in force until `remove` is called or its ``with`` block ends.

    Raises
    ------
    TypeError, ValueError
        `module` is not a module, or torch.jit compiled its calls; torch does not compute in a
        dtype; two keys match a path; a module has two names with different dtypes.

    Notes
    -----
    If several are on the same module, the last is in force. Batch and instance norms see their
    variables in float32 beside 16-bit inputs, as torch's kernels need them. Elements of a buffer or
    parameter that a call changes are cast back. Where parameters have to be cast, calls in several
    threads wait for each other; so a `forward` must not wait for a thread that calls modules of the
    same model. `torch.nn.DataParallel`, which calls copies of modules, is not supported. Dicts,
    lists and the like are copied where an input in them is cast.

    Examples
    --------
    >>> with autocast(model, {r"encoder\..*": "bfloat16"}):  # doctest: +SKIP
    ...     loss = model(x).float().sum()

    """
    return Autocast(module, dtype_or_policy_or_map)


class Slot(NamedTuple):
    """A parameter or buffer, and its dtype in a call."""

    holder: dict[str, Any]
    """`_parameters` or `_buffers` of its module."""
    name: str
    dtype: Any
    owner: Any


class Autocast:
    """The changed calls of a model's modules; see `autocast`.

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
        chosen = compute_dtypes(module, names)
        self.summary = names.summary(
            {
                path: TensorCast("", dtype_name(each.dtype), each.key)
                for path, each in chosen.items()
            }
        )
        self.__setstate__({})
        for each in chosen.values():
            if each.module not in self._modules:
                Call.link(self, each.module, each.dtype)
                self._modules.add(each.module)

    def remove(self) -> None:
        """Let the modules compute as before; calling it again does nothing."""
        for module in self._modules:
            Call.unlink(self, module)

    def __enter__(self) -> Autocast:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(self, call: Call, args: Any, kwargs: Any) -> Any:
        """Call `forward` with inputs and variables cast, then put the variables back."""
        args = tuple(_cast_floating(value, call.dtype) for value in args)
        kwargs = {name: _cast_floating(value, call.dtype) for name, value in kwargs.items()}
        covered: frozenset[Any] = getattr(self._thread, "covered", frozenset())
        if call.module in covered:
            return call.original(*args, **kwargs)
        try:
            # Other threads must not see or cast the variables while the casts are in their place.
            with self._lock:
                self._thread.covered = covered.union(call.module.modules())
                slots = list(self._slots(self._thread.covered - covered))
                if slots:
                    with _presented(slots):
                        return call.original(*args, **kwargs)
            return call.original(*args, **kwargs)
        finally:
            self._thread.covered = covered

    def _slots(self, owners: Iterable[Any]) -> Iterator[Slot]:
        """Yield what a call has to cast: of the modules where this autocast is in force."""
        for owner in owners:
            call = owner.__dict__.get("forward")
            if not isinstance(call, Call) or call.autocast is not self:
                continue
            if _keeps_variables(owner, call.dtype):
                continue
            for holder in (owner._parameters, owner._buffers):
                for name, tensor in holder.items():
                    if tensor is None or not tensor.is_floating_point():
                        continue
                    if tensor.dtype != call.dtype:
                        yield Slot(holder, name, call.dtype, owner)

    def __getstate__(self) -> dict[str, Any]:
        return {"summary": self.summary}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy of a module has a copy of this object, whose modules are those that refer to it.
        self.__dict__.update(state)
        self._modules: WeakSet[Any] = WeakSet()
        self._lock = threading.RLock()
        self._thread = threading.local()


class Call:
    """A module's `forward` that casts, and calls the previous one."""

    def __init__(self, autocast: Autocast, module: Any, dtype: Any) -> None:
        self.autocast = autocast
        self.module = module
        self.dtype = dtype
        self.previous = module.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.autocast.run(self, args, kwargs)

    @property
    def original(self) -> Callable[..., Any]:
        """The module's `forward` without any autocast."""
        previous = self.previous
        while isinstance(previous, Call):
            previous = previous.previous
        found: Callable[..., Any] = previous or type(self.module).forward.__get__(self.module)
        return found

    __wrapped__ = original  # for callers that read the signature

    @staticmethod
    def link(autocast: Autocast, module: Any, dtype: Any) -> None:
        """Put the autocast before the present `forward`."""
        module.forward = Call(autocast, module, dtype)

    @staticmethod
    def unlink(autocast: Autocast, module: Any) -> None:
        """Remove the autocast from the module, wherever it is in the chain."""
        call, later = module.__dict__.get("forward"), None
        while isinstance(call, Call):
            if call.autocast is autocast:
                if later is not None:
                    later.previous = call.previous
                elif call.previous is not None:
                    module.__dict__["forward"] = call.previous
                else:
                    del module.__dict__["forward"]
                return
            call, later = call.previous, call


@contextmanager
def _presented(slots: list[Slot]) -> Iterator[None]:
    """Put the casts into the slots for a block."""
    put: list[tuple[Slot, Any, Any, int]] = []
    casts: dict[tuple[int, Any], Any] = {}
    try:
        for slot in slots:
            stored = slot.holder[slot.name]
            # Tied variables stay tied, and are cast once.
            key = (id(stored), slot.dtype)
            if key not in casts:
                casts[key] = _tracked_cast(stored, slot.dtype)
            cast = casts[key]
            slot.holder[slot.name] = cast
            put.append((slot, stored, cast, cast._version))
        _renew_flat_weights(slots)
        yield
    finally:
        changed = [_put_back(*each) for each in reversed(put)]
        _renew_flat_weights(slots)
        for stored, cast in filter(None, changed):
            _take_over(stored, cast)


def _cast_floating(value: Any, dtype: Any) -> Any:
    """Cast floating tensors, also inside of dicts, lists, tuples and dataclasses."""
    tensor_class = torch.Tensor

    def cast(leaf: Any, path: str = "") -> Any:
        del path
        if isinstance(leaf, tensor_class) and leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf

    if isinstance(value, tensor_class):
        return cast(value)
    # The callee may change a dict or list; if nothing in it is cast, it stays the caller's.
    return map_leaves(value, cast, shared=True) if is_node(value) else value


def _keeps_variables(module: Any, dtype: Any) -> bool:
    """Tell whether torch's kernels need variables in float32 beside 16-bit inputs."""
    norms = torch.nn.modules.batchnorm._NormBase
    return isinstance(module, norms) and dtype.itemsize == 2  # noqa: PLR2004


def _renew_flat_weights(slots: list[Slot]) -> None:
    """Update the list in which recurrent layers hold their parameters, too."""
    for owner in {slot.owner for slot in slots}:
        if hasattr(owner, "_flat_weights_names"):
            owner._flat_weights = [getattr(owner, name) for name in owner._flat_weights_names]


def _tracked_cast(tensor: Any, dtype: Any) -> Any:
    """Cast outside of inference mode, so that the result counts its changes."""
    if not torch.is_inference_mode_enabled():
        return tensor.to(dtype)
    with torch.inference_mode(False), torch.no_grad():
        return tensor.to(dtype)


def _put_back(slot: Slot, stored: Any, cast: Any, version: int) -> tuple[Any, Any] | None:
    """Put a slot's variable back; return both tensors if the call changed elements."""
    found: Any = slot.holder.get(slot.name)
    if found is cast:
        slot.holder[slot.name] = stored
        return (stored, cast) if cast._version != version else None
    if found is not None and slot.holder is slot.owner._buffers:
        slot.holder[slot.name] = found.to(stored.dtype)
    return None


def _take_over(stored: Any, cast: Any) -> None:
    """Copy the elements that the call changed; others keep their full precision."""
    with torch.no_grad():
        same = cast == stored.to(cast.dtype)
        stored.copy_(torch.where(same, stored, cast.to(stored.dtype)))
