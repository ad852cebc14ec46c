"""`DTypePolicyMap`: the policy of each layer of a model, by path."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Iterable, Iterator, MutableMapping, ValuesView
from typing import Any, ClassVar

from castwise._core import PolicyMap
from castwise._options import Match, OnOverlap
from castwise.dtype_policies._configs import CLASSES, deserialize, get, serialize
from castwise.dtype_policies._explanation import Explanation, PathMatch
from castwise.dtype_policies._policy import DTypePolicy, QuantizedDTypePolicy
from castwise.environment.defaults import floatx
from castwise.rendering import Rendered
from castwise.rendering.sheet import Sheet, Table
from castwise.text.brief import brief, counted, short
from castwise.text.spelling import unused_patterns

_MISSING = object()


class DTypePolicyMap(Rendered, DTypePolicy, MutableMapping[str, DTypePolicy]):
    r"""A policy for each path: by exact key, else by regular expression, else the default.

    Parameters
    ----------
    default_policy : policy, str, dict, dtype or None
        For paths that no key matches. None is the policy in force at each lookup.
    policy_map : dict of str to what `get` takes, optional
        Keys are paths or regular expressions. The dict is copied.
    match : {"fullmatch", "search"}
        Whether a key must match a whole path, as in Keras since 3.12, or any part of one, as in
        Keras 3.4 to 3.11, for maps written for those.
    on_overlap : {"raise", "first", "longest"}
        What a lookup does if several keys match and none is equal to the path: raise, use the key
        that was set first, or use the longest (of equally long ones the first).

    Raises
    ------
    ValueError
        The default is itself a map, a value is not a policy, a key is not a regular expression
        (the message has the position), or an option is unknown.
    TypeError
        `policy_map` is not a dict, a key not a str.

    Notes
    -----
    The time of a lookup is linear in the length of the path, and does not depend on the number and
    form of the keys. Exceptions are matched by Python's ``re``, one call per key and lookup, with
    ``re``'s own worst case: keys with syntax that only ``re`` has (look-around, back-references,
    conditions, atomic groups, possessive quantifiers, ``\B``, octal escapes, ``--`` in a set,
    ``(?i)`` with characters beyond ASCII, groups more than 100 deep), keys of many thousand counted
    repetitions, keys with ``\b`` or ``(?i)`` for paths beyond ASCII, and keys with ``$`` before
    their end for paths with a newline. Whatever casts arrays or checkpoints by a map refuses these.

    Examples
    --------
    >>> policy_map = DTypePolicyMap("float32")
    >>> policy_map["encoder/layer_0/dense"] = "bfloat16"
    >>> policy_map["encoder/.*"] = "float16"
    >>> policy_map["decoder"] = "bfloat16"

    A key equal to the path is used first, then a key that matches the whole path.

    >>> policy_map["encoder/layer_0/dense"].name, policy_map["encoder/attention/query"].name
    ('bfloat16', 'float16')

    A key is not a prefix: paths below "decoder" have the default.

    >>> policy_map["decoder/attention"].name
    'float32'

    Two keys that match are an error, unless `on_overlap` says which is used.

    >>> policy_map["encoder/attention/.*"] = "bfloat16"
    >>> policy_map["encoder/attention/query"]  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 'encoder/attention/query' is matched by 2 keys, ...

    """

    module: ClassVar[str | None] = "keras.dtype_policies"

    def __init__(
        self,
        default_policy: object = None,
        policy_map: dict[str, Any] | None = None,
        *,
        match: Match = "fullmatch",
        on_overlap: OnOverlap = "raise",
    ) -> None:
        if isinstance(default_policy, DTypePolicyMap):
            raise ValueError(  # noqa: TRY004 - as Keras
                "default_policy is a DTypePolicyMap; give the policy of all other paths"
            )
        if policy_map is not None and not isinstance(policy_map, dict):
            raise TypeError(f"policy_map={policy_map!r} must be a dict of keys to policies")
        self._default_argument = _for_config(default_policy)
        self._default_policy = None if default_policy is None else get(default_policy)
        self._match, self._on_overlap = match, on_overlap
        self._policies = PolicyMap(match, on_overlap)
        self.update(policy_map or {})

    @property
    def default_policy(self) -> DTypePolicy:
        """The policy of paths that no key matches.

        If the map has none, it is the policy in force, or one made of floatx if that is this map.
        """
        policy = get(self._default_policy)
        return DTypePolicy(floatx()) if policy is self else policy

    @property
    def match(self) -> Match:
        """How keys match: "fullmatch" or "search"."""
        return self._match

    @property
    def on_overlap(self) -> OnOverlap:
        """What a lookup does if several keys match: "raise", "first" or "longest"."""
        return self._on_overlap

    @property
    def name(self) -> str:
        """The default policy's name with `map_` before it."""
        return f"map_{self.default_policy.name}"

    @property
    def compute_dtype(self) -> str:
        """The default policy's compute dtype."""
        return self.default_policy.compute_dtype

    @property
    def variable_dtype(self) -> str:
        """The default policy's variable dtype."""
        return self.default_policy.variable_dtype

    @property
    def quantization_mode(self) -> str | None:
        """The default policy's quantization mode."""
        return self.default_policy.quantization_mode

    def __getitem__(self, path: str) -> DTypePolicy:
        """Return the policy of a path; never a KeyError.

        Raises
        ------
        ValueError
            Several keys match, and `on_overlap` is "raise".
        TypeError
            The path is not a str.

        """
        policy: DTypePolicy | None
        try:
            policy = self._policies.exact.get(path)
        except TypeError:  # not hashable, and so not a str
            policy = None
        if policy is None:
            policy = self._policies.lookup(path)
        return self.default_policy if policy is None else policy

    def __setitem__(self, key: str, policy: object) -> None:
        """Set the policy of a new key, given as for `get`.

        Raises
        ------
        ValueError
            The map has the key (delete it first), the key is not a regular expression, or the value
            not a policy.
        TypeError
            The key is not a str.

        """
        value = self._check(_text("key", key), policy)
        try:
            self._policies.insert(key, value)
        except KeyError as error:
            raise ValueError(
                f"key {key!r} is already in the map, with {self._policies.get(key)!r}; "
                "delete it before you set it again"
            ) from error

    def _check(self, key: str, policy: object) -> DTypePolicy:
        try:
            return get(policy)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the value of key {key!r}: {error}") from error

    def __delitem__(self, key: str) -> None:
        self._policies.remove(_text("key", key))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._policies.get(key) is not None

    def __len__(self) -> int:
        return len(self._policies)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, _ in self._policies.items()])

    def get(self, path: str, default: object = _MISSING) -> Any:  # noqa: ANN401  (as the default)
        """Return the policy of a path; if no key matches, `default` if it is given."""
        policy = self._policies.lookup(path)
        if policy is not None:
            return policy
        return self.default_policy if default is _MISSING else default

    def pop(self, key: str, default: object = _MISSING) -> Any:  # noqa: ANN401  (as the default)
        """Remove a key and return its policy, else `default`; KeyError without one."""
        try:
            return self._policies.remove(_text("key", key))
        except KeyError:
            if default is _MISSING:
                raise
            return default

    def popitem(self) -> tuple[str, DTypePolicy]:
        """Remove the key that was set last, and return it with its policy. KeyError if empty."""
        return self._policies.pop_last()

    def setdefault(self, key: str, default: object = None) -> DTypePolicy:
        """Return the policy of a key; if the key is missing, set it to `default`."""
        policy: DTypePolicy | None = self._policies.get(_text("key", key))
        if policy is None:
            policy = self._policies.setdefault(key, self._check(key, default))
        return policy

    def clear(self) -> None:
        """Remove all keys."""
        self._policies = PolicyMap(self._match, self._on_overlap)

    def values(self) -> ValuesView[DTypePolicy]:
        """Return a view of the policies, in the order of their keys."""
        return _Values(self)

    def items(self) -> ItemsView[str, DTypePolicy]:
        """Return a view of keys and policies, in the order in which they were set."""
        return _Items(self)

    def explain(self, paths: Iterable[str]) -> Explanation:
        """Report the key for each path, other keys that match, and unused keys.

        >>> policy_map = DTypePolicyMap("float32", {"encodr/.*": "float16", "head": "float64"})
        >>> print(policy_map.explain(["encoder/query", "head"]))
        path           policy   key   also matched by
        -------------  -------  ----  ---------------
        encoder/query  float32  -
        head           float64  head
        unused pattern 'encodr/.*'; nearest is 'encoder/query'

        Raises
        ------
        TypeError
            They are not several paths, each a str.

        """
        if isinstance(paths, str) or not isinstance(paths, Iterable):
            raise TypeError(f"paths={paths!r} must be several paths, such as ['encoder/query'].")
        matches: dict[str, PathMatch] = {}
        hits = dict.fromkeys(self, 0)
        for path in paths:
            key, exact, keys = self._policies.explain(_text("path", path))
            if key is None:
                policy = None if keys else self.default_policy
            else:
                policy = self._policies.get(key)
                hits[key] = hits.get(key, 0) + 1
            also = tuple(other for other in keys if other != key)
            matches[path] = PathMatch(key, policy, exact, also)
        return Explanation(matches, hits, unused_patterns(hits, matches))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of this map, as Keras writes them.

        If the default is None, the policies' names are left out, as in Keras, and a loaded map
        takes them from the policy in force. The map itself is not changed.
        """
        write = _without_name if self._default_argument is None else serialize
        config = {
            "default_policy": serialize(self._default_argument),
            "policy_map": {key: write(policy) for key, policy in self.items()},
        }
        # Keras does not know these; it can read maps without them.
        options = {"match": (self._match, "fullmatch"), "on_overlap": (self._on_overlap, "raise")}
        config.update({name: value for name, (value, usual) in options.items() if value != usual})
        return config

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> DTypePolicyMap:
        """Make the map of a config, also of Keras. KeyError without 'policy_map'."""
        policies = config["policy_map"]
        if policies is None:
            policies = {}
        if not isinstance(policies, dict):
            raise TypeError(f"policy_map={policies!r} must be a dict of keys to policies")
        entries = {key: deserialize(value, custom_objects) for key, value in policies.items()}
        return cls(**{**config, "policy_map": entries})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DTypePolicyMap):
            return NotImplemented
        return self._parts() == other._parts()

    __hash__ = None  # type: ignore[assignment] # a map changes

    def _parts(self) -> tuple[Any, ...]:
        return self._default_policy, dict(self.items()), self._match, self._on_overlap

    def __copy__(self) -> DTypePolicyMap:
        """Return another map with the same policies."""
        duplicate = type(self).__new__(type(self))
        duplicate.__dict__.update(self.__dict__)
        duplicate._policies = copy.copy(self._policies)
        return duplicate

    def __repr__(self) -> str:
        mapping = [(key, policy.name) for key, policy in self.items()]
        return brief(
            self,
            f"default_policy={self.default_policy.name}",
            f"mapping={short(mapping)}",
            counted(len(mapping), "key") if short(mapping) != repr(mapping) else None,
        )

    def __sheet__(self) -> Sheet:
        """Return a table of the keys and their policies."""
        rows = [(key, policy.name) for key, policy in self.items()]
        return [Table.of(("key", "policy"), [*rows, ("(default)", self.default_policy.name)])]


CLASSES[DTypePolicyMap.__name__] = DTypePolicyMap


class _Items(ItemsView[str, DTypePolicy]):
    """A view that iterates over a copy, which changes by other threads do not affect."""

    _mapping: DTypePolicyMap

    def __iter__(self) -> Iterator[tuple[str, DTypePolicy]]:
        return iter(self._mapping._policies.items())

    def __contains__(self, item: object) -> bool:
        return item in list(self)


class _Values(ValuesView[DTypePolicy]):
    """A view of the policies that iterates over a copy."""

    _mapping: DTypePolicyMap

    def __iter__(self) -> Iterator[DTypePolicy]:
        return iter([policy for _, policy in self._mapping._policies.items()])


def _text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(
            f"{argument}={value!r} must be a str: a layer's path, or a regular expression"
        )
    return value


def _for_config(default_policy: object) -> Any:  # noqa: ANN401  (of JSON)
    """Return the default for configs: as it was given, but for dtype objects the policy."""
    if default_policy is None or isinstance(default_policy, str | DTypePolicy):
        return default_policy
    return (
        copy.deepcopy(default_policy) if isinstance(default_policy, dict) else get(default_policy)
    )


def _without_name(policy: DTypePolicy) -> dict[str, Any]:
    """Return a policy's config without the name, which is then that of the policy in force."""
    config: dict[str, Any] = serialize(policy)
    if isinstance(policy, DTypePolicyMap):
        return config
    name = "source_name" if isinstance(policy, QuantizedDTypePolicy) else "name"
    return {**config, "config": {**config["config"], name: None}}
