"""The form that a quantized weight gets as of another producer, and what stands in its way."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from castwise.checkpoint.planning.transcode._global_scales import AGAIN
from castwise.checkpoint.planning.transcode._transcoded_weight import TranscodedWeight
from castwise.checkpoint.planning.written_schemes import (
    encoding,
    padding_problem,
    states_inputs,
    written_row,
)
from castwise.models.model import EXPERTS as ROLE_OF_EXPERTS
from castwise.models.model import MATRIX, STACK, WEIGHT, Model
from castwise.quantization import QuantizedArray, QuantizedWeight
from castwise.quantization.arrays.views import geometry, views_of
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    EXPERTS,
    GLOBAL,
    OF_E4M3,
    SCALE,
    ZERO,
    Layout,
)
from castwise.quantization.producers.names import name_part, tail
from castwise.quantization.producers.producer import Encoding
from castwise.quantization.producers.registry import CONVERTED_TO, find_recipe, written_layout
from castwise.quantization.producers.schemes import find_scheme

# Parts that only tell how a weight is stored, or its shape.
_MARKERS = tuple(
    name_part(part.name, "weight")
    for producer in CONVERTED_TO
    for layout in producer.layouts
    for part in layout.parts
    if part.use in ("marker", "shape")
)

# Schemes beside which inputs may have a scale.
_SCALED_INPUTS = ("nvfp4", "fp8_tensor")


def form_of_experts(
    weight: QuantizedWeight, scheme: str, recipe: str, model: Model
) -> Layout | None:
    """Return how a weight is stored as (experts, in, out); None for others, and elsewhere."""
    name = weight.name.removesuffix(WEIGHT)
    for layout in _layouts_of_experts(recipe, scheme):
        if tail(name) in layout.parameters and model.role(name) == ROLE_OF_EXPERTS:
            return layout
    return None


@cache
def _layouts_of_experts(recipe: str, scheme: str) -> tuple[Layout, ...]:
    """Return the layouts of a scheme that store experts as (experts, in, out)."""
    return tuple(
        layout
        for layout in find_recipe(recipe).layouts
        if layout.scheme == scheme
        and layout.storage is not None
        and layout.storage.orientation == "parts"
    )


def check_parts(weight_in_form: TranscodedWeight, recipe: str, *, are_experts: bool) -> None:
    """Refuse a part that the other form has no place for, and shapes that it cannot have."""
    # `are_experts` says that `form_of_experts` has a layout for it.
    weight, plan, tensors = (
        weight_in_form.weight,
        weight_in_form.plan,
        weight_in_form.stored_tensors,
    )
    scheme = weight_in_form.scheme
    if plan.values is not None:
        raise ValueError(f"{weight.payload!r} is multiplied by what is beside it; {AGAIN}")
    inputs = [name for name, role in weight.parts.items() if role == ACTIVATION]
    parts_with_place = {weight_in_form.index_name}
    if scheme in _SCALED_INPUTS and len(inputs) == 1 and "zero_point" not in inputs[0]:
        parts_with_place.add(inputs[0])
    for name, role in weight.parts.items():
        if (
            role not in (SCALE, GLOBAL, ZERO)
            and name not in parts_with_place
            and not name.endswith(_MARKERS)
        ):
            raise ValueError(f"{name!r} has no place there; {AGAIN}")
        if role in (GLOBAL, ACTIVATION):
            array = tensors.read(name)
            if array.size != 1 or not np.isfinite(array).all() or not (array > 0).all():
                raise ValueError(f"{name!r} is not one positive number")
    whole = plan.alike
    if whole is not None and whole.block == (0, 0) and whole.scale.size > 1:
        raise ValueError(
            f"{weight.scale!r} has a scale for each expert, and {recipe} stores one for all; "
            f"{AGAIN}"
        )
    info = tensors[weight.payload]
    is_matrix, is_stack = (len(plan.matrix_shape) == axes for axes in (MATRIX, STACK))
    if is_stack and whole is not None and _has_inputs_as_rows(whole):
        raise ValueError(
            f"{weight.payload!r} has the outputs of experts along its last axis, and {recipe} "
            f"stores them as rows; {AGAIN}"
        )
    stacking = find_recipe(recipe).transcoding.stacks
    stacks = stacking == "also" or are_experts
    fits = is_stack if stacking == "only" else is_matrix or (is_stack and stacks)
    if plan.matrix_shape != plan.shape or not fits:
        arrangement = (
            "experts in one tensor only" if stacking == "only" else "each matrix by itself"
        )
        raise ValueError(
            f"{weight.payload!r} has the shape {info.shape}, and {recipe} stores "
            f"{arrangement}; {AGAIN}"
        )
    if scheme.startswith("fp8") and weight.scheme == scheme and info.format not in OF_E4M3:
        raise ValueError(
            f"{weight.payload!r} is {info.format}, and {recipe} stores others; {AGAIN}"
        )


def _has_inputs_as_rows(whole: QuantizedArray) -> bool:
    """Return True for experts in one tensor whose blocks lie along the outputs."""
    layout = views_of(whole).layout
    return layout.parameters == EXPERTS and (
        layout.storage is None or not layout.storage.orientation
    )


# Of all weights, each of which asks for one of a few.
_row = cache(written_row)


@cache
def _encoding(scheme: str, recipe: str, inputs: str | None, size: int | None) -> Encoding:
    """Return how a scheme is stored, in groups of a size if it has them."""
    return encoding(_row(scheme, recipe, inputs), None if size is None else (1, size))


def give_form(
    weight_in_form: TranscodedWeight,
    recipe: str,
    section: Mapping[str, Any],  # what states how it is stored now
    model: Model,
    experts: Layout | None,  # its `form_of_experts`
    *,
    inputs: str | None,  # what is to be stated of inputs; None for what the producer states
) -> None:
    """Let a weight get the form of its scheme as of a producer."""
    weight, scheme = weight_in_form.weight, weight_in_form.scheme
    shape = weight_in_form.plan.matrix_shape
    rows, columns = shape[-2:] if experts is None else shape[:-3:-1]
    producer = find_recipe(recipe)
    if producer.transcoding.block_of_form is not None:
        block = producer.transcoding.block_of_form(section)
        if block is None:
            raise ValueError(f"{weight.payload!r}: nothing states weight_block_size")
        high, wide = block
    elif not states_inputs(recipe):
        high, wide = find_scheme(scheme).block
    else:
        row = _row(scheme, recipe, inputs)
        if (problem := padding_problem(row, rows, columns)) is not None:
            raise ValueError(f"{weight.payload!r} is a matrix of {rows}x{columns}, and {problem}")
        size = weight.block[-1] if weight.block and scheme.endswith("_group") else None
        weight_in_form.encoding = _encoding(scheme, recipe, inputs, size)
        high, wide = weight_in_form.encoding.block
        if row.as_groups:
            # Packed, as groups are, with one group in a row.
            high, wide, scheme = 1, wide or columns, f"{scheme.partition('_')[0]}_group"
    if high == 1 and wide and columns % wide:
        raise ValueError(
            f"{weight.payload!r} has rows of {columns:,} elements, which do not end with a "
            f"group of {wide}, as {recipe} needs"
        )
    layout, stem = written_layout(recipe, find_scheme(scheme), symmetric=True), weight.name
    if producer.transcoding.name_form is not None:
        layout, stem = producer.transcoding.name_form(
            layout, stem, model.role(stem) == ROLE_OF_EXPERTS
        )
    elif experts is not None:
        layout, stem = experts, stem.removesuffix(WEIGHT)
    elif not stem.endswith("weight"):
        stem += WEIGHT
    axis = -1 if experts is None else -2
    weight_in_form.becomes(
        geometry(scheme, recipe, layout, shape=shape, axis=axis, block=(high, wide)), stem
    )
