"""What a producer offers: layouts, what it states, the rule of its weights, what it writes."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from castwise.quantization.producers.layouts import Layout, Storage
from castwise.quantization.producers.schemes import Scheme, has_bias, may_hold, scheme_of_files
from castwise.quantization.producers.stated import STATED_KEY, StatementReader, Stored
from castwise.quantization.producers.stored_weight import StoredWeight, WeightForm

# The scheme of a stored weight, and the one that it becomes with the same values.
Form = tuple[str, str]

INTEGERS = tuple(
    f"int{bits}_{unit}"
    for bits, unit in ((8, "channel"), (4, "channel"), (4, "group"), (8, "group"))
)
MXFP4_TO_NVFP4 = ("mxfp4", "nvfp4")


def same_schemes(*schemes: str) -> tuple[Form, ...]:
    return tuple((scheme, scheme) for scheme in schemes)


class Written(NamedTuple):
    """A scheme as a producer's checkpoints hold it."""

    scheme: str  # one of `castwise.quantization.schemes()`, or a type of blocks
    code: str = ""  # what its configuration calls that
    block: tuple[int, int] | None = None  # the default block, if it is not the scheme's
    # Rows and columns of which those of a weight must be multiples, so that nothing is padded.
    tile: tuple[int, int] = (1, 1)
    step: int = 1  # slabs are multiples of so many rows, beside whole blocks
    stacks: bool = False  # experts may be stacked in one tensor
    # Only such experts are stored so, and in an unquantized model their matrices are (in, out).
    is_transposed: bool = False
    shares: bool = False  # what engines fuse must have the same global scale
    symmetric: bool = True  # false for groups that have a bias, or zero points
    square: bool = False  # blocks have as many rows as columns
    only_named: bool = False  # a weight must be named so, since its parts are named in its place
    as_groups: bool = False  # channels are stored as groups of one row each
    # What is stated of inputs: that they stay as they are, are quantized while the model runs, then
    # to float8 beside weights of another format, or by a constant scale that is stored; "" if
    # nothing is, or a scale that is not stored.
    inputs: Literal["", "none", "dynamic", "float8", "constant"] = "none"
    only_default: bool = False  # no other block than the default is stated so
    fallback: str = ""  # the scheme to take for rows that are no whole blocks
    recipe: str = ""  # the producer, which the registry fills in

    @property
    def row(self) -> Scheme:
        return scheme_of_files(self.scheme)


class Encoding(NamedTuple):
    """A row, and the block that is used."""

    written: Written  # the row
    block: tuple[int, int]  # rows and columns that share a scale
    symmetric: bool = True  # false for integers with zero points
    has_index: bool = False  # true if an index says in which group each column is
    # The constant by which codes of inputs are multiplied; None if none is stored.
    input_scale: float | None = None
    scales: str = "amax"  # how the scale of a block is found: one of `schemes.SCALES`

    @property
    def bits(self) -> int:
        return self.written.row.bits


class Statements(NamedTuple):
    """What states how the weights of a component are stored."""

    # Members of `config.json`
    sections: Mapping[str, Any] = {}
    # Other files beside the tensors, with their texts
    files: Mapping[str, str] = {}
    # The same for a file without a configuration; None if its producer has no such form.
    metadata: Mapping[str, str] | None = {}
    # What makes the text of `config.json` follow, where its sections stay.
    edit: Callable[[str], str] | None = None


class EncodedModules(NamedTuple):
    """The modules of a component, as is to be stated of them."""

    encodings: Mapping[str, Encoding]  # how the weight of each is stored
    plain: Sequence[str]  # those that are not quantized
    inputs: bool  # true if there are scales of inputs, too
    # Those of `encodings` that are embeddings, and no linear layers.
    embeddings: frozenset[str] = frozenset()

    @property
    def distinct(self) -> list[Encoding]:
        """The encodings that differ, the most frequent first."""
        counts = Counter(self.encodings.values())
        return sorted(counts, key=lambda encoding: -counts[encoding])


# States how weights are stored, as a producer does.
StatementWriter = Callable[[EncodedModules], Statements]


def in_section(section: Mapping[str, Any], **files: str) -> Statements:
    """State it in the section that transformers reads."""
    return Statements({STATED_KEY: section}, files, {STATED_KEY: json.dumps(section)})


# From a stored weight to what it is.
Rule = Callable[[StoredWeight], WeightForm]

# A method, and the section that states it.
Section = tuple[str, Mapping[str, Any]]


def _nothing(*_: object) -> None:
    """Say nothing of a section, as most producers do."""


class Configuration(NamedTuple):
    """How configurations and metadata state what a producer has quantized."""

    # What reads a section of a configuration, by its names as `quant_method`.
    readers: Mapping[str, StatementReader] = {}
    # Says from a section why none of its weights is decoded.
    undecodable: Callable[[Mapping[str, Any]], str | None] = _nothing
    # By method, the key of a section that lists the modules that are not quantized.
    kept_keys: Mapping[str, str] = {}
    # The key of a section that states how the caches of attention are quantized.
    cache_key: str | None = None
    # The file that it alone writes, None for those that `config.json` holds.
    config_file: str | None = None
    # Returns the method and the section that this file states.
    file_section: Callable[[Mapping[str, Any]], Section | None] = _nothing
    # The key, beside those of others, of sections without a method that it alone writes, and a key
    # that they always have.
    own_section: tuple[str, str] | None = None
    # Returns its method if a section without one, given its key, is of its form.
    unnamed_method: Callable[[str, Mapping[str, Any]], str | None] = _nothing
    # Says what of a section states that scales are powers of two; None where nothing does.
    powers_stated: Callable[[Mapping[str, Any]], str | None] | None = None
    # Tells by a section whether inputs are quantized while the model runs.
    quantizes_inputs: Callable[[Mapping[str, Any]], bool | None] = _nothing
    metadata_key: str | None = None  # the key of metadata that it alone writes
    # Returns what metadata with that key state as it alone does; None if that is nothing.
    metadata_section: Callable[[Mapping[str, str]], Mapping[str, Any] | None] = dict
    metadata_reader: StatementReader | None = None  # what reads that
    # Names the tensors that metadata describe, each under its own name.
    described_tensors: Callable[[Mapping[str, str]], Sequence[str]] = lambda metadata: ()


class Writing(NamedTuple):
    """What castwise writes as a producer does."""

    rows: tuple[Written, ...] = ()  # the schemes of the checkpoints that castwise writes as it does
    # Those that it also states with inputs that are quantized.
    with_inputs: tuple[Written, ...] = ()
    with_zeros: tuple[Written, ...] = ()  # those that it also stores with zero points
    write: StatementWriter | None = None  # writes what states them
    # Why transformers does not run what is written, and what does.
    loading_warning: str | None = None
    states_several: bool = False  # its configuration states a scheme for each module
    is_loaded: bool = False  # transformers loads what it writes
    # "loaded" if what loads its checkpoints takes embeddings that are quantized, "named" if its
    # configuration can name them, and nothing loads them; empty if it stores none.
    embeddings: Literal["", "named", "loaded"] = ""


class Transcoding(NamedTuple):
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


class Marker(NamedTuple):
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
    """A producer: how it names, stores and states quantized weights, and what it writes."""

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
    is_decoded: bool = True  # false if its weights are only recognized
    axis: int = -1  # along which codes share a scale, where nothing else is said
    short_groups: bool = False  # the last group of a row may be shorter
    # A tensor that says, whatever else there is, that a model is quantized as it does.
    model_marker: str | None = None
    # What is said of zero points, of the tensor named in it, on which its decoders differ.
    wrapped_zeros: str | None = None
    # Names of tensors, or what they hold, tell as well as a configuration does.
    is_evident: bool = False
    # Its tensors mean nothing without metadata, which tell more than a configuration beside them.
    needs_metadata: bool = False
    # The type of models whose experts transformers loads only as this producer stores them.
    model_type: str | None = None
    # How configurations state it.
    configuration: Configuration = field(default_factory=Configuration)
    writing: Writing = field(default_factory=Writing)  # what is written
    # What its weights become, and what others become as its.
    transcoding: Transcoding = field(default_factory=Transcoding)
    # The tensor beside a weight that names its scheme, None if there is none.
    marker: Marker | None = None

    def axis_of(self, axes: int) -> int:
        """Return the axis along which codes share a scale in an array of so many axes."""
        # Axes before the last two are a stack.
        return self.axis if self.axis < 0 else self.axis + max(axes - 2, 0)

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
