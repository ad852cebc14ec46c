"""The original layers and castwise's under the same names, and one layer for all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import castwise.autocast
import numpy as np
from castwise.compat.tf_keras import layers as our_tf_layers

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "policies")]
import peers
from recorded import Peer
from sides import outcome

__all__ = ["Call", "System", "calls", "dtype_of", "outcome", "peers"]


@dataclass(frozen=True)
class System:
    """A base class of layers, and what goes with it."""

    layer: type[Any]
    scope: Callable[[], Any]
    """What scope holds here, as `dtype`; None outside of all."""

    value: Callable[[Any], Any] = field(default=lambda variable: variable.value)


KERAS: Any = Peer(cache(lambda: keras_system(peers.keras())))


def keras() -> System:
    """Keras 3, on numpy."""
    system: System = KERAS
    return system


def keras_system(module: Any) -> System:
    """A Keras that is imported, on whatever backend."""
    variables = module.src.backend.common.variables
    return System(module.layers.Layer, variables.get_autocast_scope)


@cache
def ours() -> System:
    """Castwise in Keras' dialect."""
    return System(castwise.autocast.Layer, castwise.autocast.get_autocast_scope)


@cache
def _tf() -> System:
    state = peers.tf_keras().src.mixed_precision.autocast_variable._autocast_dtype

    class Scope:
        """As Keras has it."""

        @property
        def dtype(self) -> Any:
            return dtype_of(getattr(state, "dtype", None))

    return System(peers.tf_keras().layers.Layer, Scope, lambda variable: variable.read_value())


TF: Any = Peer(_tf)


def tf() -> System:
    """tf_keras."""
    system: System = TF
    return system


@cache
def our_tf() -> System:
    """Castwise in TF's dialect."""
    return System(our_tf_layers.Layer, castwise.autocast.get_autocast_scope)


def dtype_of(value: Any) -> Any:
    """The name of a dtype, or of that of an array or variable; None of None."""
    if value is None or isinstance(value, str):
        return value
    dtype = getattr(value, "dtype", value)
    return dtype if isinstance(dtype, str) else dtype.name


class Call(NamedTuple):
    """What a call saw."""

    inputs: Any
    variables: dict[str, Any]
    """What each reports, and what dtype its value has."""

    scope: Any


@cache
def probe(system: System) -> type[Any]:
    """A layer that keeps what its call sees, and hands its inputs on to another."""

    class Probe(system.layer):  # type: ignore[misc, name-defined]
        def __init__(self, seen: list[Call], inner: Any = None, **options: Any) -> None:
            super().__init__(**options)
            self.seen, self.inner = Kept(seen), inner

        def build(self, input_shape: Any) -> None:
            make = {"k": {}, "n": {"autocast": False}, "i": {"dtype": "int32"}}
            make |= {"d": {"dtype": "float64"}, "h": {"dtype": "float16"}}
            self.all = {
                name: self.add_weight(shape=(2,), initializer="zeros", name=name, **options)
                for name, options in make.items()
            }
            # Keras' numpy backend makes a float32 of every first value; of others it does not.
            for variable in self.all.values():
                variable.assign(np.zeros(2))

        def call(self, x: Any, other: Any = None) -> Any:
            seen = {
                name: (dtype_of(variable), dtype_of(system.value(variable)))
                for name, variable in self.all.items()
            }
            scope = system.scope()
            held = "none" if scope is None else dtype_of(scope.dtype)
            self.seen.calls.append(Call(dtype_of(x), seen, held))
            return x if self.inner is None else self.inner(x)

        # Under a quantized policy, Keras calls these.
        _float8_call = _int8_call = call

    return Probe


class Kept:
    """A list that layers do not take for one of layers."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls


def calls(system: System, options: list[dict[str, Any]], x: Any) -> list[Call]:
    """What nested layers see, from the outermost to the innermost, in the second of two calls."""
    done = outcome(_calls, system, options, x)
    assert done.error is None, done
    return [Call(*call) for call in done.value]


def _calls(system: System, options: list[dict[str, Any]], x: Any) -> list[Call]:
    assert system.layer  # probe() may be one that was made before
    seen: list[Call] = []
    layer = None
    for place, arguments in reversed(list(enumerate(options))):
        layer = probe(system)(seen, layer, name=f"layer{place}", **arguments)
    assert layer is not None
    layer(x)
    seen.clear()
    layer(x)
    return seen
