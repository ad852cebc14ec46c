"""Replace the code of a function, and restore it. Experimental: it patches other libraries."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from castwise.environment.frameworks import require, tested_releases


# Modules and users import functions by name: a new function would not reach those who imported the
# first one before, and would stay with those who import it meanwhile. So the function object stays,
# and its ``__code__`` is exchanged. The hook gets the original function, then the arguments.
class ReplacedFunction:
    """A function of another library that calls a hook until it is restored."""

    def __init__(self, function: Any, hook: Callable[..., Any]) -> None:
        self._function = function
        if not isinstance(function, FunctionType):
            raise TypeError(f"function={function!r} is not a function written in Python")
        self._code = function.__code__
        self._defaults = function.__defaults__, function.__kwdefaults__
        # A copy of the function with its original code.
        self.original = FunctionType(
            self._code,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        self._signature = vars(function).get("__signature__")
        self._function.__signature__ = inspect.signature(function)
        name = f"_castwise_{function.__name__}"
        while name in self._code.co_names:  # already replaced, by another copy of this module
            name += "_"
        function.__globals__[name] = functools.partial(hook, self.original)
        # The hook is set before the code, for calls in other threads.
        function.__code__ = _relay.__code__.replace(
            co_names=(name,),
            co_name=self._code.co_name,
            co_freevars=self._code.co_freevars,  # unused, but their number must stay the same
        )
        function.__defaults__ = function.__kwdefaults__ = None

    def restore(self) -> None:
        """Give the function its own code, defaults and signature again."""
        self._function.__defaults__, self._function.__kwdefaults__ = self._defaults
        self._function.__code__ = self._code
        if self._signature is None:
            del self._function.__signature__
        else:
            self._function.__signature__ = self._signature
        # The hook stays in the module's namespace, for calls that run in other threads.


@contextmanager
def patched(library: str) -> Iterator[ExitStack]:
    """Patch a library in a block, which tells the stack how to undo it."""
    module = require(library)
    try:
        with ExitStack() as undo:
            yield undo
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        raise RuntimeError(
            f"The installed {library} {module.__version__} differs from those that castwise can "
            f"patch ({error}), and was left as it was; install one of {library} "
            f"{tested_releases(library)}."
        ) from error


def _relay(*args: Any, **kwargs: Any) -> Any:
    """Call the hook, by its global name in the module of the replaced function."""
    return _hook(*args, **kwargs)


def _hook(*args: Any, **kwargs: Any) -> Any:  # pragma: no cover - only its name is needed
    raise NotImplementedError
