"""Replace the `forward` of modules, and of their copies, by one that casts.

A copy of a module, however it is made, has the same autocasts as its original: `copy.deepcopy` and
`pickle` copy a `Call`, and `copy.copy` and `torch.nn.DataParallel` share it with the original.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from castwise._frameworks import require
from castwise.adapters.torch._in_force import AutocastLike, is_in_force

torch: Any = require("torch")


class Computation(NamedTuple):
    """The dtype in which a module computes while an autocast is in force."""

    autocast: AutocastLike
    dtype: Any


class Call:
    """A module's `forward` that casts, and calls the previous one.

    Attributes
    ----------
    module
        The module.
    previous
        The `forward` that the module itself had, if not that of its class.
    computations
        What each autocast of the module makes of it.

    """

    def __init__(self, module: Any, previous: Any, computations: Iterable[Computation]) -> None:
        self.module = module
        self.previous = previous
        self.computations = tuple(computations)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self if torch.compiler.is_compiling() else self._of(sys._getframe(1))
        computation = call.computation
        if computation is None:
            return call.original(*args, **kwargs)
        return computation.autocast.run(call, computation.dtype, args, kwargs)

    @property
    def computation(self) -> Computation | None:
        """What the last autocast that is in force makes of the module."""
        latest = None
        for computation in self.computations:
            if is_in_force(computation.autocast) and (
                latest is None or computation.autocast.number > latest.autocast.number
            ):
                latest = computation
        return latest

    @property
    def original(self) -> Callable[..., Any]:
        """The module's `forward` without any autocast."""
        function: Callable[..., Any]
        function = self.previous or type(self.module).forward.__get__(self.module)
        return function

    __wrapped__ = original  # for callers that read the signature

    @property
    def __code__(self) -> Any:
        return self.original.__code__  # torch.export reads it

    @property
    def __globals__(self) -> Any:
        raise AttributeError(
            f"the forward of {type(self.module).__name__} is changed by castwise's autocast, which "
            "torch.jit.script cannot compile; script the module outside of it, or use "
            "torch.jit.trace or torch.export."
        )

    def _of(self, caller: Any) -> Call:
        """Return the call of the module in whose code a frame is: of a copy, its own."""
        module = caller.f_locals.get("self")
        if module is self.module and self.computations:
            return self
        if not isinstance(module, torch.nn.Module) or module.__dict__.get("forward") is not self:
            return self
        call: Call = self
        if module is not self.module:
            call = self._for(module, self.previous)
        if call.computations:
            module.__dict__["forward"] = call
        else:
            _restore(module, self.previous)
        return call

    def _for(self, module: Any, previous: Any) -> Call:
        """Return the call of a copy of the module, which has the autocasts that have not ended."""
        return Call(
            module,
            previous,
            [
                computation
                for computation in self.computations
                if computation.autocast.follow(module, computation.dtype)
            ],
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._for(copy.deepcopy(self.module, memo), copy.deepcopy(self.previous, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self.module, self.previous, self.computations)


def _loaded(module: Any, previous: Any, computations: tuple[Computation, ...]) -> Call:
    return Call(module, None, computations)._for(module, previous)


def link(module: Any, computation: Computation) -> None:
    """Let a module compute as an autocast says."""
    call = module.__dict__.get("forward")
    if not isinstance(call, Call) or call.module is not module:
        previous = call.previous if isinstance(call, Call) else call
        call = Call(module, previous, ())
        module.__dict__["forward"] = call
    remaining = [
        linked for linked in call.computations if linked.autocast is not computation.autocast
    ]
    call.computations = (*remaining, computation)


def unlink(module: Any, autocast: AutocastLike) -> None:
    """Let a module compute as before; without autocasts, its `forward` is the previous one."""
    call = module.__dict__.get("forward")
    if not isinstance(call, Call):
        return
    computations = [
        computation for computation in call.computations if computation.autocast is not autocast
    ]
    if call.module is not module:  # a shallow copy
        call = Call(module, call.previous, computations)
    call.computations = tuple(computations)
    if not computations:
        _restore(module, call.previous)
    else:
        module.__dict__["forward"] = call


def _restore(module: Any, previous: Any) -> None:
    if previous is None:
        del module.__dict__["forward"]
    else:
        module.__dict__["forward"] = previous
