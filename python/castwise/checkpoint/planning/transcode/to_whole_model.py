"""Plan what becomes one file of a whole model: quantized weights, or plain ones."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from castwise.arrays.dtype_map import KEEP, DtypeMap
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.registry import model_format
from castwise.checkpoint.containers.whole_models import ModelFormat, ModelOutline, WholeModelReader
from castwise.checkpoint.planning.component import Derived, SourceComponent
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.derived_reader import DerivedTensor
from castwise.checkpoint.planning.encode.encode import (
    Encode,
    choices_of,
    encode_checkpoint,
    facts_of,
    numbers_of,
)
from castwise.checkpoint.planning.importance import ChannelNumbers, ImportanceMatch
from castwise.checkpoint.planning.transcode._transcode_plan import TranscodingPlan, new_tensors
from castwise.checkpoint.planning.transcode._transcoded_weight import TranscodedWeight
from castwise.checkpoint.planning.transcode._whole_model import WholeModel
from castwise.models.model import WEIGHT
from castwise.quantization.producers.producer import Encoding, Statements
from castwise.quantization.producers.registry import CONFIGS
from castwise.quantization.producers.stated import CONFIG
from castwise.text.wording import parenthesis, setting


def check_whole(source: Checkpoint, target: ModelFormat, recipe: str, *, is_file: bool) -> None:
    several = [component.place for component in source.components]
    if not is_file:
        raise CheckpointError(f"{target.label} is one file; name one that ends with .{recipe}")
    if len(several) > 1:
        raise CheckpointError(
            f"{source.path} has tensors in {join_names(several)}, and a {target.label} file is of "
            "one model; leave out the others " + parenthesis("exclude")
        )


def derive_whole_model(target: ModelFormat, plan: TranscodingPlan) -> Derived:
    """Derive a component that becomes a file of a whole model, in the format `target`."""
    facts = plan.facts
    if not plan.weights:
        return Derived(source=facts, threads=plan.threads)
    weights = {weight.weight.payload: weight for weight in plan.new_weights}
    model = _model_of(target, _outline_of(target, facts), facts, weights, {}, {})
    tensors, left_out = new_tensors(plan, model.tensors)
    schemes = {plan.scheme_of(weight) for weight in plan.weights}
    return _derived(target, facts, model, tensors, left_out, plan.threads, schemes)


def encode_to_file(source: Checkpoint, encode: Encode, *, is_file: bool) -> DerivedCheckpoint:
    """Return an opened checkpoint as a file of a whole model whose weights are quantized."""
    target = model_format(f".{encode.recipe}")
    if target is None or isinstance(source.file, WholeModelReader):
        if encode.mix is not None and target is not None:
            encode = _with_mix(source, encode, encode.mix, target)
        return encode_checkpoint(source, encode, is_file=is_file)
    check_whole(source, target, encode.recipe, is_file=is_file)
    # A model that the file has no place for is refused before any of its tensors is.
    component = facts_of(source, source.components[0], encode)
    outline = _outline_of(target, component)
    if encode.mix is not None:
        # Tensors of an outline are read once: there may be more of them than memory holds.
        encode = _with_mix(source, encode, encode.mix, target, _outline_of(target, component))
    formats = dict(encode.dtypes.keys.items())
    wrong = next((key for key, value in formats.items() if value not in {None, KEEP}), None)
    if wrong is not None:
        raise CheckpointError(
            setting("dtype_map", wrong)
            + f": a {target.label} file keeps the dtype of what is not quantized, or has it in "
            f"float32; leave {formats[wrong]} out"
        )
    (choice,), unused_patterns, plain_tensors = choices_of(source, encode)
    match = None if encode.importance is None else ImportanceMatch(encode.importance)
    numbers = {} if match is None else numbers_of(choice, match)
    facts, encodings = choice.facts, choice.encodings
    model = _model_of(target, outline, facts, {}, encodings, numbers)
    model.metadata |= encode.mix_metadata
    schemes = {encoding.written.scheme for encoding in encodings.values()}
    return DerivedCheckpoint(
        source,
        [_derived(target, facts, model, {}, {}, encode.threads, schemes)],
        DtypeMap.from_mapping({target.float32.pattern: "float32"}),
        is_file=is_file,
        recipe=encode.recipe,
        unused_patterns=unused_patterns,
        consumer=encode.consumer,
        kept_tensors=plain_tensors,
        importance=None if match is None else match.use(),
    )


def _with_mix(
    source: Checkpoint,
    encode: Encode,
    mix: str,
    target: ModelFormat,
    outline: ModelOutline | None = None,  # of a folder, what it becomes
) -> Encode:
    """Return what gives each weight the scheme that a mix has for it."""
    facts = facts_of(source, source.components[0], encode)
    if outline is None:
        assert isinstance(source.file, WholeModelReader), "it has no outline"  # noqa: S101
        types = target.mix_types(mix, source.file.values(), [*facts.stored_tensors])
    else:
        stems = {name.removesuffix(WEIGHT): name for name in facts.stored_tensors}
        places = {
            stem: tensor.places[0].name
            for tensor in outline.tensors
            if (stem := tensor.name.removesuffix(WEIGHT)) in stems
        }
        values = {key: json.loads(text)[1] for key, text in outline.metadata.items()}
        types_of_places = target.mix_types(mix, values, {*places.values()})
        types = {
            stems[stem]: types_of_places[place]
            for stem, place in places.items()
            if place in types_of_places
        }
    return encode._replace(mix_types=types, mix_metadata=target.mix_metadata(mix))


def _config_of(facts: SourceComponent) -> Mapping[str, Any]:
    config = facts.statement.configs.get(CONFIG)
    if not isinstance(config, dict):
        raise facts.refusal("no config.json states its hyperparameters; name its folder")
    return config


def _outline_of(target: ModelFormat, facts: SourceComponent) -> ModelOutline:
    config = _config_of(facts)
    try:
        return target.outline(facts.component.folder, config)
    except CheckpointError as error:
        raise facts.refusal(str(error)) from error


def _model_of(  # noqa: PLR0917
    target: ModelFormat,
    outline: ModelOutline,
    facts: SourceComponent,
    weights: Mapping[str, TranscodedWeight],
    encodings: Mapping[str, Encoding],
    numbers: Mapping[str, ChannelNumbers],
) -> WholeModel:
    """Return what a component is in a file, given its weights as `WholeModel` is."""
    config, stored = _config_of(facts), facts.stored_tensors
    try:
        return WholeModel(target, outline, config, stored, weights, encodings, numbers)
    except CheckpointError as error:
        raise facts.refusal(str(error)) from error


def _derived(  # noqa: PLR0917
    target: ModelFormat,
    facts: SourceComponent,
    model: WholeModel,
    tensors: dict[str, list[DerivedTensor]],
    left_out: dict[str, str],
    threads: int,
    schemes: Collection[str],
) -> Derived:
    """Return what a component becomes, with what is made of plain tensors, too."""
    tensors |= model.plain()
    left_out |= dict.fromkeys(model.left_out, "")
    facts.check_names(tensors, left_out, model.new_names)
    return Derived(
        source=facts,
        tensors=tensors,
        left_out=left_out,
        new_names=model.new_names,
        threads=threads,
        consumed_paths=[facts.prefix + name for name in (*CONFIGS, *target.tokenizer_files)],
        statements=Statements({}, {}, model.metadata),
        schemes=schemes,
        metadata=lambda _: {},
    )
