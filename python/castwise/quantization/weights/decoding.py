"""How the stored tensors of one weight become the weight of an unquantized model, slab by slab."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import pack_codes, unswizzle_scales
from castwise._options import Arithmetic
from castwise.quantization.arrays.arrays import QuantizedArray, dequantize
from castwise.quantization.arrays.conversion import of_shape, zeros_of
from castwise.quantization.arrays.decode import added_to_zeros, check_steps
from castwise.quantization.arrays.from_parts import recognized_parts
from castwise.quantization.arrays.row_slices import row_step, rows_of
from castwise.quantization.arrays.views import Views, views_of
from castwise.quantization.producers.block_types import BLOCK_TYPES, block_layout
from castwise.quantization.producers.found import QuantizedWeight
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    GLOBAL,
    MATRIX,
    SCALE,
    TILE,
    ZERO,
    ceil_div,
    codes_of_block,
    grid_of_scales,
    padded_shape,
)
from castwise.quantization.producers.names import Described, tail
from castwise.quantization.producers.producer import Rule
from castwise.quantization.producers.registry import TYPED, decoder_of_type, find_recipe
from castwise.quantization.producers.schemes import find_scheme
from castwise.quantization.producers.stored_weight import (
    LazyArray,
    Range,
    Read,
    StoredWeight,
    Undecodable,
    WeightForm,
    usual,
)


def _lazy_array(case: StoredWeight, description: WeightForm, recipe: str) -> QuantizedArray:
    """Return a weight as a quantized array whose parts are read when they are needed."""
    scheme, block, shape, axis, variant, plain, names, groups, is_tiled, loose, _ = description
    if names is None:
        part_names = [name for name, role in case.weight.parts.items() if role != ACTIVATION]
        names = {name: name for name in (case.payload, *part_names)}
    parts: dict[str, Any] = {other: case.lazy(name) for name, other in names.items()}
    payload = parts[names[case.payload]]
    is_whole = shape is not None and payload.size == math.prod(shape)
    if plain is not None and shape is not None and is_whole and payload.ndim != MATRIX:
        rows, columns = shape
        parts[names[case.payload]] = payload.as_rows((rows, columns))
    if (scale := case.weight.scale) is not None:
        grid = grid_of_scales(case.shape(scale), case.shape(case.payload))
        parts[names[scale]] = parts[names[scale]].reshape(grid)
    if groups is not None:
        index = np.asarray(case.lazy(groups)[...]).astype(np.int64)
        per_group = [name for name, role in case.weight.parts.items() if role in (SCALE, ZERO)]
        parts |= {names[name]: case.lazy(name).take_last(index) for name in per_group}
    if loose is not None:
        parts[names[case.payload]] = _pack(payload, loose, recipe)
    if is_tiled and block is not None and shape is not None:
        *stack, rows, columns = shape
        grid = *stack, rows, columns // block[1]
        parts[names[case.scale()]] = _untile(case.lazy(case.scale()), grid)
    if find_scheme(scheme).code_map is not None:  # of flat blocks
        parts[case.payload] = _as_bytes(parts[case.payload])
    return recognized_parts(
        QuantizedArray,
        parts,
        recipe,
        shape,
        scheme=scheme,
        block=block,
        axis=axis,
        variant=variant,
        layouts=case.weight.layouts if description.names is None else (),
    )


def _untile(scales: LazyArray, grid: tuple[int, ...]) -> LazyArray:
    """See the scales of blocks of rows, which are stored in tiles, as they lie in the weight."""
    *_, rows, columns = grid
    high, (_, wide) = TILE[0], padded_shape((rows, columns), TILE)
    stored_rows = scales.shape[-2] // max(ceil_div(rows, high), 1)  # of a row of tiles

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        *places, (begin, end), (left_column, right_column) = ranges
        # Whole rows of tiles are read; the rows before and after those asked for are cut off below.
        start, stop = begin // high, ceil_div(end, high)
        where = (*places, (start * stored_rows, stop * stored_rows))
        raw = np.ascontiguousarray(scales[tuple(slice(*bounds) for bounds in where)]).view(np.uint8)
        stack = raw.shape[:-MATRIX]
        out = np.empty((*stack, min(stop * high, rows) - start * high, columns), np.uint8)
        unswizzle_scales(raw.reshape(*stack, (stop - start) * high, wide), out)
        box_scales = out[..., begin - start * high : end - start * high, left_column:right_column]
        return np.ascontiguousarray(box_scales).view(scales.dtype)

    return LazyArray(scales.name, grid, scales.dtype, grid, box)


def _pack(payload: LazyArray, bits: int, recipe: str) -> LazyArray:
    """See codes that stand one in a byte as a stream of bits."""
    shape = (*payload.shape[:-1], ceil_div(payload.shape[-1] * bits, 8))

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        *leading, (low, high) = ranges
        codes = payload[tuple(slice(*bounds) for bounds in leading)]
        if (codes >> bits).any():
            raise Undecodable(
                f"{payload.name!r} has codes of more than {bits} bits; save it with {recipe} again"
            )
        out = np.empty((*codes.shape[:-1], shape[-1]), np.uint8)
        pack_codes(codes, out, bits=bits, layout="dense")
        return out[..., low:high]

    return LazyArray(payload.name, shape, payload.dtype, shape, box)


def _as_bytes(payload: LazyArray) -> LazyArray:
    size = payload.dtype.itemsize
    shape = (payload.size * size, 1)

    def box(ranges: Sequence[Range]) -> NDArray[Any]:
        begin, end = ranges[0]
        # The items that hold the bytes: of the first and the last perhaps a part only.
        items = payload.reshape((payload.size, 1))[begin // size : -(-end // size)]
        raw = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
        offset = begin - begin // size * size
        return raw[offset : offset + end - begin]

    return LazyArray(payload.name, shape, np.dtype(np.uint8), shape, box)


_PARTS = ("data", "scale", "global_scale", "zero_point")
# Roles of parts of which only shapes and formats tell how a weight is decoded.
_OF_NUMBERS = frozenset((SCALE, GLOBAL, ZERO, ACTIVATION))


class Slab(NamedTuple):
    """Rows of one matrix of a weight: where it is in the stack, and where they begin and end."""

    place: tuple[int, ...]
    start: int
    stop: int


class Decoding(NamedTuple):
    """What a weight is, and how it is decoded."""

    shape: tuple[int, ...]  # its shape in an unquantized model
    # A shape with the same elements in the same order, as a matrix or a stack of them
    matrix_shape: tuple[int, ...]
    step: int  # slabs begin at multiples of so many rows
    parts: Collection[str]  # the stored tensors that are read
    rows: Callable[[Slab], QuantizedArray]  # reads the rows of a slab
    # Makes all of it, its parts lazy; None for blocks of bytes, which hold their scales
    make_whole: Callable[[], QuantizedArray] | None = None
    # Decodes a slab, in the place of `rows`, where another package knows the codes, or where
    # factors beside them multiply what they are: to float32, and to float64 for "exact"
    values: Callable[[Slab], NDArray[Any]] | None = None
    # The plan of the first weight that differs from this one in names alone, where stored parts
    # alone tell how they are decoded; None if that is not known
    similar: Decoding | None = None
    # Reads weights that differ from this one in names alone as a stack, given the `parts` of
    # each; None if each is to be read by itself. None where nothing does
    stack: Callable[[Sequence[Sequence[str]]], QuantizedArray | None] | None = None

    @property
    def whole(self) -> QuantizedArray | None:
        """All of it, its parts lazy; None for blocks of bytes, which hold their scales."""
        return None if self.make_whole is None else self.make_whole()

    @property
    def alike(self) -> QuantizedArray | None:
        """As `whole`, of the first weight that differs from this one in names alone."""
        return (self.similar or self).whole

    def slabs(self, elements: int) -> Iterator[Slab]:
        """Cut the weight into slabs of about so many elements, at least one step of rows."""
        *stack, rows, columns = self.matrix_shape
        count = max(elements // max(columns, 1) // self.step, 1) * self.step
        for place in product(*map(range, stack)):
            for start in range(0, rows, count) if columns else ():
                yield Slab(place, start, min(start + count, rows))


class Decodings:
    """Plans how weights of a checkpoint are decoded: once those that differ in names alone."""

    def __init__(
        self,
        tensors: Mapping[str, Described],  # all tensors of the checkpoint, by name
        read: Read,  # reads of one of them what is within ranges
        # Returns what states how a weight is stored, as its producers write it
        section_of: Callable[[QuantizedWeight], Mapping[str, Any]],
    ) -> None:
        self._tensors, self._read, self._section_of = tensors, read, section_of
        self._plans: dict[tuple[object, ...], tuple[QuantizedWeight, Decoding]] = {}

    def plan(
        self,
        weight: QuantizedWeight,  # what was recognized
        arithmetic: Arithmetic,  # "peer" or "exact"
        # Along which blocks are to lie, -1 or -2; None for that of the unquantized model
        axis: int | None = None,
    ) -> Decoding:
        payload, tensors = weight.payload, self._tensors
        stem = payload[: len(payload) - len(tail(payload))]
        kind = (
            *(weight.scheme, weight.block, weight.recipes, weight.by_shapes, arithmetic, axis),
            *weight.parts.values(),
            *[
                (name.removeprefix(stem), (tensor := tensors[name]).format, tensor.shape)
                for name in (payload, *weight.parts)
            ],
        )
        similar, plan = self._plans.get(kind, (None, None))
        if similar is not None and plan is not None and similar.layouts == weight.layouts:
            return self._rename(plan, similar, weight)
        case = StoredWeight(weight, tensors, self._read, self._section_of(weight))
        if weight.recipes == (TYPED,):
            return _of_blocks(case, axis, arithmetic)
        recipe, rule = _rule_of(case)
        plan = _plan_array(case, recipe, rule(case), arithmetic, axis)
        # Other rules look at tensors beside the weight, or at what is in some of its parts.
        if rule is usual and _OF_NUMBERS.issuperset(weight.parts.values()) and self._is_plain(plan):
            plan = plan._replace(similar=plan)
            self._plans[kind] = weight, plan
        return plan

    def _is_plain(self, plan: Decoding) -> bool:
        """Return True if all parts are read as they are stored."""
        whole: Any = plan.whole
        boxes = [part.box for key in _PARTS if (part := getattr(whole, key)) is not None]
        are_read = all(isinstance(box, partial) and box.func is self._read for box in boxes)
        return are_read and not whole.extras

    def _rename(
        self, plan: Decoding, similar: QuantizedWeight, weight: QuantizedWeight
    ) -> Decoding:
        """Return the plan of a similar weight, with the tensors of this one."""
        names = dict(zip(similar.parts, weight.parts, strict=True))
        names[similar.payload] = weight.payload
        part_names = [names[name] for name in plan.parts]
        make_whole = cache(partial(self._whole, plan, part_names))
        return Decoding(
            plan.shape,
            plan.matrix_shape,
            plan.step,
            part_names,
            partial(_rows, make_whole),
            make_whole,
            similar=plan.similar,
        )

    def _whole(self, plan: Decoding, names: Sequence[str]) -> QuantizedArray:
        """Return all of a weight of these parts that is similar to that of a plan."""
        whole: Any = plan.whole
        keys = [key for key in _PARTS if getattr(whole, key) is not None]
        parts = {
            key: replace(getattr(whole, key), name=name, box=partial(self._read, name))
            for key, name in zip(keys, names, strict=True)
        }
        array: QuantizedArray = whole._with(**parts)
        return array


def stack_of(q: Any, stacks: Sequence[NDArray[Any]]) -> QuantizedArray:  # noqa: ANN401
    """Return matrices that are similar to one as a stack; `stacks` has their `Decoding.parts`."""
    count = len(stacks[0])
    keys = [key for key in _PARTS if getattr(q, key) is not None]
    parts = {
        key: stack.reshape(count, *getattr(q, key).shape)
        for key, stack in zip(keys, stacks, strict=True)
    }
    array: QuantizedArray = q._with(**parts, shape=(count, *q.shape))
    return array


def can_be_stacked(q: Any) -> bool:  # noqa: ANN401
    """Return True for a matrix whose parts lie in a stack as they lie by themselves."""
    if q is None or not is_stacked_alike(views_of(q)):
        return False
    # Parts may be stored in other shapes than those of the layout.
    views = views_of(q)
    shapes = {"data": views.data_shape, "scale": views.scale_shape, "zero_point": views.zero_shape}
    parts = [(getattr(q, key), shape) for key, shape in shapes.items()]
    return all(part is None or part.shape == shape for part, shape in parts)


def is_stacked_alike(form: Views) -> bool:
    """Return True for the geometry of a matrix that is that of each matrix of a stack."""
    if form.axis >= 0 or len(form.shape) != MATRIX:
        return False
    stack = of_shape(form, (1, *form.shape))
    return all(
        shape_of_stack == (1, *shape)
        for shape_of_stack, shape in (
            (stack.data_shape, form.data_shape),
            (stack.scale_shape, form.scale_shape),
            (stack.zero_shape, form.zero_shape),
        )
    )


def _rule_of(case: StoredWeight) -> tuple[str, Rule]:
    """Return the producer that a weight may be of, and its rule; several have the usual one."""
    producers = [find_recipe(name) for name in case.weight.recipes]
    if case.weight.by_shapes and len(producers) > 1:
        return producers[0].name, usual
    has_rule = any(producer.rule is not None for producer in producers)
    is_decoded = all(producer.is_decoded for producer in producers)
    if not is_decoded or (has_rule and len(producers) > 1):
        raise case.unknown()
    return producers[0].name, producers[0].rule or usual


def _plan_array(
    case: StoredWeight,
    recipe: str,
    description: WeightForm,
    arithmetic: Arithmetic,
    axis: int | None,
) -> Decoding:
    """Plan how a weight is decoded that its producer's rule describes."""
    if axis is not None:
        description = description._replace(axis=axis)
    try:
        q = _lazy_array(case, description, recipe)
        check_steps(q, arithmetic)
        if description.is_centered:
            _check_center(q)
    except ValueError as error:
        raise Undecodable(str(error).removesuffix(".")) from error
    return _of_array(q, description)


def _of_array(q: Any, description: WeightForm) -> Decoding:  # noqa: ANN401  (its parts are lazy)
    """Plan how a quantized array of lazy parts is decoded."""
    plain = q.shape if description.plain is None else description.plain
    is_flat = views_of(q).storage.flat
    if is_flat:
        # Its blocks are cut from all elements in a row, whatever the shape.
        q = replace(q, shape=(math.prod(q.shape), 1))
    if len(q.shape) < MATRIX:
        raise Undecodable(f"{q.data.name!r} has the shape {q.data.shape}, which is not a matrix")
    if "group index" in q.extras:
        _check_groups(q.extras["group index"], views_of(q).grid[-1])
    columns, size = q.shape[q.axis], q.block[1]
    parts = [q.data, q.scale, q.global_scale, q.zero_point, *q.extras.values()]
    names = [part.name for part in parts if isinstance(part, LazyArray)]
    # Groups along a row end with it; in blocks of more than one row the last may be shorter.
    is_free = (
        "group index" in q.extras
        or q.scheme.endswith("_block")
        or is_flat
        or (q.recipe is not None and find_recipe(q.recipe).short_groups)
    )
    if size and columns > size and columns % size and not is_free:
        raise Undecodable(f"rows of {columns:,} elements do not end with a group of {size}")
    return Decoding(plain, q.shape, row_step(q), names, partial(_rows, lambda: q), lambda: q)


def _check_groups(index: LazyArray, count: int) -> None:
    groups = np.asarray(index)
    wrong = groups[~((groups >= 0) & (groups < count))]
    if wrong.size:
        raise Undecodable(f"{index.name!r} has {wrong[0]}, and there are {count} groups from 0 on")


def _check_center(q: Any) -> None:  # noqa: ANN401  (its parts are lazy)
    """Refuse zero points that the other variant of a layout would have in the middle, as stated."""
    # Single ones may lie elsewhere: GPTQModel rounds layers without data around their means.
    zeros, views, add = zeros_of(q), views_of(q), added_to_zeros(q)
    middle = 1 << (views.scheme.bits - 1)
    for variant, other in views.storage.zeros_add:
        wrong = middle + add - other
        if other != add and zeros.size and (zeros == wrong).all():
            raise ValueError(
                f"sym is stated, and every zero point of {q.zero_point.name!r} is {wrong} as the "
                f"format {q.variant!r} has them, and {middle}, the middle, as {variant!r} has "
                "them; state that format, or remove sym"
            )


def _rows(make_whole: Callable[[], QuantizedArray], slab: Slab) -> QuantizedArray:
    return rows_of(make_whole(), slab.start, slab.stop, slab.place)


def _of_blocks(case: StoredWeight, axis: int | None, arithmetic: Arithmetic) -> Decoding:
    """Plan how blocks of bytes, each with its scales, are decoded."""
    # The matrices of experts that are not named as a weight are those of transformers, transposed.
    payload = case.lazy(case.payload)
    *leading, blocks, size = payload.shape
    by_package = case.scheme in BLOCK_TYPES
    width = BLOCK_TYPES[case.scheme][1] if by_package else _width_of(case, size)
    matrices = payload if leading else payload.reshape((1, blocks, size))
    *stack, count = matrices.shape[:-2]
    if axis is None:
        axis = -1 if case.payload.endswith("weight") else -2
    is_transposed = len(leading) == MATRIX and axis != -1

    def read(slab: Slab) -> NDArray[np.uint8]:
        before_rows = (slice(None),) if is_transposed else ()
        begin, end = (row // width if is_transposed else row for row in (slab.start, slab.stop))
        raw: NDArray[np.uint8] = matrices[*slab.place, *before_rows, begin:end]
        return raw.reshape(len(raw), -1)

    def rows(slab: Slab) -> QuantizedArray:
        raw = read(slab)
        layout, _ = block_layout(case.scheme, size)
        shape = len(raw), raw.shape[1] // size * width
        try:
            return recognized_parts(
                QuantizedArray,
                {layout.payload: raw},
                TYPED,
                shape[::-1] if is_transposed else shape,
                scheme=case.scheme,
                block=layout.block,
                axis=-2 if is_transposed else -1,
                variant=None,
            )
        except ValueError as error:
            raise Undecodable(str(error).removesuffix(".")) from error

    rows_and_columns = (blocks * width, count) if is_transposed else (count, blocks * width)
    matrix_shape = (*stack, *rows_and_columns)
    shape = matrix_shape if leading else matrix_shape[-1:]
    factors = _factors(case, stack)
    names = (payload.name, *(factor.name for factor in factors))
    plan = Decoding(shape, matrix_shape, width if is_transposed else 1, names, rows)
    if not (by_package or factors):
        return plan
    decode = decoder_of_type(case.scheme, arithmetic) if by_package else None
    # A code, a scale and a factor have at most 48 bits.
    dtype = np.float64 if arithmetic == "exact" else np.float32

    def values(slab: Slab) -> NDArray[Any]:
        if decode is None:
            floats: NDArray[Any] = dequantize(rows(slab), dtype, arithmetic=arithmetic, threads=1)
        else:
            floats = decode(read(slab)).T if is_transposed else decode(read(slab))
        if not factors:
            return floats
        place = int(np.ravel_multi_index(slab.place, stack)) if stack else 0
        outputs = np.arange(count) if is_transposed else np.arange(slab.start, slab.stop)
        each = np.array([factor[...].reshape(-1)[place] for factor in factors], dtype)
        by_output = each[outputs % len(each)]
        with np.errstate(all="ignore"):  # what is stored decides
            floats = floats * (by_output if is_transposed else by_output[:, np.newaxis])
        return floats

    return plan._replace(values=values)


def _factors(case: StoredWeight, stack: Sequence[int]) -> list[LazyArray]:
    """Return what a weight is multiplied by: one number for each expert, or one."""
    factors = [case.lazy(name) for name, role in case.weight.parts.items() if role == GLOBAL]
    for factor in factors:
        if factor.shape != (tuple(stack) or (1,)):
            raise case.wrong(factor.name, f"the shape {tuple(stack) or (1,)}")
    return factors


def _width_of(case: StoredWeight, size: int) -> int:
    scheme = find_scheme(case.scheme)
    _, fields = block_layout(case.scheme, size)
    return codes_of_block(fields, scheme.bits)
