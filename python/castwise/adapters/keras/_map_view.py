"""Present castwise's maps as maps of Keras that read and write the same keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, serialize
from castwise.environment.frameworks import require


class MapView:
    """A mixin that makes a map of Keras read and write one of castwise.

    It is mixed into ``keras.dtype_policies.DTypePolicyMap``, whose constructor is not called.
    """

    def __init__(
        self,
        castwise_policy: DTypePolicyMap,  # the map that is read and written
        to_keras: Callable[[Any], Any],
        from_keras: Callable[[Any], Any],
        # The default policy that a layer, which asks for it until it is built and has a path, gets
        # where its path is known before.
        until_built: Any = None,
    ) -> None:
        self.castwise_policy = castwise_policy
        self._until_built = until_built
        self._to_keras, self._from_keras = to_keras, from_keras
        self._keras_policies: dict[int, tuple[DTypePolicy, Any]] = {}

    def _as_keras(self, policy: DTypePolicy) -> Any:
        """Convert a policy of the map for Keras; the same policy always gives the same object."""
        seen_policy, policy_of_keras = self._keras_policies.get(id(policy), (None, None))
        if seen_policy is not policy:
            policy_of_keras = self._to_keras(policy)
            self._keras_policies[id(policy)] = policy, policy_of_keras
        return policy_of_keras

    @property
    def name(self) -> str:
        """The name of castwise's map."""
        return self.castwise_policy.name

    _name = name  # Keras' comparisons read this

    @property
    def default_policy(self) -> Any:
        """The policy of paths that no key matches, and of layers without a path."""
        if self._until_built is not None:
            return self._until_built
        return self._as_keras(self.castwise_policy.default_policy)

    def __getitem__(self, path: str) -> Any:
        return self._as_keras(self.castwise_policy[path])

    def __setitem__(self, key: str, policy: Any) -> None:
        keras_policy = require("keras").dtype_policies.DTypePolicy
        if isinstance(policy, keras_policy):
            policy = self._from_keras(policy)
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
        parts = self.castwise_policy, self._to_keras, self._from_keras, self._until_built
        return view_of, parts

    def __repr__(self) -> str:
        return repr(self.castwise_policy)

    def __eq__(self, other: object) -> bool:
        is_view = isinstance(other, MapView)
        return is_view and self.castwise_policy == other.castwise_policy  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment] # as for every policy of Keras


def view_of(
    policy_map: DTypePolicyMap,
    to_keras: Callable[[Any], Any],
    from_keras: Callable[[Any], Any],
    until_built: Any = None,
) -> Any:
    """Return a map of Keras that reads and writes `policy_map`."""
    return _view_class()(policy_map, to_keras, from_keras, until_built)


@functools.cache
def _view_class() -> Any:
    keras_map = require("keras").dtype_policies.DTypePolicyMap
    return type("DTypePolicyMapView", (MapView, keras_map), {})
