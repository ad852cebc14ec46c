"""Cast modules in place: parameters and buffers by map, calls in the compute dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from castwise._brief import brief
from castwise._casting import cast_at, check_tree_options
from castwise._frameworks import require
from castwise._options import Role, TreeOptions
from castwise.adapters.torch._autocast import Autocast
from castwise.adapters.torch._casting import cast
from castwise.adapters.torch._plan import (
    Named,
    NameMap,
    PlannedTensorCast,
    Summary,
    decide,
    refuse_unused,
)
from castwise.adapters.torch._state import state_tensors

if TYPE_CHECKING:
    from torch.nn import Module

torch: Any = require("torch")

__all__ = ["ModuleCast", "cast_module", "explain"]


@dataclass(frozen=True)
class ModuleCast:
    """What `cast_module` did, and a handle to let the module compute as before.

    Attributes
    ----------
    summary : Summary
        Each parameter and buffer with its dtypes and the key that matched; unused keys, with the
        nearest name. Prints as a table.
    autocast : Autocast or None
        What the modules compute in.

    """

    summary: Summary
    autocast: Autocast | None

    def remove(self) -> None:
        """Let the modules no longer cast their inputs; parameters and buffers stay cast."""
        if self.autocast is not None:
            self.autocast.remove()

    def __enter__(self) -> ModuleCast:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return brief(self, repr(self.summary), None if self.autocast is None else "inputs cast")

    def __str__(self) -> str:
        return str(self.summary)


def cast_module(
    module: Module,
    dtype_or_policy_or_map: Any,
    *,
    inputs: Any = True,
    **options: Unpack[TreeOptions],
) -> ModuleCast:
    r"""Cast the parameters and buffers of a module, and let it compute in their dtypes.

    It works in place, as `Module.to`: parameters stay the same objects, with the same
    ``requires_grad``, so that optimizers and tied layers keep them; gradients are cast, too.

    Parameters
    ----------
    module : torch.nn.Module
        With all its submodules.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype
        A dtype (also torch's), or a policy, whose variable dtype is used, for all; a
        `DTypePolicyMap`, whose keys are paths of modules; or a mapping of regular expressions to
        dtypes, whose keys are names of parameters and buffers (r"encoder\..*\.weight"), else of
        the modules that have them. Keys are torch's names, with dots, or castwise's paths, with
        "/", if any key has one; with or without the names that torch.compile, DataParallel and the
        like add. ``"default"`` is for names that no key matches, ``"keep"`` changes
        nothing. Integer, bool and complex tensors are left alone, unless a key is equal to the
        name of one.
    inputs : bool, or what `dtype_or_policy_or_map` may be
        True: modules compute in the dtypes that the map gives them (`autocast`). False: their
        calls stay as they are. Anything else is what they compute in, such as "bfloat16" for
        parameters in float8.
    **options
        ``rounding``, ``overflow``, ``nan``, ``scale``, ``seed``, ``threads``, as in
        `castwise.cast_tree`. Nothing is changed if one tensor cannot be cast with them.

    Returns
    -------
    ModuleCast
        What was done to each tensor, and `remove`, which undoes what `inputs` did.

    Raises
    ------
    TypeError
        `module` is not a module; a target is not a dtype or policy, or torch lacks it, or it is
        an integer dtype for a parameter that requires a gradient.
    ValueError
        Two keys match a name, or no key matches any; a tensor has two names with different dtypes;
        torch does not compute in a dtype; an option is wrong.
    OverflowError, ValueError
        What `castwise.cast` raises for a tensor, with its name.

    Examples
    --------
    >>> print(cast_module(model, {r".*norm.*": "keep", "default": "bfloat16"}))  # doctest: +SKIP

    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is of type {type(module).__name__}; give a torch.nn.Module.")
    check_tree_options(options, "cast_module")
    names = NameMap.of(dtype_or_policy_or_map, "variable")
    plan = list(decide(named_tensors(module), names))
    refuse_unused(names, module)
    for named, _, target, _ in plan:
        if target is not None and named.tensor.requires_grad and not target.is_floating_point:
            raise TypeError(
                f"{named.path!r} requires a gradient, which {target} cannot have; give it a "
                'floating dtype or "keep", or call requires_grad_(False).'
            )
    summary = names.summary({planned.named.path: planned.cast for planned in plan})
    # It checks everything before it changes anything, so that the two succeed or fail together.
    autocast = None
    if inputs is not False:
        autocast = _autocast(module, dtype_or_policy_or_map, inputs)
    try:
        _cast_all(plan, options)
    except BaseException:
        if autocast is not None:
            autocast.remove()
        raise
    for child in module.modules():
        if isinstance(child, torch.nn.RNNBase):
            child.flatten_parameters()
    return ModuleCast(summary, autocast)


def _autocast(module: Any, dtype_or_policy_or_map: Any, inputs: Any) -> Autocast:
    """Make the `Autocast` that the argument `inputs` asks for."""
    if inputs is True:
        return Autocast(module, dtype_or_policy_or_map)
    try:
        return Autocast(module, inputs)
    except (TypeError, ValueError) as error:
        raise type(error)(f"inputs={inputs!r}: {error}") from error


def explain(
    module_or_state: Any, dtype_or_policy_or_map: Any, *, role: Role = "variable"
) -> Summary:
    """Report what a map would do to the tensors of a module or a state dict.

    Raises
    ------
    TypeError, ValueError
        As `cast_module`.

    Examples
    --------
    >>> import torch
    >>> from castwise.adapters import torch as torch_adapter
    >>> print(torch_adapter.explain(torch.nn.Linear(2, 2), {"weight": "bfloat16"}))
    tensor  from     to        key
    ------  -------  --------  ------
    weight  float32  bfloat16  weight
    bias    float32  float32   -

    """
    names = NameMap.of(dtype_or_policy_or_map, role)
    if isinstance(module_or_state, torch.nn.Module):
        tensors = list(named_tensors(module_or_state))
    else:
        tensors = list(state_tensors(module_or_state))
    plan = decide(tensors, names)
    return names.summary({planned.named.path: planned.cast for planned in plan})


def named_tensors(module: Any) -> Iterator[Named]:
    """Yield every parameter and buffer under each of its names."""
    for path, owner in module.named_modules(remove_duplicate=False):
        for holder in (owner._parameters, owner._buffers):
            for name, tensor in holder.items():
                if tensor is not None:
                    yield Named(f"{path}.{name}" if path else name, path, tensor)


def _cast_all(plan: list[PlannedTensorCast], options: Mapping[str, Any]) -> None:
    """Cast every tensor once, then (or, where nothing can be refused, at once) put it in place."""
    refusable = bool(options)
    tensors = {id(planned.named.tensor): planned for planned in plan if planned.target is not None}
    # Several tensors may share memory; its address identifies it while the old tensor is held.
    places = Counter(planned.place for planned in tensors.values())
    shared = {place for place, count in places.items() if count > 1}
    done: dict[Any, tuple[Any, Any]] = {}
    pending: list[tuple[Any, Any]] = []
    for named, _, target, place in tensors.values():
        tensor = named.tensor
        if place in done:
            value = done[place][1]
        else:
            value = cast_at(tensor.detach(), target, named.path, options, cast)
            if place in shared:
                done[place] = tensor.data, value
        pending.append((tensor, value))
        if not refusable:
            _put(*pending.pop())
    for pair in pending:
        _put(*pair)


def _put(tensor: Any, value: Any) -> None:
    """Replace the data of a tensor and of its gradient, as `Module.to` does."""
    tensor.data = value
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(value.dtype)
