"""The contents of the headers of a checkpoint, as a value that prints as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from castwise._core import finfo
from castwise._numbers import BYTE_BITS
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.results.report import SCHEMA
from castwise.quantization import Quantization, QuantizedWeight
from castwise.quantization.producers.block_types import BLOCK_TYPES
from castwise.quantization.producers.found import DYNAMIC_INPUTS
from castwise.quantization.producers.layouts import I8
from castwise.rendering import Rendered
from castwise.rendering.sheet import Lines, Part, Sheet, Table
from castwise.rendering.text import group_name, shape_text, size_text
from castwise.text.brief import brief, counted, listed


@dataclass(frozen=True, slots=True)
class Inspection(Rendered):
    """The contents of the headers of a checkpoint.

    Attributes
    ----------
    path
        The file or folder.
    tensors
        Its tensors, in the order in which they are stored.
    metadata
        Its metadata.
    quantization
        Its quantized weights: the scheme, the payload and the scales of each, as far as names,
        shapes, metadata and configurations determine them; and orphans, which are payloads without
        a scale and scales without a payload. None if no weight is quantized.

    """

    path: str
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]
    quantization: Quantization | None = None

    def bits_per_weight(self) -> dict[str, float | None]:
        """Return the bits that an element of each quantized weight takes with its scales.

        The keys are the names of payloads. A value is None if the scheme is not known. Scales of
        activations do not count.
        """
        infos = {info.name: info for info in self.tensors}
        weights = () if self.quantization is None else self.quantization.weights
        return {weight.payload: _bits_per_weight(weight, infos) for weight in weights}

    def totals(self) -> dict[str, tuple[int, int]]:
        """For each format, the number of tensors and their bytes."""
        totals: dict[str, tuple[int, int]] = {}
        for info in self.tensors:
            count, nbytes = totals.get(info.label, (0, 0))
            totals[info.label] = (count + 1, nbytes + info.nbytes)
        return totals

    def __repr__(self) -> str:
        quantization = self.quantization
        return brief(
            self,
            repr(str(self.path)),
            counted(len(self.tensors), "tensor"),
            counted(sum(info.nbytes for info in self.tensors), "byte"),
            listed(info.label for info in self.tensors) or None,
            None
            if quantization is None
            else counted(len(quantization.weights), "quantized weight"),
        )

    def __sheet__(self) -> Sheet:
        """Return tables of the tensors, of the formats, and of what is quantized."""
        return inspection_sheet(self, every=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "schema": SCHEMA,
            "path": self.path,
            "tensors": [info.to_dict() for info in self.tensors],
            "totals": {
                label: {"tensors": count, "nbytes": nbytes}
                for label, (count, nbytes) in self.totals().items()
            },
            "nbytes": sum(info.nbytes for info in self.tensors),
            "metadata": self.metadata,
            "quantization": None if self.quantization is None else self.quantization.to_dict(),
        }


def _bits_per_weight(weight: QuantizedWeight, infos: Mapping[str, TensorInfo]) -> float | None:
    bits, payload = weight.code_bits, infos[weight.payload]
    if payload.stored in BLOCK_TYPES:
        _, elements, size = BLOCK_TYPES[payload.stored]
        return size * BYTE_BITS / elements
    if payload.format == I8 and weight.scheme is not None and "int" in weight.scheme:
        bits = BYTE_BITS  # of whatever range they are
    if bits is None or not payload.nbytes:
        return None
    parts = weight.parts.keys() - set(weight.activations)
    nbytes = payload.nbytes + sum(infos[name].nbytes for name in parts)
    return nbytes * bits / payload.nbytes


def inspection_sheet(inspection: Inspection, *, every: bool) -> Sheet:
    """Show the tensors, all or those of all layers in a row, the formats, and the metadata."""
    nbytes = sum(info.nbytes for info in inspection.tensors)
    sizes: dict[str, list[int]] = {}
    for info in inspection.tensors:
        label = info.stored if info.stored in BLOCK_TYPES else info.label
        sizes.setdefault(label, []).append(info.nbytes)
    totals = [
        (label, f"{len(each):,}", f"{sum(each):,}", size_text(sum(each)))
        for label, each in sizes.items()
    ]
    totals.append(("total", f"{len(inspection.tensors):,}", f"{nbytes:,}", size_text(nbytes)))
    groups = _groups(inspection.tensors, every=every)
    is_counted = len(groups) < len(inspection.tensors)
    tensors = Table(
        ("tensor", "dtype", "shape", *(["tensors"] if is_counted else []), "bytes"),
        lambda: (
            (
                group[0].name if len(group) == 1 else group_name(group[0].name),
                _stored_text(group[0]),
                shape_text(_weight_shape(group[0])),
                *([f"{len(group):,}"] if is_counted else []),
                f"{sum(info.nbytes for info in group):,}",
            )
            for group in groups
        ),
        text_columns=3,
        spare=("tensors",),
    )
    formats = Table.of(("dtype", "tensors", "bytes", "size"), totals, 1)
    parts: list[Part] = [tensors, Lines(("",)), formats]
    if inspection.quantization is not None:
        parts += _quantized_parts(inspection, inspection.quantization)
    if inspection.metadata:
        pairs = (f"  {key}: {text}" for key, text in inspection.metadata.items())
        parts.append(Lines(("", "metadata", *pairs)))
    return parts


def _quantized_parts(inspection: Inspection, quantization: Quantization) -> Iterator[Part]:
    """Show what is stated, the quantized weights by group, and what lacks its counterpart."""
    source_text = (
        f"stated in {', '.join(quantization.stated)}"
        if quantization.stated
        else "recognized by their tensors"
    )
    lines = ["", f"quantized weights, {source_text}"]
    lines += [f"  not readable: {reason}" for reason in quantization.unreadable]
    if quantization.weights and quantization.inputs is not None:
        lines.append(f"  {DYNAMIC_INPUTS}")
    if quantization.unknown is not None:
        lines.append(
            f"  {quantization.unknown!r} is not known to castwise: any tensor may be part of it"
        )
    bits = inspection.bits_per_weight()
    infos = {info.name: info for info in inspection.tensors}
    groups = Counter(
        (
            group_name(weight.name),
            _scheme_name(weight, infos[weight.payload]),
            shape_text(weight.block) if weight.block else "-",
            " or ".join(weight.recipes),
            _suffix(weight.payload),
            ", ".join(map(_suffix, weight.parts)),
            "-" if (size := bits[weight.payload]) is None else f"{size:.2f}",
            weight.problem,
        )
        for weight in quantization.weights
    )
    if not groups and quantization.stated and quantization.unknown is None:
        lines.append("  no tensor is stored so")
    yield Lines(lines)
    if groups:
        yield Table(
            ("weight", "scheme", "block", "producer", "payload", "with", "bits", "number"),
            lambda: ((*texts, f"{count:,}") for (*texts, _), count in groups.items()),
            text_columns=6,
            spare=("with", "payload", "producer", "block"),
        )
    yield Lines([*_problem_lines(quantization)])


def _problem_lines(quantization: Quantization) -> Iterator[str]:
    """Say what is wrong with weights, and what lacks its counterpart."""
    for (pattern, problem), count in Counter(
        (group_name(weight.name), weight.problem)
        for weight in quantization.weights
        if weight.problem is not None
    ).items():
        yield f"problem: {pattern}: {problem}{_times(count)}"
    for (pattern, is_payload, missing, is_plain), count in Counter(
        (
            group_name(orphan.name),
            orphan.is_payload,
            group_name(orphan.plain or orphan.missing[0]),
            orphan.plain is not None,
        )
        for orphan in quantization.orphans
    ).items():
        part, lacks = ("payload", "scale") if is_payload else ("scale", "payload")
        relation = (
            f"of the plain numbers of {missing}" if is_plain else f"without its {lacks} {missing}"
        )
        yield f"orphan: {pattern}: a {part} {relation}{_times(count)}"
    for pattern, count in Counter(map(group_name, quantization.others)).items():
        yield f"other scale or marker: {pattern}{_times(count)}"


def _scheme_name(weight: QuantizedWeight, payload: TensorInfo) -> str:
    """Name a scheme; a type of blocks goes by its own name."""
    return payload.stored if payload.stored in BLOCK_TYPES else weight.scheme or "unknown"


def _weight_shape(info: TensorInfo) -> tuple[int, ...]:
    """Return the shape of a tensor, that of the weight in types of blocks."""
    if info.stored not in BLOCK_TYPES:
        return info.shape
    _, elements, _ = BLOCK_TYPES[info.stored]
    return (*info.shape[:-2], info.shape[-2] * elements)


def _times(count: int) -> str:
    """Write how often a line would stand, if more than once."""
    return "" if count == 1 else f" ({count:,} times)"


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]


def _groups(tensors: Iterable[TensorInfo], *, every: bool) -> list[list[TensorInfo]]:
    """Collect the tensors that differ in the numbers of their names only."""
    groups: dict[tuple[Any, ...], list[TensorInfo]] = {}
    for index, info in enumerate(tensors):
        key = (index,) if every else (group_name(info.name), info.label, info.shape)
        groups.setdefault(key, []).append(info)
    return list(groups.values())


def _stored_text(info: TensorInfo) -> str:
    """Name the format, and a note where the container itself knows only bytes."""
    if info.format is None:
        return f"{info.stored} (raw bytes)" if info.kind == "unknown" else info.stored
    if info.stored in BLOCK_TYPES:
        return info.stored
    stored_as_bytes = info.stored.upper() == "U8" and finfo(info.format).safetensors != "U8"
    return f"{info.format} (as bytes)" if stored_as_bytes else info.format
