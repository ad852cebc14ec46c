"""What configurations and metadata state of quantised weights: where sections are, and whose.

Files are untrusted: a value of another type than its producer writes counts as if it were not
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from castwise.quantization.producers._module_entries import named_method, tensors_of
from castwise.quantization.producers.keras import KERAS
from castwise.quantization.producers.producer import Section
from castwise.quantization.producers.registry import (
    CONFIGS,
    OWN_SECTIONS,
    PRODUCERS,
    file_section,
    is_own_file,
    owner_of_form,
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

MODEL = "model.keras"
"""The name among these of what `keras_layers.stated_layers` returns."""

MAX_DEPTH = 8
"""How deep the parts of a model may be nested."""


@dataclass(frozen=True, slots=True)
class Statement:
    """That a model is quantised, and how."""

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
    of_tensors = [*_described_in(metadata)]
    return [
        *(statement for is_before, statement in of_tensors if is_before),
        *of_files,
        *(statement for is_before, statement in of_tensors if not is_before),
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
    section = statement.section.get(STATED_KEY, statement.section)
    if not isinstance(section, dict):
        return None
    return undecodable_section(tensors_of(statement.method, section), section)


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
    if is_own_file(name):
        if (section := file_section(name, config)) is not None:
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
    """Return what a section names as its method; None if it quantises nothing."""
    for name in METHOD_KEYS:
        if isinstance(method := section.get(name), str):
            return method
    return unnamed_method(key, section) or ("unnamed" if section else None)


def _described_in(metadata: Mapping[str, str]) -> Iterator[tuple[bool, Statement]]:
    """Find what metadata state as one producer alone does, and whether it counts before all."""
    for producer in PRODUCERS:
        name, configuration = producer.name, producer.configuration
        if configuration.metadata_section is None or configuration.metadata_reader is None:
            continue
        if (section := configuration.metadata_section(metadata)) is not None:
            describe = configuration.metadata_reader(section)
            statement = Statement("metadata", name, (name,), describe, section)
            yield configuration.metadata_first, statement


def _in_metadata(metadata: Mapping[str, str]) -> Iterator[Statement]:
    config = {STATED_KEY: parsed_object(metadata.get(STATED_KEY))}
    for method, section in _sections("metadata", config, 0):
        yield _statement("metadata", method, section)
