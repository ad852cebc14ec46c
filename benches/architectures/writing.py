"""The text of the table: equal parts of architectures once, each a block of lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os.path import commonprefix

FIRST_LINE = "# castwise architectures 1"

Node = tuple[tuple[str, object], ...]
"""The names below a module, sorted: each with the text of a row, or with another node."""


@dataclass(frozen=True)
class Described:
    """One class of models, as the table has it."""

    name: str
    model_type: str
    base: str
    rows: Mapping[str, str]
    ties: Mapping[str, str]  # `=SOURCE`, or `~SOURCE` where a configuration must ask for it


def table_text(head: Iterable[str], architectures: Iterable[Described]) -> str:
    """Return the table: its head, its blocks, and the index of classes."""
    blocks = _Blocks()
    groups: dict[tuple[str, str], list[tuple[str, Node, Node]]] = {}
    for each in sorted(architectures, key=lambda each: each.name):
        ties = tuple(sorted(each.ties.items()))
        entry = (each.name, blocks.add(_tree(each.rows)), blocks.add(ties))
        groups.setdefault((each.model_type or "-", each.base or "-"), []).append(entry)
    numbers = blocks.numbers()
    index = []
    for (kind, base), entries in sorted(groups.items()):
        prefix = commonprefix([name for name, _, _ in entries])
        classes = (
            f"{name.removeprefix(prefix)}={numbers[rows]}" + (f"={numbers[ties]}" if ties else "")
            for name, rows, ties in entries
        )
        index.append(" ".join((kind, base, prefix or "-", *classes)))
    first = "\n".join((FIRST_LINE, *(f"# {line}" for line in head)))
    return "\n\n".join((first, *blocks.texts(numbers), "\n".join(index))) + "\n"


def _tree(rows: Mapping[str, str]) -> Node:
    """Part names at their dots, and join again the modules that have one part only."""
    below: dict[str, dict[str, str]] = {}
    entries: list[tuple[str, object]] = []
    for name, text in rows.items():
        first, dot, rest = name.partition(".")
        if dot:
            below.setdefault(first, {})[rest] = text
        else:
            entries.append((name, text))
    for name, inner in below.items():
        node = _tree(inner)
        if len(node) == 1 and isinstance(node[0][1], tuple):
            ((rest, value),) = node
            entries.append((f"{name}.{rest}", value))
        else:
            entries.append((name, node))
    return tuple(sorted(entries, key=lambda entry: (entry[0], isinstance(entry[1], tuple))))


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
