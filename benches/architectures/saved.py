"""Under which names, and turned how, `save_pretrained` writes the parameters of a model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import torch
from roles import Row
from transformers.conversion_mapping import PrefixChange, get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    ErnieSplitAndDecoupleTextVisionExperts,
    Interleave,
    SplitModulelist,
    Transpose,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    apply_converters,
    apply_renamings,
    dot_natural_key,
)

_OF_EXPERTS = SplitModulelist | ErnieSplitAndDecoupleTextVisionExperts
_OTHER_JOINT = {"halves": "interleaved", "interleaved": "halves"}


def saved_rows(model: torch.nn.Module, rows: dict[str, Row]) -> dict[str, tuple[Row, list[str]]]:
    """Return what a file has by its names there, each with the names in the model.

    transformers leaves off the prefixes that it only adds to models that it loaded with them;
    files have both, so both are rows.
    """
    transforms = get_model_conversion_mapping(model, add_legacy=False)
    plain = [each for each in transforms if not isinstance(each, PrefixChange)]
    found = _reverted(model, rows, plain)
    if len(plain) != len(transforms):
        found = _reverted(model, rows, transforms) | found
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    for name, (row, inner) in found.items():
        weight, scale = (apply_renamings(name + end, renamings) for end in ("", "_scale"))
        if name.endswith(".weight") and scale != f"{weight}_scale" and not row.conversion:
            found[name] = (replace(row, conversion="renamed"), inner)
    return found


def _reverted(
    model: torch.nn.Module, rows: dict[str, Row], transforms: list[WeightTransform]
) -> dict[str, tuple[Row, list[str]]]:
    """Do as `revert_weight_conversion` of transformers, with rows beside the tensors."""
    reverse = [transform.reverse_transform() for transform in transforms[::-1]]
    renamings = [each for each in reverse if isinstance(each, WeightRenaming)]
    converters = [each for each in reverse if isinstance(each, WeightConverter)]
    of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    found: dict[str, tuple[Row, list[str]]] = {}
    used: dict[str, WeightConverter] = {}
    sources: dict[str, list[str]] = defaultdict(list)
    for name in sorted(rows, key=dot_natural_key):
        renamed, pattern = apply_converters(name, converters)
        if pattern is None:
            found[apply_renamings(name, renamings)] = (rows[name], [name])
            continue
        converter = used.setdefault(renamed, deepcopy(of_pattern[pattern]))
        converter.add_tensor(renamed, name, pattern, tensors[name])
        sources[renamed].append(name)
    for renamed, converter in used.items():
        operations = converter.operations
        is_gated = any("gate" in name for name in sources[renamed])
        row = _turned(rows[sources[renamed][0]], operations, is_gated=is_gated)
        if row.role != "bias":
            row = replace(row, conversion=_conversion(converter, row))
        for name in converter.convert(renamed, model=model, config=model.config):
            found[apply_renamings(name, renamings)] = (row, sources[renamed])
    return found


def _conversion(converter: WeightConverter, row: Row) -> str:
    """Say what transformers does while it loads; `*` if also to scales, whatever the model has.

    A converter is one of saving: its targets are the names in files. Experts in one tensor are
    turned if their shape is that of the model turned: both ways are in files.
    """
    if row.role == "experts" or ".experts" in converter.target_patterns[0]:
        turns = (op for op in converter.operations if isinstance(op, Transpose))
        return "either" if any(op.check_dims for op in turns) else ""
    kind = "turned"
    if len(converter.target_patterns) > 1:
        kind = "joined"
    if len(converter.source_patterns) > 1:
        kind = "split"
    names = converter._original_target_patterns
    return kind + "*" * all(re.search(r"weight(?:_\d+)?$", name) is None for name in names)


def _turned(row: Row, operations: Iterable[object], *, is_gated: bool) -> Row:
    """Return what becomes of a row by the operations on its tensor."""
    axes = row.axes.split()
    joint = row.joint
    for operation in operations:
        if isinstance(operation, Transpose) and axes:
            first, second = operation.dim0, operation.dim1
            axes[first], axes[second] = axes[second], axes[first]
        elif isinstance(operation, _OF_EXPERTS) and axes[:1] == ["experts"]:
            del axes[0]
            joint = joint if isinstance(operation, SplitModulelist) else ""
        elif isinstance(operation, Interleave) and axes[operation.dim : operation.dim + 1] == [
            "out"
        ]:
            joint = _OTHER_JOINT.get(joint, joint)
        elif isinstance(operation, Chunk):
            joint = ""
        elif isinstance(operation, Concatenate) and axes and is_gated:
            joint = "halves"
    role = "linear" if row.role == "experts" and "experts" not in axes else row.role
    return replace(row, role=role, axes=" ".join(axes), joint=joint)
