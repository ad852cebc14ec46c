"""The text of the table: equal parts of architectures once, each a block of lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os.path import commonprefix

from castwise.models.architecture import expand_name, longest_prefix
from kinds import Sets, kinds_of, list_word

FIRST_LINE = "# castwise architectures 1"

Node = tuple[tuple[str, object], ...]
"""The names below a module, sorted: each with the text of a row, or with another node."""


@dataclass(frozen=True)
class ClassDescription:
    """One class of models, as the table has it."""

    name: str
    model_type: str
    base: str
    rows: Mapping[str, str]
    ties: Mapping[str, str]  # `PART=SOURCE`, or `PART~SOURCE` where the part must ask for it
    modules: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)  # `PART TYPE`, by prefixes of rows
    marks: str = ""
    # The sets of parts that modules have in each configuration, by the modules' names.
    sets: Mapping[str, frozenset[Sets]] = field(default_factory=dict)
    # The paths of what in a configuration is the length of a list, by the names of its modules.
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)


def table_text(head: Iterable[str], architectures: Iterable[ClassDescription]) -> str:
    """Return the table: its head, its blocks, and the index of classes."""
    blocks = _Blocks()
    groups: dict[tuple[bool, str, str], list[tuple[str, list[Node], str]]] = {}
    architectures = list(architectures)
    homes = {each.name: each.model_type for each in reversed(architectures)}
    for each in sorted(architectures, key=lambda each: each.name):
        nodes = (
            _tree(_stored_rows(each)),
            _tie_lines(each),
            tuple(sorted(each.parts.items())),
            layer_lines(each),
        )
        entry = (each.name, [blocks.add(node) for node in nodes], each.marks)
        is_adopted = homes[each.name] != each.model_type
        key = (is_adopted, each.model_type or "-", each.base or "-")
        groups.setdefault(key, []).append(entry)
    numbers = blocks.numbers()
    index = []
    for (_, kind, base), entries in sorted(groups.items()):
        prefix = commonprefix([name for name, _, _ in entries])  # noqa: RUF071 - no paths
        classes = (
            name.removeprefix(prefix)
            + "".join(
                f"{sign}{numbers[node]}" for sign, node in zip("==:+", nodes, strict=True) if node
            )
            + marks
            for name, nodes, marks in entries
        )
        index.append(" ".join((kind, base, prefix or "-", *classes)))
    first = "\n".join((FIRST_LINE, *(f"# {line}" for line in head)))
    return "\n\n".join((first, *blocks.texts(numbers), "\n".join(index))) + "\n"


def _stored_rows(each: ClassDescription) -> dict[str, tuple[str, str]]:
    """Return the rows, each with its name in the model, without those that the reader derives."""
    derived_names = {
        module
        for name, modules in each.modules.items()
        for module in expand_name(modules)
        if each.rows.get(name) == each.rows.get(module) and module not in each.modules
    }
    return {
        name: (text, each.modules.get(name, name))
        for name, text in each.rows.items()
        if name not in derived_names
    }


def _tie_lines(each: ClassDescription) -> Node:
    """Return what is tied to what, by prefixes of the names where all that begin with it are."""
    lines: dict[str, str] = {}
    for name, target in sorted(each.ties.items()):
        parts, source_parts = name.split("."), target.split(".")
        while len(parts) > 1 and len(source_parts) > 1 and parts[-1] == source_parts[-1]:
            inner_prefix = ".".join(parts[:-1]) + "."
            if any(row.startswith(inner_prefix) and row not in each.ties for row in each.rows):
                break
            parts, source_parts = parts[:-1], source_parts[:-1]
        lines.setdefault(".".join(parts), ".".join(source_parts))
    for name, target in each.ties.items():
        if longest_prefix(name, lines) != target:
            lines[name] = target
    return tuple(sorted(lines.items()))


def layer_lines(each: ClassDescription) -> Node:
    """Return what counts the modules of each list, and of which kinds the modules in it are."""
    words = {pattern: [list_word(keys)] for pattern, keys in each.keys.items()}
    for pattern, configurations in each.sets.items():
        kinds = sorted(",".join(sorted(kind)) or "-" for kind in kinds_of(configurations))
        if kinds:
            words.setdefault(pattern, []).extend(kinds)
    return tuple((pattern, " ".join(each)) for pattern, each in sorted(words.items()))


def _tree(rows: Mapping[str, tuple[str, str]]) -> Node:
    """Part names at their dots, and join again the modules that have one part only.

    A row's second text is its name in the model, from the module on that the tree is of.
    """
    below: dict[str, dict[str, tuple[str, list[str]]]] = {}
    entries: list[tuple[str, object]] = []
    for name, (text, module) in rows.items():
        first, dot, rest = name.partition(".")
        if dot:
            below.setdefault(first, {})[rest] = (text, module.split("."))
        else:
            entries.append((_label(name, module), text))
    for name, inner in below.items():
        modules = [module for _, module in inner.values()]
        depth = min(len(module) for module in modules) - 1
        while depth and len({tuple(module[:depth]) for module in modules}) > 1:
            depth -= 1
        node = _tree({n: (text, ".".join(parts[depth:])) for n, (text, parts) in inner.items()})
        label = _label(name, ".".join(modules[0][:depth]))
        if len(node) == 1 and isinstance(node[0][1], tuple):
            ((rest, value),) = node
            entries.append((_join_labels(label, rest), value))
        else:
            entries.append((label, node))
    return tuple(sorted(entries, key=lambda entry: (entry[0], isinstance(entry[1], tuple))))


def _label(name: str, module: str) -> str:
    return name if name == module else f"{name}>{module}"


def _join_labels(label: str, inner_label: str) -> str:
    """Return the label of a module in a module."""
    names, modules = zip(
        *(each.split(">") * (2 - each.count(">")) for each in (label, inner_label)), strict=True
    )
    return _label(".".join(names), ".".join(filter(None, modules)))


class _Blocks:
    """Nodes, each of which becomes one block however many name it."""

    def __init__(self) -> None:
        self._uses: Counter[Node] = Counter()

    def add(self, node: Node) -> Node:
        """Count one more use of a node, and, if it is the first, those of what it names."""
        if node and not self._uses[node]:
            for _, value in node:
                if isinstance(value, tuple):
                    self.add(value)
        if node:
            self._uses[node] += 1
        return node

    def numbers(self) -> dict[Node, int]:
        """Number the nodes, those that are named most first: their numbers are short."""
        return {node: number for number, (node, _) in enumerate(self._uses.most_common())}

    def texts(self, numbers: Mapping[Node, int]) -> Iterator[str]:
        """Yield the blocks in the order of their numbers."""
        for node in numbers:
            yield "\n".join(
                f"{name} {numbers[value] if isinstance(value, tuple) else value}"
                for name, value in node
            )
