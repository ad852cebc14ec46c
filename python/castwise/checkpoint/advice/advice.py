"""Advice: a choice for each group of weights, its map, and the alternatives."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from castwise._core import finfo
from castwise.arrays.dtype_map import KEEP
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.paths import checked_path
from castwise.checkpoint.files.replacing import check_own_start, replacing_file
from castwise.checkpoint.planning.written_schemes import is_scheme
from castwise.checkpoint.results.report import KeptTensors, kept_text
from castwise.quantization.producers.consumers import find_consumer
from castwise.quantization.producers.registry import TYPED
from castwise.quantization.producers.schemes import has_scales, scheme_of_files
from castwise.rendering import Rendered
from castwise.rendering.sheet import (
    Exponents,
    FormatRange,
    Front,
    Histogram,
    Lines,
    Section,
    Sheet,
    Table,
    joint_axis,
)
from castwise.rendering.text import group_name, size_text
from castwise.text.brief import brief, brief_fields, counted

SCHEMA = 1
"""The version of the JSON of advice."""

MAP_START = "# castwise "
"""How the files of maps begin: with the command that takes them."""

# Names of a group that its text lists; of more the first stands for all.
_FEW = 4
# How many choices are drawn, the worst first.
_DRAWN = 12

# The numbers of layers and experts: what stands between them is the same in all layers.
_NUMBER = re.compile(r"\.(\d+)(?=\.)")


class Alternative(NamedTuple):
    """Another format or scheme for a group of weights.

    Attributes
    ----------
    target
        A scheme, a format, or "keep".
    nbytes
        The bytes of its tensors with scales and their entries in headers.
    error
        The sum of their relative squared errors, each times its importance.

    """

    target: str
    nbytes: int
    error: float

    def __repr__(self) -> str:
        return brief_fields(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Choice:
    """The format or scheme of weights that share a choice.

    Attributes
    ----------
    tensors
        Their names.
    target
        A scheme, a format to cast to, or "keep".
    nbytes_before, nbytes
        The bytes of the weights before, and after with scales and their entries in headers.
    error
        The sum of their relative squared errors, each times its importance.
    sqnr_db
        The least of their predicted ratios of signal to noise; infinite if nothing is lost.
    cheaper, dearer
        The next choice with fewer bytes, and the next with less error. None if there is none.
    exponents
        Their elements that are not zero, by the exponent of the magnitude.

    """

    tensors: tuple[str, ...]
    target: str
    nbytes_before: int
    nbytes: int
    error: float
    sqnr_db: float
    cheaper: Alternative | None = None
    dearer: Alternative | None = None
    exponents: Mapping[int, int] = field(default_factory=dict)

    __repr__ = brief_fields

    @property
    def name(self) -> str:
        """The names of the weights in short: what they share, and where they differ."""
        parts = [name.split(".") for name in self.tensors]
        columns = [*zip(*parts, strict=False)]
        start = next((place for place, column in enumerate(columns) if len({*column}) > 1), None)
        if start is None:
            return self.tensors[0]
        tail = next(
            place for place in range(1, len(columns) + 1) if len({row[-place] for row in parts}) > 1
        )
        end = 1 - tail
        middles = [".".join(row[start : len(row) + end]) for row in parts]
        prefix, suffix = parts[0][:start], parts[0][len(parts[0]) + end :]
        middle = "|".join(middles) if len(middles) <= _FEW else f"{middles[0]}|..."
        return ".".join([*prefix, f"({middle})", *suffix])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a ratio that is infinite is None."""
        others = {"cheaper": self.cheaper, "dearer": self.dearer}
        return {row.name: getattr(self, row.name) for row in fields(self)} | {
            "tensors": list(self.tensors),
            "sqnr_db": self.sqnr_db if math.isfinite(self.sqnr_db) else None,
            **{name: other and other.to_dict() for name, other in others.items()},
            "exponents": [list(pair) for pair in self.exponents.items()],
        }


class FrontPoint(NamedTuple):
    """A point of the front: with so many bytes, the error cannot be lower.

    Attributes
    ----------
    nbytes
        Of the whole checkpoint.
    error
        The mean of the relative squared errors of the weights that were asked about.

    """

    nbytes: int
    error: float

    def __repr__(self) -> str:
        return brief_fields(self)


@dataclass(frozen=True, slots=True)
class Advice(Rendered):
    """Which format or scheme each weight gets.

    Attributes
    ----------
    source
        The checkpoint.
    recipe
        The producer whose schemes were considered.
    choices
        What each group of weights becomes; those with the largest error first.
    nbytes_before, nbytes
        Bytes of the checkpoint before and after: tensors, scales, headers and copied files.
    parameters
        Elements of its floating tensors.
    error
        The mean of the weights' relative squared errors, each times its importance.
    gap
        An upper bound of `error` minus the least possible error within the bytes; None if the error
        was limited.
    nbytes_gap
        An upper bound of `nbytes` minus the fewest possible bytes within the error; None if bytes
        or bits were limited.
    front
        Bytes and errors of the best choices for other limits, the smallest first. If the recipe
        states one scheme for a whole checkpoint, all points have the same scheme.
    consumer
        The program that loads the result; None if no consumer was named.
    stays
        The weights that no choice gives a scheme, by role and reason, with their share of the bytes
        of the checkpoint; the largest share first.
    scales
        Which scale each block gets, as in `quantize_file`.

    """

    source: str
    recipe: str
    choices: Sequence[Choice]
    nbytes_before: int
    nbytes: int
    parameters: int
    error: float
    gap: float | None
    nbytes_gap: int | None
    front: Sequence[FrontPoint]
    consumer: str | None = None
    stays: Sequence[KeptTensors] = ()
    scales: str = "amax"

    @property
    def bits(self) -> float:
        """Bits of the checkpoint per element of its floating tensors."""
        return 8 * self.nbytes / max(self.parameters, 1)

    @property
    def map(self) -> dict[str, str]:
        """The `dtype_map` for `quantize_file` or `cast_file`, without weights that are kept."""
        names: dict[str, list[str]] = defaultdict(list)
        for choice in self.choices:
            if choice.target != KEEP:
                names[choice.target] += choice.tensors
        return {pattern: target for target in names for pattern in patterns(sorted(names[target]))}

    @property
    def quantizes(self) -> bool:
        """True if the map names a scheme, so that it is for `quantize_file`."""
        return any(is_scheme(choice.target) for choice in self.choices)

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that take the map; THIS is the file of the map, and DST the result.

        There are two commands if the consumer does not load the form that `quantize_file` writes.
        The first one then writes QUANTIZED.
        """
        source = shlex.quote(str(self.source))
        if not self.quantizes:
            return (f"castwise cast {source} DST --map THIS",)
        form = None if self.consumer is None else find_consumer(self.consumer).form
        destination = "DST" if form is None else "QUANTIZED"
        if self.recipe == TYPED:  # whose files a map makes at once
            form, destination = None, f"DST.{TYPED}"
        first = f"castwise quantize {source} {destination} --map THIS --recipe {self.recipe}"
        targets = filter(is_scheme, {choice.target for choice in self.choices})
        if self.scales != "amax" and any(
            has_scales(self.scales, scheme_of_files(target), self.recipe) for target in targets
        ):
            first += f" --scales {self.scales}"
        if self.consumer is not None:
            first += f" --for {self.consumer}"
        return (
            (first,)
            if form is None
            else (first, f"castwise transcode QUANTIZED DST.{form} --to {form}")
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map as TOML, with the commands that take it and the totals as comments.

        Raises
        ------
        CheckpointError
            The name does not end with .toml, or there is a file that no advice wrote.
        OSError
            The file cannot be written.

        """
        destination = checked_path(path)
        check_map_file(destination)
        check_own_start(destination, MAP_START.encode(), "a map of castwise advise")
        with replacing_file(destination) as file:
            file.write(self.to_toml().encode())

    def to_toml(self) -> str:
        """Return the map as TOML."""
        lines = [
            *(f"# {command}" for command in self.commands),
            f"# {self.nbytes:,} of {self.nbytes_before:,} bytes, {self.bits:.2f} bits a parameter;",
            f"# mean relative squared error of the weights {self.error:.3g}.",
        ]
        lines += [
            f"{_quote_text(pattern)} = {_quote_text(target)}"
            for pattern, target in self.map.items()
        ]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return brief(
            self,
            repr(self.source),
            f"{self.nbytes_before:,} -> {counted(self.nbytes, 'byte')}",
            f"{self.bits:.2f} bits",
            f"error {self.error:.3g}",
        )

    def __sheet__(self) -> Sheet:
        """Return the front, a table of the choices, worst first, and the totals."""
        return advice_sheet(self, every=False)

    def total_lines(self) -> list[str]:
        """Describe the bytes of the result, its error, and the distance from the best possible."""
        size = (
            f"{self.nbytes_before:,} -> {self.nbytes:,} bytes, {self.bits:.2f} bits per parameter"
        )
        error = f"mean relative squared error {self.error:.3g}"
        if self.nbytes_gap is not None:
            bound_text = f"at most {counted(self.nbytes_gap, 'byte')} above the fewest"
            size += f", {bound_text if self.nbytes_gap else 'the fewest possible'}"
        else:
            bound_text = f"at most {self.gap:.1e} above the least"
            error += f", {bound_text if self.gap else 'the least possible'}"
        return [size, error, *(["not quantized: " + kept_text(self.stays)] if self.stays else [])]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "recipe": self.recipe,
            "consumer": self.consumer,
            "map": self.map,
            "nbytes_before": self.nbytes_before,
            "nbytes": self.nbytes,
            "parameters": self.parameters,
            "bits": self.bits,
            "error": self.error,
            "gap": self.gap,
            "nbytes_gap": self.nbytes_gap,
            **({} if self.scales == "amax" else {"scales": self.scales}),
            "choices": [choice.to_dict() for choice in self.choices],
            "stays": [stay.to_dict() for stay in self.stays],
            "front": [point._asdict() for point in self.front],
        }


def advice_sheet(advice: Advice, *, every: bool) -> Sheet:
    """Return the front, the choices, each or those of all layers in one row, and the totals."""
    groups = _choices_alike(advice.choices, every=every)
    axis = joint_axis(_histogram([choice]) for choice in advice.choices)
    front = Front(advice.front, (advice.nbytes, advice.error))
    return [
        front,
        _picture(advice.choices),
        _choice_table(groups, axis),
        *(
            Section(
                f"{_group_title(group)}: {counted(len(group), 'choice')}",
                [_choice_table([[choice] for choice in group], axis)],
            )
            for group in groups
            if len(group) > 1
        ),
        Lines(advice.total_lines()),
    ]


def _picture(choices: Sequence[Choice]) -> Exponents:
    """Return the exponents of weights, the worst first, those of all layers together."""
    groups: dict[str, Counter[int]] = {}
    for choice in choices:
        groups.setdefault(group_name(choice.name), Counter()).update(choice.exponents)
    histograms = [(name, Histogram.of_counts(counts)) for name, counts in groups.items()][:_DRAWN]
    largest = max((rows.usual_highest for _, rows in histograms if len(rows.counts)), default=0)
    targets = [
        other.target
        for choice in choices
        for other in (choice, choice.cheaper, choice.dearer)
        if other is not None
    ]
    ranges = (_range(target, largest) for target in dict.fromkeys(targets))
    return Exponents(
        histograms, [*{band.name: band for band in ranges if band is not None}.values()]
    )


def check_map_file(path: Path) -> None:
    """Refuse a name by which a map would not be read as TOML."""
    if path.suffix.lower() != ".toml":
        raise CheckpointError(f"{path}: a map is written as TOML; name it such as map.toml")


def _range(target: str, largest: int) -> FormatRange | None:
    """Return the range of a format; that of a scheme has a scale for the usual largest number."""
    if target == KEEP:
        return None
    if not is_scheme(target):
        return FormatRange.of(target)
    scheme = scheme_of_files(target)
    if scheme.code_map is not None:
        return None
    is_float = finfo(scheme.element).kind == "float"
    codes = FormatRange.of(scheme.element) if is_float else FormatRange.of_integers(scheme.bits)
    return codes.shift(largest)


def _choices_alike(choices: Iterable[Choice], *, every: bool) -> list[list[Choice]]:
    """Collect the choices of several layers that are the same, with the same alternatives."""
    groups: dict[object, list[Choice]] = {}
    for index, choice in enumerate(choices):
        targets = (row and row.target for row in (choice, choice.cheaper, choice.dearer))
        key = index if every else (group_name(choice.name), *targets)
        groups.setdefault(key, []).append(choice)
    return sorted(groups.values(), key=lambda group: -sum(choice.error for choice in group))


def _group_title(group: Sequence[Choice]) -> str:
    return group[0].name if len(group) == 1 else group_name(group[0].name)


def _histogram(group: Sequence[Choice]) -> Histogram:
    counts: Counter[int] = Counter()
    for choice in group:
        counts.update(choice.exponents)
    return Histogram.of_counts(counts)


def _choice_table(groups: Sequence[Sequence[Choice]], axis: tuple[int, int]) -> Table:
    """Show choices, those of several layers that are the same in a row."""
    return Table(
        (
            *("weights", "becomes", "bytes", "error", "cheaper", "dearer"),
            *("choices", "SQNR", "exponents"),
        ),
        lambda: (_cells(group, axis) for group in groups),
        text_columns=2,
        has_last_text=True,
        spare=("exponents", "SQNR", "choices", "dearer", "cheaper"),
        decision=frozenset(("error", "dearer", "cheaper")),
        short=frozenset(("dearer", "cheaper")),
        ranked=True,
    )


def _cells(group: Sequence[Choice], axis: tuple[int, int]) -> tuple[str, ...]:
    """Return a row of the table: sums, and the worst ratio of signal to noise."""
    target, ratio = group[0].target, min(choice.sqnr_db for choice in group)
    error = sum(choice.error for choice in group)
    nbytes, histogram = sum(choice.nbytes for choice in group), _histogram(group)
    columns = ([choice.cheaper for choice in group], [choice.dearer for choice in group])
    return (
        _group_title(group),
        target,
        size_text(nbytes),
        f"{error:.1e}" if error else "0",
        *(
            "-"
            if alternatives[0] is None
            else f"{alternatives[0].target} "
            + _size_change(sum(row.nbytes for row in alternatives if row) - nbytes)
            for alternatives in columns
        ),
        f"{len(group):,}",
        f"{ratio:.1f}" if math.isfinite(ratio) else "-",
        histogram.text(axis, _range(target, histogram.usual_highest)),
    )


def _size_change(nbytes: int) -> str:
    """Write a difference of bytes with its sign."""
    return f"{'-' if nbytes < 0 else '+'}{size_text(abs(nbytes))}"


def patterns(names: Iterable[str]) -> list[str]:
    """Return regular expressions that match these names only, those of several layers together."""
    layers: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for name in names:
        texts = _NUMBER.split(name)
        layers[tuple(texts[::2])].append(tuple(texts[1::2]))
    expressions: list[str] = []
    for parts, numbers in layers.items():
        columns = [sorted(set(column), key=int) for column in zip(*numbers, strict=True)]
        if len(columns) <= 1 or len(numbers) == math.prod(map(len, columns)):
            expressions.append(_join_parts(parts, [_any_of(column) for column in columns]))
        else:
            expressions += [_join_parts(parts, row) for row in numbers]
    return expressions


def _join_parts(parts: Sequence[str], numbers: Sequence[str]) -> str:
    text = re.escape(parts[0])
    for number, part in zip(numbers, parts[1:], strict=True):
        text += rf"\.{number}{re.escape(part)}"
    return text


def _any_of(numbers: Sequence[str]) -> str:
    return numbers[0] if len(numbers) == 1 else f"({'|'.join(numbers)})"


def _quote_text(text: str) -> str:
    """Quote a text for TOML as it stands, or with escapes if it has a quote."""
    if "'" in text or "\n" in text:
        characters = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{characters}"'
    return f"'{text}'"
