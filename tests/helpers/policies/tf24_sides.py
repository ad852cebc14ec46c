"""The two sides of TF 2.4's experimental dialect under the same names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import peers
from castwise.compat.tf_keras import mixed_precision
from recorded import SESSION, Peer


@dataclass(frozen=True)
class Side:
    """One implementation of `tf.keras.mixed_precision.experimental`."""

    policy: type[Any]
    plain_policy: type[Any]
    set_policy: Callable[[Any], None]
    global_policy: Callable[[], Any]
    get_layer_policy: Callable[[Any], Any]
    serialize: Callable[[Any], Any]
    deserialize: Callable[..., Any]
    fixed: type[Any]
    dynamic: type[Any]


@cache
def _real() -> Side:
    module = peers.tf24()
    return Side(
        policy=module.Policy,
        plain_policy=module.policy_module.Policy,
        set_policy=module.set_policy,
        global_policy=module.global_policy,
        get_layer_policy=module.get_layer_policy,
        serialize=module.serialize,
        deserialize=module.deserialize,
        fixed=module.FixedLossScale,
        dynamic=module.DynamicLossScale,
    )


REAL: Any = Peer(_real)


def real() -> Side:
    """The code of TF 2.4 as TensorFlow still carries it."""
    side: Side = REAL
    return side


def reset() -> None:
    """Take the global policy of both sides away."""
    ours().set_policy(None)
    if SESSION.is_live:
        with SESSION.unrecorded():
            real().set_policy(None)


@cache
def ours() -> Side:
    """castwise.compat.tf_keras.mixed_precision.experimental."""
    module = mixed_precision.experimental
    return Side(
        policy=module.Policy,
        plain_policy=mixed_precision.Policy,
        set_policy=module.set_policy,
        global_policy=module.global_policy,
        get_layer_policy=module.get_layer_policy,
        serialize=mixed_precision.serialize,
        deserialize=mixed_precision.deserialize,
        fixed=module.FixedLossScale,
        dynamic=module.DynamicLossScale,
    )
