"""What a producer offers: layouts, what it states, the rule of its weights, what it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from castwise.quantization.producers._layouts import Layout, Storage
from castwise.quantization.producers._schemes import Scheme, has_bias, may_hold
from castwise.quantization.producers._stated import StatementReader, Stored
from castwise.quantization.producers._stored_weight import Given, StoredWeight
from castwise.quantization.producers._written import Form, Statements, StatementWriter, Written

Rule = Callable[[StoredWeight], Given]
"""From a stored weight to what it is."""

Section = tuple[str, Mapping[str, Any]]
"""A method, and the section that states it."""


@dataclass(frozen=True, slots=True, eq=False)
class Configuration:
    """How configurations and metadata state what a producer has quantised.

    Attributes
    ----------
    readers
        What reads a section of a configuration, by its names as `quant_method`.
    undecodable
        Says from a section why none of its weights is decoded.
    kept_keys
        By method, the key of a section that lists the modules that are not quantised.
    cache_key
        The key of a section that states how the caches of attention are quantised.
    config_file
        The file that it alone writes, None for those that `config.json` holds.
    file_section
        Returns the method and the section that this file states.
    is_own_form
        Tells by a section, which names no method, that it is of a form that it alone writes.
    own_section
        The key, beside those of others, of such a section, and a key that this always has.
    unnamed_method
        Returns its method if a section without one, given its key, is of its form.
    powers_stated
        Says what of a section states that scales are powers of two; None where nothing does.
    metadata_key
        The key of metadata that it alone writes.
    metadata_section
        Returns what metadata state as it alone does.
    metadata_reader
        What reads that.
    metadata_first
        Metadata tell more than the configuration beside them.
    described_tensors
        Names the tensors that metadata describe, each under its own name.

    """

    readers: Mapping[str, StatementReader] = field(default_factory=dict)
    undecodable: Callable[[Mapping[str, Any]], str | None] | None = None
    kept_keys: Mapping[str, str] = field(default_factory=dict)
    cache_key: str | None = None
    config_file: str | None = None
    file_section: Callable[[Mapping[str, Any]], Section | None] | None = None
    is_own_form: Callable[[Mapping[str, Any]], bool] | None = None
    own_section: tuple[str, str] | None = None
    unnamed_method: Callable[[str, Mapping[str, Any]], str | None] | None = None
    powers_stated: Callable[[Mapping[str, Any]], str | None] | None = None
    metadata_key: str | None = None
    metadata_section: Callable[[Mapping[str, str]], Mapping[str, Any] | None] | None = None
    metadata_reader: StatementReader | None = None
    metadata_first: bool = False
    described_tensors: Callable[[Mapping[str, str]], list[str]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """What castwise writes as a producer does.

    Attributes
    ----------
    rows
        The schemes of the checkpoints that castwise writes as it does.
    write
        Writes what states them.
    loading_warning
        Why transformers does not run what is written, and what does.
    states_several
        Its configuration states a scheme for each module.
    is_loaded
        transformers loads what it writes.
    embeddings
        "loaded" if what loads its checkpoints takes embeddings that are quantised, "named" if its
        configuration can name them, and nothing loads them; empty if it stores none.

    """

    rows: tuple[Written, ...] = ()
    write: StatementWriter | None = None
    loading_warning: str | None = None
    states_several: bool = False
    is_loaded: bool = False
    embeddings: Literal["", "named", "loaded"] = ""


@dataclass(frozen=True, slots=True, eq=False)
class Transcoding:
    """What stored weights become in the forms of other producers, with the same values.

    Attributes
    ----------
    forms_from, forms_to
        Schemes that it stores, each with the one that they become with the same values, in forms of
        other producers; and those that it holds as what others store become.
    stacks
        "also" if stored weights may become experts in one tensor, "only" if nothing else may.
    name_form
        Returns the layout of a weight that becomes its, and what it is called, given both as they
        are for others, and whether it is experts.
    block_of_form
        Returns the block that a section states for weights that become others of its schemes.
    statements_of_form
        What states it once they have become so.
    is_fused
        Engines fuse some of its weights, which must share a global scale.

    """

    forms_from: tuple[Form, ...] = ()
    forms_to: tuple[Form, ...] = ()
    stacks: Literal["", "also", "only"] = ""
    name_form: Callable[[Layout, str, bool], tuple[Layout, str]] | None = None
    block_of_form: Callable[[Mapping[str, Any]], tuple[int, int] | None] | None = None
    statements_of_form: Statements | None = None
    is_fused: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Marker:
    """A tensor beside a weight that names its scheme.

    Attributes
    ----------
    read
        Returns the scheme that it names, from its name and its array, None if it names none;
        ValueError if it says that codes are changed.
    formats
        The schemes that it may name, by the names there; no others are written. None if any is.
    state
        Returns what it states of a scheme, as an object of JSON; None if it is not written.
    shape_key
        Under which it states the shape of a weight that has padding; None if it does not.

    """

    read: Callable[[str, Stored], str | None]
    formats: Mapping[str, str] | None = None
    state: Callable[[Scheme], Mapping[str, Any]] | None = None
    shape_key: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Producer:
    """A producer: how it names, stores and states quantised weights, and what it writes.

    Attributes
    ----------
    name
        What castwise calls it.
    layouts
        How it stores weights.
    tiles
        True if scales of blocks may be padded to whole tiles of 128x4 and reordered.
    also
        Other producers that write the same layouts.
    scales
        The dtype of scales that are not of 8 bits; "weight" is that of the weight.
    scalar
        The shape of the scale of a whole tensor, and of a global scale.
    channels
        The axes of the scales of channels: (out, 1) or (out,).
    blocks
        The axes of the scales of blocks of rows and columns: (rows, columns), or (rows, 1, columns,
        1).
    rule
        What a weight is, where its own layouts hold it; the weights of all others are `usual`.
    is_decoded
        False if its weights are only recognised.
    axis
        Along which codes share a scale, where nothing else is said.
    short_groups
        The last group of a row may be shorter.
    model_marker
        A tensor that says, whatever else there is, that a model is quantised as it does.
    wrapped_zeros
        What is said of zero points, of the tensor named in it, on which its decoders differ.
    is_evident
        Names of tensors, or what they hold, tell as well as a configuration does.
    needs_metadata
        Its tensors mean nothing without metadata.
    model_type
        The type of models whose experts transformers loads only as this producer stores them.
    configuration
        How configurations state it.
    writing
        What is written.
    transcoding
        What its weights become, and what others become as its.
    marker
        The tensor beside a weight that names its scheme, None if there is none.

    """

    name: str
    layouts: tuple[Layout, ...]
    tiles: bool = False
    also: tuple[str, ...] = ()
    scales: str = "float32"
    scalar: tuple[int, ...] = ()
    channels: int = 2
    blocks: int = 2
    rule: Rule | None = None
    is_decoded: bool = True
    axis: int = -1
    short_groups: bool = False
    model_marker: str | None = None
    wrapped_zeros: str | None = None
    is_evident: bool = False
    needs_metadata: bool = False
    model_type: str | None = None
    configuration: Configuration = field(default_factory=Configuration)
    writing: Writing = field(default_factory=Writing)
    transcoding: Transcoding = field(default_factory=Transcoding)
    marker: Marker | None = None

    @property
    def divides(self) -> bool:
        """True if a stored global scale divides."""
        storages = (layout.storage for layout in self.layouts)
        return any(storage is not None and storage.global_use == "divide" for storage in storages)

    def written_layout(self, scheme: Scheme, *, symmetric: bool) -> Layout | None:
        """Return the layout in which it writes a scheme; None if it never does."""
        candidates = [
            layout for layout in self.layouts if layout.storage and may_hold(layout, scheme.name)
        ]
        grouped = scheme.name.endswith("_group")

        def rank(layout: Layout) -> tuple[bool, ...]:
            storage, stem = layout.storage or Storage(), layout.scheme.partition("{")[0].rstrip("_")
            packed = grouped and storage.grouped
            named = scheme.name.startswith(stem)
            return not packed, not named, storage.read_only, has_bias(layout) == symmetric

        return min(candidates, key=rank, default=None)
