"""The producers, each of which has a module: what its tensors are, and what states them.

A new producer is a module beside this one, and its name in the tuples here that it belongs to.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from castwise.quantization.producers.awq_gptq import AWQ, GPTQ
from castwise.quantization.producers.bitsandbytes import BITSANDBYTES
from castwise.quantization.producers.comfy import COMFY
from castwise.quantization.producers.compressed_tensors import COMPRESSED_TENSORS
from castwise.quantization.producers.deepseek import DEEPSEEK, DEEPSEEK_V4
from castwise.quantization.producers.float8 import AUTOFP8, FBGEMM, MISTRAL
from castwise.quantization.producers.gguf import GGUF, block_decoder
from castwise.quantization.producers.gpt_oss import GPT_OSS
from castwise.quantization.producers.keras import KERAS
from castwise.quantization.producers.layouts import Layout
from castwise.quantization.producers.mlx import MLX
from castwise.quantization.producers.modelopt import MODELOPT
from castwise.quantization.producers.names import tail
from castwise.quantization.producers.producer import Producer, Writing, Written
from castwise.quantization.producers.quark import QUARK
from castwise.quantization.producers.schemes import Scheme, generic_layout
from castwise.quantization.producers.stated import (
    CONFIG,
    METHOD_KEYS,
    STATED_KEY,
    StatementReader,
    no_statements,
)
from castwise.quantization.producers.torchao import TORCHAO
from castwise.quantization.producers.unread import UNREAD
from castwise.text.spelling import suggestion

# Every producer whose tensors tell how they are stored; the order is that of messages.
PRODUCERS = (
    *(COMPRESSED_TENSORS, MODELOPT, DEEPSEEK, DEEPSEEK_V4, AUTOFP8, MISTRAL, FBGEMM, GPT_OSS),
    *(AWQ, GPTQ, BITSANDBYTES, TORCHAO, QUARK, MLX, COMFY, KERAS, *UNREAD),
)

_ALL = (*PRODUCERS, GGUF)

# The producer whose files state the scheme of each tensor by its type alone.
TYPED = GGUF.name

decoder_of_type = block_decoder  # of the types that have no layout

_WRITERS = (DEEPSEEK, COMPRESSED_TENSORS, MODELOPT, GPT_OSS, COMFY, MLX, GGUF)


def _with_recipes(rows_of: Callable[[Writing], tuple[Written, ...]]) -> tuple[Written, ...]:
    return tuple(
        row._replace(recipe=name)
        for producer in _WRITERS
        for name in (producer.name, *producer.also)
        for row in rows_of(producer.writing)
    )


# The schemes that are written; the first row of a scheme is its default.
WRITTEN = _with_recipes(lambda writing: writing.rows)

# Those that are also written with inputs that are quantized.
WRITTEN_WITH_INPUTS = _with_recipes(lambda writing: writing.with_inputs)

# Those that are also written with zero points.
WRITTEN_WITH_ZEROS = _with_recipes(lambda writing: writing.with_zeros)

# Producers that state a scheme for each module.
SEVERAL = tuple(producer.name for producer in _WRITERS if producer.writing.states_several)

# The files that one producer alone writes, each with what returns the section that it states.
OWN_FILES = {
    str(producer.configuration.config_file): producer.configuration.file_section
    for producer in (MODELOPT, GPTQ, AWQ)
}

_MOST_DETAILED, *_OTHER_FILES = OWN_FILES
# Files beside the tensors that may state how they are quantized, the most detailed first.
CONFIGS = (_MOST_DETAILED, CONFIG, *_OTHER_FILES)

# The producers in whose forms stored weights can be laid, in the order of messages.
CONVERTED_TO = (COMPRESSED_TENSORS, MODELOPT, COMFY, GPT_OSS, GGUF, DEEPSEEK_V4)

# Names of tensors that say, whatever else there is, whose a quantized model is.
MARKERS = {row.model_marker: row.name for row in PRODUCERS if row.model_marker}

# Producers that names of tensors, or what they hold, tell as well as a configuration does.
EVIDENT = frozenset(producer.name for producer in PRODUCERS if producer.is_evident)

# What is said of zero points that are stored as the largest code.
WRAPPED = str(GPTQ.wrapped_zeros)

# The key of a method's section that lists the modules that are not quantized.
KEPT_KEYS = {
    method: key for row in PRODUCERS for method, key in row.configuration.kept_keys.items()
}

# The keys of sections that state how the caches of attention are quantized.
CACHE_KEYS = tuple(key for row in PRODUCERS if (key := row.configuration.cache_key) is not None)

# The keys of metadata that tell how tensors are quantized.
METADATA_KEYS = (
    STATED_KEY,
    *(key for row in PRODUCERS if (key := row.configuration.metadata_key) is not None),
)

# The keys of sections that one producer alone writes, each with a key that such a section has.
OWN_SECTIONS = tuple(
    pair for row in PRODUCERS if (pair := row.configuration.own_section) is not None
)

NOT_DECODED = frozenset(producer.name for producer in PRODUCERS if not producer.is_decoded)

# The ends of the names that parts may have.
_PARTS = tuple(
    {tail(part.name) for row in PRODUCERS for layout in row.layouts for part in layout.parts}
    | {layout.payload for row in PRODUCERS for layout in row.layouts if layout.payload}
)


_BY_NAME = {spelling: row for row in _ALL for spelling in (row.name, *row.also)}


def lasts(names: Iterable[str]) -> set[str]:
    return {tail(name) for name in names if name.endswith(_PARTS)}


def find_recipe(name: object) -> Producer:
    if not isinstance(name, str) or name not in _BY_NAME:
        hint, names = suggestion(name, _BY_NAME), ", ".join(_BY_NAME)
        raise ValueError(f"recipe={name!r} is not known: {hint}use {names}.")
    return _BY_NAME[name]


def known_recipe(name: str | None) -> Producer | None:
    """Return the producer of a name, or None if its layouts are not known."""
    return None if name is None else _BY_NAME.get(name)


@cache
def written_layout(recipe: str | None, scheme: Scheme, *, symmetric: bool) -> Layout:
    """Return the layout in which a producer writes a scheme."""
    # A producer that has none, because it never writes that scheme, gets codes in bytes, low bits
    # first, beside plain scales.
    row = known_recipe(recipe)
    layout = None if row is None else row.written_layout(scheme, symmetric=symmetric)
    return layout or generic_layout(scheme)


def described_in(metadata: Mapping[str, str]) -> list[str]:
    """Name the tensors that metadata describe, each under its own name."""
    rows = (row.configuration.described_tensors(metadata) for row in PRODUCERS)
    return [name for names in rows for name in names]


# Of the few that have one: each weight asks them.
_POWER_READERS = [
    reader for row in PRODUCERS if (reader := row.configuration.powers_stated) is not None
]


def powers_stated(section: Mapping[str, Any]) -> str | None:
    """Say what of a section states that scales are powers of two; None where nothing does."""
    return _first(reader(section) for reader in _POWER_READERS)


def _first(texts: Iterable[str | None]) -> str | None:
    """Return what the first producer says that says anything."""
    return next(filter(None, texts), None)


def producer_of_model(model_type: object) -> Producer | None:
    """Return the producer as which alone transformers loads experts of a type of models."""
    of_models = (row for row in PRODUCERS if row.model_type is not None)
    return next((row for row in of_models if row.model_type == model_type), None)


def reader_of(method: str) -> StatementReader:
    readers = (row.configuration.readers.get(method) for row in PRODUCERS)
    return next((reader for reader in readers if reader is not None), no_statements)


def undecodable_section(method: str, section: Mapping[str, Any]) -> str | None:
    """Say why a producer decodes no weight of a section of its method; None if it may."""
    configurations = (row.configuration for row in PRODUCERS)
    return _first(row.undecodable(section) for row in configurations if method in row.readers)


def quantizes_inputs(method: str, section: Mapping[str, Any]) -> bool:
    """Return True if a section of a method states that inputs are quantized as the model runs."""
    configurations = (row.configuration for row in PRODUCERS)
    return any(row.quantizes_inputs(section) for row in configurations if method in row.readers)


def owner_of_form(section: Mapping[str, Any]) -> str | None:
    """Name the producer that alone writes sections of such a form, whatever their key."""
    if not section.keys().isdisjoint(METHOD_KEYS):
        return None
    forms = ((row.name, row.configuration.own_section) for row in PRODUCERS)
    return _first(name for name, form in forms if form is not None and form[1] in section)


def unnamed_method(key: str, section: Mapping[str, Any]) -> str | None:
    """Return the method of a section that names none, by its form."""
    return _first(row.configuration.unnamed_method(key, section) for row in PRODUCERS)


# Methods that measure what a model computes.
CALIBRATED = {"AWQ", "GPTQ", "SMOOTHQUANT", "AUTOROUND"}
