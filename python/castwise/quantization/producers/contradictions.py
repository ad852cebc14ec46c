"""Sections of one configuration that state differently how the same weights are stored.

A model and its parts (`text_config`, `vision_config`) may each have a section. That of the model
holds for its parts as well, of which loaders read one or the other; those of two parts contradict
each other only where a weight may belong to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from castwise.quantization.producers.configs import MAX_DEPTH, method_of, recipes_of
from castwise.quantization.producers.registry import owner_of_form
from castwise.quantization.producers.stated import CONFIG, SECTIONS

_ALL = (*SECTIONS, "quantization")
_OF_NO_WEIGHT = frozenset(
    (
        *("ignore", "modules_to_not_convert", "exclude_modules", "llm_int8_skip_modules"),
        *("quantization_status", "global_compression_ratio", "producer"),
    )
)
"""Keys that list what is not quantised, whose names may begin with the part, and that tell of the
making of the model."""


class Contradiction(NamedTuple):
    """Two sections that differ."""

    # Sets of recipes: they are about a weight that is stored as by one of each set.
    recipes: tuple[frozenset[str], ...]
    text: str  # what errors say of them

    def is_about(self, recipes: Iterable[str]) -> bool:
        """Return True for a weight that is stored as by one of these recipes."""
        return not any(group.isdisjoint(recipes) for group in self.recipes)


def contradictions(configs: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Find the sections of parsed configurations that differ in how weights are stored."""
    sections = [*_sections(configs.get(CONFIG), ())]
    for (place, recipes), (second_place, second_recipes) in combinations(sections, 2):
        values, second_values = (
            {key: value for key, value in section.items() if key not in _OF_NO_WEIGHT}
            for _, section in (place, second_place)
        )
        keys = [
            key for key in {**values, **second_values} if values.get(key) != second_values.get(key)
        ]
        if keys:
            (*first_part, _), (*second_part, _) = place[0], second_place[0]
            places = " and ".join(".".join(path) for path, _ in (place, second_place))
            depth = min(len(first_part), len(second_part))
            is_inside = first_part[:depth] == second_part[:depth]
            yield Contradiction(
                (recipes | second_recipes,) if is_inside else (recipes, second_recipes),
                f"{CONFIG} states twice how it is stored, and differently in {keys[0]!r} "
                f"({places}); remove the one that does not hold",
            )


_Place = tuple[tuple[str, ...], Mapping[str, Any]]


def _sections(config: object, path: tuple[str, ...]) -> Iterator[tuple[_Place, frozenset[str]]]:
    """Find each section, by the keys on the way to it, with the recipes that it may mean."""
    if not isinstance(config, dict) or len(path) > MAX_DEPTH:
        return
    for key, value in config.items():
        if not isinstance(value, dict):
            continue
        place = (*path, key)
        if key not in _ALL:
            yield from _sections(value, place)
        elif producer := owner_of_form(value):
            yield (place, value), frozenset((producer,))
        elif key in SECTIONS and (method := method_of(key, value)):
            yield (place, value), frozenset(recipes_of(method, value))
