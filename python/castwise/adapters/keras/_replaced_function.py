"""Functions that do something else for a while, whoever holds them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any


class ReplacedFunction:
    """A function of another library, made to call a hook until it is restored.

    The hook is given the original function, then the arguments.

    Keras' modules import each other's functions by name, and so does the code of users: another
    function in the place of the first would reach some of them, and stay with those that imported
    it meanwhile. So the function stays, and its code is exchanged.

    Attributes
    ----------
    original
        What the function did before.

    Raises
    ------
    TypeError
        It is no function written in Python.

    """

    def __init__(self, function: Any, hook: Callable[..., Any]) -> None:
        self._function = function
        if not isinstance(function, FunctionType):
            raise TypeError(f"function={function!r} is no function written in Python")
        self._code = function.__code__
        self._defaults = function.__defaults__, function.__kwdefaults__
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
        while name in self._code.co_names:  # replaced already, by another copy of this module
            name += "_"
        function.__globals__[name] = functools.partial(hook, self.original)
        # In this order, a call in another thread finds what its code needs.
        function.__code__ = _relay.__code__.replace(
            co_names=(name,),
            co_name=self._code.co_name,
            co_freevars=self._code.co_freevars,  # not used; they must be as many as before
        )
        function.__defaults__ = function.__kwdefaults__ = None

    def restore(self) -> None:
        """Make the function what it was."""
        self._function.__defaults__, self._function.__kwdefaults__ = self._defaults
        self._function.__code__ = self._code
        if self._signature is None:
            del self._function.__signature__
        else:
            self._function.__signature__ = self._signature
        # The hook stays in the module's namespace: a call in another thread may be on its way.


def _relay(*args: Any, **kwargs: Any) -> Any:
    """Call what stands under one global name, of the module in which the code runs."""
    return _hook(*args, **kwargs)


def _hook(*args: Any, **kwargs: Any) -> Any:  # pragma: no cover - only its name is needed
    raise NotImplementedError
