"""Reads every weight once, in bands of rows, and predicts what its candidates lose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from castwise._options import Recipe
from castwise.arrays.dtype_map import KEEP
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.advice._candidates import Candidates
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.planning.written_schemes import is_scheme
from castwise.checkpoint.results.report import Progress
from castwise.checkpoint.surveying import exponents_of, predict_all, survey_tensors


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What advice takes from the survey of a weight."""

    errors: Mapping[str, float]  # noise by signal of each candidate; 0 of "keep"
    exponents: Mapping[int, int]  # elements that are not zero, by exponent


def survey_weights(
    source: Checkpoint,
    candidates: Candidates,
    threads: int,
    progress: Callable[[Progress], None] | None,
) -> dict[str, Surveyed]:
    """Survey the weights of a checkpoint, and predict what their candidates lose.

    CheckpointError: a weight has infinite or NaN elements, which no scheme holds.
    """
    result: dict[str, Surveyed] = {}
    batches = survey_tensors(source, candidates.tensors, threads, progress)
    for batch in batches:
        errors: dict[str, dict[str, float]] = {name: {KEEP: 0.0} for name in batch}
        targets: dict[str, list[str]] = {}
        for name, tensor in batch.items():
            counts = tensor.counts
            if counts.infinities or counts.nans:
                raise CheckpointError(
                    f"tensor {name!r} has {counts.infinities:,} infinite and {counts.nans:,} NaN "
                    "elements, which no scheme holds; repair it first"
                )
            for target in candidates.nbytes[name]:
                if target != KEEP:
                    targets.setdefault(target, []).append(name)
        for target, names in targets.items():
            recipe = cast("Recipe", candidates.recipe) if is_scheme(target) else None
            predictions = predict_all([batch[name] for name in names], target, recipe)
            for name, prediction in zip(names, predictions, strict=True):
                errors[name][target] = _ratio(prediction.sqnr_db)
        # A survey takes as much memory as a small weight, so none is kept.
        for name, tensor in batch.items():
            result[name] = Surveyed(errors[name], exponents_of(tensor.counts))
    return result


def _ratio(decibels: float | None) -> float:
    """Return noise by signal."""
    assert decibels is not None, "measured"  # noqa: S101
    return 0.0 if math.isnan(decibels) else 10.0 ** (-decibels / 10)
