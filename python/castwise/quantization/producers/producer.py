"""What a producer offers: layouts, what it states, the rule of its weights, what it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from castwise.quantization.producers.layouts import Layout, Storage
from castwise.quantization.producers.schemes import Scheme, has_bias, may_hold
from castwise.quantization.producers.stated import StatementReader, Stored
from castwise.quantization.producers.stored_weight import StoredWeight, WeightForm
from castwise.quantization.producers.written import Form, Statements, StatementWriter, Written

Rule = Callable[[StoredWeight], WeightForm]
"""From a stored weight to what it is."""

Section = tuple[str, Mapping[str, Any]]
"""A method, and the section that states it."""


@dataclass(frozen=True, slots=True, eq=False)
class Configuration:
    """How configurations and metadata state what a producer has quantised."""

    # What reads a section of a configuration, by its names as `quant_method`.
    readers: Mapping[str, StatementReader] = field(default_factory=dict)
    # Says from a section why none of its weights is decoded.
    undecodable: Callable[[Mapping[str, Any]], str | None] | None = None
    # By method, the key of a section that lists the modules that are not quantised.
    kept_keys: Mapping[str, str] = field(default_factory=dict)
    # The key of a section that states how the caches of attention are quantised.
    cache_key: str | None = None
    # The file that it alone writes, None for those that `config.json` holds.
    config_file: str | None = None
    # Returns the method and the section that this file states.
    file_section: Callable[[Mapping[str, Any]], Section | None] | None = None
    # Tells by a section, which names no method, that it is of a form that it alone writes.
    is_own_form: Callable[[Mapping[str, Any]], bool] | None = None
    # The key, beside those of others, of such a section, and a key that this always has.
    own_section: tuple[str, str] | None = None
    # Returns its method if a section without one, given its key, is of its form.
    unnamed_method: Callable[[str, Mapping[str, Any]], str | None] | None = None
    # Says what of a section states that scales are powers of two; None where nothing does.
    powers_stated: Callable[[Mapping[str, Any]], str | None] | None = None
    metadata_key: str | None = None  # the key of metadata that it alone writes
    # Returns what metadata state as it alone does.
    metadata_section: Callable[[Mapping[str, str]], Mapping[str, Any] | None] | None = None
    metadata_reader: StatementReader | None = None  # what reads that
    metadata_first: bool = False  # metadata tell more than the configuration beside them
    # Names the tensors that metadata describe, each under its own name.
    described_tensors: Callable[[Mapping[str, str]], list[str]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """What castwise writes as a producer does."""

    rows: tuple[Written, ...] = ()  # the schemes of the checkpoints that castwise writes as it does
    write: StatementWriter | None = None  # writes what states them
    # Why transformers does not run what is written, and what does.
    loading_warning: str | None = None
    states_several: bool = False  # its configuration states a scheme for each module
    is_loaded: bool = False  # transformers loads what it writes
    # "loaded" if what loads its checkpoints takes embeddings that are quantised, "named" if its
    # configuration can name them, and nothing loads them; empty if it stores none.
    embeddings: Literal["", "named", "loaded"] = ""


@dataclass(frozen=True, slots=True, eq=False)
class Transcoding:
    """What stored weights become in the forms of other producers, with the same values."""

    # Schemes that it stores, each with the one that it becomes in forms of others.
    forms_from: tuple[Form, ...] = ()
    # Schemes that others store, each with the one that it holds them as.
    forms_to: tuple[Form, ...] = ()
    # "also" if stored weights may become experts in one tensor, "only" if nothing else may.
    stacks: Literal["", "also", "only"] = ""
    # Returns the layout of a weight that becomes its, and what it is called, given both as they are
    # for others, and whether it is experts.
    name_form: Callable[[Layout, str, bool], tuple[Layout, str]] | None = None
    # Returns the block that a section states for weights that become others of its schemes.
    block_of_form: Callable[[Mapping[str, Any]], tuple[int, int] | None] | None = None
    statements_of_form: Statements | None = None  # what states it once they have become so
    is_fused: bool = True  # engines fuse some of its weights, which must share a global scale


@dataclass(frozen=True, slots=True, eq=False)
class Marker:
    """A tensor beside a weight that names its scheme."""

    # Returns the scheme that it names, from its name and its array, None if it names none;
    # ValueError if it says that codes are changed.
    read: Callable[[str, Stored], str | None]
    # The schemes that it may name, by the names there; no others are written. None if any is.
    formats: Mapping[str, str] | None = None
    # Returns what it states of a scheme, as an object of JSON; None if it is not written.
    state: Callable[[Scheme], Mapping[str, Any]] | None = None
    # Under which it states the shape of a weight that has padding; None if it does not.
    shape_key: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Producer:
    """A producer: how it names, stores and states quantised weights, and what it writes."""

    name: str  # what castwise calls it
    layouts: tuple[Layout, ...]  # how it stores weights
    # True if scales of blocks may be padded to whole tiles of 128x4 and reordered.
    tiles: bool = False
    also: tuple[str, ...] = ()  # other producers that write the same layouts
    # The dtype of scales that are not of 8 bits; "weight" is that of the weight.
    scales: str = "float32"
    scalar: tuple[int, ...] = ()  # the shape of the scale of a whole tensor, and of a global scale
    channels: int = 2  # the axes of the scales of channels: (out, 1) or (out,)
    # The axes of the scales of blocks of rows and columns: (rows, columns), or (rows, 1, columns,
    # 1).
    blocks: int = 2
    # What a weight is, where its own layouts hold it; the weights of all others are `usual`.
    rule: Rule | None = None
    is_decoded: bool = True  # false if its weights are only recognised
    axis: int = -1  # along which codes share a scale, where nothing else is said
    short_groups: bool = False  # the last group of a row may be shorter
    # A tensor that says, whatever else there is, that a model is quantised as it does.
    model_marker: str | None = None
    # What is said of zero points, of the tensor named in it, on which its decoders differ.
    wrapped_zeros: str | None = None
    # Names of tensors, or what they hold, tell as well as a configuration does.
    is_evident: bool = False
    needs_metadata: bool = False  # its tensors mean nothing without metadata
    # The type of models whose experts transformers loads only as this producer stores them.
    model_type: str | None = None
    # How configurations state it.
    configuration: Configuration = field(default_factory=Configuration)
    writing: Writing = field(default_factory=Writing)  # what is written
    # What its weights become, and what others become as its.
    transcoding: Transcoding = field(default_factory=Transcoding)
    # The tensor beside a weight that names its scheme, None if there is none.
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
        is_group = scheme.name.endswith("_group")

        def rank(layout: Layout) -> tuple[bool, ...]:
            storage, stem = layout.storage or Storage(), layout.scheme.partition("{")[0].rstrip("_")
            is_packed = is_group and storage.has_groups
            has_stem = scheme.name.startswith(stem)
            return not is_packed, not has_stem, storage.read_only, has_bias(layout) == symmetric

        return min(candidates, key=rank, default=None)
