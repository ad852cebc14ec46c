r"""`GradScaler` of torch.amp, for gradients in arrays of any library, by default numpy's.

```text
ready --unscale_--> unscaled --step--> stepped
  \------------------step--------------/          update: all are ready again
```
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, Protocol

import numpy as np

from castwise import _trees as trees
from castwise._core import DynamicLossScale
from castwise.loss_scale._arithmetic import is_number, times_as_torch
from castwise.loss_scale._unscaling import all_finite, unscale_in_place
from castwise.text.wording import rename_arguments


class Optimizer(Protocol):
    """An optimizer like those of torch.optim."""

    @property
    def param_groups(self) -> Iterable[Mapping[str, Any]]: ...
    @property
    def step(self) -> Callable[..., Any]: ...


class _Stage(Enum):
    READY = 0
    UNSCALED = 1
    STEPPED = 2


class GradScaler:
    """Scale losses, unscale gradients in place, and step unless one is not finite.

    Parameters
    ----------
    device : str
        Accepted as in torch, but unused: "cuda" without CUDA does not disable this one.
    init_scale, growth_factor, backoff_factor, growth_interval
        As in torch: 65536, 2, 0.5 and 2000 by default.
    enabled : bool
        False: losses and gradients are not changed.

    Raises
    ------
    AssertionError
        When enabled, a growth factor of 1 or less, or a backoff factor of 1 or more.

    Notes
    -----
    An optimizer has ``step`` and ``param_groups``, a list of dicts whose "params" have ``grad``.
    Optimizers whose ``_step_supports_amp_scaling`` is true, such as torch's fused ones, unscale and
    skip themselves. During their step they have the attributes ``grad_scale`` (None after
    `unscale_`, else the scale) and ``found_inf`` (1.0 if a gradient is not finite, else 0.0),
    float32 scalars. If ``step`` has the parameter ``grad_scaler``, it gets this object instead,
    with a FutureWarning, as in torch.

    """

    __module__ = "castwise.compat.torch"  # where users find it, and pickles

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
        self._enabled = enabled and self._is_usable(device)
        if self._enabled:
            numbers: dict[str, Any] = {
                "init_scale": init_scale,
                "growth_interval": growth_interval,
                "growth_factor": growth_factor,
                "backoff_factor": backoff_factor,
            }
            for name, value in numbers.items():
                if not is_number(value):
                    raise TypeError(f"{name}={value!r} is not valid; use a number.")
            try:
                with rename_arguments(initial_scale="init_scale"):
                    self._machine = DynamicLossScale(*numbers.values(), preset="torch")
            except ValueError as error:
                raise AssertionError(str(error)) from error
        self._in_use = False
        self._optimizers: dict[int, tuple[_Stage, bool | None]] = {}

    def scale(self, outputs: object) -> Any:
        """Multiply by the scale in an array's dtype, or float32 for integers and narrower rank 0.

        Each array of a list or tuple is multiplied; ValueError for anything else.
        """
        if not self._enabled:
            return outputs
        product = self._product(outputs)
        if product is not NotImplemented:
            self._in_use = True
            return product
        # A torch tensor is also an iterable, of its rows.
        elsewhere = isinstance(outputs, str | bytes) or hasattr(outputs, "dtype")
        if isinstance(outputs, Iterable) and not elsewhere:
            products = map(self.scale, outputs)
            return type(outputs)(products) if isinstance(outputs, list | tuple) else products
        remedy = (
            "; for tensors use castwise.adapters.torch.GradScaler" if _is_tensor(outputs) else ""
        )
        raise ValueError(
            f"outputs={outputs!r} must be {self._kind} or an iterable of them{remedy}."
        )

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer in place, in one pass over all of them.

        Memory that is the gradient of several parameters is divided once.

        Raises
        ------
        RuntimeError
            It was called since the last update, or the step was taken.
        ValueError
            A gradient is float16; gradients overlap without being the same. An error names a
            gradient by the index of its group and its own in there, as "0/3".

        """
        if not self._enabled:
            return
        self._require_use("unscale_")
        stage, _ = self._state(optimizer)
        if stage is _Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has been called on this optimizer since the last update(), and would "
                f"divide the gradients of {type(optimizer).__name__} again; call update() first."
            )
        if stage is _Stage.STEPPED:
            raise RuntimeError(
                f"unscale_() is being called after step() of {type(optimizer).__name__}; call it "
                "before step(), or update() first."
            )
        grads = self._gradients(optimizer)
        arrays = trees.values(grads)
        if any(map(self._is_half, arrays)):
            raise ValueError("a float16 gradient cannot be unscaled; keep parameters in float32.")
        finite = self._divide(grads, self._machine.scale) if arrays else None
        self._optimizers[id(optimizer)] = (_Stage.UNSCALED, finite)

    def _gradients(self, optimizer: Optimizer) -> list[list[Any]]:
        """Return the gradients by group and parameter, as errors name them."""
        if not hasattr(optimizer, "param_groups"):
            raise AttributeError(
                f"optimizer={optimizer!r} has no param_groups; give an optimizer of torch.optim or "
                "an object like one."
            )
        return [list(map(self._gradient, group["params"])) for group in optimizer.param_groups]

    # castwise.adapters.torch overrides these for tensors.

    _kind = "an array of numpy"

    def _product(self, outputs: object) -> Any:
        """Multiply a loss by the scale; return NotImplemented for what is not an array."""
        if not isinstance(outputs, np.ndarray | np.generic):
            return NotImplemented
        return times_as_torch(outputs, np.float32(self._machine.scale))

    def _is_usable(self, device: str) -> bool:
        """Return False if there is no such device, which disables the scaler."""
        return True

    def _new_scale(self, value: Any) -> float:
        """Return the scale that `update` was given; AssertionError for what is none."""
        if not is_number(value):
            raise AssertionError(f"new_scale={value!r} must be a float.")
        return float(np.reshape(value, ()))

    def _number(self, value: float) -> Any:
        """Return a float32 scalar for optimizers."""
        return np.float32(value)

    def _gradient(self, parameter: Any) -> Any:
        """Return the array to divide for a parameter; None if it has no gradient."""
        return parameter.grad

    def _is_half(self, grad: Any) -> bool:
        return bool(grad.dtype == np.float16)

    def _divide(self, grads: list[list[Any]], scale: float | None) -> bool:
        """Divide in place, if there is a scale; tell whether all were finite."""
        return all_finite(grads) if scale is None else unscale_in_place(grads, scale)

    def step(self, optimizer: Optimizer, *args: object, **kwargs: object) -> Any:
        """Unscale, unless `unscale_` was called, and step if all gradients are finite.

        Returns what ``optimizer.step(*args, **kwargs)`` returns, None for a skipped step. If it
        raises, the step can be repeated.

        Raises
        ------
        RuntimeError
            The step was taken since the last update; a closure is given.
        AssertionError
            There is no gradient, or nothing was scaled before.
        AttributeError
            `optimizer` has no ``param_groups``.

        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("a closure cannot be used with an enabled GradScaler.")
        self._require_use("step")
        if self._state(optimizer)[0] is _Stage.STEPPED:
            raise RuntimeError("step() has been called since the last update().")
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            result = self._step_of_optimizer(optimizer, *args, **kwargs)
        else:
            if self._state(optimizer)[0] is _Stage.READY:
                self.unscale_(optimizer)
            finite = self._state(optimizer)[1]
            if finite is None:
                raise AssertionError("no gradient of this optimizer was checked.")
            result = optimizer.step(*args, **kwargs) if finite else None
        self._optimizers[id(optimizer)] = (_Stage.STEPPED, self._state(optimizer)[1])
        return result

    def _step_of_optimizer(self, optimizer: Optimizer, *args: object, **kwargs: object) -> Any:
        """Let an optimizer unscale and skip itself."""
        if "grad_scaler" in inspect.signature(optimizer.step).parameters:
            warnings.warn(
                "GradScaler is going to stop passing itself as the argument grad_scaler; give the "
                "optimizer a step without it, which reads the attributes grad_scale and found_inf.",
                FutureWarning,
                stacklevel=3,
            )
            return optimizer.step(*args, **{**kwargs, "grad_scaler": self})
        stage = self._state(optimizer)[0]
        if stage is _Stage.READY:
            self._check_inf_per_device(optimizer)
        grad_scale = getattr(optimizer, "grad_scale", None)
        if stage is _Stage.READY:
            scale = self._get_scale_async()
            grad_scale = scale if grad_scale is None else scale * grad_scale
        found_infs = self._found_inf_per_device(optimizer)
        with _attributes(optimizer, grad_scale=grad_scale, found_inf=sum(found_infs.values())):
            return optimizer.step(*args, **kwargs)

    # Optimizers with the parameter `grad_scaler` call these, by torch's names.

    def _get_scale_async(self) -> Any:
        """Return the scale as a float32 scalar."""
        return self._number(self.get_scale())

    def _check_inf_per_device(self, optimizer: Optimizer) -> dict[Any, Any]:
        """Check the gradients, of any dtype, without dividing; return `_found_inf_per_device`."""
        grads = self._gradients(optimizer)
        finite = self._divide(grads, None) if trees.values(grads) else None
        self._optimizers[id(optimizer)] = (self._state(optimizer)[0], finite)
        return self._found_inf_per_device(optimizer)

    def _found_inf_per_device(self, optimizer: Optimizer) -> dict[Any, Any]:
        """Return 1.0 if a gradient is not finite, else 0.0, by device; empty if none was seen."""
        finite = self._state(optimizer)[1]
        if finite is None:
            return {}
        found_inf = self._number(0.0 if finite else 1.0)
        return {found_inf.device: found_inf}

    def _state(self, optimizer: Optimizer) -> tuple[_Stage, bool | None]:
        return self._optimizers.get(id(optimizer), (_Stage.READY, None))

    def update(self, new_scale: object = None) -> None:
        """Update the scale by the gradients since the last update, or set it to `new_scale`.

        Raises
        ------
        AssertionError
            Nothing was scaled, or no gradient was checked; `new_scale` is not a number.

        """
        if not self._enabled:
            return
        self._require_use("update")
        if new_scale is not None:
            self._change("new_scale", "scale", self._new_scale(new_scale))
        else:
            flags = [finite for _, finite in self._optimizers.values() if finite is not None]
            if not flags:
                raise AssertionError("no gradient was checked before update().")
            self._machine, _ = self._machine.next(all(flags))
        self._optimizers = {}

    def get_scale(self) -> float:
        """Return the scale; 1.0 if not enabled."""
        return self._machine.scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Return the factor by which the scale grows."""
        return self._machine.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Change the factor by which the scale grows."""
        self._change("new_factor", "growth_factor", new_factor)

    def get_backoff_factor(self) -> float:
        """Return the factor by which the scale is multiplied when it backs off."""
        return self._machine.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Change the factor by which the scale is multiplied when it backs off."""
        self._change("new_factor", "backoff_factor", new_factor)

    def get_growth_interval(self) -> int:
        """Return the number of finite steps between growths."""
        return self._machine.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Change the number of finite steps between growths."""
        self._change("new_interval", "growth_interval", new_interval)

    def is_enabled(self) -> bool:
        """Tell whether the scaler is enabled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return a state that torch's GradScaler loads; empty if not enabled."""
        return self._machine.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this or torch's GradScaler; do nothing if not enabled.

        Raises
        ------
        RuntimeError
            The state is empty, as that of a scaler that is not enabled.
        KeyError
            A key is missing; the message names it.
        ValueError, TypeError
            A number is invalid.

        """
        if not self._enabled:
            return
        if not isinstance(state_dict, dict):
            raise TypeError(
                f"state_dict={state_dict!r} is not a dict; give what state_dict() returned."
            )
        if not state_dict:
            raise RuntimeError("state_dict is empty, perhaps that of a disabled GradScaler.")
        keys = self._machine.state_dict()
        for key in keys:
            if key not in state_dict:
                raise KeyError(f"state_dict lacks {key!r}; it must have {', '.join(keys)}")
        self._machine = self._machine.with_state({key: state_dict[key] for key in keys})

    def _change(self, argument: str, key: str, value: float) -> None:
        with rename_arguments(**{key: argument}):
            self._machine = self._machine.with_state({**self._machine.state_dict(), key: value})

    def _require_use(self, method: str) -> None:
        if not self._in_use:
            raise AssertionError(f"{method}() before scale(): no loss was scaled in this step.")

    def __getstate__(self) -> dict[str, Any]:
        if self._optimizers:
            raise AssertionError("pickle a GradScaler between update() and the next unscale_().")
        return {**self.__dict__, "_in_use": False}


def _is_tensor(value: object) -> bool:
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


@contextmanager
def _attributes(optimizer: Optimizer, **values: object) -> Iterator[None]:
    """Set attributes within a block; delete them afterwards, as torch, or restore them if it fails.

    Otherwise a step that is repeated would multiply by the scale twice.
    """
    old_values = {name: getattr(optimizer, name) for name in values if hasattr(optimizer, name)}
    previous: dict[str, Any] = {}
    for name, value in values.items():
        setattr(optimizer, name, value)
    try:
        yield
    except BaseException:
        previous = old_values
        raise
    finally:
        for name in values:
            if name in previous:
                setattr(optimizer, name, previous[name])
            else:
                with suppress(AttributeError):  # the optimizer may have done it
                    delattr(optimizer, name)
