"""Does a consumer load a checkpoint? Asked of the table of architectures and what is stated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.loading import _engines, _transformers
from castwise.checkpoint.loading._engines import engine_problems
from castwise.checkpoint.loading._layers import layer_problems
from castwise.checkpoint.loading._mlx_lm import mlx_problems
from castwise.checkpoint.loading._transformers import transformers_problems
from castwise.checkpoint.loading._view import Read, View, section_of, statement_problem
from castwise.checkpoint.loading.modules import LoadingProblem, modules_of
from castwise.quantization.producers.stated import SECTIONS

if TYPE_CHECKING:
    from castwise.checkpoint.containers.whole_models import ModelFormat
    from castwise.models.model import Model

LLAMA_CPP = "llama.cpp"
_PROBLEMS = {
    "transformers": transformers_problems,
    "vllm": engine_problems,
    "sglang": engine_problems,
    "mlx-lm": mlx_problems,
}
_METHODS = {
    "transformers": _transformers.METHODS,
    "vllm": _engines.METHODS,
    "sglang": _engines.METHODS,
}
"""The methods of quantization that have rules; mlx-lm's are of all."""

CHECKED = ("transformers", "vllm", "sglang", LLAMA_CPP, "mlx-lm")
"""The consumers whose rules castwise knows."""


def check_loading(
    # What the tensors are, by an architecture that is known.
    model: Model,
    # The parsed `config.json`.
    config: Mapping[str, Any],
    # All tensors of the model.
    tensors: Iterable[TensorInfo],
    # Of `CHECKED`, but for llama.cpp, of which see `check_file`.
    consumers: Iterable[str],
    *,
    # Other files that may state the quantization, parsed, by name.
    files: Mapping[str, Any] | None = None,
    # Reads a tensor by its name; None if the data are not there yet.
    read: Read | None = None,
) -> dict[str, list[LoadingProblem]]:
    """Return what keeps consumers from loading a checkpoint as it stands, by their names."""
    architecture = model.architecture
    assert architecture is not None, "of a known model"  # noqa: S101
    modules, unknown = modules_of(model, tensors)
    views = {
        name: View(name, architecture, config, modules, files or {}, read) for name in consumers
    }
    lacking = [*layer_problems(architecture, config, modules, unknown)]
    problems = {}
    for name, view in views.items():
        fault = statement_problem(name, config, files or {}) if name in _METHODS else None
        problems[name] = _PROBLEMS[name](view) if fault is None else (fault,)
    return {name: list(dict.fromkeys((*found, *lacking))) for name, found in problems.items()}


def unknown_tensors(model: Model, tensors: Iterable[TensorInfo]) -> list[str]:
    """Return the names of tensors that the architecture of a model has no row of."""
    return modules_of(model, tensors)[1]


def unchecked_method(config: Mapping[str, Any], consumer: str) -> str | None:
    """Return the stated method of quantization that has no rules for a consumer."""
    method = section_of(config, *SECTIONS).get("quant_method")
    is_checked = method is None or consumer not in _METHODS or method in [*_METHODS[consumer]]
    return None if is_checked else str(method)


def check_file(
    model: ModelFormat, tensors: Iterable[TensorInfo], metadata: Mapping[str, str]
) -> list[LoadingProblem]:
    """Return what keeps a file of a whole model from being loaded."""
    return [LoadingProblem(*problem) for problem in model.problems(tensors, metadata)]


def problem_lines(problems: Iterable[LoadingProblem]) -> Iterator[str]:
    """Yield a line for each kind of problem: the first module, and how many there are."""
    kinds: dict[tuple[str, str], list[LoadingProblem]] = {}
    for problem in problems:
        kinds.setdefault((problem.problem, problem.remedy), []).append(problem)
    for alike in kinds.values():
        count = f" ({len(alike):,} modules)" if len(alike) > 1 else ""
        yield str(alike[0]) + count
