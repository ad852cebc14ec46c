"""The dtype in a model's `config.json`, which must be that of its tensors.

transformers loads a model in the dtype that its configuration names, whatever its tensors are. Only
the names of formats are replaced in the text: numbers, escapes, order and layout stay as they are.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from castwise.arrays.dtype_map import DTYPE
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import format_named
from castwise.checkpoint.containers.checkpoint import ComponentStatement
from castwise.checkpoint.results.report import CastRow
from castwise.models.architecture import DTYPE_KEYS
from castwise.quantization.producers.layouts import BF16
from castwise.quantization.producers.producer import Statements
from castwise.quantization.producers.registry import OWN_SECTIONS
from castwise.quantization.producers.stated import CONFIG, SECTIONS

_LOGGER = logging.getLogger(__name__)
_LOADABLE = frozenset(("float32", "float16", "bfloat16"))
# The tokens of valid JSON that matter here; no other holds any of these characters.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[][{},]')

# What follows a key that states nothing.
_NULL_VALUE = re.compile(r"\s*:\s*null\b")


@dataclass(slots=True, eq=False)
class _Member:
    """What stands between two signs of the text: a member of an object, or an item of a list."""

    outer: _Member | None  # the one whose value it is in; None for the whole text
    sign_before: tuple[int, int]  # where the bracket or comma before it begins and ends
    sign_after: tuple[int, int] = (0, 0)
    is_first: bool = True
    is_last: bool = False
    key: str | None = None  # None for an item
    string: tuple[int, int] | None = None  # where its value begins and ends, if that is a string
    is_null: bool = False
    bracket: str = ""  # the one that its value begins with
    keys: set[str] = field(default_factory=set)  # those in its value
    has_section: bool = False  # whether one of these is a section that is not null

    def outers(self) -> Iterator[_Member]:
        """Yield those in whose values it is, the nearest first."""
        member = self.outer
        while member is not None:
            yield member
            member = member.outer

    @property
    def is_section(self) -> bool:
        is_object = self.bracket == "{" or self.is_null
        is_stated = is_object and self.key in SECTIONS
        return is_stated or any((self.key, key) in OWN_SECTIONS for key in self.keys)


def _members(text: str) -> Iterator[_Member]:
    """Yield each member and item of valid JSON when it ends."""
    member = _Member(None, (0, 0))
    for token in _TOKEN.finditer(text):
        outer = member.outer
        match token[0]:
            case "{" | "[" as bracket:
                member.bracket = bracket
                member = _Member(member, token.span())
            case "}" | "]" | "," as sign:
                if outer is None:  # of no JSON
                    return
                member.sign_after, member.is_last = token.span(), sign != ","
                yield member
                member = outer if member.is_last else _Member(outer, token.span(), is_first=False)
            case string if outer is not None and outer.bracket == "{" and member.key is None:
                member.key = json.loads(string)
                member.is_null = _NULL_VALUE.match(text, token.end()) is not None
                outer.keys.add(member.key)
                outer.has_section |= member.key in SECTIONS and not member.is_null
            case _:
                member.string = token.span()


class _StatedDtype(NamedTuple):
    """A float format that the text states: for what key, and in which member."""

    member: _Member
    key: str
    value: str
    begin: int  # where the value stands
    end: int

    @property
    def format(self) -> str | None:
        """The format; None if the value does not name a float."""
        return _float_named(self.value)

    @property
    def is_quantized(self) -> bool:
        """True if a quantization is stated beside it, or outside of it."""
        return any(outer.has_section for outer in self.member.outers())

    def text(self, target: str) -> str:
        """Return the JSON that states another format in the same way."""
        return json.dumps(("torch." if self.value.startswith("torch.") else "") + target)


class Config:
    """The `config.json` of a component, read and checked before the work begins."""

    def __init__(self, statement: ComponentStatement, label: str = CONFIG) -> None:
        self._label = label  # what warnings call it
        self._text = ""
        self._dtype_statements: list[_StatedDtype] = []
        self._problem: str | None = None
        # Whether something beside dtypes changes.
        self._is_rewritten = False
        self._component_statement = statement
        if (file := statement.file(CONFIG)) is None:
            return
        self._text = file.text
        match file.error:
            case None:
                self._take(self._text)
                if not isinstance(file.value, dict):
                    self._problem = "it is not an object of JSON"
            case OSError() as error:
                raise error
            case CheckpointError() as error:
                self._problem = f"it {str(error).removeprefix(f'{file.path} ')}"
            case error:
                self._problem = f"it cannot be read as JSON ({error})"

    def _take(self, text: str) -> None:
        """Take another text, and find what it states."""
        self._text = text
        self._dtype_statements = [
            statement for statement in _find_dtypes(text) if statement.format is not None
        ]

    def following(self, rows: Sequence[CastRow]) -> str | None:
        """Return the text with the dtype of cast tensors in the place of others."""
        # None leaves the text as it is. A warning names the first dtype that stays although it is
        # not that of the tensors, and says why: the text is not JSON, a part is quantized, or there
        # is no single dtype that a model can be loaded in.
        formats = _float_formats(rows)
        if not formats:
            return None
        if self._problem is not None:
            _LOGGER.warning(
                "%s was copied unchanged: %s; check the dtype that it states",
                self._label,
                self._problem,
            )
            return None
        return self._with_dtype(formats)

    def _with_dtype(self, formats: Sequence[str]) -> str | None:
        """Return the text with the only one of these formats in the place of others, or None."""
        stale = [statement for statement in self._dtype_statements if [statement.format] != formats]
        reasons = [_reason(statement, formats) for statement in stale]
        pieces, offset = [], 0
        for statement, reason in zip(stale, reasons, strict=True):
            if reason is None:
                pieces += [self._text[offset : statement.begin], statement.text(formats[0])]
                offset = statement.end
        for statement, reason in zip(stale, reasons, strict=True):
            if reason is not None:
                state = "changed elsewhere" if pieces or self._is_rewritten else "copied unchanged"
                _LOGGER.warning(
                    "%s was %s; its %s still says %r: %s",
                    self._label,
                    state,
                    statement.key,
                    statement.value,
                    reason,
                )
                break
        return "".join([*pieces, self._text[offset:]]) if pieces else None


def _float_named(value: str) -> str | None:
    row = format_named(value.removeprefix("torch."))
    return row.name if row is not None and row.kind == "float" else None


def stated_formats(config: object) -> set[str]:
    """Return the formats that a parsed configuration states as dtypes of its model."""
    formats: set[str] = set()
    parts = [(config, False)]  # a list, as those of strangers may be nested as deep as can be
    while parts:
        value, is_stated = parts.pop()
        if isinstance(value, dict):
            parts += [
                (value[key], is_stated or key in DTYPE_KEYS) for key in value.keys() - {*SECTIONS}
            ]
        elif isinstance(value, list):
            parts += [(part, is_stated) for part in value]
        elif is_stated and isinstance(value, str) and (name := _float_named(value)) is not None:
            formats.add(name)
    return formats


def _float_formats(rows: Sequence[CastRow]) -> list[str]:
    """List what the floating tensors are now; nothing if none was cast."""
    if all(row.target is None for row in rows):
        return []
    names = {row.target or row.source for row in rows}
    kinds = {name: row for name in names if (row := format_named(name)) is not None}
    return sorted(name for name, row in kinds.items() if row.kind == "float")


def _reason(statement: _StatedDtype, formats: Sequence[str]) -> str | None:
    """Say why a dtype cannot follow, and what to do; None if it can."""
    if statement.is_quantized:
        return "a quantization is stated beside it; set it to the dtype to compute in"
    if len(formats) > 1:
        return f"the tensors are now {' and '.join(formats)}; set it to the one to load them in"
    if formats[0] not in _LOADABLE:
        return f"no model is loaded in {formats[0]}; set it to the dtype to compute in"
    return None


def _find_dtypes(text: str) -> Iterator[_StatedDtype]:
    """Find the strings that are values of a key of `DTYPE_KEYS`, or are inside such a value."""
    for member in _members(text):
        if member.string is None:
            continue
        outers = [outer.key for outer in member.outers()]
        key = next((key for key in (member.key, *outers) if key in DTYPE_KEYS), None)
        if key is not None and not set(SECTIONS).intersection(outers):
            begin, end = member.string
            yield _StatedDtype(member, key, json.loads(text[begin:end]), begin, end)


# Without quantization


_OF_TRANSFORMERS = frozenset(("architectures", "model_type"))
_FLOAT32 = "float32"

# The formats of tensors beside decoded weights that become theirs; float32 is chosen by tensor.
HALVES = frozenset((BF16, "float16"))


class Exceptions(NamedTuple):
    """Modules that are not quantized, and the key of a section under which such are listed."""

    key: str
    modules: Sequence[str]


class UnquantizedConfig(Config):
    """A `config.json` that states no quantization when its model is decoded."""

    def __init__(
        self,
        statement: ComponentStatement,
        label: str,
        exceptions: Exceptions | None,  # modules that it excepts where others stay quantized
        *,
        is_stale: bool,  # whether the quantization goes where no weight is decoded, too
    ) -> None:
        super().__init__(statement, label)
        self._is_stale = is_stale
        self._exceptions = exceptions
        self._is_rewritten = True

    def following(self, rows: Sequence[CastRow]) -> str | None:
        """Return the text without quantization, with the decoded dtype; None if it stays."""
        formats = sorted({row.target for row in rows if row.target is not None})
        old_text = self._text
        if not formats:
            text = without_quantization(old_text) if self._is_stale else old_text
            return None if text == old_text else text
        if self._exceptions is not None:
            text = with_exceptions(old_text, self._exceptions)
            self._with_dtype(formats)  # which warns, and changes nothing
            return None if text == old_text else text
        self._take(without_quantization(old_text, self._component_statement.config, formats[0]))
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


def without_quantization(
    text: str, config: Mapping[str, Any] | None = None, dtype: str | None = None
) -> str:
    """Remove the sections that state a quantization from the text of a JSON object."""
    # Where the model of transformers states no dtype, `dtype` takes the place of its section; then
    # `config` is what the text holds.
    keys = set(config or ())
    names_dtype = keys.isdisjoint(_OF_TRANSFORMERS) or not keys.isdisjoint(DTYPE_KEYS)
    while (
        section := next((member for member in _members(text) if member.is_section), None)
    ) is not None:
        is_of_model = len([*section.outers()]) == 1
        if is_of_model and not names_dtype and dtype is not None:
            names_dtype = True
            begin, end = _span(text, section)
            text = f'{text[:begin]}"torch_dtype": {json.dumps(dtype)}{text[end:]}'
        elif not section.is_last:
            text = text[: section.sign_before[1]] + text[section.sign_after[1] :]
        elif not section.is_first:
            text = text[: section.sign_before[0]] + text[_span(text, section)[1] :]
        else:
            text = text[: section.sign_before[1]] + text[section.sign_after[0] :]
    return text


# What transformers reads of float8 where no `modules_to_not_convert` is stated, as of MiniMax.
_ALIAS = "ignored_layers"


def with_exceptions(text: str, exceptions: Exceptions) -> str:
    """Add modules to those that the sections of a JSON object except from the quantization."""

    def except_modules(part: dict[str, Any]) -> dict[str, Any]:
        sections = (part[key] for key in SECTIONS if isinstance(part.get(key), dict))
        for section in sections:
            lists = (section.get(key) for key in (exceptions.key, _ALIAS))
            modules = next((value for value in lists if value and isinstance(value, list)), [])
            section[exceptions.key] = [*modules, *exceptions.modules]
        return part

    spans = [
        _span(text, member)
        for member in _members(text)
        if member.bracket == "{" and member.key in SECTIONS
    ]
    begin = len(text)
    for start, end in reversed(spans):
        if end > begin:  # inside the section that was read last
            continue
        begin = start
        member = json.loads(f"{{{text[start:end]}}}", object_hook=except_modules)
        (section,) = member.values()
        value = text.index("{", start)
        text = text[:value] + json.dumps(section, indent=2) + text[end:]
    return text


def _span(text: str, member: _Member) -> tuple[int, int]:
    """Return where a member begins and ends, without the spaces around it."""
    begin, end = member.sign_before[1], member.sign_after[0]
    inside = text[begin:end]
    return end - len(inside.lstrip()), begin + len(inside.rstrip())


# With quantization


class QuantizedConfig(Config):
    """A `config.json` that states how the weights of its model are quantized."""

    def __init__(
        self, statement: ComponentStatement, label: str, statements: Statements | None
    ) -> None:
        super().__init__(statement, label)
        self._statements = statements  # None if nothing of the quantization changes
        self._is_rewritten = statements is not None

    def following(self, rows: Sequence[CastRow]) -> str | None:
        """Return the text with the sections at its end; None if it is to stay."""
        # Its dtype follows what a map casts beside the weights, as in a cast.
        text = super().following([row for row in rows if row.decided_by != DTYPE])
        if self._statements is None or not self._text:
            return text
        old_text = self._text
        text = text or old_text
        if self._statements.edit is not None:
            text = self._statements.edit(text)
        else:
            text = without_quantization(text)
            if self._statements.sections:
                text = _with_sections(text, self._statements.sections)
        return None if text == old_text else text


def _with_sections(text: str, sections: Mapping[str, object]) -> str:
    end = text.rindex("}")
    head, tail = text[:end].rstrip(), text[end:]
    comma = "" if head.endswith("{") else ","
    members = json.dumps(sections, indent=2)[2:-2]
    return f"{head}{comma}\n{members}\n{tail}"
