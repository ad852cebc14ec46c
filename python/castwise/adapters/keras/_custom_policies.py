"""Wrap policies of classes that users derived, for the other side.

A policy of a known class is made again on the other side, from its config. An unknown class may
compute its dtypes, or have more state than its name; so its policy is wrapped, and the wrapper asks
it for every answer.
"""

import functools
from operator import attrgetter
from typing import Any

from castwise.dtype_policies import DTypePolicy
from castwise.dtype_policies._configs import CLASSES


def known_class(cls: type[DTypePolicy]) -> type[DTypePolicy]:
    """Return the first base class that castwise defines."""
    return next(base for base in cls.__mro__ if base in CLASSES.values())


class KerasPolicy(DTypePolicy):
    """A policy of castwise that wraps one of Keras, of a class that castwise does not know."""

    def __init__(self, keras_policy: Any) -> None:
        super().__init__("float32")  # every property of the base is replaced below
        self.keras_policy = keras_policy

    name = property(attrgetter("keras_policy.name"))
    compute_dtype = property(attrgetter("keras_policy.compute_dtype"))
    variable_dtype = property(attrgetter("keras_policy.variable_dtype"))
    quantization_mode = property(attrgetter("keras_policy.quantization_mode"))

    def get_config(self) -> dict[str, Any]:
        """Return the config that the wrapped policy itself would give."""
        config: dict[str, Any] = self.keras_policy.get_config()
        return config

    def convert_input(self, x: Any, autocast: bool, dtype: Any) -> Any:
        """Return what it makes of an input."""
        return self.keras_policy.convert_input(x, autocast, dtype)

    def __getattr__(self, name: str) -> Any:
        if name == "keras_policy":  # not set yet: a copy in the making
            raise AttributeError(name)
        return getattr(self.keras_policy, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return KerasPolicy, (self.keras_policy,)

    def __repr__(self) -> str:
        return repr(self.keras_policy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KerasPolicy) and bool(self.keras_policy == other.keras_policy)

    def __hash__(self) -> int:
        return hash((type(self.keras_policy), self.name))


class CastwisePolicy:
    """A mixin for a policy of Keras that wraps one of castwise."""

    castwise_policy: Any

    name = property(attrgetter("castwise_policy.name"))
    _name = name  # Keras' comparisons read this

    def __repr__(self) -> str:
        return repr(self.castwise_policy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CastwisePolicy) and bool(
            self.castwise_policy == other.castwise_policy
        )

    __hash__ = None  # type: ignore[assignment] # as for every policy of Keras


class HeldPolicy(CastwisePolicy):
    """A mixin, beside a class of Keras, for the wrapper of a policy of a user's class."""

    def __init__(self, castwise_policy: DTypePolicy) -> None:
        self.castwise_policy = castwise_policy

    compute_dtype = property(attrgetter("castwise_policy.compute_dtype"))
    variable_dtype = property(attrgetter("castwise_policy.variable_dtype"))
    quantization_mode = property(attrgetter("castwise_policy.quantization_mode"))

    def get_config(self) -> dict[str, Any]:
        """Return the config that the wrapped policy itself would give."""
        config: dict[str, Any] = self.castwise_policy.get_config()
        return config

    @property  # type: ignore[misc] # as unittest.mock does
    def __class__(self) -> type:
        """The user's class, for the configs of layers."""
        return type(self.castwise_policy)

    def __getattr__(self, name: str) -> Any:
        if name == "castwise_policy":  # not set yet: a copy in the making
            raise AttributeError(name)
        return getattr(self.castwise_policy, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        keras_class = type(self).__bases__[1]
        return policy_of_custom_class, (self.castwise_policy, keras_class)


def policy_of_custom_class(policy: DTypePolicy, keras_class: type) -> Any:
    # A `convert_input` of its own returns numpy's arrays, where Keras' layers need tensors.
    if type(policy).convert_input is not DTypePolicy.convert_input:
        raise TypeError(
            f"policy={policy!r}: {type(policy).__name__} has a convert_input of its own, for "
            "numpy's arrays; derive the class from keras.DTypePolicy for Keras' tensors"
        )
    return _holding(keras_class)(policy)


@functools.cache
def _holding(keras_class: type) -> Any:
    return type(f"Held{keras_class.__name__}", (HeldPolicy, keras_class), {})
