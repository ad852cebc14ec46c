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
    plain_transforms = [each for each in transforms if not isinstance(each, PrefixChange)]
    rows_in_files = _revert(model, rows, plain_transforms)
    if len(plain_transforms) != len(transforms):
        rows_in_files = _revert(model, rows, transforms) | rows_in_files
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    for name, (row, inner) in rows_in_files.items():
        weight, scale = (apply_renamings(name + end, renamings) for end in ("", "_scale"))
        if name.endswith(".weight") and scale != f"{weight}_scale" and not row.conversion:
            rows_in_files[name] = (replace(row, conversion="renamed"), inner)
    return rows_in_files


def _revert(
    model: torch.nn.Module, rows: dict[str, Row], transforms: list[WeightTransform]
) -> dict[str, tuple[Row, list[str]]]:
    """Do as `revert_weight_conversion` of transformers, with rows beside the tensors."""
    reverse_transforms = [transform.reverse_transform() for transform in transforms[::-1]]
    renamings = [each for each in reverse_transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in reverse_transforms if isinstance(each, WeightConverter)]
    of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    rows_in_files: dict[str, tuple[Row, list[str]]] = {}
    converters_by_name: dict[str, WeightConverter] = {}
    sources: dict[str, list[str]] = defaultdict(list)
    for name in sorted(rows, key=dot_natural_key):
        file_name, pattern = apply_converters(name, converters)
        if pattern is None:
            rows_in_files[apply_renamings(name, renamings)] = (rows[name], [name])
            continue
        converter = converters_by_name.setdefault(file_name, deepcopy(of_pattern[pattern]))
        converter.add_tensor(file_name, name, pattern, tensors[name])
        sources[file_name].append(name)
    for file_name, converter in converters_by_name.items():
        operations = converter.operations
        is_gated = any("gate" in name for name in sources[file_name])
        row = _turn(rows[sources[file_name][0]], operations, is_gated=is_gated)
        if row.role != "bias":
            row = replace(row, conversion=_conversion(converter, row))
        for name in converter.convert(file_name, model=model, config=model.config):
            rows_in_files[apply_renamings(name, renamings)] = (row, sources[file_name])
    return rows_in_files


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


def _turn(row: Row, operations: Iterable[object], *, is_gated: bool) -> Row:
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
