"""Refuse what would not be loaded, before anything is written."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.whole_models import ModelFormat
from castwise.checkpoint.loading.check import (
    CHECKED,
    LLAMA_CPP,
    check_file,
    check_loading,
    problem_lines,
)
from castwise.checkpoint.loading.modules import LoadingProblem, UnloadableError
from castwise.models.architecture import Architecture, normalize_name
from castwise.models.model import Model
from castwise.quantization import consumers
from castwise.text.wording import join, parenthesis

_LOGGER = logging.getLogger(__name__)


def _is_table(architecture: Architecture, module: str) -> bool:
    """Return True for a table of which rows are taken."""
    parameter = architecture.find(normalize_name(f"{module}.weight"))
    return parameter is not None and parameter.role in {"embedding", "position"}


def check_consumers(
    path: Path,  # what messages call it
    # What its tensors are; None if nobody knows, so that nothing is checked
    architecture: Architecture | None,
    # Its configuration, all its tensors, and other files that state how they are stored
    config: Mapping[str, Any],
    tensors: Sequence[TensorInfo],
    files: Mapping[str, Any],
    *,
    recipe: str,  # the producer, and the schemes of its weights
    schemes: Collection[str],
    # Who is to load it; None if nobody says it, and it is written if anybody does
    consumer: str | None,
) -> None:
    """Refuse a result that its consumer, or none of those of its recipe, would load."""
    # Weights that the model lacks, as its source does, are only warned of.
    names = [consumer] if consumer is not None else _consumers_of(recipe, schemes)
    names = [name for name in names if name in CHECKED and name != LLAMA_CPP]
    if architecture is None:
        return
    faults: dict[str, list[LoadingProblem]] = {}
    model = Model(config, {info.name: info.shape for info in tensors}, architecture)
    checks = check_loading(model, config, tensors, names, files=files)
    for name, problems in checks.items():
        lasting = [row for row in problems if row.option is None and not row.is_lacking]
        if consumer is None:  # castwise itself decodes an embedding, of which the plan warns
            lasting = [row for row in lasting if not _is_table(architecture, row.module)]
        if lasting:
            faults[name] = lasting
        elif optional := [row for row in problems if row.option is not None]:
            _LOGGER.warning("%s: %s: %s", path, name, _text(optional))
    problems_of_any = next(iter(checks.values()), [])
    if lacking := [problem for problem in problems_of_any if problem.is_lacking]:
        _LOGGER.warning("%s lacks weights, and the result will, too: %s", path, _text(lacking))
    if not faults:
        return
    if len(faults) == len(names) and not (consumer is None and _is_transcoded(recipe, schemes)):
        reasons = join("; ", (f"{name}: " + _text(problems) for name, problems in faults.items()))
        remedy = "" if consumer else "; name who is to load it " + parenthesis("consumer")
        raise UnloadableError(
            f"{path} would not be loaded as it would be written: " + reasons + remedy,
            [problem for problems in faults.values() for problem in problems],
        )
    for name, problems in faults.items():
        _LOGGER.warning("%s: the quantized model is not for %s: %s", path, name, _text(problems))


def refuse_file(
    path: Path, model: ModelFormat, tensors: Sequence[TensorInfo], metadata: Mapping[str, str]
) -> None:
    """Refuse a file of a whole model that its consumer would not load."""
    if problems := check_file(model, tensors, metadata):
        raise UnloadableError(
            f"{path} would not be loaded as it would be written: {LLAMA_CPP}: " + _text(problems),
            problems,
        )


def _consumers_of(recipe: str, schemes: Collection[str]) -> list[str]:
    return [
        consumer.name
        for consumer in consumers()
        for loading in consumer.loads
        if loading.recipe == recipe and {*schemes} <= {*loading.all_schemes}
    ]


def _is_transcoded(recipe: str, schemes: Collection[str]) -> bool:
    """Return True if somebody loads another form that it can be transcoded to."""
    forms = {consumer.name for consumer in consumers() if consumer.form is not None}
    return not forms.isdisjoint(_consumers_of(recipe, schemes))


def _text(problems: Sequence[LoadingProblem]) -> str:
    lines = list(problem_lines(problems))
    return lines[0] + (f" (and {len(lines) - 1:,} more)" if lines[1:] else "")
