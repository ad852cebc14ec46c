"""Unscale, check and select gradients under `jax.jit`, as `castwise.loss_scale` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from castwise.environment.frameworks import require

if TYPE_CHECKING:
    from jax import Array

jax: Any = require("jax")

__all__ = ["all_finite", "select_tree", "unscale"]

Tree = TypeVar("Tree")


def unscale(grads: Tree, scale: Any) -> tuple[Tree, Array]:
    """Divide the gradients of a pytree by a loss scale, and tell whether all are finite.

    Parameters
    ----------
    grads : pytree of floating arrays
        None is a missing gradient, and stays None.
    scale : LossScale, or float array of rank 0, or float
        Of a loss scale its ``scale`` is taken.

    Returns
    -------
    (pytree, bool array of rank 0)
        Products with the float32 reciprocal of the scale, in float32 (float64 for float64); whether
        every gradient is finite, both as given and as returned.

    Raises
    ------
    TypeError
        A leaf is not a floating array; the message has its path.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from castwise.adapters import jax as jax_adapter
    >>> grads, finite = jax_adapter.unscale({"kernel": jnp.array([2.0, 4.0])}, 2.0)
    >>> grads["kernel"], bool(finite)
    (Array([1., 2.], dtype=float32), True)

    """
    jnp = jax.numpy
    number = getattr(scale, "scale", scale)
    inverse = jnp.float32(1) / jnp.asarray(number, jnp.float32)

    def divide(path: Any, grad: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(grad), jnp.floating):
            where = jax.tree_util.keystr(path)
            raise TypeError(
                f"the gradient at {where or 'the root'} is not a floating array; give None there."
            )
        grad = jnp.asarray(grad)
        return grad * inverse.astype(jnp.promote_types(grad.dtype, jnp.float32))

    quotients: Tree = jax.tree_util.tree_map_with_path(divide, grads)
    return quotients, all_finite((grads, quotients))


def all_finite(tree: Any) -> Array:
    """Tell, by a bool array of rank 0, whether every element is finite; True without arrays.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from castwise.adapters import jax as jax_adapter
    >>> bool(jax_adapter.all_finite({"kernel": jnp.array([1.0, jnp.inf])}))
    False

    """
    jnp = jax.numpy
    flags = [jnp.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(tree)]
    return jnp.stack(flags).all() if flags else jnp.asarray(True)


def select_tree(pred: Any, on_true: Tree, on_false: Tree) -> Tree:
    """Return `on_true` if `pred`, else `on_false`: pytrees with equal shapes and dtypes.

    It skips a step whose gradients are not finite: parameters and optimizer state stay what they
    were.

    Raises
    ------
    ValueError, TypeError
        Structures, or shapes or dtypes, differ; `pred` is not of rank 0.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from castwise.adapters import jax as jax_adapter
    >>> jax_adapter.select_tree(jnp.array(False), {"kernel": jnp.ones(2)}, {"kernel": jnp.zeros(2)})
    {'kernel': Array([0., 0.], dtype=float32)}

    """
    jnp = jax.numpy
    if jnp.shape(pred) != ():
        raise TypeError(f"pred has shape {jnp.shape(pred)}; give one boolean, as all_finite does.")

    def choose(path: Any, true_leaf: Any, false_leaf: Any) -> Any:
        kinds = [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in (true_leaf, false_leaf)]
        if kinds[0] != kinds[1]:
            raise TypeError(
                f"on_true and on_false differ at {jax.tree_util.keystr(path)}: {kinds[0]} and "
                f"{kinds[1]}; give leaves of equal shapes and dtypes."
            )
        return jnp.where(pred, true_leaf, false_leaf)

    selection: Tree = jax.tree_util.tree_map_with_path(choose, on_true, on_false)
    return selection
