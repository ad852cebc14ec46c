"""Put casts in the place of a module's parameters and buffers, for a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from castwise._frameworks import require

torch: Any = require("torch")


class Slot(NamedTuple):
    """A variable of a module, and its dtype in a call."""

    holder: dict[str, Any]
    """`_parameters`, `_buffers` or the attributes of its module."""
    name: str
    dtype: Any
    owner: Any


def slots_of(owner: Any, dtype: Any, is_outermost: bool) -> Iterator[Slot]:
    """Yield the variables of a module that a call in this dtype has to cast."""
    if _keeps_variables(owner, dtype):
        return
    for holder, names in _holders(owner, is_outermost):
        for name in names:
            tensor = holder[name]
            is_floating = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if is_floating and tensor.dtype != dtype:
                yield Slot(holder, name, dtype, owner)


def _holders(owner: Any, is_outermost: bool) -> Iterator[tuple[dict[str, Any], list[str]]]:
    yield owner._parameters, list(owner._parameters)
    yield owner._buffers, list(owner._buffers)
    attributes = owner.__dict__
    # The copies of modules that torch.nn.DataParallel makes have tensors for parameters.
    names = list(attributes.get("_former_parameters", ()))
    if is_outermost:
        # Hooks have computed these (weight_norm, spectral_norm, pruning) before the call.
        hooks = owner._forward_pre_hooks.values()
        names += [getattr(hook, "name", getattr(hook, "_tensor_name", None)) for hook in hooks]
    yield attributes, [name for name in names if isinstance(name, str) and name in attributes]


@contextmanager
def presented(slots: list[Slot]) -> Iterator[None]:
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
        changed = [_put_back(*record) for record in reversed(put)]
        _renew_flat_weights(slots)
        for stored, cast in filter(None, changed):
            _take_over(stored, cast)


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
    with _beside_selective_checkpoints():
        if not torch.is_inference_mode_enabled():
            return tensor.to(dtype)
        with torch.inference_mode(False), torch.no_grad():
            return tensor.to(dtype)


def _beside_selective_checkpoints() -> AbstractContextManager[Any]:
    """Hide casts from checkpoints that select what they save.

    These count operations. What is run again has to cast what the call around its first run had.
    """
    checkpoint, dispatch = torch.utils.checkpoint, torch.utils._python_dispatch
    modes = dispatch._get_current_dispatch_mode_stack()
    kinds = checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode
    if not modes or not any(isinstance(mode, kinds) for mode in modes):
        return nullcontext()
    context: AbstractContextManager[Any] = dispatch._disable_current_modes()
    return context


def _put_back(slot: Slot, stored: Any, cast: Any, version: int) -> tuple[Any, Any] | None:
    """Put a slot's variable back; return both tensors if the call changed elements."""
    presented_tensor: Any = slot.holder.get(slot.name)
    if presented_tensor is cast:
        slot.holder[slot.name] = stored
        return (stored, cast) if cast._version != version else None
    if presented_tensor is not None and slot.holder is slot.owner._buffers:
        slot.holder[slot.name] = presented_tensor.to(stored.dtype)
    return None


def _take_over(stored: Any, cast: Any) -> None:
    """Copy the elements that the call changed; others keep their full precision."""
    with torch.no_grad():
        same = cast == stored.to(cast.dtype)
        stored.copy_(torch.where(same, stored, cast.to(stored.dtype)))
