"""Reads every weight once, in bands of rows, and predicts what its candidates lose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from castwise._dtype_map import KEEP
from castwise._options import Recipe
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.advice._candidates import Candidates
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.planning import StoredTensors
from castwise.checkpoint.report import Progress, ProgressMeter
from castwise.quantization import schemes
from castwise.surveys import Survey, survey

_BAND = 128
"""Rows that are read together, or a multiple: surveys of such bands add up."""

_BYTES = 1 << 23
"""Bytes of a band, about."""


def survey_weights(
    source: Checkpoint,
    candidates: Candidates,
    threads: int,
    progress: Callable[[Progress], None] | None,
) -> dict[str, Survey]:
    """Survey the weights of a checkpoint.

    Raises
    ------
    CheckpointError
        A weight has infinite or NaN elements, which no scheme holds.

    """
    meter = ProgressMeter(sum(info.nbytes for info in candidates.tensors.values()), progress)
    surveys: dict[str, Survey] = {}
    for component in source.components:
        stored = StoredTensors(component.shards)
        for name in _names(component, candidates.tensors):
            info = stored[name]
            meter.starts(component.prefix + name)
            with stored.opened(stored.readers([name])):
                surveys[component.prefix + name] = _survey(stored, info, threads)
            meter.finished(info.nbytes)
    meter.starts(None)
    for name, counts in surveys.items():
        if counts.infinities or counts.nans:
            raise CheckpointError(
                f"tensor {name!r} has {counts.infinities:,} infinite and {counts.nans:,} NaN "
                "elements, which no scheme holds; repair it first"
            )
    return surveys


def _names(component: Component, tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Return the weights of a component, in the order of their files."""
    return [
        name
        for shard in component.shards.values()
        for name in shard.tensors
        if component.prefix + name in tensors
    ]


def _survey(stored: StoredTensors, info: TensorInfo, threads: int) -> Survey:
    """Survey a tensor, band by band."""
    *stack, rows, columns = (1, *info.shape) if len(info.shape) == 1 else info.shape
    row_bytes = max(info.nbytes // max(math.prod(info.shape) // columns, 1), 1)
    band = max(_BYTES // row_bytes // _BAND, 1) * _BAND
    total: Survey | None = None
    for index in np.ndindex(*stack):
        for start in range(0, rows, band):
            ranges = [(place, place + 1) for place in index]
            ranges += [(start, min(start + band, rows)), (0, columns)]
            piece: NDArray[Any] = stored.box(info.name, ranges[-len(info.shape) :])
            part = survey(piece, threads=threads)
            total = part if total is None else total + part
    return survey(np.zeros(0, np.float32)) if total is None else total


def relative_errors(
    candidates: Candidates, surveys: Mapping[str, Survey]
) -> dict[str, dict[str, float]]:
    """Return the ratio of noise to signal of each candidate, 0 for what is kept."""
    return {
        name: {
            target: _ratio(surveys[name], target, candidates.recipe)
            for target in candidates.nbytes[name]
        }
        for name in candidates.tensors
    }


def _ratio(weight_survey: Survey, target: str, recipe: str) -> float:
    if target == KEEP:
        return 0.0
    arithmetic = next((cast("Recipe", recipe) for row in schemes() if row.name == target), None)
    decibels = weight_survey.predict(target, recipe=arithmetic).sqnr_db
    return 0.0 if math.isnan(decibels) else 10.0 ** (-decibels / 10)
