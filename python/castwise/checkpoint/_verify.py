"""Compare the values of two checkpoints, whatever they are stored as."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._brief import brief, brief_fields, counted, listed
from castwise._core import Comparison, compare
from castwise._options import Arithmetic
from castwise._tables import aligned
from castwise.checkpoint._tensors import TensorInfo, format_info, numpy_dtype
from castwise.checkpoint.containers import Reader, from_bytes, open_checkpoint
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.files import checked_path
from castwise.checkpoint.planning import (
    FORMATS,
    DerivedReader,
    StoredTensors,
    decode_checkpoint,
    decoding_of,
)
from castwise.checkpoint.report import SCHEMA, Progress, ProgressMeter
from castwise.quantization.producers import BF16

_PIECE_ELEMENTS = 1 << 18

_WITH_ULPS = frozenset((*FORMATS, "float64"))


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor whose values are not those of the tensor of the same name.

    Attributes
    ----------
    name
        Its name in an unquantised model.
    reason
        "values"; or "shapes", "formats", "only in the first", "only in the second", with which no
        values were compared.
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is text."""
        return {
            "name": self.name,
            "reason": self.reason,
            "format": self.format,
            "count": self.count,
            "different": self.different,
            "max_abs": _plain_number(self.max_abs),
            "max_ulp": self.max_ulp,
            "index": None if self.index is None else list(self.index),
            "values": None if self.values is None else [*map(_plain_number, self.values)],
            "shapes": None if self.shapes is None else [*map(list, self.shapes)],
            "formats": None if self.formats is None else list(self.formats),
        }


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found.

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

    """

    first: str
    second: str
    tensors: int
    values: int
    differences: Sequence[Difference] = field(default_factory=tuple)

    @property
    def equal(self) -> bool:
        """True if all tensors and all bits of their values are the same."""
        return not self.differences

    def __repr__(self) -> str:
        differ = f"{counted(len(self.differences), 'difference')}, in {self._listed()}"
        return brief(
            self,
            f"{str(self.first)!r} and {str(self.second)!r}",
            counted(self.tensors, "tensor"),
            counted(self.values, "value"),
            "equal" if self.equal else differ,
        )

    def __str__(self) -> str:
        """Return a table of the tensors that differ."""
        compared = f"{counted(self.tensors, 'tensor')}, {counted(self.values, 'value')}"
        if self.equal:
            return f"{compared}: equal"
        rows = [
            (
                tensor.name,
                tensor.reason,
                tensor.format or "-",
                f"{tensor.different:,}",
                f"{tensor.max_abs:.3g}",
            )
            for tensor in self.differences
        ]
        header = ("tensor", "differ in", "dtype", "values", "max abs")
        return f"{aligned([header, *rows], 3)}\n{compared} compared"

    def _listed(self) -> str:
        return listed(difference.name for difference in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "schema": SCHEMA,
            "first": self.first,
            "second": self.second,
            "equal": self.equal,
            "tensors": self.tensors,
            "values": self.values,
            "differences": [difference.to_dict() for difference in self.differences],
        }


def verify(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    dtype: object = None,
    arithmetic: Arithmetic = "peer",
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Compare the values of two checkpoints, each unquantised or quantised in any way.

    Quantised weights are decoded, in slabs, as `dequantize_file` does. Tensors are compared by the
    names that they have in an unquantised model; a GGUF file beside a folder has those of
    transformers.
    Where floats of one are in another format than those of the other, both are compared in float32,
    or in float64 if one of them is.

    Parameters
    ----------
    first, second
        Files or folders, as `cast_file` and `dequantize_file` take.
    dtype
        What quantised weights are decoded to, as in `dequantize_file`. By default the format of the
        other one if that is plain; bfloat16 if both are quantised.
    arithmetic
        As in `dequantize_file`. Two producers may decode the same codes and scales to values that
        differ in the last bit; with "exact" they are the same.
    threads
        How many threads may decode.
    progress
        Called when a tensor begins, now and then within a large one, and at the end.

    Returns
    -------
    The tensors that differ, with the largest differences and where they are.

    Raises
    ------
    CheckpointError
        One is damaged, or cannot be decoded for certain.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read.

    """
    with ExitStack() as stack:
        sources = [
            stack.enter_context(open_checkpoint(checked_path(path, name), decodes=True))
            for name, path in (("first", first), ("second", second))
        ]
        left, right = (
            _Side(source, beside, dtype, arithmetic, threads)
            for source, beside in zip(sources, reversed(sources), strict=True)
        )
        shared = [name for name in left.names if name in right.names]
        meter = ProgressMeter(sum(left.info(name).nbytes for name in shared), progress)
        differences = [
            Difference(name, "only in the first") for name in left.names if name not in right.names
        ]
        values = 0
        for name in shared:
            meter.starts(name)
            values += math.prod(left.shape(name))
            difference = _compared(name, left, right, meter, threads)
            if difference is not None:
                differences.append(difference)
            meter.finished(left.info(name).nbytes)
        meter.starts(None)
        differences += [
            Difference(name, "only in the second") for name in right.names if name not in left.names
        ]
        left.check_unchanged()
        right.check_unchanged()
        return Verification(str(first), str(second), len(shared), values, tuple(differences))


class _Side:
    """One of the two checkpoints; names begin with the folder of their component.

    A GGUF file beside a folder has the tensors of transformers, as the folder that it becomes.
    """

    def __init__(
        self,
        opened: Checkpoint,
        beside: Checkpoint,
        dtype: object,
        arithmetic: Arithmetic,
        threads: int | None,
    ) -> None:
        decoding = decoding_of(dtype or BF16, arithmetic, None, threads, may_be_plain=True)
        derived = decode_checkpoint(opened, decoding, is_file=not beside.is_folder)
        for plan in derived.plans:
            plan.warn()
        self.names: dict[str, tuple[Reader, str]] = {}
        self._asked = None if dtype is None else decoding.format
        for component in derived.source.components:
            StoredTensors(component.shards)  # which refuses two tensors of a name
            for reader in component.shards.values():
                for name in reader.tensors:
                    self.names[component.prefix + name] = reader, name
        self._readers = [*{id(reader): reader for reader, _ in self.names.values()}.values()]
        self._is_folder = opened.is_folder

    def info(self, name: str) -> TensorInfo:
        reader, stored_name = self.names[name]
        return reader.tensors[stored_name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.info(name).shape

    def format(self, name: str, of_other: str | None) -> str | None:
        """Return the format in which a tensor comes; a decoded one as the other wants it."""
        if not self.is_decoded(name):
            return self.info(name).format
        if self._asked is None and of_other in FORMATS:
            return of_other
        return self._asked or BF16

    def is_decoded(self, name: str) -> bool:
        reader, stored_name = self.names[name]
        return isinstance(reader, DerivedReader) and reader.derived(stored_name) is not None

    def pieces(self, name: str, to: str | None) -> Iterator[NDArray[Any]]:
        """Read a tensor as flat arrays of a format; as bytes if the format is None."""
        reader, stored_name = self.names[name]
        with ExitStack() as stack:
            if self._is_folder or isinstance(reader, DerivedReader):
                stack.enter_context(reader)
            if to is not None and self.is_decoded(name):
                assert isinstance(reader, DerivedReader)  # noqa: S101
                yield from (array.reshape(-1) for array in reader.slabs(stored_name, to))
                return
            elements = reader.elements(stored_name)
            if to is None:
                for piece in reader.pieces(stored_name, _PIECE_ELEMENTS):
                    yield np.frombuffer(piece, np.uint8)
            elif elements is None or elements.packed or reader.arrangement(stored_name) is not None:
                yield reader.read(stored_name).reshape(-1)
            else:
                dtype = numpy_dtype(elements.format)
                for piece in reader.pieces(stored_name, elements.nbytes(_PIECE_ELEMENTS)):
                    raw = np.frombuffer(piece, np.uint8)
                    shape = (raw.size // dtype.itemsize,)
                    yield from_bytes(raw, dtype, shape, "<" if elements.order == "<" else ">")

    def check_unchanged(self) -> None:
        for reader in self._readers:
            with ExitStack() as stack:
                if self._is_folder or isinstance(reader, DerivedReader):
                    stack.enter_context(reader)
                reader.check_unchanged()


def _compared(
    name: str, left: _Side, right: _Side, meter: ProgressMeter, threads: int | None
) -> Difference | None:
    """Compare two tensors; None if they are the same."""
    shapes = left.shape(name), right.shape(name)
    if shapes[0] != shapes[1]:
        return Difference(name, "shapes", shapes=shapes)
    formats = left.info(name).format, right.info(name).format
    formats = left.format(name, formats[1]), right.format(name, formats[0])
    common = _common(*formats)
    stored = left.info(name).stored, right.info(name).stored
    if common is None and (formats != (None, None) or stored[0] != stored[1]):
        labels = [known or label for known, label in zip(formats, stored, strict=True)]
        return Difference(name, "formats", formats=(labels[0], labels[1]))
    total = _Total(common, threads)
    pieces = _in_step(left.pieces(name, formats[0]), right.pieces(name, formats[1]))
    for pair in pieces:
        total.add(*pair)
        part = total.count / max(math.prod(left.shape(name)), 1)
        meter.reaches(round(part * left.info(name).nbytes), name)
    if not total.different:
        return None
    index = np.unravel_index(total.place, left.shape(name)) if common else (total.place,)
    return Difference(
        name,
        "values",
        common,
        total.count,
        total.different,
        total.max_abs,
        total.max_ulp,
        tuple(int(axis) for axis in index),
        total.values,
    )


def _common(left: str | None, right: str | None) -> str | None:
    """Return the format in which values of two can be compared; None if there is none."""
    if left is None or right is None:
        return None
    if left == right:
        return left
    kinds = {format_info(name).kind for name in (left, right)}
    if kinds != {"float"}:
        return None
    return "float64" if "float64" in (left, right) else "float32"


def _in_step(
    lefts: Iterator[NDArray[Any]], rights: Iterator[NDArray[Any]]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Cut two streams of flat arrays at the same places."""
    left: NDArray[Any] | None = np.empty(0, np.uint8)
    right = left
    while True:
        while left is not None and not left.size:
            left = next(lefts, None)
        while right is not None and not right.size:
            right = next(rights, None)
        if left is None or right is None:
            return
        count = min(left.size, right.size)
        yield left[:count], right[:count]
        left, right = left[count:], right[count:]


class _Total:
    """What differs in a pair of tensors, added up over their pieces."""

    def __init__(self, format_name: str | None, threads: int | None) -> None:
        self._threads = threads
        self.count = 0
        self.different = 0
        self.max_abs = 0.0
        self.max_ulp: int | None = 0 if format_name in _WITH_ULPS else None
        self.place = 0
        self.values: tuple[float, float] | None = None

    def add(self, left: NDArray[Any], right: NDArray[Any]) -> None:
        """Compare two pieces, in the format that holds both."""
        start = self.count
        self.count += left.size
        comparison = compare(left, right, threads=self._threads)
        if not comparison.different:
            return
        gap, place = _largest_gap(comparison)
        if gap > self.max_abs or not self.different:
            self.max_abs, self.place = gap, start + place
            self.values = _value(left[place]), _value(right[place])
        self.different += comparison.different
        if self.max_ulp is not None and comparison.largest_ulps is not None:
            self.max_ulp = max(self.max_ulp, comparison.largest_ulps[0])


def _largest_gap(comparison: Comparison) -> tuple[float, int]:
    """Return the largest difference and where it is first; infinite beside infinity or NaN."""
    gap, place = comparison.largest_difference or (0.0, 0)
    special = comparison.first_special
    if special is None or (math.isinf(gap) and place < special):
        return gap, place
    return math.inf, special


def _value(number: Any) -> float:  # noqa: ANN401  (of any format)
    return float(number.real if isinstance(number, complex | np.complexfloating) else number)


def _plain_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
