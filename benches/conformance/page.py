"""The page: what each library gives in each condition, which options give the same, and why not."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from agreement import disagreement, dtype_of, part_name
from castwise._core import __version__, cpu_level, finfo, formats
from castwise.arrays.library_casts import Library, Rule, library_named
from castwise.arrays.recipe import Recipe
from conditions import CONDITIONS, answer, values
from libraries import LibraryCast
from standards import departures

_KINDS = ("bool", "integers", "floats")
VARIES = "varies"
"""What the page says where no options give the same."""


class About(NamedTuple):
    """What pairs of a row have in common.

    Attributes
    ----------
    options
        Those of `castwise.cast` that give the same.
    reason
        Why none do, for some values or all.
    departs
        In which conditions that is not what the standard of the target says.
    from_float
        True if the sources are floats.
    kind, specials
        Those of the targets, in whose terms the answers are.

    """

    options: str
    reason: str
    departs: str
    from_float: bool
    kind: str
    specials: str


Tried = tuple[str, str, dict[str, str], About]
"""A source and a target, what the library gives, and what else is known."""


@dataclass
class Row:
    """Pairs of formats that a library casts alike.

    Attributes
    ----------
    answers
        What it gives, by condition; "" where no value of any pair is in it.
    about
        What else its pairs have in common.
    pairs
        The sources of each target.

    """

    answers: dict[str, str]
    about: About
    pairs: dict[str, list[str]] = field(default_factory=dict)

    def takes(self, answers: Mapping[str, str], about: About) -> bool:
        """Return True if a pair is cast as those of the row, in every condition that both have."""
        return self.about == about and all(
            not self.answers[name] or not text or self.answers[name] == text
            for name, text in answers.items()
        )

    def add(self, source: str, target: str, answers: Mapping[str, str]) -> None:
        """Take a pair."""
        self.pairs.setdefault(target, []).append(source)
        self.answers |= {name: text for name, text in answers.items() if text}


@dataclass
class Conformance:
    """How one library casts.

    Attributes
    ----------
    library
        The library, as the table has it.
    versions
        Its packages.
    rows
        Pairs of formats that it casts alike.
    count
        How many pairs it casts.
    disagreements
        Where it does not do what the table says.

    """

    library: Library
    versions: str
    rows: list[Row]
    count: int
    disagreements: list[str]


def measure(library: LibraryCast) -> Conformance:
    """Cast every pair of formats in every condition by a library that is loaded."""
    table = library_named(library.name)
    tried: list[Tried] = []
    wrong: list[str] = []
    for source, target in _pairs():
        inputs = values(source, target)
        arrays = [*inputs.values(), _ones(source)]
        array = np.concatenate([part for part in arrays if part.size])
        result = library.cast(array, dtype_of(target))
        if (text := disagreement(library, array, result, target)) is not None:
            wrong.append(text)
        rule = table.rule(source, target)
        if result is None or rule is None:
            continue
        answers, begin = {}, 0
        for name, part in inputs.items():
            answers[name] = answer(name, part, result[begin : begin + part.size])
            begin += part.size
        answers |= {name: VARIES for name in _raised(rule) if answers[name]}
        row = finfo(part_name(target))
        about = About(
            recipe_text(rule),
            rule.reason,
            departures(answers, target),
            finfo(part_name(source)).kind == "float",
            _word(part_name(target)),
            row.specials if row.kind == "float" else "",
        )
        tried.append((source, target, answers, about))
    return Conformance(table, library.versions(), _grouped(tried), len(tried), wrong)


def _pairs() -> Iterator[tuple[str, str]]:
    """List the pairs of different formats that `castwise.cast` casts."""
    names = [name for name in formats() if finfo(name).dtype is not None]
    for source in names:
        for target in names:
            drops = finfo(source).kind == "complex" and finfo(target).kind != "complex"
            if source != target and not drops:
                yield source, target


@cache
def _ones(source: str) -> Any:
    """Return a value that every format has, for pairs without any condition."""
    return np.array([1], np.int8).astype(dtype_of(source))


def _grouped(tried: list[Tried]) -> list[Row]:
    """Group pairs that a library casts alike, those with the most conditions first."""
    rows: list[Row] = []
    for source, target, answers, about in sorted(
        tried, key=lambda row: list(row[2].values()).count("")
    ):
        row = next((row for row in rows if row.takes(answers, about)), None)
        if row is None:
            row = Row(dict.fromkeys(CONDITIONS, ""), about)
            rows.append(row)
        row.add(source, target, answers)
    order = list(formats())
    for row in rows:
        row.pairs = {
            target: sorted(row.pairs[target], key=order.index)
            for target in sorted(row.pairs, key=order.index)
        }
    return sorted(rows, key=lambda row: _KINDS.index(row.about.kind))


def _raised(rule: Rule) -> Iterator[str]:
    """Name the conditions in which the recipe of a rule raises."""
    if rule.recipe is not None and rule.recipe.overflow == "raise":
        yield from ("overflow", "infinity")
    if rule.recipe is not None and rule.recipe.nan == "raise":
        yield "NaN"


def recipe_text(rule: Rule) -> str:
    """Write the options of `castwise.cast` that a rule is."""
    recipe = rule.recipe
    if recipe is None:
        return "none"
    parts = _option_texts(recipe)
    if recipe.through is not None:
        parts.insert(0, f"`{recipe.through}` first")
    if recipe.flushed is not None:
        where = {"source": "x", "step": recipe.through, "result": "the result", "both": "both"}
        parts.append(f"subnormals of {where[recipe.flushed]} made 0")
    return ", ".join(parts) or "the defaults"


def _option_texts(recipe: Recipe) -> list[str]:
    usual = {"rounding": None, "overflow": "ieee", "nan": "keep"}
    return [f'`{name}="{value}"`' for name, value in recipe.options.items() if value != usual[name]]


_LEGEND = """\
Each library casts every pair of formats that it has, by its plain public call. A row has the pairs
that the library casts alike. The columns describe the results:

- **halfway**: values in the middle between two numbers of the target, and values beside it. They
  are rounded to the `even` number, `away` from zero or towards `zero`. `after float32` means that
  they are rounded twice.
- **overflow**, **infinity**, **NaN**: finite values beyond the range of the target, infinities, and
  NaN. `largest` is the largest or smallest number, with the sign of the value. `smallest` is the
  smallest number for both signs. `low bits` are those of the whole number.
- **subnormal**: values below the normal range of either format, `kept` or made 0.
- **-0**: negative zero.
- **castwise.cast**: the options that give the same bits, which `like=` sets. If an option is
  `raise`, or if no options give the bits, the numbered note has the reason. Any NaN equals any
  other NaN.
- **standard**: `yes` if every column follows the standard of the target, else the columns that do
  not. `·` means that the target has no standard.

`A or B` means that the result depends on the value. For `varies`, `otherwise` and `others`, the
note describes the result. `·` means that none of these pairs has such values.

IEEE 754-2019 is the standard of float64, float32 and float16, and the measure for bfloat16. OCP
OFP8 1.0 is the standard of float8_e4m3fn and float8_e5m2; it allows saturation and overflow. OCP MX
1.0 is the standard of float6 and float4. IEEE 754 does not define the integers for NaN and for
floats beyond the range of an integer.

`integers`, `floats` and `complex` mean all formats of that kind that the library has. A cast of a
format to itself copies, and has no row.
"""


def markdown(libraries: Sequence[Conformance], today: datetime.date) -> str:
    """Return the page.

    Parameters
    ----------
    libraries : sequence of Conformance
        In the order of the page.
    today : date
        The day of the measurement.

    """
    lines = [
        "# What other libraries make of every cast",
        "",
        f"Written by `benches/conformance` on {today.isoformat()}: castwise {__version__} "
        f"({cpu_level()}), Python {platform.python_version()}, {platform.machine()}.",
        "",
        *_LEGEND.splitlines(),
    ]
    for library in libraries:
        lines += ["", *_section(library)]
    return "\n".join(lines) + "\n"


def _section(measured: Conformance) -> Iterator[str]:
    library = measured.library
    yield f"## {library.name}"
    yield ""
    yield f"{_capital(library.call)}: {measured.versions}; {measured.count} pairs."
    yield ""
    header = ("from", "to", *CONDITIONS, "castwise.cast", "standard")
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    notes: dict[str, int] = {}
    homes = _homes(measured.rows, library)
    for row in measured.rows:
        mark = ""
        if reason := row.about.reason:
            mark = f" [{notes.setdefault(reason, len(notes) + 1)}]"
        cells = [row.answers[name] or "·" for name in CONDITIONS]
        for sources, targets in _rectangles(row, homes):
            cells_of_row = (
                _names(sources, library),
                _names(targets, library),
                *cells,
                row.about.options + mark,
                row.about.departs,
            )
            yield f"| {' | '.join(cells_of_row)} |"
    if notes:
        yield ""
    for reason, number in notes.items():
        yield f"{number}. {_capital(reason)}."


def _capital(text: str) -> str:
    """Begin a text with a capital letter."""
    return text[0].upper() + text[1:]


def _rectangles(row: Row, homes: Mapping[str, Row]) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    """Return targets with the same sources together, each target among those of its home."""
    by_sources: dict[tuple[str, ...], list[str]] = {}
    for target, sources in row.pairs.items():
        alike = [*sources, target] if homes.get(target) is row else sources
        by_sources.setdefault(tuple(sorted(alike)), []).append(target)
    return by_sources.items()


def _homes(rows: Sequence[Row], library: Library) -> dict[str, Row]:
    """Return for each target the row that has at least half of the sources of its kind."""
    kinds = _kinds(library)
    counts: dict[str, tuple[int, Row]] = {}
    for row in rows:
        for target, sources in row.pairs.items():
            alike = sum(_word(name) == _word(target) for name in sources)
            most, _ = counts.get(target, (0, row))
            if 2 * alike >= len(kinds[_word(target)]) and alike > most:
                counts[target] = alike, row
    return {target: row for target, (_, row) in counts.items()}


_WORDS = {"int": "integers", "uint": "integers", "float": "floats", "complex": "complex"}
_MOST_MISSING = 2
"""The most formats that a kind may lack to be named as a whole."""


def _word(name: str) -> str:
    return _WORDS.get(finfo(name).kind, name)


def _kinds(library: Library) -> dict[str, list[str]]:
    """Return the formats of a library by the word for their kind."""
    kinds: dict[str, list[str]] = {}
    for name in library.formats:
        kinds.setdefault(_word(name), []).append(name)
    return kinds


def _names(names: Sequence[str], library: Library) -> str:
    """Write names of formats, those of a kind as one word where few or none are missing."""
    texts = []
    for word, members in _kinds(library).items():
        inside = [name for name in members if name in names]
        missing = [name for name in members if name not in names]
        if len(missing) <= _MOST_MISSING and len(inside) > max(len(missing), 1):
            texts.append(f"{word} but {' and '.join(missing)}" if missing else word)
        else:
            texts += inside
    return ", ".join(texts)
