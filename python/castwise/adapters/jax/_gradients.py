"""Gradients under `jax.jit`: of a scaled loss, unscaled, checked, selected and surveyed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from castwise.adapters.jax._scaling import LossScale
from castwise.adapters.jax._trees import cast_tree, paths
from castwise.environment.frameworks import require
from castwise.surveys import GradientLog

if TYPE_CHECKING:
    from jax import Array

jax: Any = require("jax")

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


def survey_gradients(
    log: GradientLog, step: Any, grads: Any, *, loss_scale: Any = 1.0, unscaled: bool = False
) -> None:
    """Record the gradients of a step, if it is due.

    In `jax.jit` it becomes a `jax.lax.cond`, whose branch at a step that is due calls the log on
    the host by `jax.debug.callback`. Such calls may run later than the step: call
    ``jax.effects_barrier()`` before the log is read. All gradients are kept until the end of the
    step, whether it is due or not; where that is too much memory, compile a second function for
    the steps that ``log.is_due`` names, with a static argument. Outside of traces the log is
    called at once.

    Parameters
    ----------
    log : GradientLog
        Gradients are named as `paths` names them.
    step : int, or int array of rank 0
        The number of the step.
    grads : pytree of arrays
        None is a missing gradient.
    loss_scale : LossScale, or float array of rank 0, or float
        What the loss was multiplied by. Of a LossScale its ``scale`` is taken.
    unscaled : bool
        Whether the gradients were divided by it since.

    Raises
    ------
    TypeError
        `log` is not a GradientLog.
    RuntimeError
        It is traced on a CPU with a single core, where jax may wait for ever in calls to the host.

    Examples
    --------
    >>> from castwise.surveys import GradientLog
    >>> log = GradientLog(every=100)
    >>> @jax.jit
    ... def train_step(step, weight):
    ...     grads = jax.grad(lambda weight: 1e-7 * weight.sum())(weight)
    ...     survey_gradients(log, step, grads)
    ...     return weight - grads
    >>> weight = jax.numpy.ones(10)
    >>> for step in range(300):
    ...     weight = train_step(step, weight)
    >>> _ = jax.effects_barrier()
    >>> log
    <GradientLog 3 steps recorded, 0 to 200, float16 holds them at 2^0 to 2^39>

    """
    if not isinstance(log, GradientLog):
        raise TypeError(f"log={log!r} is not valid; give a castwise.surveys.GradientLog.")
    gradients = dict(zip(paths(grads), jax.tree_util.tree_leaves(grads), strict=True))
    scale = getattr(loss_scale, "scale", loss_scale)

    def record(step: Any, scale: Any, gradients: dict[str, Any]) -> None:
        log.record(int(step), gradients, loss_scale=float(scale), unscaled=unscaled)

    values = (step, scale, gradients)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(values)):
        record(*values)
        return

    if jax.default_backend() == "cpu" and _core_count() == 1:
        raise RuntimeError(
            "jax may wait for ever in calls to the host on a CPU with a single core; return the "
            "gradients from the compiled function, and call log.record(step, grads)."
        )

    def call_record(values: tuple[Any, ...]) -> None:
        jax.debug.callback(record, *values)

    jax.lax.cond(step % log.every == 0, call_record, lambda _: None, values)


def _core_count() -> int:
    """Return on how many cores this process may run: so many threads has jax' CPU backend."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
