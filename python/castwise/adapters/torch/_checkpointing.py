"""Run checkpointed calls again under the autocasts of their first run.

`torch.utils.checkpoint` calls a function, and calls it again during backward, which may be after
the end of a ``with``. It notes the state of torch's own autocast, and that of no others. So its two
implementations get a function that notes castwise's.
"""

import inspect
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from castwise.adapters._replaced_function import ReplacedFunction
from castwise.adapters.torch._in_force import force_of_thread, use_force
from castwise.environment.frameworks import require
from castwise.environment.switch import Switch, Turn

torch: Any = require("torch")

_GENERATORS = (
    "_checkpoint_without_reentrant_generator_impl",  # torch 2.15
    "_checkpoint_without_reentrant_generator",
)


class Recomputed:
    """A checkpointed function, and what is in force when it is made."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        force = force_of_thread()
        self._force = None if force is None else force.note()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with use_force(self._force):
            return self._function(*args, **kwargs)


def _replace() -> Callable[[], None]:
    """Replace the functions that begin checkpoints; return a function that puts them back."""
    module = import_module("torch.utils.checkpoint")
    generators = [getattr(module, name, None) for name in _GENERATORS]
    functions: list[tuple[Any, Any]] = [(module.CheckpointFunction.forward, _begin_reentrant)]
    functions += [(each, _begin) for each in generators if inspect.isgeneratorfunction(each)]
    if len(functions) == 1:
        warnings.warn(
            f"torch {torch.__version__} has a torch.utils.checkpoint that castwise does not "
            "know: call backward before an autocast ends.",
            RuntimeWarning,
            stacklevel=5,
        )
    with ExitStack() as undo:
        for function, hook in functions:
            undo.callback(ReplacedFunction(function, hook).restore)
        return undo.pop_all().close


class FollowedCheckpoints(Turn):
    """A block in which checkpoints that begin note what is in force."""

    switch = Switch(_replace)


def _begin_reentrant(original: Callable[..., Any], ctx: Any, run_function: Any, *args: Any) -> Any:
    return original(ctx, Recomputed(run_function), *args)


def _begin(original: Callable[..., Any], fn: Any, *args: Any, **kwargs: Any) -> Any:
    return original(Recomputed(fn), *args, **kwargs)
