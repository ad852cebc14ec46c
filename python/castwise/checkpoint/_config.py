"""The dtype in a model's `config.json`, which must be that of its tensors.

transformers loads a model in the dtype that its configuration names, whatever its tensors are. Only
the names of formats are replaced in the text: numbers, escapes, order and layout stay as they are.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import format_named
from castwise.checkpoint.containers.statement import DTYPE_KEYS, ComponentStatement
from castwise.checkpoint.results.report import CastRow
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
