"""Reads every weight once, in bands of rows, and predicts what its candidates lose."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from castwise._options import Recipe, Scales
from castwise.arrays.dtype_map import KEEP
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.advice._candidates import Candidates
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.planning.written_schemes import is_scheme
from castwise.checkpoint.results.report import Progress
from castwise.checkpoint.surveying import Predictor, survey_tensors


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What advice takes from the survey of a weight."""

    errors: Mapping[str, float]  # noise by signal of each candidate; 0 of "keep"
    exponents: Mapping[int, int]  # elements that are not zero, by exponent


def survey_weights(
    source: Checkpoint,
    candidates: Candidates,
    scales: Scales,
    threads: int,
    progress: Callable[[Progress], None] | None,
) -> dict[str, Surveyed]:
    # `scales` concerns the schemes that have such a choice.
    result: dict[str, Surveyed] = {}
    batches = survey_tensors(source, candidates.tensors, threads, progress)
    for batch in batches:
        errors: dict[str, dict[str, float]] = {name: {KEEP: 0.0} for name in batch}
        groups: dict[tuple[str, ...], list[str]] = {}  # by what they may become
        for name, tensor in batch.items():
            counts = tensor.magnitudes
            if counts.infinities or counts.nans:
                raise CheckpointError(
                    f"tensor {name!r} has {counts.infinities:,} infinite and {counts.nans:,} NaN "
                    "elements, which no scheme holds; repair it first"
                )
            groups.setdefault(tuple(candidates.nbytes[name]), []).append(name)
        for targets, names in groups.items():
            predictor = Predictor([batch[name] for name in names], scales)
            for target in targets:
                if target == KEEP:
                    continue
                recipe = cast("Recipe", candidates.recipe) if is_scheme(target) else None
                for name, decibels in zip(names, predictor.decibels(target, recipe), strict=True):
                    assert decibels is not None, "measured"  # noqa: S101
                    is_nothing = math.isnan(decibels)
                    errors[name][target] = 0.0 if is_nothing else 10.0 ** (-decibels / 10)
        # A survey takes as much memory as a small weight, so none is kept.
        for name, tensor in batch.items():
            result[name] = Surveyed(errors[name], tensor.magnitudes.exponents)
    return result
