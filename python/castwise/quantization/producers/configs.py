"""What configurations and metadata state of quantized weights: where sections are, and whose.

Files are untrusted: a value of another type than its producer writes counts as if it were not
there.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from castwise.quantization.producers._module_entries import named_method, tensors_of
from castwise.quantization.producers.keras import KERAS
from castwise.quantization.producers.producer import Section
from castwise.quantization.producers.registry import (
    CONFIGS,
    OWN_FILES,
    OWN_SECTIONS,
    PRODUCERS,
    owner_of_form,
    quantizes_inputs,
    reader_of,
    undecodable_section,
    unnamed_method,
)
from castwise.quantization.producers.stated import (
    CONFIG,
    METHOD_KEYS,
    SECTIONS,
    STATED_KEY,
    Describe,
    no_statements,
    parsed_object,
)

# The name among these of what `keras_layers.stated_layers` returns.
MODEL = "model.keras"

# How deep the parts of a model may be nested.
MAX_DEPTH = 8


class Statement(NamedTuple):
    """That a model is quantized, and how."""

    origin: str  # the file, or the key of the metadata
    method: str  # the name of the method there
    # Names of the recipes that it may mean; none if castwise does not know the method.
    recipes: tuple[str, ...]
    describe: Describe  # what it says of one weight
    section: Mapping[str, Any]  # the text as parsed


def statements(configs: Mapping[str, Any], metadata: Mapping[str, str]) -> list[Statement]:
    """List what is stated in parsed configurations, by name of the file, and in metadata."""
    of_files = [
        _statement(name, method, section)
        for name in CONFIGS
        for method, section in _sections(name, configs.get(name), 0)
    ]
    if layers := configs.get(MODEL):
        name = KERAS.name
        of_files.append(Statement(CONFIG, name, (name,), no_statements(layers), layers))
    return [
        *_described_in(metadata, is_first=True),
        *of_files,
        *_described_in(metadata, is_first=False),
        *_in_metadata(metadata),
    ]


def _statement(origin: str, method: str, section: Mapping[str, Any]) -> Statement:
    return Statement(
        origin,
        named_method(method, section),
        recipes_of(method, section),
        reader_of(tensors_of(method, section))(section),
        section,
    )


def undecodable(statement: Statement) -> str | None:
    """Say what stands in the way of decoding any weight of a method, beside its scheme."""
    for key in ("rotation_config", "spinquant_config"):
        if statement.section.get(key):
            return f"its weights are rotated ({key}), which castwise cannot undo"
    section = _inner_section(statement)
    return undecodable_section(tensors_of(statement.method, section), section)


def has_dynamic_inputs(statement: Statement) -> bool:
    """Return True if a statement says that inputs are quantized while the model runs."""
    section = _inner_section(statement)
    return quantizes_inputs(tensors_of(statement.method, section), section)


def _inner_section(statement: Statement) -> Mapping[str, Any]:
    section = statement.section.get(STATED_KEY, statement.section)
    return section if isinstance(section, dict) else {}


def recipes_of(method: str, section: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the recipes that a method may mean, given the section that states it."""
    tensors = tensors_of(method, section)
    return tuple(
        producer.name for producer in PRODUCERS if tensors in producer.configuration.readers
    )


def _sections(name: str, config: object, depth: int) -> Iterator[Section]:
    """Find each section that states a method, also those of a model's parts."""
    if not isinstance(config, dict) or depth > MAX_DEPTH:
        return
    if name in OWN_FILES:
        if (section := OWN_FILES[name](config)) is not None:
            yield section
        return
    for key, _ in OWN_SECTIONS:
        section = config.get(key)
        if isinstance(section, dict) and (producer := owner_of_form(section)):
            yield producer, section
            return
    for key, value in config.items():
        if not isinstance(value, dict):
            continue
        if key not in SECTIONS:
            yield from _sections(name, value, depth + 1)
        elif method := method_of(key, value):
            yield method, value


def method_of(key: str, section: Mapping[str, Any]) -> str | None:
    """Return what a section names as its method; None if it quantizes nothing."""
    for name in METHOD_KEYS:
        if isinstance(method := section.get(name), str):
            return method
    return unnamed_method(key, section) or ("unnamed" if section else None)


def _described_in(metadata: Mapping[str, str], *, is_first: bool) -> Iterator[Statement]:
    """Find what metadata state as one producer alone does, before all else or after it."""
    for producer in PRODUCERS:
        name, configuration = producer.name, producer.configuration
        if configuration.metadata_reader is None or configuration.metadata_key not in metadata:
            continue
        section = configuration.metadata_section(metadata)
        if section is not None and producer.needs_metadata == is_first:
            describe = configuration.metadata_reader(section)
            yield Statement("metadata", name, (name,), describe, section)


def _in_metadata(metadata: Mapping[str, str]) -> Iterator[Statement]:
    if STATED_KEY in metadata:
        config = {STATED_KEY: parsed_object(metadata[STATED_KEY])}
        for method, section in _sections("metadata", config, 0):
            yield _statement("metadata", method, section)


# Sections of one configuration that state differently how the same weights are stored. That of a
# model holds for its parts (`text_config`, `vision_config`) as well, of which loaders read one or
# the other; those of two parts contradict each other only where a weight may belong to both.

_ALL = (*SECTIONS, "quantization")
# Keys that list what is not quantized, whose names may begin with the part, and that tell of the
# making of the model.
_OF_NO_WEIGHT = frozenset(
    (
        *("ignore", "modules_to_not_convert", "exclude_modules", "llm_int8_skip_modules"),
        *("quantization_status", "global_compression_ratio", "producer"),
    )
)


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
    sections = [*_stated_places(configs.get(CONFIG), ())]
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


def _stated_places(
    config: object, path: tuple[str, ...]
) -> Iterator[tuple[_Place, frozenset[str]]]:
    """Find each section, by the keys on the way to it, with the recipes that it may mean."""
    if not isinstance(config, dict) or len(path) > MAX_DEPTH:
        return
    for key, value in config.items():
        if not isinstance(value, dict):
            continue
        place = (*path, key)
        if key not in _ALL:
            yield from _stated_places(value, place)
        elif producer := owner_of_form(value):
            yield (place, value), frozenset((producer,))
        elif key in SECTIONS and (method := method_of(key, value)):
            yield (place, value), frozenset(recipes_of(method, value))
