r"""Choose the format of each array, by paths and regular expressions.

```json
{"default": "bfloat16", ".*norm.*": "float32", "lm_head\\.weight": "keep"}
```

The name of an array is that of a tensor in a checkpoint, or the path of a leaf in a tree. A key
equal to the name is used first, else one that matches the whole name. A name that two keys match
is an error, so the order of the keys does not matter. `"keep"` leaves an array as it is. A format
of floats concerns floating arrays only, unless the key is the whole name of the array.

A dtype policy, or a map of policies, can be used as such a map.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from castwise._core import PolicyMap, finfo
from castwise.dtype_policies import DTypePolicyMap, get
from castwise.dtype_policies._configs import policy_named
from castwise.dtype_policies._policy import plain_name
from castwise.rendering import Rendered
from castwise.rendering.sheet import Sheet, Table
from castwise.text.brief import brief, counted, listed
from castwise.text.parsed_files import parsed_mapping, text_in
from castwise.text.spelling import suggestion, typed_values
from castwise.text.wording import argument, quote, reword_core, word_key_error

KEEP = "keep"  # the target of arrays that are not cast
DEFAULT = "default"  # the key for floating arrays that no other key matches
DTYPE, MAP, POLICY = "dtype", "map", "policy"  # what may decide for an array


class Decision(NamedTuple):
    """The format that an array is cast to, and what decided."""

    target: str | None  # the format; None if the array is not cast
    key: str | None = None  # the key that matched; None for the default
    by: str | None = None  # "dtype", "map" or "policy"; None if nothing asks for a cast


@dataclass(frozen=True, slots=True)
class DtypeMap(Rendered):
    """A checked map; targets are names of the table, or None for "keep"."""

    default: str | None  # format of floating arrays that no key matches, None to keep them
    keys: PolicyMap  # paths and regular expressions, each with its target
    origin: str = "map"  # what to call the map in errors
    all_kinds: bool = True  # keys of policies apply to floating arrays only
    has_default: bool = True  # whether a default was given, be it None
    default_by: str = MAP  # what gave the default: "dtype", "map" or "policy"
    is_general: bool = False  # for many models, of which each has tensors for some keys only
    least_axes: int = 0  # axes longer than 1 of an array that the default applies to, at least
    keeps: Callable[[str], bool] | None = None  # by its name the default does not apply to an array

    def __repr__(self) -> str:
        default = "keep" if self.default is None else self.default
        keys = [key for key, _ in self.keys.items()]
        return brief(
            self,
            self.origin,
            f"default {default}" if self.has_default else None,
            f"{counted(len(keys), 'pattern')}: {listed(map(repr, keys))}" if keys else None,
        )

    def __sheet__(self) -> Sheet:
        """Return a table of the patterns and their formats."""
        rows = [(key, target or KEEP) for key, target in self.keys.items()]
        if self.has_default:
            rows.append((DEFAULT, self.default or KEEP))
        return [Table.of(("pattern", "format"), rows)]

    @classmethod
    def of(cls, value: object, role: str = "variable") -> DtypeMap:
        """Return the map for a dtype, a policy, the name of either, or a mapping.

        TypeError, ValueError: `value` is none of these; `role` is not one.
        """
        if role not in _ROLES:
            raise ValueError(f"role={role!r} is not valid; use one of {', '.join(_ROLES)}")
        if isinstance(value, DtypeMap):
            return value
        if isinstance(value, Mapping) and not isinstance(value, DTypePolicyMap):
            if "class_name" in value:  # a config, as Keras writes it
                return cls.from_policy(get(dict(value)), role)
            return cls.from_mapping(value, role=role)
        policy = _policy(value)
        if policy is None:
            return cls(_target(value, role), PolicyMap(), DTYPE, default_by=DTYPE)
        return cls.from_policy(policy, role)

    @classmethod
    def from_policy(cls, policy: Any, role: str = "variable") -> DtypeMap:  # noqa: ANN401  (of any library)
        """Return the map that gives floating arrays the dtype of their policy.

        ValueError: A policy quantizes; its dtype is not a format; another role.
        """
        if not isinstance(policy, DTypePolicyMap):
            target = _policy_target(policy, role)
            return cls(target, PolicyMap(), f"policy {policy.name!r}", **_OF_POLICY)
        keys = PolicyMap(policy.match, policy.on_overlap, linear=True)
        for key, value in policy.items():
            try:
                keys.insert(key, _policy_target(value, role))
            except ValueError as error:
                raise ValueError(word_key_error("key " + quote(key), error)) from error
        default = _policy_target(policy.default_policy, role)
        return cls(default, keys, "policy map", **_OF_POLICY)

    @classmethod
    def from_policy_argument(cls, policy: Any, role: str = "variable") -> DtypeMap:  # noqa: ANN401  (of any library)
        """Return the map for a policy, its name, its config, or a `.json` file with the config.

        ValueError: There is no such policy, or the file does not hold one. OSError: No such file.
        """
        path = Path(policy) if isinstance(policy, str | os.PathLike) else None
        if path is None or path.suffix.lower() != _CONFIG_SUFFIX:
            if isinstance(policy, os.PathLike) or (path is not None and path.exists()):
                raise ValueError(
                    argument("policy", str(policy)) + ": a file with a policy is a .json file"
                )
            return cls.of(get(policy), role)
        text = text_in(path)
        try:
            config = get(json.loads(text))
        except KeyError as error:
            raise ValueError(f"{path} holds no policy's config: it has no {error}") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} holds no policy's config: {error}") from error
        return cls.of(config, role)

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], origin: str = "map", role: str = "variable"
    ) -> DtypeMap:
        """Check a mapping of patterns (and `default`) to dtypes, or policies.

        ValueError: A key is not a regular expression, or is "default", spelled wrong.
        TypeError: A value is not a format. The message has the key.
        """
        default: str | None = None
        keys = PolicyMap(linear=True)
        for key, value in mapping.items():
            if not isinstance(key, str):
                raise TypeError(f"{origin}: key {key!r} is not a str; keys are regular expressions")
            if isinstance(value, Mapping):
                raise TypeError(
                    f"{origin}: key " + quote(key) + " holds a table, not a format; "
                    "in TOML, put a pattern with dots in quotes"
                )
            try:
                target = _target(value, role)
            except TypeError as error:
                likely = suggestion(value, [KEEP]).rstrip().capitalize()
                reason = " ".join(filter(None, [str(error).removeprefix("dtype="), likely]))
                raise TypeError(
                    f"{origin}: key " + quote(key) + ": " + reword_core(reason)
                ) from error
            if key == DEFAULT:
                default = target
            elif _is_like_default(key):
                raise ValueError(
                    f"{origin}: key " + quote(key) + f": did you mean {DEFAULT!r}? "
                    f"For an array of that name, write '({key})'"
                )
            else:
                try:
                    keys.insert(key, target)
                except ValueError as error:
                    raise ValueError(
                        word_key_error(f"{origin}: key " + quote(key), error)
                    ) from error
        return cls(default, keys, origin, has_default=DEFAULT in mapping)

    @classmethod
    def from_file(cls, path: Path) -> DtypeMap:
        """Read a map from a `.json` or `.toml` file.

        ValueError, TypeError: As `from_mapping`; or it is no such file, or has a key twice.
        """
        return cls.from_mapping(mapping_in(path), str(path))

    def with_default(self, dtype: object) -> DtypeMap:
        """Return the map with a dtype as the default, which it must not have yet.

        ValueError: The map has a default. TypeError: `dtype` is not a format.
        """
        if self.has_default:
            raise ValueError(
                f"{self.origin} has a {DEFAULT!r}, and "
                + argument("dtype", dtype)
                + " is another; leave one out"
            )
        target = _target(dtype, _ROLES[0])
        return replace(self, default=target, default_by=DTYPE, has_default=True)

    def decide(self, name: str, floating: bool, shape: Sequence[int] | None = None) -> Decision:
        """Return the target of an array: that of the key that matches its name, else the default.

        The default applies to floating arrays only; with `least_axes`, given their shape, to those
        that have as many axes. So does a key with a format of floats that is a pattern.

        ValueError: Several keys match; the message has them all.
        """
        if not floating and not self.all_kinds:
            return Decision(None)
        try:
            match = self.keys.find(name)
        except ValueError as error:
            # The keys of a mapping have no order to choose by, as those of policies may have.
            text = str(error).replace(_CHOICE, "") if self.all_kinds else str(error)
            raise ValueError(f"{self.origin}: {text}") from error
        if match is None:
            # One number per channel has one axis longer than 1, however it is stored.
            is_short = shape is not None and sum(n > 1 for n in shape) < self.least_axes
            if floating and (is_short or (self.keeps is not None and self.keeps(name))):
                return Decision(None, None, MAP)
            target = self.default if floating else None
            return Decision(target, None, None if target is None else self.default_by)
        key, target = match
        if not floating and _is_float(target) and not is_whole_name(key, name):
            return Decision(None)
        return Decision(target, key, MAP if self.all_kinds else POLICY)


def is_whole_name(key: str, name: str) -> bool:
    """Return True if a key that matches a name is that name, be it with escaped characters."""
    return name in (key, re.sub(_ESCAPED, r"\1", key))


def mapping_in(path: Path) -> dict[str, Any]:
    """Read the mapping in a `.json` or `.toml` file; raises as `DtypeMap.from_file`."""
    mapping = parsed_mapping(path, "pattern to format")
    return typed_values(mapping, f"{path}")


def _is_float(target: str | None) -> bool:
    return target is not None and finfo(target).kind == "float"


def _is_like_default(key: str) -> bool:
    """Return True if one letter of "default" is wrong, or two are exchanged; case is ignored."""
    name, default = key.lower(), DEFAULT
    if abs(len(name) - len(default)) > 1:
        return False
    for _ in range(2):  # cut off what both begin and end with
        same = len([*takewhile(lambda pair: pair[0] == pair[1], zip(name, default, strict=False))])
        name, default = name[same:][::-1], default[same:][::-1]
    return max(len(name), len(default)) <= 1 or sorted(name) == sorted(default)


_OF_POLICY: dict[str, Any] = {"all_kinds": False, "default_by": POLICY}
_ROLES = ("variable", "compute")
_CONFIG_SUFFIX = ".json"
_CHOICE = ", or choose by on_overlap"
_ESCAPED = r"\\(\W)"
"""A character that an expression takes as itself."""


def _policy(value: object) -> Any:  # noqa: ANN401  (of any library)
    """Return the dtype policy that a value is or names, of any library; None for other values."""
    if all(hasattr(value, f"{role}_dtype") for role in _ROLES):
        return value
    if not isinstance(value, str):
        return None
    try:
        finfo(value)
    except TypeError:
        try:
            return policy_named(value)
        except ValueError:
            return None
    return None


def _target(value: Any, role: str) -> str | None:  # noqa: ANN401  (of any library)
    if isinstance(value, str) and value == KEEP:
        return None
    policy = _policy(value)
    if policy is not None:
        return _policy_target(policy, role)
    try:
        row = finfo(value)
    except TypeError as error:
        if isinstance(value, str):
            raise TypeError(f"{error} Nor is it the name of a dtype policy.") from error
        raise
    if row.dtype is None:
        raise TypeError(f"{row.name} has no numpy dtype in the installed ml_dtypes")
    name: str = row.name
    return name


def _policy_target(policy: Any, role: str) -> str | None:  # noqa: ANN401  (of any library)
    if getattr(policy, "quantization_mode", None) is not None:
        raise ValueError(
            argument("policy", policy.name) + " quantizes, which a cast does not; give its source, "
            f"{plain_name(policy)!r}, or a dtype"
        )
    dtype = getattr(policy, f"{role}_dtype")
    try:
        return _target(dtype, role)
    except TypeError as error:
        raise ValueError(
            argument("policy", policy.name)
            + " is not for arrays of numbers: "
            + reword_core(str(error))
        ) from error
