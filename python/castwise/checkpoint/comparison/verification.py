"""What `verify` found: the tensors that differ, and the statement that can be kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from castwise._core import finfo, formats
from castwise.checkpoint.comparison._sides import common_format
from castwise.checkpoint.comparison.results import TensorDiff
from castwise.checkpoint.results.report import SCHEMA
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Sheet, Table
from castwise.rendering.text import shape_text
from castwise.text.brief import brief, brief_fields, counted, listed, plain_fields

# Decimal digits that tell two numbers of float64 apart (IEEE 754-2019, 5.12.2).
_DIGITS_OF_FLOAT64 = 17
_FORMATS = frozenset(formats())


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor whose values differ from those of the tensor with the same name.

    Attributes
    ----------
    name
        Its name in an unquantized model.
    reason
        "values"; or "shapes", "formats", "only in the first" or "only in the second", if no values
        were compared.
    format
        The format in which values were compared.
    count
        How many values.
    different
        How many have other bits; NaN is like any other NaN.
    max_abs
        The largest absolute difference; infinite if only one of two is infinite or NaN.
    max_ulp
        The largest difference in units in the last place of the format, of numbers that are finite
        in both; None for integers and formats of less than 16 bits.
    index
        Where the absolute difference is largest, the first of them.
    values
        The two values there.
    shapes
        The two shapes, where they are the reason.
    formats
        The two formats, where they are the reason, as the containers call them if castwise knows
        no name.

    """

    name: str
    reason: str
    format: str | None = None
    count: int = 0
    different: int = 0
    max_abs: float = 0.0
    max_ulp: int | None = None
    index: tuple[int, ...] | None = None
    values: tuple[float, float] | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    formats: tuple[str, str] | None = None

    __repr__ = brief_fields

    @classmethod
    def of(cls, tensor: TensorDiff) -> Difference | None:
        """Return how two tensors that were compared differ; None if they are the same."""
        if tensor.reason == "shapes":
            return cls(tensor.name, "shapes", shapes=tensor.shapes)
        if tensor.reason == "formats":
            return cls(tensor.name, "formats", formats=tensor.formats)
        if not tensor.different:
            return None
        names = tensor.formats or ("", "")
        return cls(
            tensor.name,
            "values",
            common_format(*names) if _FORMATS.issuperset(names) else None,
            tensor.count,
            tensor.different,
            tensor.max_abs,
            tensor.max_ulp,
            tensor.max_abs_index,
            tensor.max_abs_values,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is text."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Verification(Rendered):
    """The result of `verify`.

    Attributes
    ----------
    first, second
        The checkpoints.
    tensors
        How many tensors of the same name were compared.
    values
        How many values they have.
    differences
        The tensors that differ, in order of their names in the first.
    conversion
        With a map, the conversion that was checked: "map" and the options of the cast, or those of
        the quantization that are not the default, "cast" (the number of tensors that it changes),
        and "sha256" of the first, the second, the map, and the file of importance if there is one.
        None without a map.

    """

    first: str
    second: str
    tensors: int
    values: int
    differences: Sequence[Difference] = field(default_factory=tuple)
    conversion: Mapping[str, Any] | None = None

    @property
    def equal(self) -> bool:
        """True if all tensors and all bits of their values are the same."""
        return not self.differences

    def __repr__(self) -> str:
        names = listed(difference.name for difference in self.differences)
        differ = f"{counted(len(self.differences), 'difference')}, in {names}"
        return brief(
            self,
            f"{str(self.first)!r} and {str(self.second)!r}",
            counted(self.tensors, "tensor"),
            counted(self.values, "value"),
            "equal" if self.equal else differ,
        )

    def __sheet__(self) -> Sheet:
        """Return a table of the tensors that differ, and a total or the statement."""
        rows = [tensor for tensor in self.differences if tensor.reason == "values"]
        table = Table(
            ("tensor", "as", "at", "first", "second", "different", "of", "max abs", "max ulp"),
            lambda: map(_cells, rows),
            text_columns=3,
            spare=("as", "of", "max ulp", "at", ("first", "second")),
        )
        lines = [
            f"{tensor.name}: {_reason_text(tensor)}"
            for tensor in self.differences
            if tensor.reason != "values"
        ]
        count = len(self.differences)
        differing = f"{counted(count, 'tensor')} differ{'s' if count == 1 else ''}"
        total = f"{counted(self.tensors, 'tensor')} compared, {counted(self.values, 'value')}"
        lines.append(self.statement or f"{total}: {'all the same' if self.equal else differing}")
        return [*([table] if rows else []), Lines(lines)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"schema": SCHEMA, **plain_fields(self, equal="second")}

    @property
    def statement(self) -> str | None:
        """A line to keep that states what was proved about which files; None without a map.

        It names files, map and options with the sha256 of their bytes, of a folder that of the
        lines "sha256  path" of its shards.
        """
        conversion = self.conversion
        if conversion is None:
            return None
        digests = conversion["sha256"]
        is_it = "is" if self.equal else "is not"
        options = "".join(
            f" {name}={value}" + (f" sha256:{digests[name]}" if name in digests else "")
            for name, value in conversion["options"].items()
            if value is not None
        )
        return (
            f"{self.second} sha256:{digests['second']} {is_it} what {conversion['map']} "
            f"sha256:{digests['map']}{options} makes of {self.first} sha256:{digests['first']}: "
            f"{counted(self.tensors, 'tensor')}, {conversion['cast']:,} converted, "
            f"{counted(self.values, 'value')}, {counted(len(self.differences), 'difference')}"
        )


def _reason_text(difference: Difference) -> str:
    """Say why no values of two tensors were compared."""
    if difference.shapes is not None:
        first_shape, second_shape = map(shape_text, difference.shapes)
        return f"the shapes differ: {first_shape} and {second_shape}"
    if difference.formats is not None:
        first_format, second_format = difference.formats
        return (
            "the formats differ, and their values cannot be compared: "
            f"{first_format} and {second_format}"
        )
    return difference.reason


def _cells(difference: Difference) -> tuple[str, ...]:
    """Return a row of the table: where two tensors differ first, and by how much at most."""
    first_value, second_value = (
        f"{value:.{_digits(difference.format)}g}" for value in difference.values or (0.0, 0.0)
    )
    return (
        difference.name,
        difference.format or "bytes",
        ",".join(map(str, difference.index or ())),
        first_value,
        second_value,
        f"{difference.different:,}",
        f"{difference.count:,}",
        f"{difference.max_abs:.3g}",
        "-" if difference.max_ulp is None else f"{difference.max_ulp:,}",
    )


def _digits(name: str | None) -> int:
    """Return how many decimal digits tell the numbers of a format apart: 9 for float32."""
    row = None if name is None else finfo(name)
    if row is None or row.kind not in {"float", "complex"}:
        return _DIGITS_OF_FLOAT64
    return math.ceil(1 + (row.mantissa_bits + 1) * math.log10(2))
