"""The types of the fields that state a quantization, as the rules of consumers read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from castwise.checkpoint.loading._view import QUANTIZATION_FILE, section_of
from castwise.checkpoint.loading.problem import LoadingProblem
from castwise.quantization.producers.stated import CONFIG, SECTIONS, sides_of
from castwise.text.brief import shorten

# Groups are two levels below the section, and the arguments of their weights three.
_LEVELS = 3

_EXPRESSION = "re:"
_LETTERS = 60


def statement_problem(
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
