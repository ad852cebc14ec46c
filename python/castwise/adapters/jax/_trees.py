"""Cast the leaves of pytrees by map."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, Unpack

from castwise._options import TreeOptions
from castwise._trees import joined_keys
from castwise.arrays.casting import Walk, check_tree_options
from castwise.arrays.dtype_map import DtypeMap
from castwise.environment.frameworks import require

jax: Any = require("jax")

Tree = TypeVar("Tree")


def cast_tree(
    tree: Tree,
    dtype_or_policy_or_map: Any,
    *,
    only_floating: bool = True,
    role: Literal["variable", "compute", "output"] = "variable",
    **options: Unpack[TreeOptions],
) -> Tree:
    """Cast the arrays of a pytree, of any class that is registered with jax; also in `jax.jit`.

    Parameters
    ----------
    tree : pytree
        Arrays of jax become arrays of jax (see `cast`), and numpy's become numpy's; other leaves
        stay what they are.
    dtype_or_policy_or_map : dtype, policy, or mapping of str to dtype
        As in `castwise.cast_tree`; also a policy of jmp's shape, with ``param_dtype``,
        ``compute_dtype`` and ``output_dtype``. Keys are matched with the `paths` of the leaves.
    only_floating : bool
        Leave integer, bool and complex arrays alone, unless a key matches their path; a key with a
        format of floats must be their whole path.
    role : {"variable", "compute", "output"}
        Which dtype of a policy is used; "output" is for jmp's policies.
    **options
        As in `castwise.cast_tree`; where XLA casts, those of `cast`.

    Returns
    -------
    pytree of the same structure
        A leaf that occurs several times is cast once.

    Warns
    -----
    UserWarning
        A key of a mapping matches the path of no array.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As `castwise.cast_tree`, with the path of the leaf.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from castwise.adapters import jax as jax_adapter
    >>> tree = {"kernel": jnp.ones(2), "step": jnp.int32(7)}
    >>> {name: leaf.dtype.name for name, leaf in jax_adapter.cast_tree(tree, "bfloat16").items()}
    {'kernel': 'bfloat16', 'step': 'int32'}

    """
    check_tree_options(options, "cast_tree")
    if is_jmp_policy(dtype_or_policy_or_map):
        dtype_or_policy_or_map = _of_jmp(dtype_or_policy_or_map, role)
        role = "variable"
    walk = Walk(DtypeMap.of(dtype_or_policy_or_map, role), only_floating, options)
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    cast_leaves = [walk.leaf(leaf, joined_keys(keys)) for keys, leaf in leaves]
    walk.warn_of_unused()
    result: Tree = jax.tree_util.tree_unflatten(structure, cast_leaves)
    return result


def paths(tree: Any) -> list[str]:
    """Return the paths of a pytree's leaves in jax's order: keys, indices and names joined by "/".

    `DTypePolicyMap.explain` takes them.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from castwise.adapters import jax as jax_adapter
    >>> jax_adapter.paths({"dense": {"kernel": jnp.ones(2)}, "steps": [1, 2]})
    ['dense/kernel', 'steps/0', 'steps/1']

    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [joined_keys(keys) for keys, _ in leaves]


def is_jmp_policy(value: Any) -> bool:
    """Tell whether a value is a policy of jmp, or has the same three dtypes."""
    return all(hasattr(value, f"{name}_dtype") for name in _JMP.values())


# jmp's names of castwise's roles.
_JMP = {"variable": "param", "compute": "compute", "output": "output"}


def _of_jmp(policy: Any, role: str) -> Any:
    if role not in _JMP:
        raise ValueError(f"role={role!r} is not valid; use one of {', '.join(_JMP)}")
    return getattr(policy, f"{_JMP[role]}_dtype")
