"""`GradScaler` with torch.amp's methods and state, for parameters whose gradients are numpy's.

>>> scaler = GradScaler(init_scale=4.0)
>>> scaler.scale(np.float32(1.5))
np.float32(6.0)
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np

from castwise import trees
from castwise._core import DynamicLossScale
from castwise.compat import scaling
from castwise.floating import is_floating
from castwise.loss_scale.unscaling import all_finite, unscale_as_originals

__all__ = ["GradScaler"]


class _Stage(Enum):
    READY = 0
    UNSCALED = 1
    STEPPED = 2


class GradScaler:
    """Scales losses, unscales gradients in place, steps unless one is not finite.

    Parameters
    ----------
    device : str
        Taken for torch's sake; arrays are the host's.
    init_scale, growth_factor, backoff_factor, growth_interval
        As in torch: 65536, 2, 0.5 and 2000 by default.
    enabled : bool
        False: everything passes through.

    Raises
    ------
    AssertionError
        When enabled, a growth factor of 1 or less, or a backoff factor of 1 or more.

    Notes
    -----
    An optimizer is an object with ``param_groups``, a list of dicts whose "params" have ``grad``,
    and ``step``.

    """

    def __init__(  # noqa: PLR0917 - torch's signature
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled
        if enabled:
            if not scaling.is_number(init_scale):
                raise TypeError(
                    f"init_scale={init_scale!r} is not valid; use a number, as 65536.0."
                )
            try:
                self._machine = DynamicLossScale(
                    init_scale, growth_interval, growth_factor, backoff_factor, preset="torch"
                )
            except ValueError as error:
                raise AssertionError(str(error)) from error
        self._in_use = False
        self._optimizers: dict[int, tuple[_Stage, bool | None]] = {}

    def scale(self, outputs: Any) -> Any:
        """An array times the scale, in its own dtype (rank 0: float32 at least; integers: float32).

        Of a list or tuple, each of them; ValueError for anything else.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, np.ndarray | np.generic):
            self._in_use = True
            return _times(outputs, np.float32(self._machine.scale))
        # A tensor of torch would be an iterable too, of its rows.
        elsewhere = isinstance(outputs, str | bytes) or hasattr(outputs, "dtype")
        if isinstance(outputs, Iterable) and not elsewhere:
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, list | tuple) else scaled
        raise ValueError(f"outputs={outputs!r} must be an array of numpy or an iterable of them.")

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer in place, in one pass over all of them.

        Memory that several parameters have as their gradient is divided once.

        Raises
        ------
        RuntimeError
            It was done since the last update, or the step taken.
        ValueError
            A gradient is float16; gradients overlap without being the same. An error names a
            gradient by the index of its group and its own in there, as "0/3".

        """
        if not self._enabled:
            return
        self._require_use("unscale_")
        stage, _ = self._optimizers.get(id(optimizer), (_Stage.READY, None))
        if stage is _Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has been called on this optimizer since the last update()."
            )
        if stage is _Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        # By group and parameter, which is how errors name a gradient.
        grads = [list(map(self._gradient, group["params"])) for group in optimizer.param_groups]
        found = trees.values(grads)
        if any(map(self._is_half, found)):
            raise ValueError("a float16 gradient cannot be unscaled; keep parameters in float32.")
        finite = self._divide(grads, self._machine.scale) if found else None
        self._optimizers[id(optimizer)] = (_Stage.UNSCALED, finite)

    # What another library's arrays need of their own: castwise.adapters.torch has it for tensors.

    def _gradient(self, parameter: Any) -> Any:
        """What is divided for a parameter; None if it has no gradient."""
        return parameter.grad

    def _is_half(self, grad: Any) -> bool:
        return bool(grad.dtype == np.float16)

    def _divide(self, grads: list[list[Any]], scale: float) -> bool:
        """Divide in place; whether all were finite."""
        return _unscale(grads, scale)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Unscale, if that was not done, and step, if all gradients are finite.

        Returns what ``optimizer.step(*args, **kwargs)`` does, None for a skipped step.

        Raises
        ------
        RuntimeError
            The step was taken since the last update; a closure is given.
        AssertionError
            There is no gradient, or nothing was scaled before.

        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("a closure cannot be used with an enabled GradScaler.")
        self._require_use("step")
        stage, finite = self._optimizers.get(id(optimizer), (_Stage.READY, None))
        if stage is _Stage.STEPPED:
            raise RuntimeError("step() has been called since the last update().")
        if stage is _Stage.READY:
            self.unscale_(optimizer)
            _, finite = self._optimizers[id(optimizer)]
        if finite is None:
            raise AssertionError("no gradient of this optimizer was looked at.")
        result = optimizer.step(*args, **kwargs) if finite else None
        self._optimizers[id(optimizer)] = (_Stage.STEPPED, finite)
        return result

    def update(self, new_scale: Any = None) -> None:
        """Change the scale by what was found since the last update, or to `new_scale`.

        Raises
        ------
        AssertionError
            Nothing was scaled, or no gradient looked at; `new_scale` is no number.

        """
        if not self._enabled:
            return
        self._require_use("update")
        if new_scale is not None:
            if not scaling.is_number(new_scale):
                raise AssertionError(f"new_scale={new_scale!r} must be a float.")
            state = {**self._machine.state_dict(), "scale": float(np.reshape(new_scale, ()))}
            self._machine = self._machine.with_state(state)
        else:
            found = [finite for _, finite in self._optimizers.values() if finite is not None]
            if not found:
                raise AssertionError("no gradient was looked at before update().")
            self._machine, _ = self._machine.next(all(found))
        self._optimizers = {}

    def get_scale(self) -> float:
        """The scale; 1.0 if not enabled."""
        return self._machine.scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by when it grows."""
        return self._machine.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Change it."""
        self._change("growth_factor", new_factor)

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by when it backs off."""
        return self._machine.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Change it."""
        self._change("backoff_factor", new_factor)

    def get_growth_interval(self) -> int:
        """Finite steps between growths."""
        return self._machine.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Change it."""
        self._change("growth_interval", new_interval)

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """What torch's GradScaler loads; empty if not enabled."""
        return self._machine.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state of this or torch's GradScaler; nothing happens if not enabled.

        Raises
        ------
        RuntimeError
            It is empty: that of one that was not enabled.
        KeyError
            A key is missing; the message names it.
        ValueError, TypeError
            A number is no valid one.

        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("state_dict is empty, perhaps that of a disabled GradScaler.")
        keys = self._machine.state_dict()
        for key in keys:
            if key not in state_dict:
                raise KeyError(f"state_dict lacks {key!r}; it must have {', '.join(keys)}")
        self._machine = self._machine.with_state({key: state_dict[key] for key in keys})

    def _change(self, key: str, value: float) -> None:
        self._machine = self._machine.with_state({**self._machine.state_dict(), key: value})

    def _require_use(self, method: str) -> None:
        if not self._in_use:
            raise AssertionError(f"{method}() before scale(): no loss was scaled in this step.")

    def __getstate__(self) -> dict[str, Any]:
        if self._optimizers:
            raise AssertionError("pickle a GradScaler between update() and the next unscale_().")
        return {**self.__dict__, "_in_use": False}


def _times(output: Any, scale: np.float32) -> Any:
    """Torch's product with a float32 of rank 0: in float32, then back, unless rank 0 too."""
    if not (is_floating(output.dtype) or output.dtype.kind == "c"):
        return scaling.times(output.astype(np.float32), scale)
    product = scaling.times(output, scale)
    with np.errstate(over="ignore", invalid="ignore"):
        return product.astype(output.dtype) if np.ndim(output) else product


def _unscale(grads: list[list[Any]], scale: float) -> bool:
    """Divide in place; whether all were finite. Where there is no reciprocal, IEEE's, as torch."""
    if scaling.is_usable(scale):
        _, finite = unscale_as_originals(grads, scale, grads)
        return finite
    finite = all_finite(grads)
    for grad in trees.values(grads):
        grad[...] = scaling.times(grad, scaling.reciprocal(scale))
    return finite
