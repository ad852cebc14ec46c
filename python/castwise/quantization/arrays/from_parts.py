"""Which layout of a producer some parts are, and of what scheme and shape the weight is."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from castwise._core import finfo, read_array
from castwise._numbers import WORD_BITS
from castwise.quantization.arrays._arguments import MAX_SIZE, block_pair, integer, native, shape_of
from castwise.quantization.arrays._checks import faults
from castwise.quantization.arrays.named_parts import bare, stem_of
from castwise.quantization.arrays.views import StoredArray, fields_of, geometry, views_of
from castwise.quantization.producers.block_types import TYPES
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    GLOBAL,
    MATRIX,
    OTHER,
    SCALE,
    ZERO,
    Layout,
    Storage,
    codes_of_block,
    codes_of_container,
)
from castwise.quantization.producers.names import Match, match_layout, name_part
from castwise.quantization.producers.producer import Producer
from castwise.quantization.producers.registry import find_recipe
from castwise.quantization.producers.schemes import Scheme, may_hold, scheme_of_files, schemes
from castwise.quantization.producers.stated import json_of
from castwise.quantization.producers.stored_weight import LazyArray

# The one NaN of E4M3 without a sign; larger codes would have the sign bit.
_UE4M3_NAN = 0x7F
# Of a matrix, or of a stack of them with at most two axes.
_MAX_AXES = 4
_ARGUMENTS = {SCALE: "scale", GLOBAL: "global_scale", ZERO: "zero_point"}
_EXTRAS = (
    "bias",
    "group index",
    "code map",
    "divisor",
    "factor",
    "float8 scale",
    "nested scale",
    "nested code map",
)
Made = TypeVar("Made", bound=StoredArray)


class _NamedPart(NamedTuple):
    """A part as it was given."""

    name: str
    array: Any
    format: str


def recognized_parts(
    make: type[Made],
    parts: Mapping[str, Any],
    recipe: str,
    shape: Sequence[int] | None,
    *,
    scheme: str | None,
    block: int | Sequence[int] | None,
    axis: int | None,
    variant: str | None,
    # Those that recognition matched; else all of the producer are tried
    layouts: Sequence[Layout] = (),
) -> Made:
    """Make the quantized array that some parts are, which may be lazy."""
    row = find_recipe(recipe)
    if scheme is not None:
        scheme_of_files(scheme)
    if axis is not None:
        axis = integer("axis", axis, -MAX_SIZE, MAX_SIZE)
    if not isinstance(parts, Mapping):
        raise TypeError(f"parts must map names to arrays, not be of {type(parts).__name__}.")
    tensors = {name: _named_part(name, part) for name, part in parts.items()}
    if not tensors:
        raise ValueError("parts is empty; give all tensors of a weight, by their names.")
    matches = list(_matches(tensors, row, layouts or row.layouts, scheme))
    if not matches:
        raise ValueError(_no_layout(tensors, row))
    most = max(len(match.parts) for match in matches)
    matches = [match for match in matches if len(match.parts) == most]
    _check_parts(matches[0], tensors, row)
    sizes = None if shape is None else shape_of(shape)
    candidates_of = partial(
        _candidates,
        recipe=row,
        scheme=scheme,
        shape=sizes,
        block=None if block is None else block_pair(block),
        axis=row.axis_of(MATRIX if sizes is None else len(sizes)) if axis is None else axis,
        variant=variant,
    )
    problems: dict[str, None] = {}
    candidates: dict[tuple[Any, ...], Made] = {}
    for arguments in chain.from_iterable(map(candidates_of, matches)):
        fields: dict[str, Any] = {
            **dict.fromkeys(("scale", "global_scale", "zero_point")),
            **arguments,
            "shape": shape_of(arguments["shape"]),
            "extras": MappingProxyType(arguments["extras"]),
            "_ready": {},
        }
        array = make._of_fields(fields)
        if (fault := next(faults(array), None)) is not None:
            problems[fault] = None
            continue
        names = arguments["scheme"], arguments["block"], arguments["variant"]
        candidates.setdefault((*names, arguments["layout"].storage.fields), array)
    # Those whose scales have the very axes that the producer gives them
    exact = {
        key: array
        for key, array in candidates.items()
        if array.scale.shape == views_of(array).scale_shape
    }
    candidates = exact if len(exact) == 1 else candidates
    if len(candidates) == 1:
        return _with_unsigned_scales(next(iter(candidates.values())))
    if not candidates:
        raise ValueError(next(iter(problems), _no_layout(tensors, row)))
    fits = dict.fromkeys(
        f"{name} in blocks of {size}" + (f" ({packing})" if packing else "")
        for name, size, packing, _ in candidates
    )
    raise ValueError(
        f"parts fit several: {', '.join(fits)}. State scheme=, block=, shape= or variant=."
    )


def _named_part(name: str, part: LazyArray | ArrayLike) -> _NamedPart:
    array = part if isinstance(part, LazyArray) else native(read_array(f"part {name!r}", part))
    try:
        return _NamedPart(name, array, finfo(array.dtype).name)
    except TypeError as error:
        raise TypeError(f"part {name!r}: {error}") from None


def _matches(
    tensors: Mapping[str, _NamedPart],
    recipe: Producer,
    layouts: Sequence[Layout],
    scheme: str | None,
) -> Iterator[Match[_NamedPart]]:
    """Find the layouts of a producer whose required parts are there."""
    for layout in layouts:
        if layout.storage is None or (scheme is not None and not may_hold(layout, scheme)):
            continue
        if layout not in recipe.layouts:
            continue
        for name in tensors:
            match = match_layout(layout, name, tensors, bare)
            if match is not None:
                yield match


def _check_parts(
    match: Match[_NamedPart], tensors: Mapping[str, _NamedPart], recipe: Producer
) -> None:
    """Refuse parts that are not of the layout, and those that decoding would leave out."""
    payload = match.payload.name
    for name in tensors:
        if name != payload and name not in match.parts:
            raise ValueError(
                f"parts has {name!r}, which is not a part of how {recipe.name} stores {payload!r}."
            )
    for name, (part, _) in match.parts.items():
        if part.role == OTHER and not part.use:
            raise ValueError(
                f"{name!r} is part of it, and castwise cannot decode a weight with that yet; "
                f"{recipe.name} reads it."
            )


def _no_layout(tensors: Mapping[str, _NamedPart], recipe: Producer) -> str:
    """Say what is missing: most often a scale beside its payload, or a payload beside its scale."""
    have = ", ".join(
        f"{n} ({tensor.array.dtype}, {tensor.array.shape})" for n, tensor in tensors.items()
    )
    layout_names: set[tuple[str, ...]] = set()
    for layout in recipe.layouts:
        if layout.storage is not None:
            stem = stem_of(layout)
            payload = name_part(layout.payload, stem) if layout.payload else stem
            others = [name_part(part.name, stem) for part in layout.parts if part.is_required]
            layout_names.add(tuple(map(bare, (payload, *others))))
    stores = "; ".join(" + ".join(names) for names in sorted(layout_names))
    return f"parts has {have}, which {recipe.name} does not store together; it stores {stores}."


def _candidates(
    match: Match[_NamedPart],
    *,
    recipe: Producer,
    # What the caller says of the parts
    scheme: str | None,
    shape: tuple[int, ...] | None,
    block: tuple[int, int] | None,
    axis: int,
    variant: str | None,
) -> Iterator[dict[str, Any]]:
    """Make the arguments of each scheme that a layout may hold."""
    state = _state(match)
    arrays = _arrays(match, state.get("extras", {}))
    layout, storage = match.layout, match.layout.storage or Storage()
    marker_scheme = _scheme_of_marker(match, recipe, scheme)
    shape, block = state.get("shape") or _stated_shape(match, shape), state.get("block") or block
    for name in _schemes(layout) if scheme is None else (scheme,):
        if marker_scheme not in (None, name):
            continue
        row = scheme_of_files(name)
        packings = (variant,) if variant in storage.packing else storage.packing
        # Words without filler bits are packed alike.
        for packing in packings[: 1 if WORD_BITS % row.bits == 0 else None]:
            arguments = {
                "scheme": name,
                "recipe": recipe.name,
                "block": block or block_pair(layout.block or row.block),
                "axis": axis,
                "layout": layout,
                "variant": packing if packing != storage.packing[0] else variant,
                **arrays,
            }
            room = shape if shape is not None else _room(arguments, row)
            more = None if room is None else _split(arguments, recipe, room)
            if more is not None:
                yield arguments | {"shape": room} | more


@cache
def _schemes(layout: Layout) -> tuple[str, ...]:
    if layout.storage is not None and (name := layout.storage.block_type):
        return () if name in TYPES else (layout.scheme,)  # the same bytes as of a scheme of arrays
    return tuple(row.name for row in schemes() if may_hold(layout, row.name))


def _stated_shape(
    match: Match[_NamedPart], shape: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    for part, tensor in match.parts.values():
        if part.use == "shape":
            if tensor.array.size not in range(MATRIX, _MAX_AXES + 1):
                raise ValueError(
                    f"{tensor.name!r} has {tensor.array.size} numbers, which is not the shape of a "
                    "matrix or a stack of them; fetch the checkpoint again."
                )
            stated_shape = tuple(int(n) for n in np.asarray(tensor.array).reshape(-1))
            if min(stated_shape) < 0:
                raise ValueError(f"{tensor.name!r} has negative sizes, {stated_shape}.")
            if len(stated_shape) == MATRIX:  # of one matrix of a stack
                stated_shape = (*match.payload.array.shape[:-MATRIX], *stated_shape)
            if shape is not None and shape != stated_shape:
                raise ValueError(f"shape={shape} is not valid; the parts state {stated_shape}.")
            return stated_shape
    return shape


def _arrays(match: Match[_NamedPart], extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the quantized array for which the parts stand, beside extra ones."""
    arguments: dict[str, Any] = {"data": match.payload.array, "extras": dict(extras)}
    for part, tensor in match.parts.values():
        if part.role in _ARGUMENTS:
            arguments[_ARGUMENTS[part.role]] = tensor.array
        elif part.role != ACTIVATION and part.use in _EXTRAS:
            arguments["extras"][part.use] = tensor.array
    return arguments


def _state(match: Match[_NamedPart]) -> dict[str, Any]:
    """Return the block, the shape and what else a state of bitsandbytes says."""
    tensor = next((tensor for part, tensor in match.parts.values() if part.use == "state"), None)
    if tensor is None:
        return {}
    state = json_of(tensor.name, tensor.array)
    shape, size = state.get("shape"), state.get("blocksize", -1)
    kind = match.layout.scheme.rpartition("_")[2]
    sizes = shape if isinstance(shape, list) and shape else [None]
    are_counts = all(map(_is_count, [*sizes, size]))
    if state.get("quant_type") != kind or not are_counts or size % 2:
        raise ValueError(f"{tensor.name!r} does not state shape, blocksize and quant_type.")
    arguments: dict[str, Any] = {"shape": tuple(sizes), "block": (1, size), "extras": {}}
    if any(part.use == "nested scale" for part, _ in match.parts.values()):
        nested_size, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if not (_is_count(nested_size) and nested_size and isinstance(offset, float)):
            raise ValueError(f"{tensor.name!r} does not state nested_blocksize and nested_offset.")
        arguments["extras"] = {
            "nested bias": np.array(offset, np.float32),
            "nested block": np.array(nested_size),
        }
    return arguments


def _scheme_of_marker(
    match: Match[_NamedPart], producer: Producer, scheme_name: str | None
) -> str | None:
    """Return the scheme that a marker names; refuse codes that a marker says are changed."""
    marker = next((marker for part, marker in match.parts.values() if part.use == "marker"), None)
    if marker is None or producer.marker is None:
        return None
    scheme = producer.marker.read(marker.name, marker.array)
    if scheme is None:
        return None
    if not may_hold(match.layout, scheme_name or scheme) or scheme_name not in (None, scheme):
        form = json_of(marker.name, marker.array).get("format")
        raise ValueError(
            f"{marker.name!r} names the format {form!r}, and the tensors are of another."
        )
    return scheme


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _room(arguments: Mapping[str, Any], scheme: Scheme) -> tuple[int, ...] | None:
    """Return the shape of the codes that a payload has room for."""
    storage, data = arguments["layout"].storage, arguments["data"]
    if data.ndim == 0 or storage.flat:
        return data.shape if storage.flat else None
    if storage.fields:
        sizes = dict(storage.fields)
        block_bytes = sum(sizes.values())
        if data.shape[-1] % block_bytes:
            return None
        blocks = data.shape[-1] // block_bytes
        if storage.block_type:
            return *data.shape[:-1], blocks * scheme.block[1]
        return *data.shape[:-1], blocks * codes_of_block(sizes, scheme.bits)
    shape = data.shape
    axis_count = MATRIX if storage.split or storage.orientation else 1
    if len(shape) < axis_count:
        return None
    if storage.split:
        shape = (*shape[:-2], shape[-2] * shape[-1])
    if storage.orientation in ("parts", "pairs"):
        shape = (*shape[:-2], shape[-1], shape[-2])
    packing = arguments.get("variant", storage.packing[0])
    # A fraction: 32 codes of 3 bits take 3 words.
    codes = codes_of_container(scheme.bits, data.dtype.itemsize, packing)
    shape = (*shape[:-1], int(shape[-1] * codes))
    if storage.orientation in ("weight", "pairs"):
        shape = (*shape[:-2], shape[-1], shape[-2])
    axis = arguments["axis"] % len(shape)
    return (*shape[:axis], shape[-1], *shape[axis:-1])


def _split(
    arguments: Mapping[str, Any], recipe: Producer, shape: tuple[int, ...]
) -> dict[str, Any] | None:
    """Return the fields of blocks of bytes as arguments; None if they are not whole blocks."""
    layout, data = arguments["layout"], arguments["data"]
    if not layout.storage.fields:
        return {}
    views = geometry(
        arguments["scheme"],
        recipe.name,
        layout,
        shape=shape,
        axis=arguments["axis"],
        block=arguments["block"],
    )
    block_bytes = sum(size for _, size in views.storage.fields)
    if data.ndim == 0 or data.shape[-1] % block_bytes:
        return None
    fields = fields_of(
        views, data.reshape(*data.shape[:-1], data.shape[-1] // block_bytes, block_bytes)
    )
    extras = {name: fields[name] for name in ("bias", "high") if name in fields}
    return {"data": fields["data"], "scale": fields["scale"], "extras": extras}


def _with_unsigned_scales(q: Made) -> Made:
    """Return an array whose bytes of UE4M3 are those of E4M3: what is NaN there is 0."""
    codes = q.scale
    if not views_of(q).storage.unsigned_scales:
        return q
    largest = int(codes.max(initial=0))
    if largest > _UE4M3_NAN:
        raise ValueError(
            f"a scale is the byte {largest:#04x}, which has a sign, and UE4M3 has none; fetch the "
            "file again."
        )
    if largest < _UE4M3_NAN:
        return q
    return q._with(scale=np.where(codes == _UE4M3_NAN, np.uint8(0), codes))
