"""Run checkpointed calls again under the autocasts of their first run.

`torch.utils.checkpoint` calls a function, and calls it again during backward, which may be after
the end of a ``with``. It notes the state of torch's own autocast, and that of no others. So its two
implementations get a function that notes castwise's.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from castwise.adapters._replaced_function import ReplacedFunction
from castwise.adapters.torch._in_force import force_of_thread, use_force
from castwise.environment.frameworks import require

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


_lock = threading.RLock()
_REPLACEMENTS: list[ReplacedFunction] = []
_blocks: list[object] = []


@contextmanager
def followed_checkpoints() -> Iterator[None]:
    """Let checkpoints that begin in a block note what is in force."""
    block = object()
    with _lock:
        if not _blocks:
            _REPLACEMENTS[:] = [ReplacedFunction(_reentrant().forward, _begin_reentrant)]
            _REPLACEMENTS.extend(ReplacedFunction(function, _begin) for function in _generators())
        _blocks.append(block)
        if len(_REPLACEMENTS) == 1:
            warnings.warn(
                f"torch {torch.__version__} has a torch.utils.checkpoint that castwise does not "
                "know: call backward before an autocast ends.",
                RuntimeWarning,
                stacklevel=4,
            )
    try:
        yield
    finally:
        with _lock:
            _blocks.remove(block)
            for function in () if _blocks else _REPLACEMENTS:
                function.restore()


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
