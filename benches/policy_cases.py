"""What policies.py times: statements about one policy, maps, and paths to look up in them.

A statement runs in the namespace of either package: both have the same names. The keys of a map are
numbered and each has a policy of its own, so what is right for a path is known from how it was
made, and whoever answers can be judged.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from timeit import Timer
from types import ModuleType
from typing import Any

from measure import Call, block

NUMBERS = 10_000
DEFAULT = "float32"
LOOKUPS = ("hit", "miss")


@dataclass(frozen=True)
class Effort:
    """How much to time: sizes of maps, paths, turns, how long all turns of one row may last."""

    sizes: tuple[int, ...] = (10, 100, 1_000, 10_000)
    paths: int = 10_000
    repeats: int = 7
    seconds: float = 1.0
    imports: int = 7


QUICK = Effort(sizes=(10, 1_000), paths=500, repeats=3, seconds=0.03, imports=0)

POLICY = "mixed_bfloat16"
STATEMENTS = (
    "DTypePolicy('float32')",
    "DTypePolicy('mixed_bfloat16')",
    "get('mixed_float16')",
    "get('int8_from_mixed_bfloat16')",
    "get(None)",
    "policy.compute_dtype",
    "policy.variable_dtype",
)


@dataclass(frozen=True)
class Side:
    """A package, by its module of policies."""

    name: str
    policies: ModuleType

    def namespace(self) -> dict[str, Any]:
        """Make the globals of a statement."""
        return {**vars(self.policies), "policy": self.policies.DTypePolicy(POLICY)}


@cache
def sides() -> tuple[Side, Side]:
    """Import castwise and Keras, in this order; Keras on numpy alone, the least that it can."""
    os.environ.setdefault("KERAS_BACKEND", "numpy")
    names = ("castwise", "keras")
    own, other = (Side(name, importlib.import_module(f"{name}.dtype_policies")) for name in names)
    return own, other


def answer(value: Any) -> object:
    """What both sides must agree on: a text itself, of a policy all that it says."""
    if isinstance(value, str):
        return value
    words = (value.name, value.compute_dtype, value.variable_dtype, value.quantization_mode)
    return type(value).__name__, words


@dataclass(frozen=True)
class Keys:
    """A kind of keys: key `number`, a path that it matches, and one that it just does not match.

    Paths have a number of their own beside the key's, so that as many differ as are wanted; only
    "literal" has a single path per key.
    """

    name: str
    key: Callable[[int], str]
    hit: Callable[[int, int], str]
    miss: Callable[[int, int], str]

    def policies(self, size: int) -> dict[str, str]:
        """Keys of a map, each with the name of its policy."""
        return {self.key(number): policy_name(number) for number in numbers(size)}

    def paths(self, size: int, case: str, count: int) -> dict[str, str]:
        """Up to `count` paths, each key's in turn, and the names of the policies they get."""
        places = ((numbers(size)[path % size], path) for path in range(count))
        if case == "hit":
            return {self.hit(number, path): policy_name(number) for number, path in places}
        return {self.miss(number, path): DEFAULT for number, path in places}


def numbers(size: int) -> range:
    """Of all numbers the last ones: then the paths of a small map are as long as a large one's."""
    return range(NUMBERS - size, NUMBERS)


def policy_name(number: int) -> str:
    """Name the policy of a key, which no other key has."""
    return f"int4/{number + 1}_from_float32"


# A key, a path that it matches, and one of which most would match.
FORMS = (
    ("encoder/layer_{n}/.*", "encoder/layer_{n}/dense_{p}", "encoder/layer-{n}/dense_{p}"),
    (".*/block_{n}/dense", "tower_{p}/block_{n}/dense", "tower_{p}/block_{n}/dense/kernel"),
    (
        r"decoder_{n}/(query|key|value)/kernel:\d+",
        "decoder_{n}/query/kernel:{p}",
        "decoder_{n}/output/kernel:{p}",
    ),
    (r"stage{n}/conv_\d+/bn", "stage{n}/conv_{p}/bn", "stage{n}/conv_x{p}/bn"),
    ("(?i)Head_{n}/.*", "hEAD_{n}/logits_{p}", "heads_{n}/logits_{p}"),
)


def form(number: int, part: int, path: int = 0) -> str:
    """Write out a part of the form that a number has."""
    return FORMS[number % len(FORMS)][part].format(n=number, p=path)


def letters_and_digits(number: int) -> tuple[int, int]:
    """How many of each: shuffled, so that a small map has short and long ones as a large one."""
    letters, digits = divmod(number * 7919 % NUMBERS, 100)
    return letters + 1, digits + 5


def counted(number: int) -> str:
    """Write a key that tells nothing of a path but how many letters and digits it has."""
    letters, digits = letters_and_digits(number)
    return rf"[a-z]{{{letters}}}\d{{{digits}}}"


def counted_path(number: int, path: int) -> str:
    """Write a path that `counted` matches."""
    letters, digits = letters_and_digits(number)
    return f"{'x' * letters}{path:0{digits}}"


KEYS = (
    Keys(
        name="mixed",
        key=lambda number: form(number, 0),
        hit=lambda number, path: form(number, 1, path),
        miss=lambda number, path: form(number, 2, path),
    ),
    Keys(
        name="literal",
        key=lambda number: f"encoder/layer_{number}/attention/query",
        hit=lambda number, _: f"encoder/layer_{number}/attention/query",
        miss=lambda number, path: f"encoder/layer_{number}/attention/query_{path}",
    ),
    Keys(
        name="look-around",
        key=lambda number: f"encoder/layer_{number}/(?!norm).*",
        hit=lambda number, path: f"encoder/layer_{number}/dense_{path}",
        miss=lambda number, path: f"encoder/layer_{number}/norm_{path}",
    ),
    Keys(
        name="no literal",
        key=counted,
        hit=counted_path,
        miss=lambda number, path: f"{counted_path(number, path)}x",
    ),
)


class Builder:
    """Makes one side's map of some keys, setting one after the other."""

    paths: Sequence[str] = ()

    def __init__(self, side: Side, keys: Keys, size: int) -> None:
        self.keys, self.size = keys, size
        self.new = partial(side.policies.DTypePolicyMap, DEFAULT)
        # Policies, not names: making them has rows of its own.
        names = keys.policies(size)
        self.policies = {key: side.policies.get(name) for key, name in names.items()}
        [(self.path, self.right)] = keys.paths(size, "hit", 1).items()

    def build(self, path: str | None = None) -> Any:
        """Make the map; with a path, look it up and return what it has."""
        policy_map = self.new()
        for key, policy in self.policies.items():
            policy_map[key] = policy
        return policy_map if path is None else policy_map[path]

    def prepare(self, path: str | None = None) -> Call:
        """Make the call to time, which finds no compiled pattern left over from another map."""
        re.purge()
        return partial(self.build, path)

    def wrong(self) -> int:
        """Whether keys are missing, or the first lookup finds another policy."""
        return int(len(self.build()) != self.size or self.build(self.path).name != self.right)


class Lookups:
    """Paths to look up in one side's map: all, or as many as the time allows, evenly spread.

    Where there are fewer than asked for, `again` makes rounds of them.
    """

    def __init__(self, builder: Builder, case: str, effort: Effort) -> None:
        self.keys, self.size, self.build = builder.keys, builder.size, builder.build
        self.right = self.keys.paths(self.size, case, effort.paths)
        self.map = self.indexed()
        every = list(self.right)
        turn_ns = effort.seconds * 1e9 / effort.repeats
        count, spent = 0, 0
        while count < len(every) and spent < turn_ns:
            spent += block(partial(self.map.__getitem__, every[count]), 1)
            count += 1
        self.paths = [every[place * len(every) // count] for place in range(count)]
        self.rounds = max(1, min(effort.paths // count, int(turn_ns / spent)))
        self.again = partial(self.loop(self.map, self.paths), self.rounds)

    def indexed(self) -> Any:
        """Make the map, and have it do what it put off until the first lookup."""
        policy_map = self.build()
        policy_map.get("index")
        return policy_map

    def loop(self, policy_map: Any, paths: list[str]) -> Callable[[int], object]:
        """Make a call that looks up every path so many times."""
        names = {"policy_map": policy_map, "paths": paths}
        return Timer("for path in paths: policy_map[path]", globals=names).timeit

    def first_time(self) -> Call:
        """Make a call for every path, in a map that never saw it, as a text never hashed before."""
        texts = [path[:1] + path[1:] for path in self.paths]
        return partial(self.loop(self.indexed(), texts), 1)

    def wrong(self) -> int:
        """Count the paths with another policy than the right one."""
        return sum(self.map[path].name != self.right[path] for path in self.paths)
