"""The configuration of a model that is no longer quantised.

What states the quantisation is removed from the text of `config.json`; numbers, escapes, order and
layout of the rest stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from castwise.checkpoint._config import NULL_VALUE, TOKEN, Config, stated_formats
from castwise.checkpoint.containers.statement import DTYPE_KEYS, ComponentStatement
from castwise.checkpoint.results.report import CastRow
from castwise.quantization.producers.layouts import BF16
from castwise.quantization.producers.registry import OWN_SECTIONS
from castwise.quantization.producers.stated import SECTIONS

_OF_TRANSFORMERS = frozenset(("architectures", "model_type"))
_FLOAT32 = "float32"

# The formats of tensors beside decoded weights that become theirs; float32 is chosen by tensor.
HALVES = frozenset((BF16, "float16"))


class Exceptions(NamedTuple):
    """Modules that are not quantised, and the key of a section under which such are listed."""

    key: str
    modules: Sequence[str]


class UnquantizedConfig(Config):
    """A `config.json` that states no quantisation when its model is decoded.

    `exceptions` are modules that it must except where others stay quantised; None for none.
    `is_stale` says that it goes where no weight is decoded, too.

    OSError: it cannot be read.
    """

    def __init__(
        self,
        statement: ComponentStatement,
        label: str,
        exceptions: Exceptions | None,
        *,
        is_stale: bool,
    ) -> None:
        super().__init__(statement, label)
        self._is_stale = is_stale
        self._exceptions = exceptions
        self._is_rewritten = True

    def following(self, rows: Sequence[CastRow]) -> str | None:
        """Return the text without the quantisation, with the dtype of what was decoded.

        None if the text is to stay.
        """
        formats = sorted({row.target for row in rows if row.target is not None})
        old_text = self._text
        if not formats:
            text = without_quantization(old_text) if self._is_stale else old_text
            return None if text == old_text else text
        if self._exceptions is not None:
            text = with_exceptions(old_text, self._exceptions)
            self._with_dtype(formats)  # which warns, and changes nothing
            return None if text == old_text else text
        self._take(without_quantization(old_text, self._config, formats[0]))
        if not HALVES.isdisjoint(statement.format for statement in self._dtype_statements):
            # Of a part in float32 beside others, whose tensors stay.
            self._dtype_statements = [
                statement for statement in self._dtype_statements if statement.format != _FLOAT32
            ]
        text = self._with_dtype(formats) or self._text
        return None if text == old_text else text


def follows(config: object) -> bool:
    """Return True if a parsed configuration will state the dtype that weights are decoded to."""
    is_model = isinstance(config, dict) and not _OF_TRANSFORMERS.isdisjoint(config)
    return is_model or bool(stated_formats(config))


@dataclass(slots=True)
class _Open:
    """An object or list of the text that has not ended yet."""

    is_object: bool
    # Where the last bracket or comma in it begins and ends.
    last_sign: tuple[int, int]
    is_first: bool = True
    # The key whose value comes next.
    key: str | None = None
    # True if that value is a section to remove.
    goes: bool = False
    keys: list[str] | None = None


@dataclass(frozen=True, slots=True)
class _Member:
    """A section in an object: where it stands, and what stands around it."""

    begin: int
    end: int
    sign_before: tuple[int, int]
    sign_after: tuple[int, int]
    is_first: bool
    is_last: bool


def without_quantization(
    text: str, config: Mapping[str, Any] | None = None, dtype: str | None = None
) -> str:
    """Remove the sections that state a quantisation from the text of a JSON object.

    Where the model of transformers states no dtype, `dtype` takes the place of its section; then
    `config` is what the text holds.
    """
    keys = set(config or ())
    names_dtype = keys.isdisjoint(_OF_TRANSFORMERS) or not keys.isdisjoint(DTYPE_KEYS)
    while (section_and_depth := next(_sections(text), None)) is not None:
        section, depth = section_and_depth
        if depth == 1 and not names_dtype and dtype is not None:
            names_dtype = True
            member = f'"torch_dtype": {json.dumps(dtype)}'
            text = text[: section.begin] + member + text[section.end :]
        elif not section.is_last:
            text = text[: section.sign_before[1]] + text[section.sign_after[1] :]
        elif not section.is_first:
            text = text[: section.sign_before[0]] + text[section.end :]
        else:
            text = text[: section.sign_before[1]] + text[section.sign_after[0] :]
    return text


# What transformers reads of float8 where no `modules_to_not_convert` is stated, as of MiniMax.
_ALIAS = "ignored_layers"


def with_exceptions(text: str, exceptions: Exceptions) -> str:
    """Add modules to those that the sections of a JSON object except from the quantisation."""
    for member, _ in reversed(list(_sections(text))):
        begin = text.find("{", member.begin, member.end)
        if begin < 0:  # null, which states nothing
            continue
        section = json.loads(text[begin : member.end])
        modules = section.get(exceptions.key) or section.get(_ALIAS) or []
        section[exceptions.key] = [*modules, *exceptions.modules]
        text = text[:begin] + json.dumps(section, indent=2) + text[member.end :]
    return text


def _sections(text: str) -> Iterator[tuple[_Member, int]]:
    """Find the sections, each with the number of objects and lists around it."""
    containers: list[_Open] = []
    for token in TOKEN.finditer(text):
        match token[0]:
            case "{" | "[" as bracket:
                if containers:
                    outer = containers[-1]
                    outer.goes = bracket == "{" and outer.key in SECTIONS
                containers.append(_Open(bracket == "{", token.span()))
            case "}" | "]" | "," as sign:
                container = containers[-1]
                if container.goes:
                    begin = container.last_sign[1]
                    begin += len(text[begin:]) - len(text[begin:].lstrip())
                    end = len(text[: token.start()].rstrip())
                    member = _Member(
                        begin,
                        end,
                        container.last_sign,
                        token.span(),
                        container.is_first,
                        sign != ",",
                    )
                    yield member, len(containers)
                if sign == ",":
                    container.last_sign, container.is_first, container.key, container.goes = (
                        token.span(),
                        False,
                        None,
                        False,
                    )
                    continue
                containers.pop()
            case string:
                part = containers[-1] if containers else None
                if part is not None and part.is_object and part.key is None:
                    part.key = json.loads(string)
                    is_null = NULL_VALUE.match(text, token.end()) is not None
                    part.goes = is_null and part.key in SECTIONS
                    if len(containers) > 1 and (containers[-2].key, part.key) in OWN_SECTIONS:
                        containers[-2].goes = containers[-2].is_object
