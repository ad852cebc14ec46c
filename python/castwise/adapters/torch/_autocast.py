"""Modules that compute in the dtype a map gives them, whatever their variables are kept in.

While an outermost call runs, the parameters and buffers below it stand there cast to the compute
dtypes; autograd sees the casts, so that gradients arrive in the dtype of the parameters.
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
    r"""Let the modules of a model compute in the dtypes of a map; a context manager.

    Each call of a module casts its floating inputs to the compute dtype of that module, and finds
    its floating parameters and buffers in it. What they are kept in does not change, nor does what
    optimizers and `state_dict` see outside of calls.

    Parameters
    ----------
    module : torch.nn.Module
        With all its submodules.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype or policy
        A dtype or the compute dtype of a policy, for every module. Of a `DTypePolicyMap`, each
        module has the policy of its path. Of a mapping of dtypes, a key that matches the path of
        a module decides for it; other modules compute in what their own parameters are given, and
        those without any take their inputs as they come. Keys are torch's names, with dots, or
        paths with "/" if any key has one.

    Returns
    -------
    Autocast
        In force from now on, until its `remove` or the end of its ``with`` block.

    Raises
    ------
    TypeError, ValueError
        It is no module, or one whose calls torch.jit compiled; it means no dtype that torch
        computes in; two keys match a path; a module has two names that are given two dtypes.

    Notes
    -----
    Of several on the same module the last is in force. Batch and instance norms keep their
    variables in float32 beside 16-bit inputs, as torch's own kernels for them want it. Elements of
    a buffer or parameter that a call changes are cast back. Where parameters have to be cast, calls
    in several threads wait for each other; so a `forward` must not wait for a thread that calls
    modules of the same model. `torch.nn.DataParallel`, which calls copies of modules, is not
    supported. Dicts, lists and the like are copied where an input in them is cast.

    Examples
    --------
    >>> with autocast(model, {r"encoder\..*": "bfloat16"}):  # doctest: +SKIP
    ...     loss = model(x).float().sum()

    """
    return Autocast(module, dtype_or_policy_or_map)


class Slot(NamedTuple):
    """A parameter or buffer, and what it is to be cast to for a call."""

    holder: dict[str, Any]
    """`_parameters` or `_buffers` of its module."""
    name: str
    dtype: Any
    owner: Any


class Autocast:
    """The calls of a model's modules, changed; see `autocast`.

    Attributes
    ----------
    summary : Summary
        The modules by name, each with the dtype that it computes in and the key that says so, and
        the keys that decide for none.

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
        """Let the modules compute as before; nothing happens if they do."""
        for module in self._modules:
            Call.unlink(self, module)

    def __enter__(self) -> Autocast:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(self, call: Call, args: Any, kwargs: Any) -> Any:
        """A call of a module: inputs and variables cast, `forward`, variables back."""
        args = tuple(_cast_floating(value, call.dtype) for value in args)
        kwargs = {name: _cast_floating(value, call.dtype) for name, value in kwargs.items()}
        covered: frozenset[Any] = getattr(self._thread, "covered", frozenset())
        if call.module in covered:
            return call.original(*args, **kwargs)
        try:
            # While one thread has variables cast, no other may see them so, nor cast them itself.
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
        """What is to be cast for a call: of the modules where this autocast is in force."""
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
        # A copy of a module comes with a copy of this, whose modules are those that refer to it.
        self.__dict__.update(state)
        self._modules: WeakSet[Any] = WeakSet()
        self._lock = threading.RLock()
        self._thread = threading.local()


class Call:
    """What stands in a module as its `forward`, in front of the one that was there."""

    def __init__(self, autocast: Autocast, module: Any, dtype: Any) -> None:
        self.autocast = autocast
        self.module = module
        self.dtype = dtype
        self.previous = module.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.autocast.run(self, args, kwargs)

    @property
    def original(self) -> Callable[..., Any]:
        """What the module does without any autocast."""
        previous = self.previous
        while isinstance(previous, Call):
            previous = previous.previous
        found: Callable[..., Any] = previous or type(self.module).forward.__get__(self.module)
        return found

    __wrapped__ = original  # for those who look at the signature

    @staticmethod
    def link(autocast: Autocast, module: Any, dtype: Any) -> None:
        """Put the autocast in front."""
        module.forward = Call(autocast, module, dtype)

    @staticmethod
    def unlink(autocast: Autocast, module: Any) -> None:
        """Take the autocast out of the module, wherever it stands in the chain."""
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
    """Every slot with its cast in it."""
    put: list[tuple[Slot, Any, Any, int]] = []
    casts: dict[tuple[int, Any], Any] = {}
    try:
        for slot in slots:
            kept = slot.holder[slot.name]
            # Tied ones stay tied, and are cast once.
            key = (id(kept), slot.dtype)
            if key not in casts:
                casts[key] = _tracked_cast(kept, slot.dtype)
            cast = casts[key]
            slot.holder[slot.name] = cast
            put.append((slot, kept, cast, cast._version))
        _renew_flat_weights(slots)
        yield
    finally:
        changed = [_put_back(*each) for each in reversed(put)]
        _renew_flat_weights(slots)
        for kept, cast in filter(None, changed):
            _take_over(kept, cast)


def _cast_floating(value: Any, dtype: Any) -> Any:
    """A floating tensor in the dtype; also those inside of dicts, lists, tuples, dataclasses."""
    tensor_class = torch.Tensor

    def cast(leaf: Any, path: str = "") -> Any:
        del path
        if isinstance(leaf, tensor_class) and leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf

    if isinstance(value, tensor_class):
        return cast(value)
    # The callee may put things into a dict or list: where nothing is cast, that is the caller's.
    return map_leaves(value, cast, shared=True) if is_node(value) else value


def _keeps_variables(module: Any, dtype: Any) -> bool:
    """Whether torch has kernels for 16-bit inputs beside variables in float32, and wants those."""
    norms = torch.nn.modules.batchnorm._NormBase
    return isinstance(module, norms) and dtype.itemsize == 2  # noqa: PLR2004


def _renew_flat_weights(slots: list[Slot]) -> None:
    """Recurrent layers hold their parameters in a list, too."""
    for owner in {slot.owner for slot in slots}:
        if hasattr(owner, "_flat_weights_names"):
            owner._flat_weights = [getattr(owner, name) for name in owner._flat_weights_names]


def _tracked_cast(tensor: Any, dtype: Any) -> Any:
    """The cast, which counts the changes made to it; so it is made outside of inference mode."""
    if not torch.is_inference_mode_enabled():
        return tensor.to(dtype)
    with torch.inference_mode(False), torch.no_grad():
        return tensor.to(dtype)


def _put_back(slot: Slot, kept: Any, cast: Any, version: int) -> tuple[Any, Any] | None:
    """End a slot's presentation; the two tensors if the call changed elements."""
    found: Any = slot.holder.get(slot.name)
    if found is cast:
        slot.holder[slot.name] = kept
        return (kept, cast) if cast._version != version else None
    if found is not None and slot.holder is slot.owner._buffers:
        slot.holder[slot.name] = found.to(kept.dtype)
    return None


def _take_over(kept: Any, cast: Any) -> None:
    """Change the elements that a call changed in the cast; others keep all their digits."""
    with torch.no_grad():
        same = cast == kept.to(cast.dtype)
        kept.copy_(torch.where(same, kept, cast.to(kept.dtype)))
