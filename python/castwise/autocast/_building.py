"""The first call of a layer: its path and its weights, made once and completely."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from castwise.autocast._holder import Holder
from castwise.autocast._scope import Frame, current, enter, leave

# The locks of layers that are being built, by identity: attributes would be copied and pickled.
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()

_of_locks = threading.Lock()


class Builder(Holder):
    """A holder that makes its weights at its first call, by `build`."""

    built: bool = False

    _name: str
    _rules: ClassVar[Any] = None
    _path: str | None = None
    _building: bool = False
    _is_locked: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Whether the class itself defines `build` or another base does.
        if not _is_wrapped(cls.build) and cls.build is not Builder.build:
            cls.build = _wrap(cls.build)  # type: ignore[method-assign]

    @property
    def name(self) -> str:
        """Its name within the layer that holds it."""
        return self._name

    @property
    def path(self) -> str | None:
        """The names of the layers around it and its own, joined by "/"; None until it is built."""
        return self._path

    def build(self, input_shape: Any) -> None:
        """Make the weights; for subclasses. Called once, before the first `call`.

        Parameters
        ----------
        input_shape : tuple of int, or a structure of them
            The shape of the first argument. With several parameters, called ``a_shape`` for an
            argument ``a`` of `call`, the shapes of those.

        """

    def _checked_rules(self) -> Any:
        """Return the rules of the dialect. RuntimeError before `__init__` has run."""
        raise NotImplementedError

    def _first_call(
        self, outer: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Build the layer and return the arguments of `call`."""
        # The path is set first, because the dtypes may depend on it. After an error the layer has
        # no path again, and is built by the next call.
        with _one_at_a_time(self), self._locate(outer):
            args, kwargs = self._rules.arguments(self, args, kwargs)
            if not self.built:
                if _is_wrapped(type(self).build):
                    self.build(**self._rules.shapes(self, args, kwargs))
                self._finish()
            return args, kwargs

    def _build_by(
        self, build: Callable[..., None], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Call a `build` once; after an error, forget the weights that it made."""
        outer = current()
        with _one_at_a_time(self), self._locate(outer):
            count = len(self._variables)  # of those made in `__init__`, which stay
            frame = enter(outer.scope, self._path or "", outer.in_call)
            self._building = True
            try:
                build(self, *args, **kwargs)
            except BaseException:
                del self._variables[count:]
                self.built = False
                raise
            finally:
                self._building = False
                leave(frame)
            self._finish()

    @contextmanager
    def _locate(self, outer: Frame) -> Iterator[None]:
        """Set the path, if there is none yet; take it back after an error."""
        is_new = self._path is None
        if is_new:
            self._path = f"{outer.path}/{self.name}" if outer.path else self.name
        try:
            yield
        except BaseException:
            if is_new:
                self._path = None
            raise

    def _finish(self) -> None:
        self.built = True
        self._is_locked = self._rules.locks


@contextmanager
def _one_at_a_time(layer: Builder) -> Iterator[None]:
    """Let threads that call the same layer for the first time wait for each other."""
    with _of_locks:
        lock = _locks.setdefault(id(layer), threading.RLock())
    with lock:
        yield


def _wrap(build: Callable[..., None]) -> Callable[..., None]:
    """Wrap the `build` of a class so that it has all its effects or none."""
    # A subclass' `build` may call its parent's; the layer is built when the outermost has returned.

    @functools.wraps(build)
    def build_layer(self: Builder, *args: object, **kwargs: object) -> None:
        self._checked_rules()
        if self._building:
            build(self, *args, **kwargs)
        else:
            self._build_by(build, args, kwargs)

    build_layer._castwise_wrapped = True  # type: ignore[attr-defined]
    return build_layer


def _is_wrapped(build: Callable[..., None]) -> bool:
    return getattr(build, "_castwise_wrapped", False)
