"""Cast state dicts by map, tensors that share memory once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, Unpack

from castwise._options import Role, TreeOptions
from castwise._trees import leaves, map_leaves
from castwise.adapters.torch._casting import cast, refuse_module
from castwise.adapters.torch._plan import Named, NameMap, decide
from castwise.arrays.casting import cast_at, check_tree_options
from castwise.environment.frameworks import require

torch: Any = require("torch")

__all__ = ["cast_state_dict"]

State = TypeVar("State")


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
    """Yield every tensor of a state dict, by name.

    TypeError: The state has a module in it.
    """
    tensor_class = torch.Tensor
    for path, leaf in leaves(state):
        if isinstance(leaf, tensor_class):
            yield Named(path.replace("/", "."), None, leaf)
        elif isinstance(leaf, torch.nn.Module):
            refuse_module(leaf)
