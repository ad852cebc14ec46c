"""Parse the Python literal in an `.npy` header, which may come from an untrusted file.

`ast.literal_eval` takes up to 500 bytes of memory for each byte of text, and evaluates operators.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

_TOKEN = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|True|False|\d{1,20}L?|[][(){},:]""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CLASS: dict[str, Any] = {"(": tuple, "[": list, "{": dict}
_MAX_DEPTH = 200  # brackets inside of brackets, as Python's own parser


def parse_literal(text: str) -> Any:
    """The value of a literal of tuples, lists, dicts, strings, whole numbers and booleans.

    Python 2's ``3L`` is a whole number, too.

    Raises
    ------
    ValueError, TypeError, SyntaxError
        It is another expression, incomplete, or nested more than 200 brackets deep.

    """
    if rest := _TOKEN.sub("", text).strip():
        raise ValueError(f"{rest[:20]!r} is not a part of a literal")
    tokens = iter(_TOKEN.findall(text))
    value = _value(tokens, next(tokens, ""), 0)
    if next(tokens, None) is not None:
        raise ValueError("there is text after the literal")
    return value


def _value(tokens: Iterator[str], word: str, depth: int) -> Any:
    """The value that begins with `word`, inside of `depth` brackets."""
    if word not in _CLOSING:
        return _scalar(word)
    if depth == _MAX_DEPTH:
        raise ValueError(f"brackets are nested more than {_MAX_DEPTH} deep")
    closing = _CLOSING[word]
    items = []
    while (first := next(tokens, "")) != closing:
        item = _value(tokens, first, depth + 1)
        mark = next(tokens, "")
        if word == "{":
            if mark != ":":
                raise ValueError(f"key {item!r} has no value")
            item = (item, _value(tokens, next(tokens, ""), depth + 1))
            mark = next(tokens, "")
        items.append(item)
        if mark == closing:
            if word == "(" and len(items) == 1:
                return item  # parentheses without a comma are not a tuple
            break
        if mark != ",":
            raise ValueError(f"a comma or {closing!r} is missing")
    return _CLASS[word](items)


def _scalar(word: str) -> Any:
    if word[:1] in ("'", '"'):
        return ast.literal_eval(word) if "\\" in word else word[1:-1]
    if word in ("True", "False"):
        return word == "True"
    return int(word.removesuffix("L"))
