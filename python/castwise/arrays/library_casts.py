"""How other libraries cast: `library_casts.toml`, of which `like=` and a page are made."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo, formats
from castwise._options import Like
from castwise.arrays.recipe import Recipe
from castwise.text.spelling import suggestion

PLAIN = Recipe(rounding=None)  # a cast of castwise without options

# The packages that `like=` takes for a library, beside its name.
ALIASES: Mapping[Like, Like] = {"onnxruntime": "onnx"}

# The options of `cast` that a library decides, or does not have.
DECIDED = ("rounding", "overflow", "nan", "scale", "seed")

_TABLE = Path(__file__).with_name("library_casts.toml")
_REFUSED_VALUE = r".* at flat index \d+( is beyond the range of \w+)?"
"""The beginning of what `cast` says of a value."""


class Rule(NamedTuple):
    """How a library casts some formats to some others: a line of the table."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    recipe: Recipe | None  # None where no options give the library's bits
    reason: str = ""  # why the recipe raises, or why there is none
    open_range: tuple[float, float] | None = None  # magnitudes that have no single answer


class Library(NamedTuple):
    """How one library casts; the first rule about a pair holds."""

    name: Like
    call: str  # the cast that is meant
    formats: tuple[str, ...]
    rules: tuple[Rule, ...]
    lacks: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()  # sources and targets

    def rule(self, source: str, target: str) -> Rule | None:
        """Return the rule about a pair of formats; None if the library does not cast it."""
        if source not in self.formats or target not in self.formats:
            return None
        plain = Rule((source,), (target,), PLAIN)
        if source == target:
            return plain
        if any(
            _among(source, kind) and _among(target, target_kind) for kind, target_kind in self.lacks
        ):
            return None
        rules = (r for r in self.rules if _among(source, r.sources) and _among(target, r.targets))
        return next(rules, plain)


def _among(name: str, group: tuple[str, ...]) -> bool:
    return name in group or finfo(name).kind in group


@cache
def libraries() -> tuple[Library, ...]:
    """Return all, in the order of the page."""
    import tomllib  # noqa: PLC0415  (a millisecond, for `like=` alone)

    table = tomllib.loads(_TABLE.read_text("utf-8"))

    def names_in(text: str) -> Iterator[str]:
        for word in text.split():
            if word == "*":
                yield from (name for name in formats() if finfo(name).dtype is not None)
            elif word in table["groups"]:
                yield from names_in(table["groups"][word])
            else:
                yield word

    def formats_in(text: str) -> tuple[str, ...]:
        words = text.split()
        exclusions = set(names_in(" ".join(w[1:] for w in words if w[0] == "-")))
        words_of_formats = " ".join(w for w in words if w[0] != "-")
        return tuple(name for name in names_in(words_of_formats) if name not in exclusions)

    def pair_of(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        source, _, target = text.partition(" > ")
        return formats_in(source), formats_in(target)

    def rules_of(row: Mapping[str, str]) -> Iterator[Rule]:
        common = table["common"][row["common"]] if "common" in row else ""
        for line in (row["rules"] + common).splitlines():
            pair, recipe, reason, *_ = (*line.split(" | "), "", "")
            fields: dict[str, Any] = dict(text.split("=") for text in recipe.split() if "=" in text)
            yield Rule(
                *pair_of(pair),
                None if recipe == "none" else Recipe(**{"rounding": None, **fields}),
                table["reasons"][reason] if reason else "",
                tuple(bounds) if (bounds := table["unsettled"].get(reason)) else None,
            )

    return tuple(
        Library(
            name,
            row["call"],
            formats_in(row["formats"]),
            tuple(rules_of(row)),
            tuple(map(pair_of, row.get("lacks", "").splitlines())),
        )
        for name, row in table["libraries"].items()
    )


def cast_like(
    array: NDArray[Any],
    source: str,
    dtype: Any,  # noqa: ANN401
    target: str,
    *,
    like: str,
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    for name in DECIDED:
        if options.get(name) is not None:
            raise TypeError(f"{name}= does not go with like={like!r}, which decides it; give one.")
    rule = library_named(like).rule(source, target)
    if rule is None:
        raise TypeError(
            f"like={like!r}: {like} does not cast {source} to {target}; leave like out."
        )
    recipe = rule.recipe
    if recipe is None:
        raise ValueError(
            f"like={like!r}: no options give what {like} gives for {source} to {target}, because "
            f"{rule.reason}; leave like out."
        )
    if options.get("report") and not recipe.is_reported(target):
        raise ValueError(
            f"report=True: with like={like!r}, {source} to {target} is not one rounding; leave "
            "report or like out."
        )
    if rule.open_range is not None:
        _refuse_unsettled(array, like, rule)
    try:
        return recipe.cast(array, dtype, **options)
    except (OverflowError, ValueError) as error:
        value = re.match(_REFUSED_VALUE, str(error))
        if not rule.reason or value is None:
            raise
        raise type(error)(
            f"{value[0]}, and no options give what {like} gives: {rule.reason}. Leave like= out, "
            "and choose the result by overflow= and nan=."
        ) from error


def _refuse_unsettled(array: NDArray[Any], like: str, rule: Rule) -> None:
    """Raise ValueError for values for which a library has no single answer."""
    low, high = rule.open_range or (0.0, 0.0)
    numbers = np.ascontiguousarray(array).view(array.real.dtype).ravel()
    magnitudes = np.abs(numbers)
    places = np.flatnonzero((magnitudes >= low) & (magnitudes < high))
    if places.size:
        place = int(places[0])
        index = place * array.real.itemsize // array.itemsize
        raise ValueError(
            f"value {numbers[place]} at flat index {index}, and no options give what {like} "
            f"gives: {rule.reason}. Leave like= out."
        )


def library_named(name: object) -> Library:
    """Return a library by the name that `like=` takes; ValueError lists them."""
    by_name = _by_name()
    if not isinstance(name, str) or name not in by_name:
        raise ValueError(
            f"like={name!r} is not known; {suggestion(name, by_name)}use one of "
            f"{', '.join(by_name)}."
        )
    return by_name[name]


@cache
def _by_name() -> dict[str, Library]:
    by_name: dict[str, Library] = {library.name: library for library in libraries()}
    return by_name | {alias: by_name[name] for alias, name in ALIASES.items()}
