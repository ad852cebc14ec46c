"""What the parameters of a model's class are: rows of `architectures.txt`, and files like it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

ROLES = (
    "linear",
    "experts",
    "embedding",
    "head",
    "convolution",
    "norm",
    "router",
    "recurrent",
    "position",
    "bias",
    "buffer",
    "other",
)
"""What a parameter can be; "other" are tokens, scales, and what no rule of the script names."""

_AXES = {"linear": "out in", "head": "out in", "experts": ""}
"""The axes of a role whose row has none; those of experts are always written."""

_SPELLED_AXES = frozenset(
    ("out in", "in out", "experts out in", "experts in out", "experts*out in", "experts*in out")
)
_JOINTS = frozenset(("halves", "interleaved"))
_FLOAT32 = "float32"
_FIRST_LINE = "# castwise architectures 1"
_TABLE = Path(__file__).with_name("architectures.txt")
_TIED = "="
_TIES = frozenset((_TIED, "~"))  # tied unless, or only if, a configuration says so
_NONE = "-"
_PADDING = 2
_NUMBER = re.compile(r"(?<![^.])(expert_)?[0-9]+(?![^.])")
_LEGACY = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names of TensorFlow's time, which transformers renames when it loads a model."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an architecture: those of all layers, of all experts, in one row."""

    name: str  # normalised: `model.layers.#.mlp.experts.#.up_proj.weight`
    role: str  # of ROLES
    axes: str = ""  # "out in", "experts in out"; `*` joins two in one axis; "" if it is no matrix
    joint: str = ""  # how gate and up lie in the outputs of one tensor: "halves", "interleaved"
    float32: bool = False  # transformers keeps it in float32
    tied: str = ""  # the parameter whose storage it shares


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the parameters of one class of models are."""

    name: str
    model_type: str
    parameters: Mapping[str, Parameter]
    base: str = ""  # the module of the base model, which a file may leave off or put on
    joined: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    unquantized: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def find(self, name: str) -> Parameter | None:
        """Return the row of a tensor by its name in a file; None if there is none."""
        for spelling in self._spellings(normalize_name(name)):
            if (parameter := self.parameters.get(spelling)) is not None:
                return parameter
        return None

    def _spellings(self, name: str) -> Iterator[str]:
        """Yield a name, and what it is with the base model's prefix put on or left off."""
        stem, dot, end = name.rpartition("LayerNorm.")
        name = stem + _LEGACY.get(dot + end, dot + end)
        yield name
        if self.base:
            prefix = f"{self.base}."
            yield name.removeprefix(prefix) if name.startswith(prefix) else prefix + name


class _Row(NamedTuple):
    """One class of the index, and the blocks of its parameters and of its ties."""

    name: str
    model_type: str
    base: str
    block: str
    ties: str


def normalize_name(name: str) -> str:
    """Return a tensor's name with `#` for every number of a layer or an expert."""
    return _NUMBER.sub(r"\g<1>#", name)


def find_architecture(config: Mapping[str, Any]) -> Architecture | None:
    """Return what castwise knows of a model by its configuration.

    The class of `architectures` (or diffusers' `_class_name`) comes first, then `model_type`, whose
    classes are put together.

    Raises
    ------
    ValueError
        The table is damaged, or it names a role that there is none of.

    """
    table = _Table.read(_TABLE)
    names = config.get("architectures") or [config.get("_class_name")]
    name = names[0] if isinstance(names, list) else names
    found = table.rows(name=name) if isinstance(name, str) else []
    kind = config.get("model_type")
    if not found and isinstance(kind, str):
        found = table.rows(model_type=kind)
    if not found:
        return None
    ties = _ties(config)
    return _merged([table.architecture(row, ties=ties) for row in found])


def read_architecture(path: str | Path) -> Architecture:
    """Read the one architecture of a file in the format of castwise's table.

    Raises
    ------
    ValueError
        The file has no architecture or more than one, or a line that castwise cannot read.
    OSError
        The file cannot be read.

    """
    table = _Table.read(Path(path))
    rows = table.rows()
    if len(rows) != 1:
        names = ", ".join(row.name for row in rows) or "none"
        raise ValueError(
            f"{path} has {len(rows)} architectures ({names}); keep one in its last part"
        )
    return table.architecture(rows[0], ties=None)


def _merged(architectures: list[Architecture]) -> Architecture:
    """Put the classes of one type together; what they differ in is known of none."""
    first = architectures[0]
    parameters: dict[str, Parameter] = {}
    differing: set[str] = set()
    for architecture in architectures:
        for name, parameter in architecture.parameters.items():
            other = parameters.setdefault(name, parameter)
            if (other.role, other.axes, other.joint) != (
                parameter.role,
                parameter.axes,
                parameter.joint,
            ):
                differing.add(name)
    kept = {name: row for name, row in parameters.items() if name not in differing}
    base = max((each.base for each in architectures), key=len)
    return replace(first, parameters=kept, base=base)


def _ties(config: Mapping[str, Any]) -> bool | None:
    """Return whether a configuration ties embeddings; None if it does not say so."""
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else {}
    tie = config.get("tie_word_embeddings", inner.get("tie_word_embeddings"))
    return tie if isinstance(tie, bool) else None


class _Table:
    """A table's text: blocks of rows, and an index of classes; a block may name another."""

    def __init__(self, path: Path, blocks: list[str]) -> None:
        self._path = path
        self._blocks = blocks

    @classmethod
    def read(cls, path: Path) -> _Table:
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text in UTF-8: {_remedy(path)}") from error
        head, *blocks = text.replace("\r\n", "\n").strip("\n").split("\n\n")
        if head.partition("\n")[0] != _FIRST_LINE:
            raise ValueError(f"{path} does not begin with {_FIRST_LINE!r}: {_remedy(path)}")
        if not blocks:
            raise ValueError(f"{path} has no index of classes as its last part: {_remedy(path)}")
        return cls(path, blocks)

    def rows(self, *, name: str | None = None, model_type: str | None = None) -> list[_Row]:
        """Return the classes of the index: all, the one of a name, or those of a type."""
        found: dict[str, _Row] = {}
        for line in self._blocks[-1].split("\n"):
            kind, base, prefix, *classes = (*line.split(), "", "")
            if not classes[:-_PADDING]:
                raise self._error(line, "is not MODEL_TYPE BASE PREFIX CLASS=BLOCK=TIES ...")
            prefix = "" if prefix == _NONE else prefix
            if model_type not in {None, kind} or not (name is None or name.startswith(prefix)):
                continue
            for entry in classes[:-_PADDING]:
                end, _, blocks = entry.partition("=")
                if name not in {None, prefix + end}:
                    continue
                if prefix + end in found:
                    raise self._error(line, f"is a second row of {prefix + end}")
                block, _, ties = blocks.partition("=")
                type_and_base = ("" if text == _NONE else text for text in (kind, base))
                found[prefix + end] = _Row(prefix + end, *type_and_base, block, ties)
        return list(found.values())

    def architecture(self, row: _Row, *, ties: bool | None) -> Architecture:
        """Return a class's parameters; `ties` is what a configuration says of tied embeddings."""
        parameters: dict[str, Parameter] = {}
        self._expand(row.block, "", parameters, ())
        for line in self._block(row.ties).split("\n") if row.ties and ties is not False else ():
            tied, _, source = line.partition(" ")
            if tied not in parameters or source[1:] not in parameters or source[0] not in _TIES:
                raise self._error(line, f"ties what {row.name} has no rows of")
            if ties or source[0] == _TIED:
                parameters[tied] = replace(parameters[tied], tied=source[1:])
        return Architecture(row.name, row.model_type, parameters, row.base)

    def _block(self, number: str) -> str:
        if not number.isdecimal() or int(number) >= len(self._blocks) - 1:
            raise ValueError(
                f"{self._path} names a block {number!r} that it has not: {_remedy(self._path)}"
            )
        return self._blocks[int(number)]

    def _expand(
        self, block: str, prefix: str, parameters: dict[str, Parameter], outer: tuple[str, ...]
    ) -> None:
        """Add the rows of a block, and of those that it names, under a prefix."""
        if block in outer:
            raise ValueError(f"{self._path}: block {block} is within itself: {_remedy(self._path)}")
        for line in self._block(block).split("\n"):
            name, _, rest = line.partition(" ")
            if rest[:1].isdecimal():
                self._expand(rest, f"{prefix}{name}.", parameters, (*outer, block))
                continue
            full = prefix + name
            if full in parameters:
                raise self._error(line, f"claims {full}, which has a row")
            parameters[full] = self._parameter(full, rest, line)

    def _parameter(self, name: str, text: str, line: str) -> Parameter:
        role, *words = text.split() or [""]
        if not name or normalize_name(name) != name:
            raise self._error(line, "has a number where # stands for each layer or expert")
        if role not in ROLES:
            raise self._error(line, f"has a role {role!r} that is none of {', '.join(ROLES)}")
        float32 = _FLOAT32 in words
        joint = next((word for word in words if word in _JOINTS), "")
        axes = " ".join(word for word in words if word not in {_FLOAT32, joint})
        axes = axes or _AXES.get(role, "")
        if (role in _AXES or axes) and axes not in _SPELLED_AXES:
            raise self._error(
                line, f"has axes {axes!r} that are none of {', '.join(sorted(_SPELLED_AXES))}"
            )
        return Parameter(name, role, axes, joint, float32)

    def _error(self, line: str, fault: str) -> ValueError:
        return ValueError(f"{self._path}: the line {line!r} {fault}: {_remedy(self._path)}")


def _remedy(path: Path) -> str:
    if path == _TABLE:
        return "install castwise anew"
    return "correct it, or leave --architecture off"
