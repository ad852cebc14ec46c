"""Convert policies from castwise to Keras and back, class by class."""

import functools
from collections.abc import Iterator
from typing import Any

from castwise.adapters.keras._custom_policies import (
    CastwisePolicy,
    KerasPolicy,
    known_class,
    policy_of_custom_class,
)
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, get, serialize
from castwise.dtype_policies._configs import CLASSES
from castwise.environment.frameworks import require


def to_keras(policy: Any) -> Any:
    """Return the policy of Keras that means the same.

    Parameters
    ----------
    policy : DTypePolicy, DTypePolicyMap, or what `castwise.dtype_policies.get` takes
        A policy of castwise, or the name of one.

    Returns
    -------
    keras.DTypePolicy
        Of the class of the same name. A map becomes a ``keras.dtype_policies.DTypePolicyMap`` that
        reads and writes the given map: it looks paths up as castwise does, with `match` and
        `on_overlap`. A policy of a class that a user derived is wrapped. A policy of Keras is
        returned as it is.

    Raises
    ------
    ValueError
        `policy` is not a policy; the installed Keras has no such policy, or reads its name
        differently.
    TypeError
        The policy's class overrides `convert_input`, which Keras would not call.
    ImportError
        Keras is not installed.

    Examples
    --------
    >>> from castwise.adapters.keras import to_keras
    >>> to_keras("mixed_float16")
    <DTypePolicy "mixed_float16">

    """
    keras = require("keras")
    if isinstance(policy, keras.dtype_policies.DTypePolicy):
        return policy
    policy = get(policy)
    if isinstance(policy, KerasPolicy):
        return policy.keras_policy
    if isinstance(policy, DTypePolicyMap):
        return map_view(policy)
    name = known_class(type(policy)).__name__
    cls = getattr(keras.dtype_policies, name, None)
    if cls is None:
        raise ValueError(
            f"policy={policy.name!r}: the installed keras {keras.__version__} has no {name}; "
            "install a newer Keras, or use another policy"
        )
    if type(policy) not in CLASSES.values():
        return policy_of_custom_class(policy, cls)
    try:
        policy_of_other = cls(**policy.get_config())
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"policy={policy.name!r}: the installed keras {keras.__version__} refuses it; use "
            f"another policy, or another release of Keras: {error}"
        ) from error
    _check_dtypes(policy, policy_of_other, "Keras")
    return policy_of_other


def from_keras(policy: Any) -> Any:
    """Return the policy of castwise that means the same as one of Keras.

    Parameters
    ----------
    policy : keras.DTypePolicy, keras.dtype_policies.DTypePolicyMap, or a policy of castwise
        A policy of Keras; one of castwise is returned as it is.

    Returns
    -------
    DTypePolicy
        Of the class of the same name. A map of Keras becomes a new map with the same keys, which
        match as in the installed Keras (whole paths since 3.12, any part before). A policy that
        `to_keras` made is unwrapped. A policy of a class that a user derived is wrapped.

    Raises
    ------
    TypeError
        `policy` is not a policy, or a map that overrides lookups.
    ValueError
        A map with an invalid key or value; a policy whose name Keras' own ``get_config`` has
        deleted.
    ImportError
        Keras is not installed.

    Examples
    --------
    >>> import keras
    >>> from castwise.adapters.keras import from_keras
    >>> from_keras(keras.DTypePolicy("mixed_float16")).compute_dtype
    'float16'

    """
    keras = require("keras")
    if isinstance(policy, CastwisePolicy):
        return policy.castwise_policy
    if isinstance(policy, DTypePolicy):
        return policy
    if not isinstance(policy, keras.dtype_policies.DTypePolicy):
        raise TypeError(
            f"policy={policy!r} is not a policy of Keras; give a keras.DTypePolicy, as "
            "keras.dtype_policies.get makes it"
        )
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return _from_map(policy, keras)
    cls = CLASSES.get(type(policy).__name__)
    if cls is None or type(policy) is not getattr(keras.dtype_policies, cls.__name__, None):
        return KerasPolicy(policy)
    if policy.name is None:
        raise ValueError(
            f"policy={policy!r} has no name any more (get_config of a keras DTypePolicyMap "
            "without a default policy takes it away); make the policy again"
        )
    policy_of_other = cls(**policy.get_config())
    _check_dtypes(policy, policy_of_other, "castwise")
    return policy_of_other


def _from_map(policy: Any, keras: Any) -> DTypePolicyMap:
    if type(policy).__getitem__ is not keras.dtype_policies.DTypePolicyMap.__getitem__:
        raise TypeError(
            f"policy={policy!r} looks its paths up in a way of its own ({type(policy).__name__}."
            "__getitem__); make a castwise.dtype_policies.DTypePolicyMap of the keys that you need"
        )
    default = policy._default_policy_arg
    if isinstance(default, keras.dtype_policies.DTypePolicy):
        default = from_keras(default)
    items = {key: from_keras(keras.dtype_policies.get(policy._policy_map[key])) for key in policy}
    return DTypePolicyMap(default, items, match=matching_of(keras.__version__))


# `MapView` is mixed into ``keras.dtype_policies.DTypePolicyMap``, whose constructor is not called.
# `until_built` is the default policy that a layer, which asks for it until it is built and has a
# path, gets where its path is known before.
class MapView(CastwisePolicy):
    """A mixin that makes a map of Keras read and write one of castwise."""

    def __init__(self, castwise_policy: DTypePolicyMap, until_built: Any) -> None:
        self.castwise_policy = castwise_policy
        self._until_built = until_built
        self._keras_policies: dict[int, tuple[DTypePolicy, Any]] = {}

    def _as_keras(self, policy: DTypePolicy) -> Any:
        """Convert a policy of the map for Keras; the same policy always gives the same object."""
        seen_policy, policy_of_keras = self._keras_policies.get(id(policy), (None, None))
        if seen_policy is not policy:
            policy_of_keras = to_keras(policy)
            self._keras_policies[id(policy)] = policy, policy_of_keras
        return policy_of_keras

    @property
    def default_policy(self) -> Any:
        """The policy of paths that no key matches, and of layers without a path."""
        if self._until_built is not None:
            return self._until_built
        return self._as_keras(self.castwise_policy.default_policy)

    def __getitem__(self, path: str) -> Any:
        return self._as_keras(self.castwise_policy[path])

    def __setitem__(self, key: str, policy: Any) -> None:
        if isinstance(policy, require("keras").dtype_policies.DTypePolicy):
            policy = from_keras(policy)
        self.castwise_policy[key] = policy

    def __delitem__(self, key: str) -> None:
        del self.castwise_policy[key]

    def __contains__(self, key: object) -> bool:
        return key in self.castwise_policy

    def __len__(self) -> int:
        return len(self.castwise_policy)

    def __iter__(self) -> Iterator[str]:
        return iter(self.castwise_policy)

    def get_config(self) -> dict[str, Any]:
        """Return the map's config, for Keras' class, without changing the map."""
        config: dict[str, Any] = serialize(self.castwise_policy)["config"]
        return config

    @property  # type: ignore[misc] # as unittest.mock does
    def __class__(self) -> Any:
        """Keras' class, for the configs of layers, so that Keras loads them without castwise."""
        return require("keras").dtype_policies.DTypePolicyMap

    def __reduce_ex__(self, protocol: Any) -> Any:
        return map_view, (self.castwise_policy, self._until_built)


def map_view(policy_map: DTypePolicyMap, until_built: Any = None) -> Any:
    """Return a map of Keras that reads and writes `policy_map`; see `MapView`."""
    return _map_view_class()(policy_map, until_built)


@functools.cache
def _map_view_class() -> Any:
    keras_map = require("keras").dtype_policies.DTypePolicyMap
    return type("DTypePolicyMapView", (MapView, keras_map), {})


def matching_of(version: str) -> Any:
    """Tell how the maps of a release of Keras match their keys: any part of a path, until 3.12."""
    # Source: keras-team/keras#21608.
    return "search" if _release(version) < (3, 12) else "fullmatch"


def takes_quantized_global(version: str) -> bool:
    """Tell whether ``set_dtype_policy`` of a release of Keras takes quantized policies."""
    return _release(version) < (3, 16)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _check_dtypes(original: Any, policy_of_other: Any, reader: str) -> None:
    """Refuse a name that the other side reads differently, such as "int" with TensorFlow."""
    for role in ("compute_dtype", "variable_dtype"):
        if getattr(original, role) != getattr(policy_of_other, role):
            raise ValueError(
                f"policy={original.name!r} has the {role} {getattr(original, role)}, and "
                f"{getattr(policy_of_other, role)} where {reader} reads its name; name the dtype"
            )
