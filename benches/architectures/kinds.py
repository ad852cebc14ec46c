"""Which parts the modules under a number have, and what of a configuration counts such modules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

Sets = frozenset[frozenset[str]]
"""The sets of parts that the modules of one pattern have in one configuration."""

# Names of whole numbers in a configuration that may count layers or experts.
_COUNT = re.compile(r"layer|block|depth|expert|groups")


def layers_of(labels: Mapping[str, str]) -> tuple[dict[str, Sets], dict[str, int]]:
    """Return the sets of parts of the modules under a number, and the lengths of their lists.

    `labels` are the normalized names of parameters by their names. The length of lists of one name
    is 0 if they differ in length, or have gaps.
    """
    parts: dict[tuple[str, str], set[str]] = {}
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for parameter, row in labels.items():
        name, label = parameter, row
        while "#" in (outer_label := label.rpartition(".")[0]):
            name, part = name.rpartition(".")[0], label[len(outer_label) + 1 :]
            label = outer_label
            if (name, label) in parts:
                parts[name, label].add(part)
                break
            parts[name, label] = {part}
            if label.endswith("#"):
                stem = name.rstrip("0123456789")
                numbers[stem, label].add(int(name[len(stem) :]))
    sets: dict[str, set[frozenset[str]]] = defaultdict(set)
    for (_, pattern), each in parts.items():
        sets[pattern].add(frozenset(each))
    lengths: dict[str, set[int]] = defaultdict(set)
    for (_, pattern), found in numbers.items():
        lengths[pattern].add(len(found) if len(found) == max(found) + 1 else 0)
    return (
        {pattern: frozenset(each) for pattern, each in sets.items()},
        {pattern: found.pop() if len(found) == 1 else 0 for pattern, found in lengths.items()},
    )


def counts(
    config: Mapping[str, Any], aliases: Mapping[str, Mapping[str, str]], path: str = ""
) -> dict[str, int]:
    """Return the numbers of a configuration that may count layers or experts, by their paths.

    `aliases` are other names of values by the paths of their parts; `a|b` is a name with another.
    """
    found: dict[str, int] = {}
    prefix = f"{path}." if path else ""
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= counts(value, aliases, f"{prefix}{name}")
        elif type(value) is int and value > 0 and _COUNT.search(str(name)):
            others = [other for other, same in aliases.get(path, {}).items() if same == name]
            found[prefix + "|".join((name, *sorted(others)))] = value
    return found


def keys_of_lists(
    lengths: Mapping[str, int], numbers: Mapping[str, int]
) -> dict[str, frozenset[str]]:
    """Return which numbers of a configuration are the lengths of lists, by the lists' names.

    "" is among them, but for lists of one name that differ in length, or have gaps.
    """
    paths: dict[int, set[str]] = defaultdict(set)
    for path, number in numbers.items():
        paths[number].add(path)
    return {
        pattern: frozenset(("", *paths.get(length, ()))) if length else frozenset()
        for pattern, length in lengths.items()
    }


def kinds_of(configurations: Iterable[Sets]) -> Sets:
    """Return which parts modules have of those that some of a configuration have, and some not.

    What a flag brings to all modules is in none; no set is there if all modules are alike.
    """
    varying = frozenset[str]().union(
        *(frozenset.union(*sets) - frozenset.intersection(*sets) for sets in configurations)
    )
    return frozenset(each & varying for sets in configurations for each in sets if varying)


def common_keys(parts: Iterable[Mapping[str, frozenset[str]]]) -> dict[str, frozenset[str]]:
    """Return the keys of lists that are their lengths in every configuration that has the lists."""
    common: dict[str, frozenset[str]] = {}
    for part in parts:
        for pattern, keys in part.items():
            common[pattern] = common.get(pattern, keys) & keys
    return common


def joined_sets(parts: Iterable[Mapping[str, frozenset[Sets]]]) -> dict[str, frozenset[Sets]]:
    """Return the sets of parts in each of several configurations."""
    joined: dict[str, frozenset[Sets]] = {}
    for part in parts:
        for pattern, sets in part.items():
            joined[pattern] = joined.get(pattern, frozenset()) | sets
    return joined


def other_counts(
    config: Mapping[str, Any], numbers: Mapping[str, int], paths: Iterable[str]
) -> dict[str, Any]:
    """Return arguments for a configuration in which each count of some has a value of its own.

    What chooses the type of a part is among them.
    """
    used = {*numbers.values()}
    arguments: dict[str, Any] = {}
    for path in sorted({*paths} & {*numbers}):
        value = next(n for n in count(numbers[path] + 1) if n not in used)
        used.add(value)
        *outer, name = path.partition("|")[0].split(".")
        inner, part = arguments, config
        for step in outer:
            part = part[step]
            inner = inner.setdefault(step, {})
            if "model_type" in part:
                inner["model_type"] = part["model_type"]
        inner[name] = value
    return arguments


def list_word(keys: frozenset[str]) -> str:
    """Return the word of the table that says what is the length of a list.

    Of two numbers that are always equal in what builds, nobody knows which one it is.
    """
    if not keys:
        return "*"
    paths = keys - {""}
    return f"={min(paths) if len(paths) == 1 else ''}"
