"""The dtype in a model's `config.json`, which must be that of its tensors.

transformers loads a model in the dtype that its configuration names, whatever its tensors are. Only
the names of formats are replaced in the text: numbers, escapes, order and layout stay as they are.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from castwise.arrays.dtype_map import DTYPE
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import format_named
from castwise.checkpoint.containers.statement import DTYPE_KEYS, ComponentStatement
from castwise.checkpoint.results.report import CastRow
from castwise.quantization.producers.layouts import BF16
from castwise.quantization.producers.producer import Statements
from castwise.quantization.producers.registry import OWN_SECTIONS
from castwise.quantization.producers.stated import CONFIG, SECTIONS

_LOGGER = logging.getLogger(__name__)
_OTHERS = frozenset(SECTIONS)  # of what is stored, not loaded
_LOADABLE = frozenset(("float32", "float16", "bfloat16"))
# The tokens of valid JSON that matter here; no other holds any of these characters.
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[][{},]')

# What follows a key that states nothing.
NULL_VALUE = re.compile(r"\s*:\s*null\b")


@dataclass(frozen=True, slots=True)
class _StatedDtype:
    """A float format that the text states: for what key of which part, and where."""

    part: _ConfigPart
    key: str
    value: str
    begin: int
    end: int

    @property
    def format(self) -> str | None:
        """The format; None if the value does not name a float."""
        return _float_named(self.value)

    def text(self, target: str) -> str:
        """Return the JSON that states another format in the same way."""
        return json.dumps(("torch." if self.value.startswith("torch.") else "") + target)


@dataclass(slots=True)
class _ConfigPart:
    """An object or list of the text."""

    outer: _ConfigPart | None
    is_object: bool
    # The key of `DTYPE_KEYS` in whose value it lies.
    states: str | None = None
    # True in the value of a key of `_OTHERS`.
    is_other: bool = False
    # The key whose value comes next.
    key: str | None = None
    has_other: bool = False

    @property
    def is_quantised(self) -> bool:
        """True if it has a key of `_OTHERS`, or is inside an object that has one."""
        part: _ConfigPart | None = self
        while part is not None and not part.has_other:
            part = part.outer
        return part is not None


class Config:
    """The `config.json` of a component, read and checked before the work begins.

    `label` is what warnings call it.

    OSError: it cannot be read.
    """

    def __init__(self, statement: ComponentStatement, label: str = CONFIG) -> None:
        self._label = label
        self._text = ""
        self._dtype_statements: list[_StatedDtype] = []
        self._problem: str | None = None
        # Whether something beside dtypes changes.
        self._is_rewritten = False
        self._config = statement.config
        if (file := statement.file(CONFIG)) is None:
            return
        self._text = file.text
        match file.error:
            case None:
                self._take(self._text)
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
        """Return the text with the dtype of cast tensors in the place of others.

        None if the text is to stay. A warning names the first dtype that stays although it is not
        that of the tensors, and says why: the text is not JSON, a part is quantised, or there is no
        single dtype that a model can be loaded in.
        """
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
    """Return the format of a dtype that names a float."""
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
                (value[key], is_stated or key in DTYPE_KEYS) for key in value.keys() - _OTHERS
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
    if statement.part.is_quantised:
        return "a quantisation is stated beside it; set it to the dtype to compute in"
    if len(formats) > 1:
        return f"the tensors are now {' and '.join(formats)}; set it to the one to load them in"
    if formats[0] not in _LOADABLE:
        return f"no model is loaded in {formats[0]}; set it to the dtype to compute in"
    return None


def _find_dtypes(text: str) -> Iterator[_StatedDtype]:
    """Find the strings that are values of a key of `DTYPE_KEYS`, or are inside such a value."""
    part = _ConfigPart(None, is_object=False)
    for token in TOKEN.finditer(text):
        match token[0]:
            case "{" | "[" as bracket:
                states = part.key if part.key in DTYPE_KEYS else part.states
                is_other = part.is_other or part.key in _OTHERS
                part = _ConfigPart(part, bracket == "{", states, is_other)
            case "}" | "]" if part.outer is not None:
                part = part.outer
            case ",":
                part.key = None
            case string if string[0] == '"':
                value = json.loads(string)
                if part.is_object and part.key is None:
                    part.key = value
                    is_null = NULL_VALUE.match(text, token.end()) is not None
                    part.has_other = part.has_other or (value in _OTHERS and not is_null)
                    continue
                key = part.key if part.key in DTYPE_KEYS else part.states
                if key is not None and not part.is_other:
                    yield _StatedDtype(part, key, value, token.start(), token.end())


# Without quantisation


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


# With quantisation


class QuantizedConfig(Config):
    """A `config.json` that states how the weights of its model are quantised.

    `statements` are what states it; None if nothing of it changes.

    OSError: it cannot be read.
    """

    def __init__(
        self, statement: ComponentStatement, label: str, statements: Statements | None
    ) -> None:
        super().__init__(statement, label)
        self._statements = statements
        self._is_rewritten = statements is not None

    def following(self, rows: Sequence[CastRow]) -> str | None:
        """Return the text with the sections at its end; None if it is to stay.

        Its dtype follows what a map casts beside the weights, as in a cast.
        """
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
