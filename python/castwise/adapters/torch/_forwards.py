"""Replace the `forward` of classes while something is in force, and restore it.

Nothing is written into modules, so that their copies and files hold nothing of it. A module with a
`forward` of its own, as accelerate makes, is the exception: that one is replaced.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, TypeAlias

from castwise._frameworks import require

torch: Any = require("torch")

Owner: TypeAlias = Any
"""What has a `forward` in its namespace or inherits it: a class of modules, or a module."""

Call: TypeAlias = Callable[[Any, Callable[..., Any], Any, Any], Any]


class _Replacement:
    """The `forward` of an owner, its replacement, and how many need it."""

    def __init__(self, owner: Owner, call: Call) -> None:
        self.owner = owner
        self.original = vars(owner).get("forward")
        self.function = _replaced(owner, call)
        self.uses = 0


_replacements: dict[int, _Replacement] = {}
_lock = threading.RLock()


def owner_of(module: Any) -> Owner:
    """Return what has the `forward` that a call of a module runs."""
    return module if "forward" in vars(module) else type(module)


def replace_forwards(owners: Iterable[Owner], call: Call) -> None:
    """Let calls go through `call`; `restore_forwards` as often."""
    with _lock:
        for owner in owners:
            replacement = _replacements.get(id(owner))
            if replacement is None:
                replacement = _replacements[id(owner)] = _Replacement(owner, call)
                owner.forward = replacement.function
            replacement.uses += 1


def restore_forwards(owners: Iterable[Owner]) -> None:
    """Undo `replace_forwards`; after the last, an owner has its own `forward` again."""
    with _lock:
        for owner in owners:
            replacement = _replacements[id(owner)]
            replacement.uses -= 1
            if replacement.uses:
                continue
            del _replacements[id(owner)]
            if vars(owner).get("forward") is not replacement.function:
                continue  # somebody else replaced it meanwhile
            if replacement.original is None:
                del owner.forward
            else:
                setattr(owner, "forward", replacement.original)


def _replaced(owner: Owner, call: Call) -> Callable[..., Any]:
    if isinstance(owner, torch.nn.Module):
        bound = owner.forward

        @functools.wraps(bound)
        def own_forward(*args: Any, **kwargs: Any) -> Any:
            return call(owner, bound, args, kwargs)

        return own_forward
    original = inspect.getattr_static(owner, "forward")

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, original.__get__(self), args, kwargs)

    return forward
