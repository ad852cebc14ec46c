"""Plan what an unquantized model is when its weights are quantized, or refuse it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from castwise._core import PolicyMap, finfo
from castwise._numbers import BYTE_BITS
from castwise.arrays.dtype_map import KEEP, DtypeMap, is_whole_name
from castwise.checkpoint._errors import LEAVE, CheckpointError
from castwise.checkpoint._tensors import TensorInfo, may_be_float
from castwise.checkpoint.containers import whole_model_refusal
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.maps import warn_of_other_models
from castwise.checkpoint.planning.checkpoint_model import (
    check_rows,
    check_shapes,
    contradictions_of_config,
)
from castwise.checkpoint.planning.component import Derived, SourceComponent, pattern_of
from castwise.checkpoint.planning.decode import decode_refusal
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.derived_reader import DerivedTensor
from castwise.checkpoint.planning.encode.blocks import is_of_blocks
from castwise.checkpoint.planning.encode.encoded_weight import (
    EncodedKind,
    EncodedWeight,
    encoding_threads,
    share,
)
from castwise.checkpoint.planning.importance import (
    ChannelNumbers,
    Importance,
    ImportanceMatch,
    SearchedWeight,
)
from castwise.checkpoint.planning.written_schemes import (
    consumer_named,
    encoding,
    needed_inputs,
    padding_problem,
    recipes,
    row_with_zeros,
    statements,
    written_row,
)
from castwise.checkpoint.results.report import KeptTensors, kept_tensors, kept_text
from castwise.models.architecture import Architecture, pattern_of_names
from castwise.models.model import EXPERTS, LINEAR, MATRIX, STACK, WEIGHT, Model
from castwise.quantization import Quantization
from castwise.quantization.producers.block_types import has_importance
from castwise.quantization.producers.producer import Encoding, Statements, Written
from castwise.quantization.producers.registry import TYPED, find_recipe, producer_of_model
from castwise.quantization.producers.schemes import has_scales
from castwise.quantization.producers.stated import CONFIG
from castwise.text.spelling import nearest
from castwise.text.wording import argument, function, parenthesis, quote, setting

# The roles of parameters that modules of a model's own code have, which no library replaces.
_OWN_MODULES = ("router", "recurrent", "other")
# The roles of tables, of which a row is taken: no layer of theirs is a linear one.
_LOOKED_UP = ("embedding", "position")

# The roles of matrices with a row for each token, which most consumers load unquantized.
TABLES = ("embedding", "head")


class Encode(NamedTuple):
    """What is quantized, and how."""

    # The scheme of linear layers; None if only those that a map names are quantized
    scheme: str | None
    recipe: str  # the producer
    block: tuple[int, int] | None  # the (rows, columns) that share a scale; None for the default
    # Regular expressions that match the whole names of tensors, or modules, to leave
    ignore: Sequence[str]
    dtypes: DtypeMap  # what a map says of formats
    schemes: Mapping[str, str]  # what it says of schemes, by its keys
    threads: int  # how many threads may encode
    map_name: str | None = None  # the name of a map that comes with castwise
    # Leave a weight that the recipe cannot hold as it is, instead of refusing it
    leaves_unfit: bool = False
    consumer: str | None = None  # who is to load the result; None if nobody says it
    embeddings: bool = False  # quantize embeddings and heads as linear layers, which stay otherwise
    # What is to be stated of inputs; None for what the recipe states, or the consumer needs
    inputs: str | float | None = None
    # What the parameters are, as a user says; None if nobody does
    architecture: Architecture | None = None
    scales: str = "amax"  # how the scales of schemes that have a choice are found
    zero_points: bool = False  # store zero points of the schemes that may have some
    # What weights the errors of input channels in that search; None for nothing
    importance: Importance | None = None
    # A mix of types of a file of a whole model; the schemes that it gives weights, by name, and
    # what states it
    mix: str | None = None
    mix_types: Mapping[str, str] = {}
    mix_metadata: Mapping[str, str] = {}

    @property
    def mapping(self) -> dict[str, str]:
        formats = dict(self.dtypes.keys.items())
        return {key: self.schemes.get(key) or formats[key] or KEEP for key in formats}

    def encoding(self, scheme: str) -> Encoding:
        inputs = self.inputs or needed_inputs(self.consumer, self.recipe, scheme)
        zeros = row_with_zeros(scheme, self.recipe, inputs) if self.zero_points else None
        row = zeros or written_row(scheme, self.recipe, inputs)
        scales = self.scales if has_scales(self.scales, row.row, row.recipe) else "amax"
        form = encoding(row, self.block if scheme == self.scheme else None)
        constant = None if isinstance(inputs, str | None) else inputs
        return form._replace(input_scale=constant, scales=scales, symmetric=zeros is None)


def encode_checkpoint(source: Checkpoint, encode: Encode, *, is_file: bool) -> DerivedCheckpoint:
    """Return an opened checkpoint with quantized weights."""
    # `is_file` says that it becomes one file, which states in its metadata how they are stored.
    _check_files(source, encode.recipe, is_file=is_file)
    choices, unused_patterns, plain_tensors = choices_of(source, encode)
    match = None if encode.importance is None else ImportanceMatch(encode.importance)
    numbers = [{} if match is None else numbers_of(choice, match) for choice in choices]
    plans = map(partial(derive_encoded, is_file=is_file), choices, numbers)
    return DerivedCheckpoint(
        source,
        [*plans],
        encode.dtypes,
        is_file=is_file,
        recipe=encode.recipe,
        unused_patterns=unused_patterns,
        consumer=encode.consumer,
        kept_tensors=plain_tensors,
        importance=None if match is None else match.use(),
    )


def choices_of(
    source: Checkpoint, encode: Encode
) -> tuple[list[WeightChoice], dict[str, str | None], list[KeptTensors]]:
    """Choose the weights of all components; return also unused patterns, and what stays."""
    check_rows([name for part in source.components for name in part.names()], encode.architecture)
    choices = [_choice_of(source, component, encode) for component in source.components]
    unused_patterns = _check_used(source, encode, choices)
    plain_tensors = kept_tensors(
        (row for choice in choices for row in choice.kept_rows()),
        sum(info.nbytes for info in source.tensors.values()),
    )
    if not any(choice.encodings for choice in choices):
        raise CheckpointError(
            f"{source.path}: no weight in it would be quantized: no linear layer's, and none that "
            "a map "
            + parenthesis("dtype_map")
            + " gives a scheme to"
            + ("; " + kept_text(plain_tensors) if plain_tensors else "")
        )
    return choices, unused_patterns, plain_tensors


def _check_files(source: Checkpoint, recipe: str, *, is_file: bool) -> None:
    """Refuse a source or a destination that a producer's weights cannot come from or go to."""
    is_whole, suffix = isinstance(source.file, WholeModelReader), f".{TYPED}"
    if is_whole and recipe != TYPED:
        raise whole_model_refusal(source.path, source.suffix)
    if recipe == TYPED and not is_file:
        raise CheckpointError(
            f"{source.path}: weights of "
            + setting("recipe", recipe)
            + f" are those of a {suffix} file; name one"
        )


def candidate_parts(
    source: Checkpoint, encodes: Sequence[Encode]
) -> Iterator[tuple[list[str], dict[str, Sequence[DerivedTensor]]]]:
    """Yield the weights of each kind, and what the first of them would become, by scheme."""
    # Weights of a kind have one shape and format, and names that tell the same.
    for component in source.components if encodes else ():
        facts = facts_of(source, component, encodes[0])
        check_shapes(facts.model, (), encodes[0].architecture)
        for infos in _kinds(facts, encodes[0]):
            parts: dict[str, Sequence[DerivedTensor]] = {}
            for encode in encodes:
                single = choose(facts, encode._replace(leaves_unfit=True), infos[:1])
                if single.encodings:
                    _, tensors = _encoded_tensors(single, {})
                    parts[encode.scheme or ""] = tensors[infos[0].name]
            yield [component.prefix + info.name for info in infos], parts


def _check_used(
    source: Checkpoint, encode: Encode, choices: Sequence[WeightChoice]
) -> dict[str, str | None]:
    """Refuse patterns of `ignore` that match nothing; return those of a map."""
    names = [choice.facts.prefix + info.name for choice in choices for info in choice.facts.tensors]
    used = {pattern for choice in choices for pattern in choice.used}
    for pattern in encode.ignore:
        if pattern not in used:
            floats = [
                choice.facts.prefix + info.name
                for choice in choices
                for info in choice.facts.tensors
                if info.kind == "float"
            ]
            near = nearest([pattern], floats)[pattern]
            raise CheckpointError(
                setting("ignore", pattern)
                + " matches no tensor"
                + ("; did you mean " + quote(re.escape(near)) + "?" if near else "")
            )
    if encode.map_name is not None:
        models = [choice.facts.model for choice in choices]
        unknown = [model.stated_type for model in models if model.architecture is None]
        warn_of_other_models(encode.map_name, used, unknown)
        return {}
    return nearest([key for key, _ in encode.dtypes.keys.items() if key not in used], names)


def statement_sizes(
    source: Checkpoint, encode: Encode, *, is_file: bool
) -> Callable[[Mapping[str, str]], int]:
    """Return a function of the schemes of weights, by name: the bytes of what states these."""
    # The bytes come on top of those of the source. Errors are those of `encode_checkpoint`.
    parts = [facts_of(source, component, encode) for component in source.components]
    # Each tensor is named by its whole name.
    keys = [[(info, part.prefix + info.name, False) for info in _infos_of(part)] for part in parts]

    def count_bytes(schemes: Mapping[str, str]) -> int:
        request = encode._replace(schemes=schemes)
        choices = [
            choose(part, request, keys=keys_of_part)
            for part, keys_of_part in zip(parts, keys, strict=True)
        ]
        statements_of_parts = [_statements(choice, is_file=is_file) for choice in choices]
        return sum(_statement_bytes(text) for text in statements_of_parts if text is not None)

    return count_bytes


def _statement_bytes(texts: Statements) -> int:
    if texts.metadata is not None and not texts.sections:
        return len(json.dumps(dict(texts.metadata)))
    files = sum(len(text.encode()) for text in texts.files.values())
    metadata = json.dumps(dict(texts.metadata or {}))
    return max(len(json.dumps(dict(texts.sections), indent=2)) + files, len(metadata))


# A tensor, the key of the map that names it, and whether a pattern excepts it.
_Key = tuple[TensorInfo, str | None, bool]


class WeightChoice(NamedTuple):
    """Which tensors of a component are quantized, and how."""

    facts: SourceComponent  # the component as it is
    encode: Encode  # what is asked for
    keys: Sequence[_Key]  # what its map and its patterns say of the tensors
    used: frozenset[str]  # those keys and patterns
    encodings: Mapping[str, Encoding]  # how the weights are stored that are quantized, by name
    plain_matrices: Sequence[str]  # the matrices that stay

    def kept_rows(self) -> Iterator[tuple[TensorInfo, str, str]]:
        """Yield the floating tensors that stay, each with its role and why it does."""
        model, encode = self.facts.model, self.encode
        for info, key, is_ignored in self.keys:
            if info.name in self.encodings or info.kind != "float":
                continue
            reason = _reason(model, encode, info.name)
            if is_ignored:
                reason = argument("ignore") + " names them"
            elif key is not None:
                if encode.dtypes.decide(self.facts.prefix + info.name, True).target:
                    continue  # it is cast
                reason = "the map keeps them"
            elif reason is None and encode.scheme is None:
                reason = "the map gives them no scheme"
            elif reason is None:
                reason = f"{encode.recipe} stores no such weights"
            yield info, model.role(info.name), reason


def _kinds(facts: SourceComponent, encode: Encode) -> list[list[TensorInfo]]:
    """Return the matrices of a component by what decides how they may be quantized."""
    kinds: dict[Any, list[TensorInfo]] = {}
    model = facts.model
    for info in _infos_of(facts):
        if facts.is_matrix(info) and not _stays(model, encode, info.name):
            name = info.name
            name_traits = name.endswith("weight"), model.is_switch(name), model.is_in_out(name)
            kind = info.shape, info.format, model.role(name), *name_traits
            kinds.setdefault(kind, []).append(info)
    return [*kinds.values()]


def _infos_of(facts: SourceComponent) -> Sequence[TensorInfo]:
    # What states a component without a configuration is of the model.
    return facts.tensors if facts.component.has_config else ()


def _choice_of(source: Checkpoint, component: Component, encode: Encode) -> WeightChoice:
    """Choose which tensors of a component are quantized; refuse one that is, or may be, already."""
    return choose(facts_of(source, component, encode), encode)


def facts_of(source: Checkpoint, component: Component, encode: Encode) -> SourceComponent:
    """Return a component as it is; refuse one that is quantized, or may be, already."""
    facts = SourceComponent(
        source,
        component,
        "encode",
        "quantized",
        "what may state how it is stored",
        encode.architecture,
    )
    is_typed = isinstance(source.file, WholeModelReader)  # which states the types of plain tensors
    if facts.quantization is not None and (facts.quantization.weights or not is_typed):
        _refuse_quantized(source, facts, facts.quantization)
    if not isinstance(facts.statement.configs.get(CONFIG, {}), dict):
        raise facts.refusal(f"{CONFIG} is not a JSON object, so it cannot state how")
    return facts


def _refuse_quantized(
    source: Checkpoint, facts: SourceComponent, quantization: Quantization
) -> NoReturn:
    facts.check_method(quantization)
    if not quantization.weights:
        facts.check_orphans(quantization)
        raise facts.refusal(
            f"no weight is quantized, and {', '.join(quantization.stated)} states it; "
            + function("dequantize")
            + " of the folder removes that"
        )
    reason = decode_refusal(source)
    remedy = "decode it first: castwise dequantize, checkpoint.dequantize_file"
    if isinstance(source.file, WholeModelReader):
        remedy = (
            "quantize the model that it was made of, which loses less, or a folder that it is "
            "decoded to: castwise dequantize, checkpoint.dequantize_file"
        )
    if reason is not None:
        remedy = function("dequantize") + " refuses it: " + reason
    raise facts.refusal(
        f"it is quantized already (tensor {quantization.weights[0].payload!r}); " + remedy
    )


def choose(
    facts: SourceComponent,
    encode: Encode,
    infos: Sequence[TensorInfo] | None = None,
    keys: Sequence[_Key] | None = None,
) -> WeightChoice:
    """Choose which tensors of a component, or some of them, are quantized."""
    # `keys` are what a request with the same keys and patterns says of them, if that is known.
    used: set[str] = set()
    if keys is None:
        patterns = [(text, pattern_of("ignore", text)) for text in encode.ignore]
        rows = [
            (info, *_key_of(facts, encode, patterns, info)) for info in infos or _infos_of(facts)
        ]
        used = {text for _, key, texts in rows for text in (*texts, *([key] if key else []))}
        keys = [(info, key, bool(texts)) for info, key, texts in rows]
    if infos is None:
        left_by_user = {info.name for info, _, is_ignored in keys if is_ignored}
        check_shapes(facts.model, left_by_user, encode.architecture)
    chooser, encodings, plain_matrices = _Chooser.of(facts, encode), {}, []
    refusals: dict[str, CheckpointError] = {}
    for info, key, is_ignored in keys:
        try:
            encoding_of = chooser.encoding(info, key, is_ignored)
        except CheckpointError as error:
            refusals[facts.prefix + info.name] = error
            continue
        if encoding_of is not None:
            encodings[info.name] = encoding_of
        elif facts.is_matrix(info) or chooser.is_stack(info):
            plain_matrices.append(info.name)
    if refusals:
        first = next(iter(refusals.values()))
        if len(refusals) == 1:
            raise first
        raise CheckpointError(
            str(first)
            + f" ({len(refusals):,} tensors are refused; all stay with "
            + argument("ignore")
            + f" {pattern_of_names(refusals)!r})"
        )
    return WeightChoice(facts, encode, keys, frozenset(used), encodings, plain_matrices)


def _key_of(
    facts: SourceComponent,
    encode: Encode,
    patterns: Sequence[tuple[str, PolicyMap]],
    info: TensorInfo,
) -> tuple[str | None, list[str]]:
    """Return the key of the map that names a tensor, and the patterns that except it."""
    name = facts.prefix + info.name
    _, key, _ = encode.dtypes.decide(name, may_be_float(info))
    is_whole = key is not None and is_whole_name(key, name)
    if key in encode.schemes and not is_whole:
        # As a float dtype of a pattern, its scheme leaves what no scheme is for.
        key = key if may_be_float(info) and len(info.shape) >= MATRIX else None
    module = name.removesuffix(WEIGHT)
    hits = [
        text
        for text, pattern in patterns
        if pattern.find(name) is not None or pattern.find(module) is not None
    ]
    return key, hits


def _stays(model: Model, encode: Encode, name: str) -> bool:
    """Return True for a weight that is quantized only if a map names it."""
    is_taken = encode.embeddings and model.role(name) in TABLES
    return _reason(model, encode, name) is not None and not is_taken


def _reason(model: Model, encode: Encode, name: str) -> str | None:
    """Say why a weight stays unless a map names it; None if it does not."""
    reason, consumer = model.reason(name, encode.consumer), encode.consumer
    if reason is None and consumer is not None:
        rows = (row for row in consumer_named(consumer).loads if row.recipe == encode.recipe)
        if any(text in name for row in rows for text in row.plain):
            reason = f"{consumer} holds them unquantized in models of {encode.recipe}"
    return reason


class _Chooser(NamedTuple):
    """Decides of single tensors whether they are quantized, and refuses what cannot be."""

    facts: SourceComponent  # the component
    model: Model  # what its tensors are
    encode: Encode  # what is asked for
    encodings: Mapping[str, Encoding]  # how its schemes are stored

    @classmethod
    def of(cls, facts: SourceComponent, encode: Encode) -> _Chooser:
        types = {*encode.mix_types.values()}
        types |= {
            fallback for name in types if (fallback := encode.encoding(name).written.fallback)
        }
        schemes = {encode.scheme, *encode.schemes.values(), *types} - {None}
        encodings = {scheme: encode.encoding(scheme) for scheme in schemes if scheme is not None}
        return cls(facts, facts.model, encode, encodings)

    def encoding(self, info: TensorInfo, key: str | None, is_ignored: bool) -> Encoding | None:
        scheme = self.encode.schemes.get(key or "")
        if scheme is None and key is None and not is_ignored:
            is_matrix = self.facts.is_matrix(info)
            stays = is_matrix and _stays(self.model, self.encode, info.name)
            may_be = info.kind == "float" and self.model.may_be_experts(info.name)
            scheme = self.encode.scheme if not stays and (is_matrix or may_be) else None
            if scheme is not None and self.encode.mix_types:
                scheme = self._scheme_of_mix(info)
        if scheme is None or is_ignored:
            return None
        encoding_of = self.encodings[scheme]
        if key is None and encoding_of.written.is_transposed and not self.is_stack(info):
            return None  # its producer keeps what is not of experts
        if encoding_of.input_scale is not None and self.model.role(info.name) == "embedding":
            encoding_of = encoding_of._replace(input_scale=None)  # whose inputs are tokens
        return encoding_of if self._holds(info, encoding_of, is_named=key is not None) else None

    def _scheme_of_mix(self, info: TensorInfo) -> str | None:
        """Return the scheme that a mix has for a weight, or for rows that are no whole blocks."""
        scheme = self.encode.mix_types.get(info.name)
        if scheme is None:
            return None  # llama.cpp does not quantize a tensor of this name
        form = self.encodings[scheme]
        is_whole = not info.shape[-1] % form.block[1]
        return scheme if is_whole else form.written.fallback or scheme

    def is_stack(self, info: TensorInfo) -> bool:
        """Return True for what may be the weights of all experts."""
        return self.model.role(info.name) == EXPERTS or self.model.may_be_experts(info.name)

    def _holds(self, info: TensorInfo, encoding: Encoding, *, is_named: bool) -> bool:
        """Return False for a weight that the recipe cannot hold, or refuse it."""
        fault = next(self._faults(info, encoding, is_named=is_named), None)
        if fault is not None and not self.encode.leaves_unfit:
            raise CheckpointError(f"tensor {info.name!r}: " + fault)
        return fault is None

    def _faults(self, info: TensorInfo, encoding: Encoding, *, is_named: bool) -> Iterator[str]:
        """Yield why the recipe cannot hold a weight; what follows the first supposes it mended."""
        row, shape = encoding.written, info.shape
        if info.kind != "float" or info.format is None:
            yield f"it is stored as {info.stored}, and weights are floating; " + LEAVE
            return
        if finfo(info.format).bits <= BYTE_BITS:
            yield f"it is {info.format}, which would be rounded twice; " + LEAVE + ", or cast it"
        if len(shape) not in (MATRIX, STACK) or not all(shape):
            yield f"it has the shape {shape}, and a weight is a matrix; " + LEAVE
        yield from self._faults_of_role(info, row, is_named=is_named)
        if row.only_named and not info.name.endswith("weight"):
            yield f"it is not named as a weight, and {row.recipe} names its parts so; " + LEAVE
        rows, columns = shape[-2:][:: -1 if row.is_transposed else 1]
        width = encoding.block[1]
        if width and encoding.block[0] == 1 and columns % width:
            other = f", or give it {row.fallback} in a map " + parenthesis("dtype_map")
            yield (
                f"it has the shape {shape}, and {row.recipe} stores {row.scheme} in whole blocks "
                f"of {width} along {columns} columns; " + LEAVE + (other if row.fallback else "")
            )
        if row.square and rows <= encoding.block[0] and columns <= width:
            yield (
                f"it has the shape {shape}, which is one block, and {row.recipe} gives one "
                "scale to such weights that are fused; " + LEAVE + ", or use a smaller block"
            )
        if (problem := padding_problem(row, rows, columns)) is not None:
            yield f"it has the shape {shape}, and {problem}; " + LEAVE

    def _faults_of_role(self, info: TensorInfo, row: Written, *, is_named: bool) -> Iterator[str]:
        """Yield why no consumer would find a weight where the recipe stores it."""
        name, shape, model, role = info.name, info.shape, self.model, self.model.role(info.name)
        is_stack = len(shape) == STACK or role == EXPERTS
        if role == EXPERTS and (not row.stacks or len(shape) < STACK):
            yield (
                f"it has the shape {shape}, experts in one tensor, and {row.recipe} stores the "
                "weight of each as a tensor of its own; " + LEAVE + self._own_recipe()
            )
        if not is_named and role != LINEAR and model.may_be_experts(name):
            yield (
                f"it has the shape {shape} and may be the weights of all experts, and nothing "
                "tells their axes; say what it is "
                + parenthesis("architecture")
                + ", name it in a map "
                + parenthesis("dtype_map")
                + ", or "
                + LEAVE
            )
        if is_stack and not row.stacks:
            yield f"it has the shape {shape}, and {row.recipe} stores matrices; " + LEAVE
        if row.is_transposed and not is_stack:
            yield f"it has the shape {shape}, and {row.recipe} stores experts only; " + LEAVE
        own_type = find_recipe(row.recipe).model_type if row.is_transposed else None
        if own_type and model.architecture and model.architecture.model_type != own_type:
            yield (
                f"it is of the model_type {model.architecture.model_type!r}, and {row.recipe} "
                f"stores experts of {own_type} only; " + LEAVE + ", or use another recipe"
            )
        if row.only_named and is_stack and not model.is_switch(name):
            yield (
                f"it is the experts of a layer, and {row.recipe} stores those named switch_mlp; "
                "convert the model with the library that loads it first, or " + LEAVE
            )
        if not is_stack and model.architecture is not None and model.is_in_out(name):
            yield (
                f"{model.title} keeps it as (in, out), and {row.recipe} stores (out, in); " + LEAVE
            )
        if role in _LOOKED_UP or (role in _OWN_MODULES and model.find(name) is not None):
            yield from self._faults_of_module(name, row)

    def _own_recipe(self) -> str:
        """Return the remedy that names the producer of such a model, if there is one."""
        kind = None if self.model.architecture is None else self.model.architecture.model_type
        producer = producer_of_model(kind)
        return "" if producer is None else ", or use " + argument("recipe", producer.name)

    def _faults_of_module(self, name: str, row: Written) -> Iterator[str]:
        """Yield why what is no linear layer stays, if no consumer of the recipe loads it so."""
        embeddings, consumer = find_recipe(row.recipe).writing.embeddings, self.encode.consumer
        role = self.model.role(name)
        is_loaded = consumer is None or consumer_named(consumer).embeddings
        is_named = embeddings == "named" and is_loaded and role in _LOOKED_UP
        if embeddings == "loaded" or is_named:
            return
        loader = "no library loads" if consumer is None else f"{consumer} does not load"
        loadable = [
            recipe for recipe in recipes() if find_recipe(recipe).writing.embeddings == "loaded"
        ]
        yield (
            f"it is no linear layer (its role: {role}), and "
            f"{loader} one that is quantized as by {row.recipe}; " + LEAVE + ", "
            "or use another recipe " + parenthesis("recipe") + f": {', '.join(loadable)}"
        )


def numbers_of(choice: WeightChoice, match: ImportanceMatch) -> dict[str, ChannelNumbers]:
    """Return the numbers of input channels of the weights whose scales are searched, by name."""
    facts, numbers = choice.facts, {}
    for name, encoding_of in choice.encodings.items():
        if not has_importance(encoding_of.written.scheme, encoding_of.scales):
            continue
        info = facts.stored_tensors[name]
        *stack, rows, columns = info.shape
        weight = SearchedWeight(
            facts.model,
            facts.prefix,
            info,
            rows if encoding_of.written.is_transposed else columns,
            math.prod(stack),
            has_ones=is_of_blocks(encoding_of),
        )
        if (channel_numbers := match.find(weight)) is not None:
            numbers[name] = channel_numbers
    return numbers


def derive_encoded(
    choice: WeightChoice, numbers: Mapping[str, ChannelNumbers], *, is_file: bool
) -> Derived:
    """Derive a component whose chosen weights are quantized."""
    # `numbers` are those of input channels, by the names of the weights that have some.
    facts = choice.facts
    if not choice.encodings:
        return Derived(source=facts, warnings=_warnings(choice))
    threads, tensors = _encoded_tensors(choice, numbers)
    facts.check_names(tensors, (), {})
    return Derived(
        source=facts,
        tensors=tensors,
        threads=threads,
        statements=_statements(choice, is_file=is_file),
        schemes={encoding.written.scheme for encoding in choice.encodings.values()},
        warnings=_warnings(choice),
    )


def _encoded_tensors(
    choice: WeightChoice, numbers: Mapping[str, ChannelNumbers]
) -> tuple[int, dict[str, list[DerivedTensor]]]:
    """Return how many threads quantize, and what the weights become, by name."""
    tensors_of_shards, encode = choice.facts.stored_tensors, choice.encode
    shapes = [
        (tensors_of_shards[name].shape, encoding) for name, encoding in choice.encodings.items()
    ]
    threads = encoding_threads(shapes, encode.threads)
    kinds: dict[tuple[object, ...], EncodedKind] = {}
    weights: dict[str, EncodedWeight] = {}
    for name, encoding_of in choice.encodings.items():
        info = tensors_of_shards[name]
        # By `id`, as the hash of an encoding goes through all its fields, for each weight.
        key = info.shape, info.format, id(encoding_of), info.stored
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = EncodedKind(info, tensors_of_shards, encoding_of, threads)
        weights[name] = EncodedWeight(info, kind, numbers.get(name))
    for name, weight in weights.items():
        if not weight.encoding.written.shares:
            continue
        partners = choice.facts.model.partners(name, encode.consumer)
        # Engines fuse them, so they have the same global scale.
        sharers = [weights[other] for other in partners if other in weights]
        for other in sharers:
            if other.info.format != weight.info.format:
                raise CheckpointError(
                    f"tensors {weight.info.name!r} ({weight.info.format}) and "
                    f"{other.info.name!r} ({other.info.format}) are fused by engines and share "
                    "a global scale, so they need the same format; cast one of them first"
                )
        share(sharers)
    return threads, {name: weight.tensors() for name, weight in weights.items()}


def _statements(choice: WeightChoice, *, is_file: bool) -> Statements | None:
    """Return what is to state how the weights are stored; None if there are none."""
    encodings, model = choice.encodings, choice.facts.model
    if not encodings:
        return None
    modules = {name.removesuffix(WEIGHT): encoding for name, encoding in encodings.items()}
    tables = [name for name in encodings if model.role(name) in _LOOKED_UP]
    text = statements(
        modules,
        model.excepted_modules(choice.plain_matrices, modules),
        embeddings=frozenset(name.removesuffix(WEIGHT) for name in tables),
    )
    if not is_file:
        return text
    if text.metadata is None:
        raise choice.facts.refusal(
            f"{next(iter(encodings.values())).written.recipe} states how weights are "
            "stored in config.json, which one file has not; name a folder"
        )
    return text._replace(metadata={**text.metadata, **choice.encode.mix_metadata})


def _warnings(choice: WeightChoice) -> list[str]:
    """Return warnings: of a model that is not what it states, and of embeddings."""
    warnings: list[str] = []
    model, recipe = choice.facts.model, choice.encode.recipe
    if model.architecture is not None and not any(map(model.find, model.names)):
        warnings.append(
            f"{CONFIG} states {model.title}, and no tensor has a name of that: their names alone "
            "tell what they are; correct it, or say what they are " + parenthesis("architecture")
        )
    warnings += contradictions_of_config(model)
    tables = (name for name in choice.encodings if model.role(name) in _LOOKED_UP)
    name = next(tables, None)
    is_for_any = choice.encode.consumer is None
    if is_for_any and name is not None and find_recipe(recipe).writing.embeddings == "named":
        warnings.append(
            f"{name!r} is an embedding, and no library loads one that is quantized as by {recipe}: "
            "castwise decodes it (" + function("dequantize") + ")"
        )
    return warnings
