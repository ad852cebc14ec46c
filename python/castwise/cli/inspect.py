"""`castwise inspect`: what a checkpoint holds."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import castwise
from castwise import checkpoint
from castwise._spelling import typed_format
from castwise.checkpoint import Inspection, Quantization, TensorInfo
from castwise.cli._arguments import add_arguments
from castwise.cli._output import OK, group_name, json_text, shape_text, show, size_text, table
from castwise.cli._paths import path_argument


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Show the tensors of a checkpoint, from its headers alone, and which weights "
        "are quantised: scheme, payload, scales, and what lacks its counterpart."
    )
    parser.add_argument(
        "file", metavar="FILE", type=path_argument, help="a file, or a folder of shards"
    )
    add_arguments(parser, "--assume")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON")
    add_arguments(shown, "--all")
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    """Run `castwise inspect`; returns the exit code."""
    assume = typed_format(options.assume, "--assume")
    inspection = checkpoint.inspect(options.file, assume=assume)
    show(
        [json_text(inspection.to_dict())] if options.json else _lines(inspection, every=options.all)
    )
    return OK


def _lines(inspection: Inspection, *, every: bool) -> Iterator[str]:
    """Show the tensors, a total for each format, and the metadata."""
    nbytes = sum(info.nbytes for info in inspection.tensors)
    totals = [
        (label, f"{count:,}", f"{size:,}", size_text(size))
        for label, (count, size) in inspection.totals().items()
    ]
    totals.append(("total", f"{len(inspection.tensors):,}", f"{nbytes:,}", size_text(nbytes)))
    groups = _groups(inspection.tensors, every=every)
    counted = len(groups) < len(inspection.tensors)
    yield from table(
        ("tensor", "dtype", "shape", *(["tensors"] if counted else []), "bytes"),
        lambda: (
            (
                group[0].name if len(group) == 1 else group_name(group[0].name),
                _stored_text(group[0]),
                shape_text(group[0].shape),
                *([f"{len(group):,}"] if counted else []),
                f"{sum(info.nbytes for info in group):,}",
            )
            for group in groups
        ),
        text_columns=3,
    )
    yield ""
    yield from table(("dtype", "tensors", "bytes", "size"), lambda: totals, text_columns=1)
    if inspection.quantization is not None:
        yield from _quantized_lines(inspection, inspection.quantization)
    if inspection.metadata:
        yield from ("", "metadata")
        yield from (f"  {key}: {text}" for key, text in inspection.metadata.items())


def _quantized_lines(inspection: Inspection, quantization: Quantization) -> Iterator[str]:
    """Show what is stated, the quantised weights by group, and what lacks its counterpart."""
    stated = (
        f"stated in {', '.join(quantization.stated)}"
        if quantization.stated
        else "told by tensors alone"
    )
    yield from ("", f"quantised weights, {stated}")
    yield from (f"  not readable: {reason}" for reason in quantization.unreadable)
    if quantization.unknown is not None:
        yield f"  {quantization.unknown!r} is not known to castwise: any tensor may be part of it"
    bits = inspection.bits_per_weight()
    groups = Counter(
        (
            group_name(weight.name),
            weight.scheme or "unknown",
            shape_text(weight.block) if weight.block else "-",
            " or ".join(weight.recipes),
            _suffix(weight.payload),
            ", ".join(map(_suffix, weight.parts)),
            _bits_text(bits[weight.payload]),
            weight.problem,
        )
        for weight in quantization.weights
    )
    if groups:
        yield from table(
            ("weight", "scheme", "block", "producer", "payload", "with", "bits", "number"),
            lambda: ((*texts, f"{count:,}") for (*texts, _), count in groups.items()),
            text_columns=6,
            spare=("with", "payload", "producer", "block"),
        )
    elif quantization.stated and quantization.unknown is None:
        yield "  no tensor is stored so"
    for (pattern, problem), count in Counter(
        (group_name(weight.name), weight.problem)
        for weight in quantization.weights
        if weight.problem is not None
    ).items():
        yield f"problem: {pattern}: {problem}{_times(count)}"
    for (pattern, is_payload, missing), count in Counter(
        (group_name(weight.name), weight.is_payload, group_name(weight.missing[0]))
        for weight in quantization.orphans
    ).items():
        part, lacks = ("payload", "scale") if is_payload else ("scale", "payload")
        yield f"orphan: {pattern}: a {part} without its {lacks} {missing}{_times(count)}"
    for pattern, count in Counter(map(group_name, quantization.others)).items():
        yield f"other scale or marker: {pattern}{_times(count)}"


def _bits_text(bits: float | None) -> str:
    """Write how many bits a weight takes, its scales included; "-" if that is not known."""
    return "-" if bits is None else f"{bits:.2f}"


def _times(count: int) -> str:
    """Write how often a line would stand, if more than once."""
    return "" if count == 1 else f" ({count:,} times)"


def _suffix(name: str) -> str:
    """Return the last component of a name."""
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
    stored_as_bytes = (
        info.stored.upper() == "U8" and castwise.finfo(info.format).safetensors != "U8"
    )
    return f"{info.format} (as bytes)" if stored_as_bytes else info.format
