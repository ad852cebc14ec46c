"""Does a consumer load a checkpoint? Asked of the table of architectures and what is stated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.loading import _engines, _transformers
from castwise.checkpoint.loading._engines import engine_problems
from castwise.checkpoint.loading._layers import layer_problems
from castwise.checkpoint.loading._mlx_lm import mlx_problems
from castwise.checkpoint.loading._modules import modules_of
from castwise.checkpoint.loading._transformers import is_decoded_alone, transformers_problems
from castwise.checkpoint.loading._view import QUANTIZATION_FILE, Read, View, section_of
from castwise.checkpoint.loading.problem import LoadingProblem
from castwise.quantization.producers.stated import CONFIG, SECTIONS, sides_of
from castwise.text.brief import shorten

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
        fault = _statement_problem(name, config, files or {}) if name in _METHODS else None
        problems[name] = _PROBLEMS[name](view) if fault is None else (fault,)
    return {name: list(dict.fromkeys((*found, *lacking))) for name, found in problems.items()}


def _statement_problem(
    consumer: str, config: Mapping[str, Any], files: Mapping[str, Any]
) -> LoadingProblem | None:
    """Return the first field of a statement that has another type than its readers take."""
    fields = {**_FIELDS, **_EXPRESSIONS} if consumer == "transformers" else _FIELDS
    sections = {
        CONFIG: section_of(config, *SECTIONS),
        QUANTIZATION_FILE: files.get(QUANTIZATION_FILE),
    }
    for file, section in sections.items():
        fault = _fault(section, fields, "", _LEVELS) if isinstance(section, Mapping) else None
        if fault is not None:
            return LoadingProblem("", f"{file} states {fault}", "correct it")
    return None


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


def loads_by_default(consumer: str, recipe: str, scheme: str, dtype: str | None) -> bool:
    """Return False if a consumer loads a scheme only with an option that it has not by default.

    `dtype` is the format of most tensors that are not quantized; None if there are none.
    """
    is_narrow = consumer == "transformers" and recipe == "compressed-tensors"
    return not (is_narrow and is_decoded_alone(scheme, dtype))


def problem_lines(problems: Iterable[LoadingProblem]) -> Iterator[str]:
    """Yield a line for each kind of problem: the first module, and how many there are."""
    kinds: dict[tuple[str, str], list[LoadingProblem]] = {}
    for problem in problems:
        kinds.setdefault((problem.problem, problem.remedy), []).append(problem)
    for alike in kinds.values():
        count = f" ({len(alike):,} modules)" if len(alike) > 1 else ""
        yield str(alike[0]) + count


# Groups are two levels below the section, and the arguments of their weights three.
_LEVELS = 3

_EXPRESSION = "re:"
_LETTERS = 60


def _is_pattern(text: object) -> bool:
    """Return True for a text that matches names, as an expression where it begins like one."""
    if not isinstance(text, str):
        return False
    try:
        re.compile(text.removeprefix(_EXPRESSION) if text.startswith(_EXPRESSION) else "")
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _is_expression(text: object) -> bool:
    """Return True for a text that transformers can take for an expression."""
    return isinstance(text, str) and _is_pattern(_EXPRESSION + text.removeprefix(_EXPRESSION))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_block(value: object) -> bool:
    if not isinstance(value, list):
        return False
    rows_and_columns = 2
    return len(value) == rows_and_columns and all(_is_number(side) and side > 0 for side in value)


def _is_block_structure(value: object) -> bool:
    return _is_block(sides_of(value))


def _is_list_of(is_item: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(is_item, value))


_NAMES = (_is_list_of(_is_pattern), "a list of names and regular expressions")
_BLOCK = (_is_block, "a list of two positive whole numbers")
_NUMBER = (_is_number, "a whole number")
_Fields = Mapping[str, tuple[Callable[[object], bool], str]]
# What the rules of consumers read, with the types that they take; null stands for no field.
_FIELDS: _Fields = {
    "ignore": _NAMES,
    "ignored_layers": _NAMES,
    "exclude_modules": _NAMES,
    "targets": _NAMES,
    "modules_to_not_convert": _NAMES,
    "weight_block_size": _BLOCK,
    "block_structure": (_is_block_structure, "a list of two positive whole numbers"),
    "num_bits": _NUMBER,
    "group_size": _NUMBER,
    "format": (lambda value: isinstance(value, str), "a text"),
    "actorder": (lambda value: isinstance(value, (str, bool)), "a text"),
}
# What transformers takes for expressions, and engines for names.
_EXPRESSIONS: _Fields = {
    "modules_to_not_convert": (_is_list_of(_is_expression), _NAMES[1]),
}


def _fault(section: Mapping[str, Any], fields: _Fields, where: str, levels: int) -> str | None:
    for key, value in section.items():
        is_right, kind = fields.get(key, (None, ""))
        if is_right is not None and value is not None and not is_right(value):
            return f"{where}{key} as {shorten(repr(value), _LETTERS)}, which is not {kind}"
        if levels and isinstance(value, Mapping):
            fault = _fault(value, fields, f"{where}{key}.", levels - 1)
            if fault is not None:
                return fault
    return None
