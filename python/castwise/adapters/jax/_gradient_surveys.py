"""Survey gradients, also in `jax.jit`."""

from __future__ import annotations

import os
from typing import Any

from castwise.adapters.jax._trees import paths
from castwise.environment.frameworks import require
from castwise.surveys import GradientLog

jax: Any = require("jax")

__all__ = ["survey_gradients"]


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
