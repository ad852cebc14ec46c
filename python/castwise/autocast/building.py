"""The first call of a layer: its path, its weights, once and completely.

A `layer` is a `Layer`, whose module imports this one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from castwise.autocast.scope import Frame, current, enter, leave

if TYPE_CHECKING:
    from castwise.autocast.dialects import Rules

_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Of layers that are being built, by identity: what is in a layer is copied and pickled."""

_of_locks = threading.Lock()


@contextmanager
def _one_at_a_time(layer: Any) -> Iterator[None]:
    """Two threads that call a layer for the first time must not build it twice."""
    with _of_locks:
        lock = _locks.setdefault(id(layer), threading.RLock())
    with lock:
        yield


def first_call(
    layer: Any, rules: Rules, outer: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `call`, of a layer that is built afterwards.

    The path comes first, since it may decide on the dtypes. Where anything fails, the layer has
    none, and is built by the next call.
    """
    with _one_at_a_time(layer), _located(layer, outer):
        args, kwargs = rules.arguments(layer, args, kwargs)
        if not layer.built:
            if is_final(type(layer).build):
                layer.build(**rules.shapes(layer, args, kwargs))
            _finish(layer)
        return args, kwargs


def wrapped(build: Callable[..., None]) -> Callable[..., None]:
    """The `build` of a class: where it fails nothing is left of it, where it does not it is final.

    A subclass' `build` may call its parent's; the layer is built when the outermost has returned.
    """

    @functools.wraps(build)
    def build_layer(self: Any, *args: Any, **kwargs: Any) -> None:
        self._checked_rules()
        if self._building:
            build(self, *args, **kwargs)
            return
        outer = current()
        with _one_at_a_time(self), _located(self, outer):
            count = len(self._variables)
            before = enter(outer.scope, self._path or "", outer.in_call)
            self._building = True
            try:
                build(self, *args, **kwargs)
            except BaseException:
                del self._variables[count:]
                self.built = False
                raise
            finally:
                self._building = False
                leave(before)
            _finish(self)

    build_layer._castwise_final = True  # type: ignore[attr-defined]
    return build_layer


def is_final(build: Callable[..., None]) -> bool:
    """Whether a class' `build` is one of a subclass, and wrapped."""
    return getattr(build, "_castwise_final", False)


class _located:  # noqa: N801 - a context manager, written out: it runs at each first call
    """The layer has a path inside; also afterwards, if nothing fails."""

    def __init__(self, layer: Any, outer: Frame) -> None:
        self.layer = layer
        self.path = f"{outer.path}/{layer.name}" if outer.path else layer.name
        self.new = layer.path is None

    def __enter__(self) -> None:
        if self.new:
            self.layer._path = self.path

    def __exit__(self, error: object, *_: object) -> None:
        if self.new and error is not None:
            self.layer._path = None


def _finish(layer: Any) -> None:
    layer.built = True
    layer._locked = layer._rules.locks
