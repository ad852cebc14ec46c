"""Reads every weight once, in bands of rows, and predicts what its candidates lose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from castwise._dtype_map import KEEP
from castwise._options import Recipe
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.advice._candidates import Candidates
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.report import Progress
from castwise.checkpoint.surveying import SurveyedTensor, exponents_of, survey_tensors
from castwise.quantization import schemes


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What advice takes from the survey of a weight.

    Attributes
    ----------
    errors
        The ratio of noise to signal of each candidate, 0 for what is kept.
    exponents
        Elements that are not zero by exponent.

    """

    errors: Mapping[str, float]
    exponents: Mapping[int, int]


def survey_weights(
    source: Checkpoint,
    candidates: Candidates,
    threads: int,
    progress: Callable[[Progress], None] | None,
) -> dict[str, Surveyed]:
    """Survey the weights of a checkpoint, and predict what their candidates lose.

    Raises
    ------
    CheckpointError
        A weight has infinite or NaN elements, which no scheme holds.

    """
    surveyed: dict[str, Surveyed] = {}
    tensors = survey_tensors(source, candidates.tensors, threads, progress, candidates.transposed)
    for name, tensor in tensors:
        counts = tensor.counts
        if counts.infinities or counts.nans:
            raise CheckpointError(
                f"tensor {name!r} has {counts.infinities:,} infinite and {counts.nans:,} NaN "
                "elements, which no scheme holds; repair it first"
            )
        errors = {
            target: _ratio(tensor, target, candidates.recipe) for target in candidates.nbytes[name]
        }
        # A survey takes as much memory as a small weight, so none is kept.
        surveyed[name] = Surveyed(errors, exponents_of(counts))
    return surveyed


def _ratio(tensor: SurveyedTensor, target: str, recipe: str) -> float:
    if target == KEEP:
        return 0.0
    arithmetic = next((cast("Recipe", recipe) for row in schemes() if row.name == target), None)
    decibels = tensor.predict(target, arithmetic).sqnr_db
    assert decibels is not None, "measured"  # noqa: S101
    return 0.0 if math.isnan(decibels) else 10.0 ** (-decibels / 10)
