"""Cast modules in place and state dicts to new ones, by map; tensors that share memory once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from castwise._options import Role, TreeOptions
from castwise._trees import leaves, map_leaves
from castwise.adapters.torch._casting import Loss, cast, cast_with_loss, refuse_module
from castwise.adapters.torch._in_force import COMPUTE_DTYPES, cast_floating
from castwise.adapters.torch._plan import (
    Named,
    NameMap,
    PlannedTensorCast,
    Summary,
    decide,
    refuse_unused,
)
from castwise.arrays.casting import cast_at, check_tree_options
from castwise.environment.frameworks import require
from castwise.text.brief import brief

if TYPE_CHECKING:
    from torch.nn import Module

torch: Any = require("torch")

State = TypeVar("State")


@dataclass(frozen=True)
class ModuleCast:
    """What `cast_module` did, and a handle to let the module take its inputs as before.

    Attributes
    ----------
    summary : Summary
        Each parameter and buffer with its dtypes and the key that matched; unused keys, with the
        nearest name. Prints as a table.
    losses : dict of str to Loss
        The tensors of which elements became infinite (in a format without infinities: NaN) or zero,
        each with their numbers. Prints below the table.

    """

    summary: Summary
    losses: dict[str, Loss]
    hooks: tuple[Any, ...] = field(repr=False)
    """torch's handles of the hooks that cast inputs."""

    def remove(self) -> None:
        """Let the modules no longer cast their inputs; parameters and buffers stay cast."""
        for hook in self.hooks:
            hook.remove()

    def __enter__(self) -> ModuleCast:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        loss_text = "; ".join(f"{name!r}: {loss}" for name, loss in self.losses.items()) or None
        return brief(self, repr(self.summary), "inputs cast" if self.hooks else None, loss_text)

    def __str__(self) -> str:
        return "\n".join([str(self.summary), *(f"{k!r}: {v}" for k, v in self.losses.items())])


def cast_module(
    module: Module,
    dtype_or_policy_or_map: Any,
    *,
    inputs: bool = True,
    **options: Unpack[TreeOptions],
) -> ModuleCast:
    r"""Cast the parameters and buffers of a module, and let its layers cast their inputs to them.

    It works in place, as `Module.to`: parameters stay the same objects, with the same
    ``requires_grad``, so that optimizers and tied layers keep them; gradients are cast, too.

    Parameters
    ----------
    module : torch.nn.Module
        With all its submodules.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype
        A dtype (also torch's), or a policy, whose variable dtype is used, for all; a
        `DTypePolicyMap`, whose keys are paths of modules; or a mapping of regular expressions to
        dtypes, whose keys are names of parameters and buffers (r"encoder\..*"), else of
        the modules that have them. Keys are torch's names, with dots, or castwise's paths, with
        "/", if any key has one; with or without the names that torch.compile, DataParallel and the
        like add. ``"default"`` is for names that no key matches, ``"keep"`` changes
        nothing. Integer, bool and complex tensors are left alone, unless a key is equal to the
        name of one.
    inputs : bool
        True: each module that has floating parameters casts its floating inputs to their dtype, by
        a hook that copies and files of the model have as well. torch's own modules compute with one
        dtype: let a key match the weight and the bias of a module. False: calls stay as they are,
        and run in an `autocast` where parameters are stored in a dtype that torch does not compute
        in.
    **options
        ``rounding``, ``overflow``, ``nan``, ``scale``, ``seed``, ``threads``, as in
        `castwise.cast_tree`. Nothing is changed if one tensor cannot be cast with them.

    Returns
    -------
    ModuleCast
        What was done to each tensor, the values that became infinite or zero, and `remove`, which
        undoes what `inputs` did.

    Raises
    ------
    TypeError
        `module` is not a module; a target is not a dtype or policy, or torch lacks it, or it is
        an integer dtype for a parameter that requires a gradient.
    ValueError
        Two keys match a name, or no key matches any; a tensor has two names with different dtypes;
        an option is wrong. With ``inputs=True``: torch does not compute in a dtype, or a policy
        computes in another dtype than that of its variables.
    OverflowError, ValueError
        What `castwise.cast` raises for a tensor, with its name.

    Examples
    --------
    >>> print(cast_module(model, {r".*norm.*": "keep", "default": "bfloat16"}))  # doctest: +SKIP

    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is of type {type(module).__name__}; give a torch.nn.Module.")
    if not isinstance(inputs, bool):
        raise TypeError(
            f"inputs={inputs!r} is not True or False; give inputs=False, and run the model in an "
            "autocast of that dtype."
        )
    check_tree_options(options, "cast_module")
    names = NameMap.of(dtype_or_policy_or_map, "variable")
    plan = list(decide(named_tensors(module), names))
    refuse_unused(names, module)
    for named_tensor, _, target, _ in plan:
        if (
            target is not None
            and named_tensor.tensor.requires_grad
            and not target.is_floating_point
        ):
            raise TypeError(
                f"{named_tensor.path!r} requires a gradient, which {target} cannot have; give it a "
                'floating dtype or "keep", or call requires_grad_(False).'
            )
    summary = names.summary({change.named.path: change.cast for change in plan})
    layers = list(_input_casters(module, plan, dtype_or_policy_or_map)) if inputs else []
    losses = _cast_all(plan, options)
    for child in module.modules():
        if isinstance(child, torch.nn.RNNBase):
            child.flatten_parameters()
    hooks = [layer.register_forward_pre_hook(_cast_inputs, with_kwargs=True) for layer in layers]
    return ModuleCast(summary, losses, tuple(hooks))


def _input_casters(module: Any, plan: list[PlannedTensorCast], value: Any) -> Iterator[Any]:
    """Yield the modules that cast their inputs: those that have floating parameters."""
    for path, target in ((change.named.path, change.target) for change in plan):
        if target is not None and target.is_floating_point and target not in COMPUTE_DTYPES:
            raise ValueError(
                f"{path!r} would be {target}, in which torch does not compute; give inputs=False, "
                'and run the model in an autocast, as autocast(model, "bfloat16").'
            )
    variable_map, compute_map = (NameMap.of(value, role) for role in ("variable", "compute"))
    for path, child in module.named_modules():
        if not any(parameter.is_floating_point() for parameter in _parameters(child)):
            continue
        dtypes = [names.module(path).target for names in (variable_map, compute_map)]
        if dtypes[0] != dtypes[1]:
            raise ValueError(
                f"{path!r} would have variables in {dtypes[0]} and compute in {dtypes[1]}, which "
                "only an autocast does; give inputs=False, and run the model in "
                "autocast(model, policies)."
            )
        if isinstance(child, torch.jit.ScriptModule):
            raise TypeError(
                f"module {path!r} is compiled by torch.jit, whose calls cannot be changed; do this "
                "before it is scripted, or give inputs=False."
            )
        yield child


def _parameters(module: Any) -> Iterator[Any]:
    """Yield a module's own parameters, also those that its parametrizations compute from."""
    # The copies that torch.nn.DataParallel makes have tensors for parameters.
    parameters = {**module._parameters, **vars(module).get("_former_parameters", {})}
    yield from (parameter for parameter in parameters.values() if parameter is not None)
    if torch.nn.utils.parametrize.is_parametrized(module):
        yield from module.parametrizations.parameters()


def _cast_inputs(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Cast a module's floating inputs to the dtype of its parameters, as a hook before calls."""
    dtypes = [parameter.dtype for parameter in _parameters(module)]
    dtypes = [dtype for dtype in dtypes if dtype in COMPUTE_DTYPES]
    if not dtypes:
        return None
    dtype = functools.reduce(torch.promote_types, dtypes)
    return (
        tuple(cast_floating(value, dtype) for value in args),
        {name: cast_floating(value, dtype) for name, value in kwargs.items()},
    )


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
    return names.summary({change.named.path: change.cast for change in plan})


def named_tensors(module: Any) -> Iterator[Named]:
    """Yield every parameter and buffer under each of its names."""
    for path, owner in module.named_modules(remove_duplicate=False):
        for holder in (owner._parameters, owner._buffers):
            for name, tensor in holder.items():
                if tensor is not None:
                    yield Named(f"{path}.{name}" if path else name, path, tensor)


def _cast_all(plan: list[PlannedTensorCast], options: Mapping[str, Any]) -> dict[str, Loss]:
    """Cast every tensor once, then (or, where nothing can be refused, at once) put it in place."""
    refusable = bool(options)
    tensors: dict[int, PlannedTensorCast] = {}
    for change in plan:
        if change.target is not None:
            tensors.setdefault(id(change.named.tensor), change)
    # Several tensors may share memory; its address identifies it while the old tensor is held.
    places = Counter(change.place for change in tensors.values())
    shared_places = {place for place, count in places.items() if count > 1}
    casts: dict[Any, tuple[Any, Any]] = {}
    pending: list[tuple[Any, Any]] = []
    losses: dict[str, Loss] = {}
    for named_tensor, _, target, place in tensors.values():
        tensor = named_tensor.tensor
        if place in casts:
            value = casts[place][1]
        else:
            value, loss = cast_at(
                tensor.detach(), target, named_tensor.path, options, cast_with_loss
            )
            if any(loss):
                losses[named_tensor.path] = loss
            if place in shared_places:
                casts[place] = tensor.data, value
        pending.append((tensor, value))
        if not refusable:
            _put(*pending.pop())
    for pair in pending:
        _put(*pair)
    return losses


def _put(tensor: Any, value: Any) -> None:
    """Replace the data of a tensor and of its gradient, as `Module.to` does."""
    tensor.data = value
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(value.dtype)


def cast_state_dict(
    state: State,
    dtype_or_policy_or_map: Any,
    *,
    role: Role = "variable",
    **options: Unpack[TreeOptions],
) -> State:
    r"""Cast the tensors of a state dict, as `Module.state_dict` or an optimizer gives it.

    Parameters
    ----------
    state : dict of str to tensor
        Also nested. It is not changed.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype
        As in `castwise.cast_tree`; dtypes may be torch's. Keys are torch's names (r"encoder\..*"),
        or paths with "/" if any key has one; with or without the names that torch.compile,
        DataParallel and the like add. Integer, bool and complex tensors are left alone,
        unless a key is equal to the name of one.
    role : {"variable", "compute"}
        Which dtype of a policy is used.
    **options
        ``rounding``, ``overflow``, ``nan``, ``scale``, ``seed``, ``order``, ``threads``, as in
        `castwise.cast_tree`.

    Returns
    -------
    dict of the same class
        Tensors that share memory share it again; tensors that are left alone are the same objects.
        Other values than tensors stay.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As `castwise.cast_tree`; the message has the name of the tensor. TypeError for a module.

    Examples
    --------
    >>> half = cast_state_dict(model.state_dict(), {r".*norm.*": "keep", "default": "bfloat16"})
    ... # doctest: +SKIP

    """
    check_tree_options(options, "cast_state_dict")
    tensor_class = torch.Tensor
    names = NameMap.of(dtype_or_policy_or_map, role)
    # All targets are known before anything is cast; both walks have the same order.
    plan = iter(list(decide(state_tensors(state), names)))
    casts: dict[Any, Any] = {}

    def leaf_cast(leaf: Any, path: str) -> Any:
        del path
        if not isinstance(leaf, tensor_class):
            return leaf
        tensor, _, target, place = next(plan)
        if target is None:
            return leaf
        if place not in casts:
            casts[place] = cast_at(leaf.detach(), target, tensor.path, options, cast)
        return casts[place]

    result: State = map_leaves(state, leaf_cast)
    return result


def state_tensors(state: Any) -> Iterator[Named]:
    """Yield every tensor of a state dict, by name."""
    tensor_class = torch.Tensor
    for path, leaf in leaves(state):
        if isinstance(leaf, tensor_class):
            yield Named(path.replace("/", "."), None, leaf)
        elif isinstance(leaf, torch.nn.Module):
            refuse_module(leaf)
