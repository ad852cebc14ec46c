"""What advice would be carried out to, checked as the conversions check it before they write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from castwise.checkpoint.advice._candidates import Candidates
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.encode.encode import encode_checkpoint
from castwise.checkpoint.planning.transcode.transcode import transcode_checkpoint
from castwise.checkpoint.requests.options import Quantize
from castwise.checkpoint.requests.quantize import checked_encode


def check_result(opened: Checkpoint, candidates: Candidates, choices: Mapping[str, str]) -> None:
    """Refuse choices that `quantize_file` would not write, or `transcode_file` after it.

    `choices` are schemes and formats by the keys of a map.

    UnloadableError: the consumer would not load some of its modules.
    CheckpointError: it would not be written for another reason.
    """
    consumer = None if candidates.limits is None else candidates.limits.consumer
    has_form = consumer is not None and consumer.form is not None
    if not opened.is_folder and not has_form:
        return  # no library loads such a file by itself
    name: Any = None if consumer is None else consumer.name
    recipe: Any = candidates.recipe
    request = Quantize(source=opened.path, recipe=recipe, dtype_map=choices, consumer=name)
    encode = replace(checked_encode(request, 1), architecture=candidates.architecture)
    planned = encode_checkpoint(opened, encode, is_file=not opened.is_folder)
    planned.check_loading()
    if consumer is not None and consumer.form is not None:
        written = _written(planned)
        transcode_checkpoint(written, consumer.form, None, 1, is_file=True).check_loading()


def _written(planned: DerivedCheckpoint) -> Checkpoint:
    """Return what is planned as if it were written and opened: its headers, and no data."""
    for plan, component in zip(planned.plans, planned.source.components, strict=True):
        stated = {} if plan.statements is None else plan.statements.sections
        for reader in component.shards.values():
            rows = planned.decide(reader.tensors.values(), component.prefix)
            infos = [row.info._replace(format=row.target or row.info.format) for row in rows]
            reader.tensors = {info.name: info for info in infos}
            reader.metadata = {key: json.dumps(section) for key, section in stated.items()}
    return planned.source
