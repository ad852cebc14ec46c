"""What `diff` found: the structure, the values, and what explains them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from textwrap import TextWrapper
from typing import Any

from castwise.checkpoint.comparison.explanations import CastExplanation, shifts_text
from castwise.checkpoint.results.report import SCHEMA
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet, Table
from castwise.rendering.text import printable, shape_text
from castwise.text.brief import brief, brief_fields, counted, listed, plain_fields, shorten
from castwise.text.wording import parenthesis

_COLUMNS = 80
_WRAPPER = TextWrapper(_COLUMNS, subsequent_indent="    ", break_long_words=False)
# After which a word may be cut, as after that of an exponent it is not.
_HYPHEN = r"-(?!\d+\b)"
# Of differences in a table; JSON has all digits.
_FLOAT_DIGITS = 3
_LARGEST_ULP = 99_999  # in tables; weights that were quantized are millions of float32 apart


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """A tensor of A and its counterpart in B, or a tensor without a counterpart.

    Attributes
    ----------
    name
        Its name in A, or in B if only B has it.
    reason
        "equal", "values", or "dtype" if equal values have different formats; "shapes", "formats",
        "only in A" or "only in B" if no values were compared.
    renamed
        Its name in B if that differs: from `rename`, or found by equal values.
    tied_to
        For a tensor without a counterpart: the tensor of the same checkpoint with the same bytes.
    formats
        The two formats, with the names of the containers if castwise knows none. Quantized weights
        have the formats of their decoded values.
    quantized
        Whether each of the two was decoded.
    shapes
        The two shapes.
    count
        The number of compared elements.
    different
        How many have other values; NaN is like any other NaN, and -0 is not 0.
    beyond
        How many differ by more than the tolerances; None without them.
    max_ulp
        The largest distance between B and A rounded to the format of B, in units in the last place
        of this format, of numbers that are finite in both; None if B has no floats.
    max_abs, max_abs_index, max_abs_values
        The largest `|a - b|`, infinite if only one of two values is infinite or NaN; its first
        position, and the two values.
    max_rel, max_rel_index, max_rel_values
        The largest `|a - b| / |a|` of finite numbers.
    sqnr_db
        The ratio of the signal A and the noise A - B, in decibels; None if nothing differs.
    error_ratios
        The errors of A and B from the reference, each divided by the error of the reference rounded
        once to the format of A or B; None without a reference, and for quantized weights.
    scale_shifts
        For two weights of one scheme with scales of E8M0: the number of scales of B by their
        distance in codes from those of A. None if all are the same, and for other weights.
    explanation
        The recipe that makes B from A; None if castwise tried or found none.

    """

    name: str
    reason: str
    renamed: str | None = None
    tied_to: str | None = None
    formats: tuple[str, str] | None = None
    quantized: tuple[bool, bool] = (False, False)
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    count: int = 0
    different: int = 0
    beyond: int | None = None
    max_ulp: int | None = None
    max_abs: float = 0.0
    max_abs_index: tuple[int, ...] | None = None
    max_abs_values: tuple[float, float] | None = None
    max_rel: float = 0.0
    max_rel_index: tuple[int, ...] | None = None
    max_rel_values: tuple[float, float] | None = None
    sqnr_db: float | None = None
    error_ratios: tuple[float | None, float | None] | None = None
    scale_shifts: Mapping[int, int] | None = None
    explanation: CastExplanation | None = None

    __repr__ = brief_fields

    @property
    def same(self) -> bool:
        """True if it does not count as a difference: with tolerances, if all values are near."""
        if self.beyond is not None:
            return not self.beyond
        return self.reason == "equal" and self.renamed is None

    @property
    def remedy(self) -> str | None:
        """What to do where values could not be compared."""
        if self.reason == "shapes" and self.shapes is not None:
            original, copy = self.shapes
            if original == copy[::-1]:
                return "one is the transpose of the other: transpose it and compare again"
            if math.prod(original) == math.prod(copy):
                return "as many elements: reshape one of them and compare again"
            remedy = "other sizes: check that both are of one model, or pair names "
            return remedy + parenthesis("rename")
        if self.reason == "formats":
            return "say what raw bytes are, or cast one of them"
        if self.reason.startswith("only"):
            return (
                "pair it with a tensor of another name "
                + parenthesis("rename")
                + ", if it has another there"
            )
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is text."""
        return plain_fields(self, remedy="shapes")


@dataclass(frozen=True, slots=True)
class Diff(Rendered):
    """The result of `diff`.

    Attributes
    ----------
    first, second
        The checkpoints A and B.
    reference
        The checkpoint from which errors were measured; None if there was none.
    tensors
        All tensors, the worst first: those without a counterpart, those that cannot be compared,
        and then those whose values differ, by the ratio of signal to noise.
    metadata
        The keys of metadata that differ, each with the two texts, None where it is missing.
    tolerant
        True if tolerances were given. Then only missing tensors and values count.

    """

    first: str
    second: str
    reference: str | None = None
    tensors: Sequence[TensorDiff] = field(default_factory=tuple)
    metadata: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    tolerant: bool = False

    @property
    def same(self) -> bool:
        """True if nothing differs; with tolerances, if all values of all tensors are near."""
        return all(tensor.same for tensor in self.tensors) and (self.tolerant or not self.metadata)

    @property
    def differing(self) -> tuple[TensorDiff, ...]:
        """The tensors that count as differences."""
        return tuple(tensor for tensor in self.tensors if not tensor.same)

    def __repr__(self) -> str:
        differing = self.differing
        differ = f"{counted(len(differing), 'difference')}, in " + listed(
            tensor.name for tensor in differing
        )
        return brief(
            self,
            f"{shorten(str(self.first), 60)!r} and {shorten(str(self.second), 60)!r}",
            counted(len(self.tensors), "tensor"),
            "the same" if self.same else differ if differing else "other metadata",
        )

    def __sheet__(self) -> Sheet:
        """Return a table of the tensors that differ, worst first, and what explains them."""
        return diff_sheet(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = plain_fields(self, same="reference")
        del values["tolerant"]
        return {"schema": SCHEMA, **values}


def diff_sheet(result: Diff, top: int | None = None) -> Sheet:
    """Show the tensors that differ, at most `top` of them, with what explains them."""
    rows_shown = [tensor for tensor in result.tensors if tensor.reason != "equal" or tensor.renamed]
    rows = [tensor for tensor in rows_shown[:top] if tensor.reason in {"values", "dtype"}]
    table = Table(
        ("tensor", "as", "differ", "max ulp", "max abs", "max rel", "SQNR"),
        lambda: map(_cells, rows),
        text_columns=2,
        spare=("max rel", "max abs", "as"),
    )
    notes = [line for tensors in _explained_alike(rows_shown[:top]) for line in _notes(tensors)]
    lines: list[str] = []
    unexplained = [each.name for each in rows_shown[:top] if _is_unexplained(each)]
    if unexplained:
        one, *others = map(printable, unexplained)
        more = f" and {counted(len(others), 'other tensor')}" if others else ""
        notes.append(f"no recipe explains {one}{more}")
    if top is not None and len(rows_shown) > top:
        lines.append(f"and {counted(len(rows_shown) - top, 'other tensor')}")
    for key, texts in result.metadata.items():
        original, copy = ("nothing" if text is None else repr(shorten(text, 24)) for text in texts)
        lines.append(f"metadata {key!r}: {original} and {copy}")
    total = f"{counted(len(result.tensors), 'tensor')} compared"
    count = len(result.differing)
    differ = f"{count:,} differ{'s' if count == 1 else ''}"
    metadata = ", other metadata" if result.metadata and not result.tolerant else ""
    lines.append(f"{total}: {'the same' if result.same else differ + metadata}")
    return [*([table] if rows else []), Lines(notes, _cut_line), Lines(lines)]


def severity(tensor: TensorDiff) -> tuple[float, ...]:
    """Return the key by which tensors are sorted, the worst first."""
    if tensor.reason in {"only in A", "only in B", "shapes", "formats"}:
        return (0,)
    if tensor.different:
        ratio = tensor.sqnr_db
        return (1, math.isfinite(tensor.max_abs), -math.inf if ratio is None else ratio)
    return (2,) if tensor.reason == "dtype" else (3,) if tensor.renamed else (4,)


def _cells(tensor: TensorDiff) -> tuple[str, ...]:
    ratio = tensor.sqnr_db
    return (
        tensor.name,
        "/".join(dict.fromkeys(map(_short_format, tensor.formats or ()))),
        f"{tensor.different:,}",
        _ulp_text(tensor.max_ulp),
        f"{tensor.max_abs:.{_FLOAT_DIGITS}g}",
        f"{tensor.max_rel:.{_FLOAT_DIGITS}g}",
        "-" if ratio is None else f"{ratio:.1f}",
    )


def _ulp_text(distance: int | None) -> str:
    """Write a distance in units in the last place, as far as its digits tell anything."""
    if distance is None:
        return "-"
    return f"{distance:,}" if distance <= _LARGEST_ULP else f">{_LARGEST_ULP:,}"


def _explained_alike(tensors: Sequence[TensorDiff]) -> Iterable[Sequence[TensorDiff]]:
    """Collect the tensors with the same explanation and nothing else to report, in order."""
    groups: dict[object, list[TensorDiff]] = {}
    for index, tensor in enumerate(tensors):
        own_notes = (tensor.renamed, tensor.beyond, tensor.error_ratios, tensor.scale_shifts)
        is_alone = tensor.explanation is None or any(own_notes)
        key = index if is_alone else str(tensor.explanation)
        groups.setdefault(key, []).append(tensor)
    return groups.values()


def _notes(tensors: Sequence[TensorDiff]) -> list[str]:
    """Describe what has no column, of tensors with the same explanation."""
    tensor = tensors[0]
    lines: list[str] = []
    remedy = tensor.remedy or ""
    if tensor.renamed is not None:
        lines.append(f"is {printable(tensor.renamed)} in B")
    if tensor.reason == "shapes" and tensor.shapes is not None:
        original, copy = map(shape_text, tensor.shapes)
        lines.append(f"the shapes differ: {original} and {copy}; " + remedy)
    elif tensor.reason == "formats" and tensor.formats is not None:
        lines.append(
            f"the formats {tensor.formats[0]} and {tensor.formats[1]} cannot be compared; " + remedy
        )
    elif tensor.tied_to is not None:
        tied = printable(tensor.tied_to)
        lines.append(f"{tensor.reason}, with the bytes of {tied} there (tied)")
    elif tensor.reason.startswith("only"):
        lines.append(f"{tensor.reason}; " + remedy)
    if tensor.different and tensor.max_abs_values is not None:
        place = ",".join(map(str, tensor.max_abs_index or ()))
        left_value, right_value = tensor.max_abs_values
        lines.append(f"at {place}: {left_value:.9g} and {right_value:.9g}")
    if tensor.beyond:
        lines.append(f"{tensor.beyond:,} of {tensor.count:,} beyond the tolerances")
    if tensor.error_ratios is not None:
        texts = ["-" if ratio is None else f"{ratio:.2f}x" for ratio in tensor.error_ratios]
        lines.append(f"error over the unavoidable: A {texts[0]}, B {texts[1]}")
    if tensor.scale_shifts is not None:
        lines.append(shifts_text(tensor.scale_shifts))
    lines += _explanation_lines(tensor, len(tensors) - 1)
    if not lines:
        return []
    # Before lines are cut, which makes spaces of line ends.
    return [f"{printable(tensor.name)}: " + lines[0], *("  " + line for line in lines[1:])]


def _is_unexplained(tensor: TensorDiff) -> bool:
    return tensor.different > 0 and tensor.explanation is None


def _explanation_lines(tensor: TensorDiff, others: int) -> Iterator[str]:
    """Write what makes B from A, and for how many other tensors."""
    if tensor.explanation is not None:
        yield str(tensor.explanation)
        if others:
            yield f"the same recipe explains {counted(others, 'other tensor')} above"


@lru_cache(1 << 7)
def _cut_line(line: str) -> Sequence[str]:
    """Cut a line for terminals: that of an explanation is one for many tensors."""
    if not line.isprintable() or line[-1:].isspace():
        return _WRAPPER.wrap(line)
    if len(line) <= _COLUMNS:
        return (line,)
    end = line.rfind(" ", 0, _COLUMNS + 1)
    rest = _WRAPPER.subsequent_indent + line[end + 1 :]
    # Where it is cut once, between two words, as the wrapper would.
    if re.search(_HYPHEN, line) or "  " in line or end <= 0 or len(rest) > _COLUMNS:
        return _WRAPPER.wrap(line)
    return line[:end], rest


def _short_format(name: str) -> str:
    return name.replace("bfloat", "bf").replace("float", "f")
