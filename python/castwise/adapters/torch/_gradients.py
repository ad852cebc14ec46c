"""Survey the gradients that torch's optimizers step with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from castwise.surveys import GradientLog

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

__all__ = ["survey_gradients"]


def survey_gradients(
    log: GradientLog, optimizer: Any, *, scaler: Any = None, first_step: int = 0
) -> RemovableHandle:
    """Record the gradients that an optimizer steps with, at each step that is due.

    A hook is registered with ``optimizer.register_step_pre_hook``. Gradients on the CPU are not
    copied. Steps of ``optimizer.step`` are counted; a `GradScaler` does not call it, and the step
    is not counted, where a gradient is not finite, unless the optimizer is fused.

    Parameters
    ----------
    log : GradientLog
        Gradients are named by the parameter's name, if the optimizer was given named parameters;
        else by the index of their group and their own in there, as "0/3".
    optimizer : torch.optim.Optimizer
        Also with sparse gradients, whose values are surveyed.
    scaler : GradScaler, optional
        torch's or castwise's, if one scales the loss.
    first_step : int
        The number of the next step, where training resumes.

    Returns
    -------
    torch.utils.hooks.RemovableHandle
        Its ``remove()`` ends the survey.

    Raises
    ------
    TypeError
        `log` is not a GradientLog, `optimizer` not one of torch's, or `scaler` not a GradScaler.
    ValueError
        `first_step` is negative.

    Examples
    --------
    >>> from castwise.surveys import GradientLog
    >>> log = GradientLog(every=100)
    >>> handle = survey_gradients(log, optimizer, scaler=scaler)  # doctest: +SKIP
    >>> print(log)  # after some steps  # doctest: +SKIP

    """
    if not isinstance(log, GradientLog):
        raise TypeError(f"log={log!r} is not valid; give a castwise.surveys.GradientLog.")
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise TypeError(f"optimizer={optimizer!r} has no hooks; give one of torch.optim.")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise TypeError(f"scaler={scaler!r} is not valid; give a GradScaler, or None.")
    if first_step < 0:
        raise ValueError(f"first_step={first_step!r} is not valid; use 0 or more.")
    step = first_step

    def record(optimizer: Any, *_: Any) -> None:
        nonlocal step
        if log.is_due(step):
            # Fused optimizers divide by themselves, by the attribute that a scaler sets.
            factor = getattr(optimizer, "grad_scale", None)
            unscaled = factor is None and scaler is not None and scaler.is_enabled()
            loss_scale = scaler.get_scale() if unscaled else 1.0 if factor is None else factor
            gradients = dict(_named_gradients(optimizer))
            log.record(step, gradients, loss_scale=float(loss_scale), unscaled=unscaled)
        step += 1

    handle: RemovableHandle = optimizer.register_step_pre_hook(record)
    return handle


def _named_gradients(optimizer: Any) -> Iterator[tuple[str, Any]]:
    for place, group in enumerate(optimizer.param_groups):
        names = group.get("param_names")
        for index, parameter in enumerate(group["params"]):
            gradient = parameter.grad
            if gradient is not None:
                if gradient.is_sparse:
                    gradient = gradient.coalesce().values()
                yield names[index] if names else f"{place}/{index}", gradient
