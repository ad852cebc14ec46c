"""Give modules another `forward` while something is in force, and their own back.

It stands in the module, because torch.compile compiles anew for that, and for no change of a class
and no hook (`skip_nnmodule_hook_guards`). Hooks would also miss code that calls `forward` itself.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, TypeAlias

from castwise.environment.frameworks import require

torch: Any = require("torch")

Call: TypeAlias = Callable[[Any, Callable[..., Any], Any, Any], Any]


class _Replacement:
    """The `forward` that a module has for a while, and how many need it."""

    def __init__(self, module: Any, call: Call) -> None:
        self.module = module
        self.previous = vars(module).get("forward")
        self.uses = 0
        if self.previous is None:
            original = next(
                vars(base)["forward"] for base in type(module).__mro__ if "forward" in vars(base)
            )
            self.forward: Any = MethodType(_replace(original, call), module)
        else:
            # Also the copies of modules have copies of what accelerate, for one, has put here.
            self.forward = functools.partial(call_previous, call, module, self.previous)

    def restore(self) -> None:
        attributes = vars(self.module)
        attributes.pop("__getstate__", None)
        if attributes.get("forward") is not self.forward:
            return  # somebody else has replaced it meanwhile
        del attributes["forward"]
        if self.previous is not None:
            attributes["forward"] = self.previous


_replacements: dict[int, _Replacement] = {}
_lock = threading.RLock()


def replace_forwards(modules: Iterable[Any], call: Call) -> None:
    """Let the calls of modules go through `call`; `restore_forwards` as often."""
    with _lock:
        for module in modules:
            replacement = _replacements.get(id(module))
            if replacement is None:
                replacement = _replacements[id(module)] = _Replacement(module, call)
                vars(module)["forward"] = replacement.forward
                vars(module)["__getstate__"] = MethodType(_state, module)
            replacement.uses += 1


def restore_forwards(modules: Iterable[Any]) -> None:
    """Undo `replace_forwards`; after the last, a module has its own `forward` again."""
    with _lock:
        for module in modules:
            replacement = _replacements[id(module)]
            replacement.uses -= 1
            if not replacement.uses:
                del _replacements[id(module)]
                replacement.restore()


def _state(module: Any) -> Any:
    """Return what `copy` and `pickle` give a copy: the module's state with its own `forward`."""
    cls: Any = type(module)
    state = cls.__getstate__(module)
    if isinstance(state, tuple):  # of a class with slots
        return (_own_attributes(module, state[0]), *state[1:])
    return _own_attributes(module, state) if isinstance(state, dict) else state


_state.__name__ = "__getstate__"  # by which `pickle` finds a method


def _own_attributes(module: Any, attributes: Any) -> Any:
    replacement = _replacements.get(id(module))
    state = {name: value for name, value in attributes.items() if name != "__getstate__"}
    if replacement is not None and state.get("forward") is replacement.forward:
        del state["forward"]
        if replacement.previous is not None:
            state["forward"] = replacement.previous
    return state


@functools.lru_cache(maxsize=1024)
def _replace(original: Any, call: Call) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            self = _call(forward, self, sys._getframe(1).f_locals.get("self"))
        return call(self, original.__get__(self), args, kwargs)

    return forward


def call_previous(call: Call, module: Any, previous: Any, *args: Any, **kwargs: Any) -> Any:
    return call(module, previous, args, kwargs)


def _call(forward: Any, module: Any, caller: Any) -> Any:
    """Return the module that is called: this one, or a copy that has its `forward`."""
    # `torch.nn.DataParallel` copies attributes, so that the `forward` of a copy is a method of the
    # first module: only the caller, torch's `Module._call_impl`, has the copy. What a copy has got
    # is removed.
    if caller is not module and isinstance(caller, torch.nn.Module):
        method = vars(caller).get("forward")
        # A module may also call `forward` of another that is of its class, and no copy.
        is_copied = isinstance(method, MethodType) and method.__self__ is module
        if is_copied and method.__func__ is forward:
            module = caller
    if id(module) not in _replacements:
        with _lock:
            if getattr(vars(module).get("forward"), "__func__", None) is forward:
                del vars(module)["forward"]
                vars(module).pop("__getstate__", None)
    return module
