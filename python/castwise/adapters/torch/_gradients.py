"""Scale the losses, and survey the gradients, that torch's optimizers step with."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from castwise._trees import values
from castwise.adapters.torch._bridge import to_numpy
from castwise.adapters.torch._casting import is_on_host
from castwise.environment.frameworks import require
from castwise.loss_scale import _gradient_scaler as gradient_scaler
from castwise.surveys import GradientLog

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

torch: Any = require("torch")


class GradScaler(gradient_scaler.GradScaler):
    """A GradScaler for torch's optimizers, with castwise's kernels for gradients on the CPU.

    The kernels divide all gradients on the CPU in place, in one pass. Gradients on other devices
    are divided by torch's own kernel. Parameters, methods, states and errors are those of
    torch.amp.GradScaler (and of `castwise.compat.torch.GradScaler`), and states of one load into
    the other. Fused optimizers (``_step_supports_amp_scaling``) get ``grad_scale`` and
    ``found_inf`` as tensors.

    Parameters
    ----------
    device : str
        The scale is on the device of the loss. "cuda" without CUDA warns and disables, as in torch.
    init_scale, growth_factor, backoff_factor, growth_interval, enabled
        As in torch: 65536, 2, 0.5, 2000 and True by default.

    Examples
    --------
    >>> scaler = GradScaler()  # doctest: +SKIP
    >>> scaler.scale(loss).backward()  # doctest: +SKIP
    >>> scaler.step(optimizer)  # doctest: +SKIP
    >>> scaler.update()  # doctest: +SKIP

    """

    def _is_usable(self, device: str) -> bool:
        if device != "cuda" or torch.cuda.is_available():
            return True
        warnings.warn(
            "GradScaler is enabled, but CUDA is not available, so it is disabled; leave out "
            "device='cuda'.",
            stacklevel=3,
        )
        return False

    @classmethod
    def from_torch(cls, scaler: Any) -> GradScaler:
        """Make one with the state of torch's, or of castwise's for numpy."""
        scaler_of_other = cls(enabled=scaler.is_enabled())
        scaler_of_other.load_state_dict(scaler.state_dict())
        return scaler_of_other

    def to_torch(self, device: str = "cpu") -> Any:
        """Make a torch.amp.GradScaler with the state of this one."""
        scaler_of_other = torch.amp.GradScaler(device, enabled=self.is_enabled())
        if self.is_enabled():
            scaler_of_other.load_state_dict(self.state_dict())
        return scaler_of_other

    def _product(self, outputs: Any) -> Any:
        if not isinstance(outputs, torch.Tensor):
            return super()._product(outputs)
        if not self._in_use:
            self._place = outputs.device
        scale = torch.full((), self.get_scale(), dtype=torch.float32, device=outputs.device)
        return outputs * scale

    def _gradient(self, parameter: Any) -> Any:
        # A sparse gradient is the sum of its values, so these are divided.
        grad = parameter.grad
        return grad._values() if grad is not None and grad.is_sparse else grad

    def _is_half(self, grad: Any) -> bool:
        return bool(grad.dtype == torch.float16)

    def _new_scale(self, value: Any) -> float:
        if not isinstance(value, torch.Tensor):
            return super()._new_scale(value)
        if value.numel() != 1 or value.requires_grad or value.is_complex():
            raise AssertionError(
                f"new_scale={value!r} must be a float, or a tensor of one real number without "
                "requires_grad."
            )
        return float(value.item())

    _kind = "a tensor"
    _place: Any = "cpu"
    """The device of the first loss, on which torch puts its scale."""

    def _number(self, value: float) -> Any:
        return torch.full((), value, dtype=torch.float32, device=self._place)

    def _divide(self, grads: list[list[Any]], scale: float | None) -> bool:
        host_grads = [list(map(_in_numpy, group)) for group in grads]
        finite = super()._divide(host_grads, scale) if values(host_grads) else True
        device_grads = [grad for grad in values(grads) if not is_on_host(grad)]
        return _divide_by_torch(device_grads, 1.0 if scale is None else scale) and finite


def _in_numpy(grad: Any) -> Any:
    """Return a gradient on the CPU as a numpy array; None for others."""
    return to_numpy(grad.detach()) if grad is not None and is_on_host(grad) else None


def _divide_by_torch(grads: Iterable[Any], scale: float) -> bool:
    """Divide in place, list by list of one device and dtype, as torch's own GradScaler does."""
    lists: dict[Any, list[Any]] = {}
    for grad in grads:
        lists.setdefault((grad.device, grad.dtype), []).append(grad)
    # All kernels are started before the first result is waited for.
    flags = []
    for (device, _), of_one_kind in lists.items():
        flag = torch.zeros((), dtype=torch.float32, device=device)
        inverse = torch.full((), scale, dtype=torch.float64).reciprocal().float().to(device)
        with torch.no_grad():
            torch._amp_foreach_non_finite_check_and_unscale_(of_one_kind, flag, inverse)
        flags.append(flag)
    return all(not flag.item() for flag in flags)


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
