"""Run checkpointed calls again under the autocasts of their first run.

`torch.utils.checkpoint` calls a function, and calls it again during backward, which may be after
the end of a ``with``. It notes the state of torch's own autocast, and that of no others. So its two
implementations get a function that notes castwise's.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from castwise._frameworks import require
from castwise.adapters._replaced_function import ReplacedFunction
from castwise.adapters.torch._in_force import autocasts_in_force, in_force_again

torch: Any = require("torch")

_GENERATORS = (
    "_checkpoint_without_reentrant_generator_impl",  # torch 2.15
    "_checkpoint_without_reentrant_generator",
)


class Recomputed:
    """A checkpointed function, and the autocasts that are in force when it is made."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._autocasts = autocasts_in_force()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with in_force_again(self._autocasts):
            return self._function(*args, **kwargs)


@functools.cache
def follow_checkpoints() -> None:
    """Let checkpoints that begin from now on note which autocasts are in force."""
    ReplacedFunction(_reentrant().forward, _begin_reentrant)
    generators = list(_generators())
    for function in generators:
        ReplacedFunction(function, _begin)
    if not generators:
        warnings.warn(
            f"torch {torch.__version__} has a torch.utils.checkpoint that castwise does not know: "
            "call backward before an autocast ends.",
            RuntimeWarning,
            stacklevel=4,
        )


def _reentrant() -> Any:
    return import_module("torch.utils.checkpoint").CheckpointFunction


def _generators() -> Iterator[Any]:
    """Yield the function that begins a checkpoint with ``use_reentrant=False``."""
    module = import_module("torch.utils.checkpoint")
    for name in _GENERATORS:
        function = getattr(module, name, None)
        if inspect.isgeneratorfunction(function):
            yield function


def _begin_reentrant(original: Callable[..., Any], ctx: Any, run_function: Any, *args: Any) -> Any:
    return original(ctx, Recomputed(run_function), *args)


def _begin(original: Callable[..., Any], fn: Any, *args: Any, **kwargs: Any) -> Any:
    return original(Recomputed(fn), *args, **kwargs)
