"""Gradients of a loss that is multiplied by a loss scale, divided by it again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from castwise.adapters.jax._gradients import unscale
from castwise.adapters.jax._scaling import LossScale
from castwise.adapters.jax._trees import cast_tree
from castwise.environment.frameworks import require

jax: Any = require("jax")

__all__ = ["value_and_grad"]


def value_and_grad(
    loss: Callable[..., Any],
    scaling: LossScale,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    policy: Any = None,
) -> Callable[..., tuple[Any, LossScale, Any, Any]]:
    """Make a function that gives a loss, its gradients, and the loss scale of the next step.

    Parameters
    ----------
    loss : callable
        Returns a real floating number, or (number, aux) with `has_aux`.
    scaling : LossScale
        As `loss_scale` makes one; it may be traced.
    argnums : int or sequence of int
        The arguments to differentiate by: pytrees, whose floating arrays have gradients.
    has_aux : bool
        Whether `loss` returns something else beside the number.
    policy : dtype or policy, optional
        Floating arrays in all arguments are cast to it, or to its compute dtype, before `loss` sees
        them. By default they are not.

    Returns
    -------
    callable
        It takes the arguments of `loss` and returns ``(value, scaling, applies, grads)``:

        - the number that `loss` gives, not scaled; ``(value, aux)`` with `has_aux`;
        - the loss scale of the next step;
        - whether to apply the gradients, a bool array of rank 0: `select_tree` skips a step;
        - for each of `argnums` a pytree as the argument is, with what was multiplied by the
          reciprocal of `scaling` as `unscale` does, and None for leaves that are no floating array.

    Raises
    ------
    TypeError
        `scaling` is not a `LossScale`; `policy` is a map; `loss` gives no floating number; an array
        to differentiate by is complex.

    Notes
    -----
    This is what ``mpx.filter_value_and_grad`` does, with two differences: gradients are divided by
    the scale that the loss was multiplied by, where mpx divides by that of the next step; and the
    value never goes through the scale. A float16 loss takes scales up to 65504 only, as those of
    ``preset="mpx"``; one that ends in float32 takes any.

    Examples
    --------
    >>> from castwise.adapters.jax import loss_scale, select_tree, value_and_grad
    >>> @jax.jit
    ... def train_step(weights, scaling, x):
    ...     loss = lambda weights, x: (weights["dense"] * x).sum().astype("float32")
    ...     call = value_and_grad(loss, scaling, policy="mixed_float16")
    ...     value, scaling, applies, grads = call(weights, x)
    ...     stepped = jax.tree.map(lambda weight, grad: weight - 0.5 * grad, weights, grads)
    ...     return select_tree(applies, stepped, weights), scaling, value
    >>> weights = {"dense": jax.numpy.ones(2)}
    >>> weights, scaling, value = train_step(weights, loss_scale(8.0), jax.numpy.ones(2))
    >>> weights["dense"].tolist(), float(value)
    ([0.5, 0.5], 2.0)

    """
    if not isinstance(scaling, LossScale):
        raise TypeError(
            f"scaling={scaling!r} is not a LossScale; give castwise.adapters.jax.loss_scale(...)."
        )
    if isinstance(policy, Mapping):
        raise TypeError(
            "policy is a map, whose paths are those in one tree; cast that argument in loss, by "
            "castwise.adapters.jax.cast_tree."
        )
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(loss)
    def compute(*args: Any, **kwargs: Any) -> tuple[Any, LossScale, Any, Any]:
        if policy is not None:
            args, kwargs = cast_tree((args, kwargs), policy, role="compute")
        leaves, structures = [], []
        for number in numbers:
            argument_leaves, structure = jax.tree_util.tree_flatten(args[number])
            leaves.append(argument_leaves)
            structures.append(structure)
        selection = [[_is_differentiable(leaf) for leaf in of_one] for of_one in leaves]

        def scaled_loss(arrays: Any) -> tuple[Any, Any]:
            arguments = list(args)
            for place, number in enumerate(numbers):
                argument = _merge(selection[place], arrays[place], leaves[place])
                arguments[number] = jax.tree_util.tree_unflatten(structures[place], argument)
            result = loss(*arguments, **kwargs)
            value = result[0] if has_aux else result
            return _multiply(value, scaling.scale), result

        arrays = [
            [leaf for leaf, is_chosen in zip(of_one, flags, strict=True) if is_chosen]
            for of_one, flags in zip(leaves, selection, strict=True)
        ]
        grads, result = jax.grad(scaled_loss, has_aux=True)(arrays)
        grads, finite = unscale(grads, scaling)
        following, applies = scaling.next(finite)
        trees = tuple(
            jax.tree_util.tree_unflatten(structure, _merge(flags, of_one, [None] * len(flags)))
            for structure, flags, of_one in zip(structures, selection, grads, strict=True)
        )
        return result, following, applies, trees[0] if isinstance(argnums, int) else trees

    return compute


def _is_differentiable(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return False
    dtype = leaf.dtype
    if jax.numpy.issubdtype(dtype, np.complexfloating):
        raise TypeError(
            f"an array of dtype {dtype} and shape {leaf.shape} has no real gradient; give its real "
            "and imaginary parts, or leave its argument out of argnums."
        )
    return bool(jax.numpy.issubdtype(dtype, np.floating))


def _merge(flags: Sequence[bool], selection: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
    """Return the chosen values where the flags say so, in their order, and the others elsewhere."""
    remaining = iter(selection)
    return [
        next(remaining) if flag else other for flag, other in zip(flags, constants, strict=True)
    ]


def _multiply(value: Any, scale: Any) -> Any:
    """Return a loss times its scale, in 32 bits at least."""
    jnp = jax.numpy
    is_number = jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure(value))
    kind = f"shape {jnp.shape(value)} and dtype {jnp.result_type(value)}" if is_number else "a tree"
    if not is_number or jnp.shape(value) or not jnp.issubdtype(jnp.result_type(value), np.floating):
        raise TypeError(
            f"loss gave {kind}; let it give a real floating number of rank 0, and something else "
            "beside it with has_aux=True only."
        )
    dtype = jnp.result_type(value)
    wide = jnp.promote_types(dtype, np.float32)
    return jnp.asarray(value, wide) * jnp.asarray(scale, wide)
