"""What inference engines join into one weight and build unquantised: rows of `engines.txt`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).with_name("engines.txt")
"""The table, which `benches/architectures/engines.py` makes."""

ENGINES = ("vllm", "sglang", "mlx-lm")
"""The engines of the table."""

_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
_GROUP = re.compile(r"([\w.#/-]*)\{([\w.#/,-]+)\}")
_NAME = re.compile(r"[\w.#/-]+(?:\.\*)?")
_PARTS = 3
_BELOW = ".*"


@dataclass(frozen=True, slots=True)
class EngineRules:
    """What one engine does with the modules of one class of models.

    Attributes
    ----------
    joined
        Groups of modules of which the engine makes one weight, so that they need one scheme.
    unquantized
        Modules that the engine builds without quantisation, whatever the configuration says.
    undecided
        Modules that it builds with or without, as the format or the configuration of the model
        decides; what is unquantised loads in both cases.

    """

    joined: tuple[tuple[str, ...], ...]
    unquantized: tuple[str, ...]
    undecided: tuple[str, ...]

    def keeps(self, module: str) -> bool:
        """Return True for a module that a file for the engine must store unquantised."""
        return any(matches(row, module) for row in (*self.unquantized, *self.undecided))

    def keeps_alone(self, module: str) -> bool:
        """Return True for a module that it builds unquantised, beside others that it does not."""
        rows = (row for row in self.unquantized if not row.endswith(_BELOW))
        return any(matches(row, module) for row in rows)

    def partners(self, module: str) -> tuple[str, ...]:
        """Name the modules that the engine joins with one, itself among them, in order."""
        name = normalize(module)
        for group in self.joined:
            for row in group:
                if matches(row, name):
                    return tuple(_renamed(module, name, row, other) for other in group)
        return (module,)


def normalize(module: str) -> str:
    """Return the name of a module with `#` for each part that is a number."""
    return _NUMBER.sub("#", module)


def matches(row: str, module: str) -> bool:
    """Return True if a row of the table is about a module.

    The module's name, without ".weight", ends with the row, or is the row but for its first part,
    as base models are stored with and without the part that holds them; `a.*` is about all that is
    below `a`.
    """
    name = f".{normalize(module)}"
    stem = row.removesuffix(_BELOW)
    ends = (f".{stem}", f".{stem.partition('.')[2]}")
    if stem != row:
        return f"{ends[0]}." in name or (ends[1] != "." and name.startswith(f"{ends[1]}."))
    return name.endswith(ends[0]) or name == ends[1]


def find_engines(*keys: str) -> Mapping[str, EngineRules]:
    """Return what each engine does with a model, by the names of its class and its type.

    Of two keys that an engine has rows for, the first counts.

    Raises
    ------
    ValueError
        The table is damaged.

    """
    return read_engines(PATH, *keys)


def read_engines(path: Path, *keys: str) -> Mapping[str, EngineRules]:
    """Return the rules of a table in a file; as `find_engines`."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, "it is not UTF-8") from error
    found: dict[str, EngineRules] = {}
    for key in keys:
        lines = re.findall(rf"^{re.escape(key)}\t(.*)$", text, re.MULTILINE) if key else []
        if len(lines) > 1:
            raise _damaged(path, f"it has {len(lines)} lines of {key}")
        for entry in (part for line in lines for part in line.split("\t")):
            engine, _, number = entry.partition(" ")
            if engine not in ENGINES or not number.isdecimal():
                raise _damaged(path, f"{key} has {entry!r} in place of an engine and a number")
            if engine not in found:
                found[engine] = _rules(path, text, number)
    return found


def _rules(path: Path, text: str, number: str) -> EngineRules:
    blocks = re.findall(rf"^{number}\t(.*)$", text, re.MULTILINE)
    if len(blocks) != 1:
        raise _damaged(path, f"it has {len(blocks)} blocks {number}")
    parts = blocks[0].split("\t")
    if len(parts) != _PARTS:
        raise _damaged(path, f"block {number} has {len(parts)} columns in place of {_PARTS}")
    joined, *others = (part.split() for part in parts)
    groups = [_GROUP.fullmatch(group) for group in joined]
    for row, match in (
        *zip(joined, groups, strict=True),
        *((name, _NAME.fullmatch(name)) for names in others for name in names),
    ):
        if match is None:
            raise _damaged(path, f"block {number} has {row!r}, which is no row")
    return EngineRules(
        tuple(tuple(match[1] + end for end in match[2].split(",")) for match in groups if match),
        *(tuple(names) for names in others),
    )


def _renamed(module: str, name: str, row: str, other: str) -> str:
    """Return what a module's partner is called, of which the rows are known."""
    names, rows, others = name.split("."), row.split("."), other.split(".")
    if len(names) < len(rows):  # the first part is left off
        rows, others = rows[1:], others[1:]
    parts = module.split(".")
    start = len(parts) - len(rows)
    numbers = iter([part for part, old in zip(parts[start:], rows, strict=True) if old == "#"])
    ends = [next(numbers, "#") if part == "#" else part for part in others]
    return ".".join([*parts[:start], *ends])


def _damaged(path: Path, fault: str) -> ValueError:
    return ValueError(f"{path} is damaged: {fault}; install castwise anew")
