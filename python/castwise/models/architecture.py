"""What the parameters of a model's class are: `architectures.txt`, and files like it.

A table is text in parts with an empty line between them: a head, blocks that are numbered from 0,
and the index. A line of a block is a parameter, `NAME ROLE AXES JOINT float32 CONVERSION`, or a
module, `NAME BLOCK`, whose parameters are those of another block. `NAME>NAME_IN_TRANSFORMERS` has
both names where they differ, from the modules around on; `{a,b}` in it are parts of several names.
`#` is the number of a layer or an expert; a number is itself, and is more than `#`.

A line of the index has the classes of a type: `MODEL_TYPE BASE PREFIX
CLASS=BLOCK=TIES:PARTS+LAYERS!~`. A class is named by the prefix and what is before `=`; `-` is
nothing. A class in several lines is first of its own type. Lines of the block of ties are
`TIED PART=SOURCE`, or `TIED PART~SOURCE` for what is tied if a part of the configuration says so.
Those of parts are `MODULE PART TYPE`: a part of the configuration chooses the type of the module,
whose rows are of that TYPE. Those of layers are `LIST =PART.NAME|OTHER_NAME` for a list of modules
whose length is that number of the configuration, `LIST =` for lists that are equally long, and
`LIST *` for others; and `MODULE a,b c -` where some modules of the name have the parts a and b,
some c, some neither. `!` marks a class that transformers loads only if layers have plain weights,
`~` one of which it holds scales in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from castwise.text.wording import argument

_Row = TypeVar("_Row")

# The keys under which a model, or a part of one, states its dtype; the first counts.
DTYPE_KEYS = ("dtype", "torch_dtype")
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

OPTIONAL_ROLES = frozenset(("bias", "buffer"))
"""Roles of parameters that are no weights; files may leave them out."""

# The axes of a role whose row has none; those of experts are always written.
_AXES = {"linear": "out in", "head": "out in", "experts": ""}

_SPELLED_AXES = frozenset(
    ("out in", "in out", "experts out in", "experts in out", "experts*out in", "experts*in out")
)
_JOINTS = frozenset(("halves", "interleaved"))
_FLOAT32 = "float32"
CONVERSIONS = frozenset(
    ("split", "split*", "joined", "joined*", "turned", "turned*", "renamed", "either")
)
"""What transformers does to a weight while it loads it; `*`: to each tensor of the module.

"renamed": the weight alone gets another name; "either": it is turned if its shape says so.
"""

_FIRST_LINE = "# castwise architectures 1"
_TABLE = Path(__file__).with_name("architectures.txt")
_TIE = r"(?P<part>[\w.]*)(?P<sign>[=~])(?P<source>.+)"
_TIED = "="  # unless the part of the configuration says otherwise
_NONE = "-"
_MOST_DEPTH, _MOST_ROWS = 64, 100_000  # a small file could name blocks without end
_WEIGHT = ".weight"
_HEAD = 3  # texts before the classes of a line of the index
_INDEX_LINE = "MODEL_TYPE BASE PREFIX CLASS=BLOCK=TIES:PARTS+LAYERS! ..."
UNEQUAL = "*"
"""The length of lists of one name that are not equally long."""
_CLASS = (
    r"(?P<end>\w*)=(?P<block>\d+)(?:=(?P<ties>\d+))?(?::(?P<parts>\d+))?"
    r"(?:\+(?P<layers>\d+))?(?P<marks>!?~?)"
)
# The number before the last name, as `nn.Sequential` and `nn.ParameterList` count theirs.
_OF_SEQUENCE = r"(?<![^.])[0-9]+(?=\.[^.]+$)"
_BRACES = r"\{([^{}]*)\}"
# Of a layer or an expert, as `0`; some models of the table write `expert_0`.
_NUMBER = re.compile(r"(?<![^.])(expert_)?[0-9]+(?![^.])")
# Ends of names in old files, which transformers renames when it loads a model.
_LEGACY = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}
_LEGACY_ENDS = tuple(_LEGACY)


class Parameter(NamedTuple):
    """One parameter of an architecture: those of all layers, of all experts, in one row."""

    name: str  # normalized: `model.layers.#.mlp.experts.#.up_proj.weight`
    role: str  # of ROLES
    axes: str = ""  # "out in", "experts in out"; `*` joins two in one axis; "" if it is no matrix
    joint: str = ""  # how gate and up lie in the outputs of one tensor: "halves", "interleaved"
    float32: bool = False  # transformers keeps it in float32
    tied: str = ""  # the parameter whose storage it shares
    conversion: str = ""  # of CONVERSIONS


Kinds = frozenset[frozenset[str]]
"""The sets of parts that modules of one name can have, of those that not all have."""


class Architecture(NamedTuple):
    """What the parameters of one class of models are."""

    name: str
    model_type: str
    parameters: Mapping[str, Parameter]
    base: str = ""  # the module of the base model, which a file may leave off or put on
    modules: Mapping[str, str] = {}  # those of other names in transformers
    needs_weights: bool = False  # transformers reads `.weight` of layers while it loads them
    widens_scales: bool = False  # transformers holds the scales of layers in float32
    # The number that counts the modules of each list, for `stated_number`: "" of none, or UNEQUAL.
    lists: Mapping[str, str] = {}
    # Of the parts that only some modules of a name have, those that each kind of module has.
    kinds: Mapping[str, Kinds] = {}

    def find(self, name: str) -> Parameter | None:
        """Return the row of a tensor by its name in a file; None if there is none."""
        for label in _labels(current_name(name)):
            for spelling in self._spellings(label):
                if (parameter := self.parameters.get(spelling)) is not None:
                    return parameter
        return None

    def module_names(self, stem: str) -> list[str]:
        """Return how transformers calls a module, or those it makes of one, given its file name."""
        for label in _labels(stem):
            if label in self.modules:
                names = expand_name(self.modules[label])
                return [fill_numbers(name, stem, label) for name in names]
        return [stem]

    def _spellings(self, name: str) -> Iterator[str]:
        """Yield a name, and what it is with the base model's prefix put on or left off."""
        yield name
        if self.base:
            prefix = f"{self.base}."
            yield name.removeprefix(prefix) if name.startswith(prefix) else prefix + name


class _IndexEntry(NamedTuple):
    """One class of the index, and the blocks of its parameters, its ties and its modules."""

    name: str
    model_type: str
    base: str
    blocks: re.Match[str]  # of _CLASS


def normalize_name(name: str) -> str:
    """Return a tensor's name with `#` for every number of a layer or an expert."""
    return _NUMBER.sub(r"\g<1>#", name)


def _labels(name: str) -> Iterator[str]:
    """Yield how a table may call a tensor or a module: with its last number, then without."""
    label = normalize_name(name)
    before, number, after = label.rpartition("#")
    if number:
        begin, dot, _ = before.rpartition(".")
        yield begin + dot + name.removesuffix(after).rpartition(".")[2] + after
    yield label


def current_name(name: str) -> str:
    """Return how transformers calls a tensor of an old file."""
    if name.endswith(_LEGACY_ENDS):
        for old, end in _LEGACY.items():
            if name.endswith(old):
                name = name.removesuffix(old) + end
    return name


def pattern_of_names(names: Iterable[str]) -> str:
    """Return an expression that matches the whole of these names, with any number for theirs."""
    parts = sorted({tuple(normalize_name(name).split(".")) for name in names})
    shortest = min(map(len, parts)) - 1
    columns = [*zip(*parts, strict=False)]
    start = next((n for n in range(shortest) if len({*columns[n]}) > 1), shortest)
    rest = [part[start:] for part in parts]
    most = min(map(len, rest)) - (len(rest) > 1)
    end = next((n for n in range(most) if len({part[-1 - n] for part in rest}) > 1), most)
    middle = sorted({".".join(part[: len(part) - end]) for part in rest} - {""})
    texts = [".".join(parts[0][:start]), "|".join(middle), ".".join(rest[0][len(rest[0]) - end :])]
    head, inner, tail = (text.replace(".", "[.]").replace("#", "[0-9]+") for text in texts)
    return "[.]".join(filter(None, (head, f"({inner})" if "|" in inner else inner, tail)))


def expand_name(name: str) -> list[str]:
    """Return the names that one with `{a,b}` in it stands for."""
    match = re.search(_BRACES, name)
    if match is None:
        return [name]
    return [name[: match.start()] + part + name[match.end() :] for part in match[1].split(",")]


def fill_numbers(name: str, other: str, label: str = "") -> str:
    """Return a normalized name with the numbers of another name in their order."""
    # `label` is how the table calls the other: the numbers that it has are none of these.
    parts = zip(other.split("."), (label or normalize_name(other)).split("."), strict=True)
    numbers = iter(part for part, place in parts if "#" in place)
    return ".".join(next(numbers, part) if "#" in part else part for part in name.split("."))


def longest_prefix(name: str, targets: Mapping[str, str]) -> str:
    """Replace the longest part of a name that it begins with; empty if there is none."""
    prefix = name
    while prefix and prefix not in targets:
        prefix = prefix.rpartition(".")[0]
    return targets[prefix] + name[len(prefix) :] if prefix else ""


def find_architecture(config: Mapping[str, Any]) -> Architecture | None:
    """Return what castwise knows of a model by its configuration."""
    # The class of `architectures` (or diffusers' `_class_name`) comes first, then `model_type`,
    # whose classes are put together.
    table = _ArchitectureTable.read(_TABLE)
    names = config.get("architectures") or [config.get("_class_name")]
    name = names[0] if isinstance(names, list) else names
    entries = table.entries(name=name) if isinstance(name, str) else []
    kind = config.get("model_type")
    if not entries and isinstance(kind, str) and kind:  # "" stands for classes without one
        entries = table.entries(model_type=kind)
    elif entries:  # one of the type, else its own
        entries = [entry for entry in entries if entry.model_type == kind] or entries[:1]
    if not entries:
        return None
    return _merge([table.architecture(entry, config) for entry in entries])


def read_architecture(path: str | Path) -> Architecture:
    """Read the one architecture of a file in the format of castwise's table.

    The least of it are five lines::

        # castwise architectures 1

        model.layers.#.mlp.experts.gate_up_proj experts experts in out halves
        lm_head.weight head

        my_model model MyModelForCausalLM =0

    ValueError: the file has no architecture or more than one, or a line that castwise cannot read.
    OSError: the file cannot be read.
    """
    table = _ArchitectureTable.read(Path(path))
    entries = table.entries()
    if len(entries) != 1:
        names = ", ".join(entry.name for entry in entries)
        raise ValueError(
            f"{path} has {len(entries)} architectures ({names}); keep one in its last part"
        )
    return table.architecture(entries[0], {})


def _merge(architectures: list[Architecture]) -> Architecture:
    """Put the classes of one type together; what they differ in is known of none."""
    if len(architectures) == 1:
        return architectures[0]
    parameters: dict[str, Parameter] = {}
    modules: dict[str, str] = {}
    lists: dict[str, str] = {}
    kinds: dict[str, Kinds] = {}
    differing: set[str] = set()
    for architecture in architectures:
        modules |= architecture.modules
        for name, count in architecture.lists.items():
            lists[name] = count if lists.get(name, count) == count else UNEQUAL
        for name, each in architecture.kinds.items():
            kinds[name] = kinds.get(name, frozenset()) | each
        for name, parameter in architecture.parameters.items():
            first_row = parameters.setdefault(name, parameter)
            if (first_row.role, first_row.axes) != (parameter.role, parameter.axes):
                differing.add(name)
            elif parameter.tied:
                parameters[name] = parameter
    return architectures[0]._replace(
        parameters={name: row for name, row in parameters.items() if name not in differing},
        base=max((architecture.base for architecture in architectures), key=len),
        modules=modules,
        needs_weights=any(architecture.needs_weights for architecture in architectures),
        widens_scales=any(architecture.widens_scales for architecture in architectures),
        lists=lists,
        kinds=kinds,
    )


def _replace_module(
    architecture: Architecture, module: str, path: str, part: Architecture
) -> Architecture:
    """Put what is known of a part in the place of a module; `path` is its configuration's."""
    prefix = f"{module}."

    def join(rows: Mapping[str, _Row], part_rows: Mapping[str, _Row]) -> dict[str, _Row]:
        others = {name: row for name, row in rows.items() if not name.startswith(prefix)}
        return others | {prefix + name: row for name, row in part_rows.items()}

    parameters = {
        name: row._replace(name=prefix + name, tied=row.tied and prefix + row.tied)
        for name, row in part.parameters.items()
    }
    lists = {
        name: count if count in {"", UNEQUAL} else f"{path}.{count}"
        for name, count in part.lists.items()
    }
    return architecture._replace(
        parameters=join(architecture.parameters, parameters),
        modules=join(
            architecture.modules, {name: prefix + other for name, other in part.modules.items()}
        ),
        lists=join(architecture.lists, lists),
        kinds=join(architecture.kinds, part.kinds),
    )


def _part(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return a part of a configuration; empty if it has none of the path."""
    for name in filter(None, path.split(".")):
        part = config.get(name)
        config = part if isinstance(part, Mapping) else {}
    return config


def stated_number(config: Mapping[str, Any], path: str) -> int | None:
    """Return a whole number of a configuration; None if it has none there."""
    # `path` ends with its names, `text_config.num_experts|num_local_experts`; the first counts.
    outer, _, names = path.rpartition(".")
    part = _part(config, outer)
    number = next((part[name] for name in names.split("|") if name in part), None)
    return number if type(number) is int else None


def text_parts(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a configuration, and that of the text of a model which reads more."""
    return config, _part(config, "text_config")


def stated_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the dtype that a `config.json` states of the model or its text; None without one."""
    dtypes = (part.get(key) for part in text_parts(config) for key in DTYPE_KEYS)
    return next((text.removeprefix("torch.") for text in dtypes if isinstance(text, str)), None)


def _ties(config: Mapping[str, Any], path: str) -> bool | None:
    """Return whether a part of a configuration ties embeddings; None if it does not say so."""
    part, text = text_parts(_part(config, path))
    tie = part.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    return tie if isinstance(tie, bool) else None


class _ArchitectureTable:
    """A table's text: blocks of rows, and an index of classes; a block may name another."""

    def __init__(self, path: Path, blocks: list[str]) -> None:
        self._path = path
        self._blocks = blocks

    @classmethod
    def read(cls, path: Path) -> _ArchitectureTable:
        try:
            text = path.read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text in UTF-8: " + _remedy(path)) from error
        head, *blocks = text.strip("\n").split("\n\n")
        if head.partition("\n")[0] != _FIRST_LINE:
            raise ValueError(f"{path} does not begin with {_FIRST_LINE!r}: " + _remedy(path))
        if not blocks:
            raise ValueError(f"{path} has no index of classes as its last part: " + _remedy(path))
        return cls(path, blocks)

    def entries(
        self, *, name: str | None = None, model_type: str | None = None
    ) -> list[_IndexEntry]:
        """Return the classes of the index: all, the one of a name, or those of a type."""
        entries: dict[tuple[str, str], _IndexEntry] = {}
        for line in self._blocks[-1].split("\n"):
            words = line.split(" ", _HEAD)
            if len(words) <= _HEAD:
                raise self._error(line, f"is not {_INDEX_LINE}")
            kind, base, prefix = ["" if word == _NONE else word for word in words[:_HEAD]]
            if model_type not in {None, kind} or not (name is None or name.startswith(prefix)):
                continue
            for text in words[_HEAD].split(" "):
                match = re.fullmatch(_CLASS, text)
                if match is None:
                    raise self._error(line, f"has {text!r}; it is not {_INDEX_LINE}")
                full = prefix + match["end"]
                if name not in {None, full}:
                    continue
                if (full, kind) in entries:
                    raise self._error(line, f"is a second row of {full}")
                entries[full, kind] = _IndexEntry(full, kind, base, match)
        return list(entries.values())

    def architecture(self, entry: _IndexEntry, config: Mapping[str, Any]) -> Architecture:
        """Return the parameters of a class as a configuration ties them and chooses their types."""
        parameters: dict[str, Parameter] = {}
        modules: dict[str, str] = {}
        self._expand(entry.blocks["block"], ("", ""), parameters, modules, ())
        for name, names in modules.items():
            for module in expand_name(names):
                parameters.setdefault(module, parameters[name]._replace(name=module))
        modules = {n.removesuffix(_WEIGHT): m.removesuffix(_WEIGHT) for n, m in modules.items()}
        self._tie(entry, parameters, config)
        lists, kinds = self._layers(entry)
        marks = entry.blocks["marks"]
        architecture = Architecture(
            entry.name,
            entry.model_type,
            parameters,
            entry.base,
            modules,
            needs_weights="!" in marks,
            widens_scales="~" in marks,
            lists=lists,
            kinds=kinds,
        )
        return self._choose(entry, architecture, config)

    def _layers(self, entry: _IndexEntry) -> tuple[dict[str, str], dict[str, Kinds]]:
        """Return what counts the modules of lists, and the kinds of the modules in lists."""
        lists: dict[str, str] = {}
        kinds: dict[str, Kinds] = {}
        for name, line in self._mapping(entry.blocks["layers"]).items():
            words = line.split(" ")
            if words[0] == UNEQUAL or words[0].startswith(_TIED):
                lists[name] = words.pop(0).removeprefix(_TIED)
            if words:
                kinds[name] = frozenset(
                    frozenset(() if word == _NONE else word.split(",")) for word in words
                )
            is_list = name in lists
            if (
                "#" not in name
                or (is_list and not name.endswith("#"))
                or (not is_list and not kinds.get(name))
                or "" in frozenset().union(*kinds.get(name, ()))
            ):
                raise self._error(f"{name} {line}", "is not LIST =NUMBER or MODULE a,b c -")
        return lists, kinds

    def _tie(
        self, entry: _IndexEntry, parameters: dict[str, Parameter], config: Mapping[str, Any]
    ) -> None:
        """Name the sources of the parameters that a configuration ties."""
        prefixes = self._mapping(entry.blocks["ties"])
        unused_prefixes = {*prefixes}
        for name, parameter in [*parameters.items()] if prefixes else ():
            line = longest_prefix(name, prefixes)
            unused_prefixes -= {
                prefix for prefix in unused_prefixes if f"{name}.".startswith(f"{prefix}.")
            }
            tie = re.fullmatch(_TIE, line)
            if not line or (tie is not None and tie["source"] == name):
                continue
            if tie is None or tie["source"] not in parameters:
                raise self._error(f"{name} {line}", f"is no tie of {entry.name}'s rows")
            is_tied = _ties(config, tie["part"])
            if tie["sign"] == _TIED if is_tied is None else is_tied:
                parameters[name] = parameter._replace(tied=tie["source"])
        for prefix in sorted(unused_prefixes):
            raise self._error(f"{prefix} {prefixes[prefix]}", f"ties no row of {entry.name}")

    def _choose(
        self, entry: _IndexEntry, architecture: Architecture, config: Mapping[str, Any]
    ) -> Architecture:
        """Put the rows of the types that a configuration chooses in the place of usual ones."""
        for module, line in self._mapping(entry.blocks["parts"]).items():
            path, _, usual = line.partition(" ")
            part = _part(config, path)
            kind = part.get("model_type")
            if kind in {None, usual} or not isinstance(kind, str):
                continue
            entries = [other for other in self.entries(model_type=kind) if kind]
            if not entries or kind == entry.model_type:
                continue
            part_architecture = _merge([self.architecture(other, part) for other in entries])
            architecture = _replace_module(architecture, module, path, part_architecture)
        return architecture

    def _mapping(self, number: str | None) -> dict[str, str]:
        """Return the lines of a block as texts by their first words."""
        mapping: dict[str, str] = {}
        for line in self._block(number).split("\n") if number else ():
            name, _, mapping[name] = line.partition(" ")
            if not mapping[name]:
                raise self._error(line, "has one name in place of two")
        return mapping

    def _block(self, number: str) -> str:
        if not number.isdecimal() or int(number) >= len(self._blocks) - 1:
            raise ValueError(
                f"{self._path} names a block {number!r} that it has not: " + _remedy(self._path)
            )
        return self._blocks[int(number)]

    def _expand(
        self,
        block: str,
        prefixes: tuple[str, str],
        parameters: dict[str, Parameter],
        modules: dict[str, str],
        outer: tuple[str, ...],
    ) -> None:
        """Add the rows of a block, and of those that it names, under a prefix."""
        # `prefixes` are of the names in files, and of those in transformers.
        if block in outer or len(outer) > _MOST_DEPTH or len(parameters) > _MOST_ROWS:
            raise ValueError(
                f"{self._path}: block {block} is within itself, {_MOST_DEPTH} deep or more, or"
                f" one of {_MOST_ROWS:,} rows: " + _remedy(self._path)
            )
        for line in self._block(block).split("\n"):
            label, _, rest = line.partition(" ")
            name, differs, module = label.partition(">")
            full = prefixes[0] + name
            inner = prefixes[1] + (module if differs else name)
            if rest[:1].isdecimal():
                inner = f"{inner}." if module or not differs else inner
                self._expand(rest, (f"{full}.", inner), parameters, modules, (*outer, block))
                continue
            if full in parameters:
                raise self._error(line, f"claims {full}, which has a row")
            parameters[full] = self._parameter(full, rest, line)
            if inner != full:
                modules[full] = inner

    def _parameter(self, name: str, text: str, line: str) -> Parameter:
        role, *words = text.split() or [""]
        if not name or normalize_name(other := re.sub(_OF_SEQUENCE, "#", name)) != other:
            raise self._error(line, "has a number where # stands for each layer or expert")
        if role not in ROLES:
            raise self._error(line, f"has a role {role!r} that is none of {', '.join(ROLES)}")
        joint = next((word for word in words if word in _JOINTS), "")
        conversion = next((word for word in words if word in CONVERSIONS), "")
        axes = " ".join(word for word in words if word not in {_FLOAT32, conversion, joint})
        axes = axes or _AXES.get(role, "")
        if (role in _AXES or axes) and axes not in _SPELLED_AXES:
            raise self._error(
                line, f"has axes {axes!r} that are none of {', '.join(sorted(_SPELLED_AXES))}"
            )
        return Parameter(name, role, axes, joint, _FLOAT32 in words, conversion=conversion)

    def _error(self, line: str, fault: str) -> ValueError:
        return ValueError(f"{self._path}: the line {line!r} {fault}: " + _remedy(self._path))


def _remedy(path: Path) -> str:
    if path == _TABLE:
        return "install castwise anew"
    return "correct it, or leave " + argument("architecture") + " out"
