"""Transcode an opened checkpoint: let readers store its weights as another producer does."""

import json
from dataclasses import replace
from functools import partial

from castwise.arrays.dtype_map import KEEP, DtypeMap
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint.containers import model_files
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.registry import model_format
from castwise.checkpoint.containers.whole_models import ModelFormat, WholeModelReader
from castwise.checkpoint.planning.checkpoint_model import check_rows
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.encode.encode import (
    Encode,
    choices_of,
    encode_checkpoint,
    facts_of,
)
from castwise.checkpoint.planning.transcode._transcode_plan import (
    derive_transcoded,
    plan_transcoding,
)
from castwise.checkpoint.planning.transcode._whole_model_plan import (
    config_of,
    derive_encoded_model,
    derive_whole_model,
)
from castwise.models.architecture import Architecture
from castwise.models.model import WEIGHT
from castwise.quantization.producers.registry import find_recipe, producer_of_model
from castwise.text.wording import parenthesis, setting


def _check_whole(source: Checkpoint, target: ModelFormat, recipe: str, *, is_file: bool) -> None:
    """Refuse what does not become one file of one model."""
    several = [component.place for component in source.components]
    if not is_file:
        raise CheckpointError(f"{target.label} is one file; name one that ends with .{recipe}")
    if len(several) > 1:
        raise CheckpointError(
            f"{source.path} has tensors in {join_names(several)}, and a {target.label} file is of "
            "one model; leave out the others " + parenthesis("exclude")
        )


def encode_to_file(source: Checkpoint, encode: Encode, *, is_file: bool) -> DerivedCheckpoint:
    """Return an opened checkpoint as a file of a whole model whose weights are quantized.

    CheckpointError: as `encode_checkpoint` and `transcode_checkpoint`.
    """
    target = model_format(f".{encode.recipe}")
    if encode.mix is not None and target is not None:
        encode = _with_mix(source, encode, encode.mix, target)
    if target is None or isinstance(source.file, WholeModelReader):
        return encode_checkpoint(source, encode, is_file=is_file)
    _check_whole(source, target, encode.recipe, is_file=is_file)
    formats = dict(encode.dtypes.keys.items())
    wrong = next((key for key, value in formats.items() if value not in {None, KEEP}), None)
    if wrong is not None:
        raise CheckpointError(
            setting("dtype_map", wrong)
            + f": a {target.label} file keeps the dtype of what is not quantized, or has it in "
            f"float32; leave {formats[wrong]} out"
        )
    (choice,), unused_patterns, plain_tensors = choices_of(source, encode)
    part = derive_encoded_model(target, choice, encode.threads)
    return DerivedCheckpoint(
        source,
        [part],
        DtypeMap.from_mapping({target.float32.pattern: "float32"}),
        is_file=is_file,
        recipe=encode.recipe,
        unused_patterns=unused_patterns,
        consumer=encode.consumer,
        kept_tensors=plain_tensors,
    )


def _with_mix(source: Checkpoint, encode: Encode, mix: str, target: ModelFormat) -> Encode:
    """Return what gives each weight the scheme that a mix has for it."""
    facts = facts_of(source, source.components[0], encode)
    if isinstance(source.file, WholeModelReader):
        types = target.mix_types(mix, source.file.values(), [*facts.stored_tensors])
    else:
        outline = target.outline(facts.component.folder, config_of(facts))
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
    return replace(encode, mix_types=types, mix_metadata=target.mix_metadata(mix))


def transcode_checkpoint(
    source: Checkpoint,
    recipe: str,
    scheme: str | None,
    threads: int,
    architecture: Architecture | None = None,
    *,
    inputs: str | None = None,
    is_file: bool,
) -> DerivedCheckpoint:
    """Return an opened checkpoint in the form of another producer, or of another scheme.

    `is_file` says that it becomes one file, which states in its metadata how weights are stored;
    `inputs` is what is to be stated of inputs, None for what the producer states.

    CheckpointError: it is not quantized, or not in a form that can be transcoded; or it has tensors
    that the other form has no place for.
    """
    target = model_format(f".{recipe}")
    if target is not None:
        _check_whole(source, target, recipe, is_file=is_file)
    model = model_files(source, None, is_file=is_file)
    storing = producer_of_model(model.config.get("model_type"))
    if storing is not None and find_recipe(recipe).writing.is_loaded:
        raise CheckpointError(
            f"{source.path} cannot become a folder of {recipe}: transformers loads experts of "
            f"{storing.name} as {storing.name} stores them "
            + parenthesis("recipe", storing.name, option="--to")
            + ", or as castwise dequantize decodes them"
        )
    dtypes = model.dtypes
    if target is not None:
        dtypes = DtypeMap.from_mapping({target.float32.pattern: "float32"})
    plans = [
        plan_transcoding(source, component, recipe, scheme, threads, architecture, inputs)
        for component in source.components
    ]
    names = [name for plan in plans for name in plan.facts.model.names]
    names += [weight.name for plan in plans for weight in plan.weights]
    check_rows(names, architecture)
    if not any(plan.weights for plan in plans):
        raise CheckpointError(
            f"{source.path}: no weight in it is quantized; castwise quantize quantizes it"
        )
    derive = derive_transcoded if target is None else partial(derive_whole_model, target)
    parts = [derive(plan) for plan in plans]
    return DerivedCheckpoint(source, parts, dtypes, is_file=is_file, recipe=recipe, model=model)
