"""What advice would be carried out to, checked as the conversions check it before they write."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.advice._candidates import Candidates, typed_format
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.encode.encode import Encode, encode_checkpoint
from castwise.checkpoint.requests.options import Quantize
from castwise.checkpoint.requests.quantize import checked_encode
from castwise.quantization.producers.registry import TYPED


def check_result(
    checkpoint: Checkpoint, candidates: Candidates, choices: Mapping[str, str]
) -> None:
    """Refuse choices that `quantize_file` would not write, or `transcode_file` after it."""
    # `choices` are schemes and formats by the keys of a map.
    consumer = None if candidates.limits is None else candidates.limits.consumer
    has_form = consumer is not None and consumer.form is not None
    if candidates.recipe == TYPED:
        _planned_file(checkpoint, candidates, choices).check_loading()
        return
    if not checkpoint.is_folder and not has_form:
        return  # no library loads such a file by itself
    encode = _encode(checkpoint, candidates, choices)
    derivation = encode_checkpoint(checkpoint, encode, is_file=not checkpoint.is_folder)
    derivation.check_loading()
    if consumer is not None and consumer.form is not None:
        from castwise.checkpoint.planning.transcode.transcode import transcode_checkpoint  # noqa: PLC0415  (alone)

        headers = _planned_headers(derivation)
        transcode_checkpoint(headers, consumer.form, None, 1, is_file=True).check_loading()


def file_bytes(checkpoint: Checkpoint, candidates: Candidates, choices: Mapping[str, str]) -> int:
    """Return the bytes of the file of a whole model that choices make."""
    derivation = _planned_file(checkpoint, candidates, choices)
    plans: list[Planned] = []
    metadata: dict[str, str] = {}
    for component in derivation.source.components:
        for reader in component.shards.values():
            plans += derivation.decide(reader.tensors.values(), component.prefix)
            metadata |= reader.metadata
    file = derivation.source.file
    with file or nullcontext():  # whose header is copied
        return typed_format().file_bytes(plans, metadata, file)


def _planned_file(
    checkpoint: Checkpoint, candidates: Candidates, choices: Mapping[str, str]
) -> DerivedCheckpoint:
    """Plan a file of a whole model whose types are chosen."""
    from castwise.checkpoint.planning.transcode.to_whole_model import encode_to_file  # noqa: PLC0415  (alone)

    return encode_to_file(checkpoint, _encode(checkpoint, candidates, choices), is_file=True)


def _encode(checkpoint: Checkpoint, candidates: Candidates, choices: Mapping[str, str]) -> Encode:
    """Return what a command would ask for that carries choices out."""
    limits = candidates.limits
    name: Any = None if limits is None else limits.consumer.name
    recipe: Any = candidates.recipe
    request = Quantize(source=checkpoint.path, recipe=recipe, dtype_map=choices, consumer=name)
    return checked_encode(request, 1)._replace(architecture=candidates.architecture)


def _planned_headers(derivation: DerivedCheckpoint) -> Checkpoint:
    """Return what is planned as if it were written and opened: its headers, and no data."""
    for plan, component in zip(derivation.plans, derivation.source.components, strict=True):
        sections = {} if plan.statements is None else plan.statements.sections
        for reader in component.shards.values():
            rows = derivation.decide(reader.tensors.values(), component.prefix)
            infos = [row.info._replace(format=row.target or row.info.format) for row in rows]
            reader.tensors = {info.name: info for info in infos}
            reader.metadata = {key: json.dumps(section) for key, section in sections.items()}
    return derivation.source
