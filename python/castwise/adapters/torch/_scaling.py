"""torch.amp's `GradScaler` around castwise's loss scale, for tensors and torch's optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from castwise._frameworks import require
from castwise._trees import values
from castwise.adapters.torch._bridge import to_numpy
from castwise.adapters.torch._casting import is_on_host
from castwise.compat import torch as compat

torch: Any = require("torch")

__all__ = ["GradScaler"]


class GradScaler(compat.GradScaler):
    """A GradScaler for torch's optimizers; gradients on the CPU are divided by castwise's kernels.

    In one pass over all of them, in the memory that they have. Gradients on other devices are
    divided by torch's own kernel. Parameters, methods, states and errors are those of
    torch.amp.GradScaler (of `castwise.compat.torch.GradScaler`), and states of either load into
    the other. Fused optimizers (``_step_supports_amp_scaling``) get ``grad_scale`` and
    ``found_inf`` as tensors.

    Parameters
    ----------
    device : str
        Taken for torch's sake; the scale goes where the loss is.
    init_scale, growth_factor, backoff_factor, growth_interval, enabled
        As in torch: 65536, 2, 0.5, 2000 and True by default.

    Examples
    --------
    >>> scaler = GradScaler()  # doctest: +SKIP
    >>> scaler.scale(loss).backward()  # doctest: +SKIP
    >>> scaler.step(optimizer)  # doctest: +SKIP
    >>> scaler.update()  # doctest: +SKIP

    """

    @classmethod
    def from_torch(cls, scaler: Any) -> GradScaler:
        """One that goes on where torch's, or castwise's for numpy, stands."""
        made = cls(enabled=scaler.is_enabled())
        made.load_state_dict(scaler.state_dict())
        return made

    def to_torch(self, device: str = "cpu") -> Any:
        """torch.amp.GradScaler, going on where this one stands."""
        made = torch.amp.GradScaler(device, enabled=self.is_enabled())
        if self.is_enabled():
            made.load_state_dict(self.state_dict())
        return made

    def scale(self, outputs: Any) -> Any:
        """A loss times the scale, as torch has it; of a list or tuple, each of them."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            if not self._in_use:
                self._place = outputs.device
            self._in_use = True
            scale = torch.full((), self.get_scale(), dtype=torch.float32, device=outputs.device)
            return outputs * scale
        return super().scale(outputs)

    def _gradient(self, parameter: Any) -> Any:
        # The values of a sparse gradient are divided like others: it is their sum.
        grad = parameter.grad
        return grad._values() if grad is not None and grad.is_sparse else grad

    def _is_half(self, grad: Any) -> bool:
        return bool(grad.dtype == torch.float16)

    _kind = "a tensor"
    _place: Any = "cpu"
    """The device of the first loss, where torch keeps its scale."""

    def _number(self, value: float) -> Any:
        return torch.full((), value, dtype=torch.float32, device=self._place)

    def _divide(self, grads: list[list[Any]], scale: float | None) -> bool:
        here = [list(map(_in_numpy, group)) for group in grads]
        finite = super()._divide(here, scale) if values(here) else True
        elsewhere = [grad for grad in values(grads) if not is_on_host(grad)]
        return _divide_by_torch(elsewhere, 1.0 if scale is None else scale) and finite


def _in_numpy(grad: Any) -> Any:
    """The memory of a gradient on the CPU; None for others."""
    return to_numpy(grad.detach()) if grad is not None and is_on_host(grad) else None


def _divide_by_torch(grads: Iterable[Any], scale: float) -> bool:
    """Divide in place, list by list of one device and dtype, as torch's own GradScaler does."""
    lists: dict[Any, list[Any]] = {}
    for grad in grads:
        lists.setdefault((grad.device, grad.dtype), []).append(grad)
    # All work is given to the devices before the first answer is waited for.
    found = []
    for (device, _), of_one_kind in lists.items():
        flag = torch.zeros((), dtype=torch.float32, device=device)
        inverse = torch.full((), scale, dtype=torch.float64).reciprocal().float().to(device)
        with torch.no_grad():
            torch._amp_foreach_non_finite_check_and_unscale_(of_one_kind, flag, inverse)
        found.append(flag)
    return all(not flag.item() for flag in found)
