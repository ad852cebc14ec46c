"""Quantize an opened checkpoint into one file of a whole model."""

import json

from castwise.arrays.dtype_map import KEEP, DtypeMap
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.registry import model_format
from castwise.checkpoint.containers.whole_models import ModelFormat, WholeModelReader
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.encode.encode import (
    Encode,
    choices_of,
    encode_checkpoint,
    facts_of,
    numbers_of,
)
from castwise.checkpoint.planning.importance import ImportanceMatch
from castwise.checkpoint.planning.transcode._whole_model_plan import (
    check_whole,
    config_of,
    derive_encoded_model,
)
from castwise.models.model import WEIGHT
from castwise.text.wording import setting


def encode_to_file(source: Checkpoint, encode: Encode, *, is_file: bool) -> DerivedCheckpoint:
    """Return an opened checkpoint as a file of a whole model whose weights are quantized.

    CheckpointError: as `encode_checkpoint` and `transcode_checkpoint`.
    """
    target = model_format(f".{encode.recipe}")
    if encode.mix is not None and target is not None:
        encode = _with_mix(source, encode, encode.mix, target)
    if target is None or isinstance(source.file, WholeModelReader):
        return encode_checkpoint(source, encode, is_file=is_file)
    check_whole(source, target, encode.recipe, is_file=is_file)
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
    part = derive_encoded_model(target, choice, numbers, encode.threads)
    return DerivedCheckpoint(
        source,
        [part],
        DtypeMap.from_mapping({target.float32.pattern: "float32"}),
        is_file=is_file,
        recipe=encode.recipe,
        unused_patterns=unused_patterns,
        consumer=encode.consumer,
        kept_tensors=plain_tensors,
        importance=None if match is None else match.use(),
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
    return encode._replace(mix_types=types, mix_metadata=target.mix_metadata(mix))
