"""The types of the fields of a statement, which its readers would not look at."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from castwise.checkpoint.loading.problem import LoadingProblem
from castwise.quantization.producers.stated import sides_of
from castwise.text.brief import shorten

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
"""What the rules of consumers read, with the types that they take; null stands for no field."""


_EXPRESSIONS: _Fields = {
    "modules_to_not_convert": (_is_list_of(_is_expression), _NAMES[1]),
}
"""What transformers takes for expressions, and engines for names."""


def statement_problem(
    file: str, section: Mapping[str, Any], *, are_expressions: bool
) -> LoadingProblem | None:
    """Return the first field of a statement that has another type than its readers take.

    `are_expressions` is true of transformers, which takes the names of modules for expressions.
    """
    fields = {**_FIELDS, **_EXPRESSIONS} if are_expressions else _FIELDS
    fault = _fault(section, fields, "", _LEVELS)
    return None if fault is None else LoadingProblem("", f"{file} states {fault}", "correct it")


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
