"""What the configuration of a Keras model states of its quantized layers.

A `.keras` file has it; a file of weights alone has not. Keras numbers the variables of a layer, and
beside them states only the name of the layer: mode, packing and shape stand in the configuration.
"""

import math
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from castwise._numbers import BYTE_BITS
from castwise.dtype_policies import DTypePolicyMap, QuantizedDTypePolicy, deserialize
from castwise.quantization.producers.layouts import I8, MATRIX, OTHER, SCALE, U8, ZERO, ceil_div
from castwise.quantization.producers.schemes import find_scheme
from castwise.quantization.producers.stated import STATED_KEY, object_at
from castwise.quantization.producers.stored_weight import StoredWeight, Undecodable, WeightForm

# Of EinsumDense: inputs, kernel and outputs, as in `abc,cd->abd`.
_EQUATION = r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)"
_POLICIES = (
    "QuantizedDTypePolicy",
    "QuantizedFloat8DTypePolicy",
    "Int4DTypePolicy",
    "GPTQDTypePolicy",
    "AWQDTypePolicy",
)
_REMEDY = "save the model with it (model.save to a .keras file)"
# Of layers in layers: Python refuses 1,000 calls within each other.
_MAX_DEPTH = 200
_CALIBRATED = ("gptq", "awq")
# A key of EinsumDense's configuration that only packed codes need.
_UNPACKED = "gptq_unpacked_column_size"

_LOSES = (
    "Keras 3.14 and 3.15 leave the zero points of GPTQ and AWQ out of their files, and cannot load "
    "these either; save it with another version"
)
_LACKS = f"it lacks zero points, or the groups of inputs; {_LOSES}"
# The mode of what is in an attention layer: the model states the layer alone, and its policy of
# before.
_BY_SHAPE = "by shape"

_MULTI_HEAD = ("MultiHeadAttention", "CachedMultiHeadAttention")  # this one is KerasHub's
_ATTENTION = (*_MULTI_HEAD, "GroupQueryAttention", "GroupedQueryAttention")
_EMBEDDINGS = ("Embedding", "ReversibleEmbedding")
_I4 = f"int{find_scheme('int4_channel').bits}"


class KerasLayer(NamedTuple):
    """A layer as a configuration describes it."""

    kind: str  # its class
    # The mode of its policy, without numbers; None if it is not quantized, `_BY_SHAPE` if shapes
    # tell it.
    mode: str | None
    block: int | None  # the size of groups of int4, GPTQ and AWQ; None for whole channels
    bits: int | None  # the bits of GPTQ's and AWQ's codes; None for others
    config: Mapping[str, Any]  # its own configuration
    build_config: Mapping[str, Any]  # what it was built with


def stated_layers(
    model: object, names: Mapping[str, str], coded_paths: Collection[str] = ()
) -> dict[str, list[KerasLayer]]:
    """Return what is stated of quantized layers, by where their variables are."""
    by_name: dict[str, list[KerasLayer]] = {}
    for name, layer in _layers(model, 0):
        by_name.setdefault(name, []).append(layer)
    inner = {path: _in_attention(path, names, by_name) for path in coded_paths}
    layers = {path: by_name[name] for path, name in names.items() if name in by_name}
    layers |= {path: several for path, several in inner.items() if several}
    is_any = any(
        layer.mode for several in (*by_name.values(), *inner.values()) for layer in several
    )
    return layers if is_any else {}


def _in_attention(
    path: str, names: Mapping[str, str], by_name: Mapping[str, Sequence[KerasLayer]]
) -> list[KerasLayer]:
    """Describe a layer that an attention layer has made, whose path is below that of the other."""
    outer, _, child = path.removesuffix("/vars").rpartition("/")
    several = by_name.get(names.get(f"{outer}/vars", ""), ())
    return [
        projection
        for layer in several
        if layer.kind in _ATTENTION and (projection := _projection(layer, child)) is not None
    ]


def _projection(layer: KerasLayer, child: str) -> KerasLayer | None:
    """Describe a projection of an attention layer, an EinsumDense; None for what is not one."""
    config, build = layer.config, layer.build_config
    if isinstance(several := build.get("shapes_dict"), dict):
        build = several
    ends = {role: build.get(f"{role}_shape") for role in ("query", "value", "key")}
    shapes = {role: _ints(end[-1:]) if isinstance(end, list) else () for role, end in ends.items()}
    queries, keys, values = shapes["query"], shapes["key"] or shapes["value"], shapes["value"]
    if layer.kind in _MULTI_HEAD:
        heads = shared_heads = _ints([config.get("num_heads")])
        size, out = _ints([config.get("key_dim")]), _ints([config.get("value_dim")])
        sizes = config.get("output_shape")
        outputs = _ints(sizes if isinstance(sizes, list) else [sizes]) or queries
    else:
        heads, shared_heads = (
            _ints([config.get(f"num_{kind}_heads")]) for kind in ("query", "key_value")
        )
        size = out = _ints([config.get("head_dim")])
        outputs = queries
    shape_of_child = {
        "query": (queries, (*heads, *size)),
        "key": (keys, (*shared_heads, *size)),
        "value": (values, (*shared_heads, *out)),
        "gate": (queries, (*heads, *out)),
        "output": ((*heads, *out), outputs),
    }.get(child.removeprefix("_").removesuffix("_dense"))
    if shape_of_child is None:
        return None
    inputs, outputs_of_child = shape_of_child
    letters = ascii_letters[1 : 1 + len(inputs) + len(outputs_of_child)]
    begin, end = letters[: len(inputs)], letters[len(inputs) :]
    layer_config = {
        "equation": f"a{begin},{letters}->a{end}",
        "output_shape": [*outputs_of_child],
        "use_bias": config.get("use_bias"),
    }
    return KerasLayer(
        "EinsumDense", _BY_SHAPE, None, None, layer_config, {"input_shape": [*inputs]}
    )


def _ints(shape: object) -> tuple[int, ...]:
    """Return the sizes that are numbers."""
    return tuple(size for size in shape if type(size) is int) if isinstance(shape, list) else ()


def _layers(value: object, depth: int) -> Iterator[tuple[str, KerasLayer]]:
    """Find everything that has a class, a name and a policy."""
    _check_depth(depth)
    if isinstance(value, dict):
        kind, config, build = (value.get(key) for key in ("class_name", "config", "build_config"))
        if isinstance(kind, str) and isinstance(config, dict):
            name = config.get("name")
            if isinstance(name, str) and "dtype" in config:
                mode = _mode(config["dtype"])
                yield (
                    name,
                    KerasLayer(kind, *mode, config, build if isinstance(build, dict) else {}),
                )
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _layers(part, depth + 1)


def _mode(config: object) -> tuple[str | None, int | None, int | None]:
    """Return the mode of a policy, the size of its blocks or groups, and the bits of its codes."""
    try:
        policy = deserialize(config)
    except (ValueError, TypeError):  # another library's, or not a policy
        policy = None
    if policy is None:
        return None, None, None
    if isinstance(policy, DTypePolicyMap):
        is_quantized = any(isinstance(member, QuantizedDTypePolicy) for member in policy.values())
        return ("map" if is_quantized else None), None, None
    size = getattr(policy, "group_size", getattr(policy, "block_size", None))
    mode = getattr(policy, "mode", policy.quantization_mode)
    bits = getattr(policy, "weight_bits", None)
    return mode, size if size is not None and size > 0 else None, bits


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")


def plain_model(model: object, depth: int = 0) -> Any:  # noqa: ANN401  (of JSON)
    """Return a copy of a configuration whose policies are those of before quantization."""
    _check_depth(depth)
    if isinstance(model, list):
        return [plain_model(member, depth + 1) for member in model]
    if not isinstance(model, dict):
        return model
    config = model.get("config")
    if model.get("class_name") in _POLICIES and isinstance(config, dict):
        source = {"name": config.get("source_name")}
        return {**model, "class_name": "DTypePolicy", "config": source}
    is_stated = str(object_at(model, STATED_KEY).get("module")).startswith("keras")
    plain_keys = {_UNPACKED, *([STATED_KEY] if is_stated else [])}
    return {
        key: None if key in plain_keys else plain_model(value, depth + 1)
        for key, value in model.items()
    }


def describe_kernel(case: StoredWeight) -> WeightForm:
    """Describe a kernel by what the model states of its layer."""
    path = case.payload.rpartition("/")[0]
    if not case.section:
        return _form_alone(case, path)
    layers = case.section.get(path)
    if not layers:
        raise Undecodable(f"the model states nothing of the layer {path!r}; Keras reads it")
    layer = layers[0]
    if any(other != layer for other in layers):
        raise Undecodable(f"the model has {len(layers)} layers of its name, which are not alike")
    if layer.mode == _BY_SHAPE:
        layer = _with_mode(case, layer)
    is_calibrated = layer.mode in _CALIBRATED and layer.kind not in _EMBEDDINGS
    if not (layer.mode in (I8, _I4) or is_calibrated) or layer.kind not in _SHAPES:
        raise Undecodable(
            f"castwise cannot decode {layer.mode} of Keras' {layer.kind} yet; Keras reads it"
        )
    if layer.config.get("lora_rank") and is_calibrated:
        raise Undecodable("it had LoRA weights, which Keras merges only into int8 and int4")
    if layer.config.get("tie_weights") is False:
        raise Undecodable(
            f"castwise cannot decode a {layer.kind} with weights of their own for the way back "
            "(tie_weights=False) yet; Keras reads it"
        )
    _check_variables(case, layer, path)
    plain = _SHAPES[layer.kind](case, layer)
    if is_calibrated:
        return _calibrated_form(case, layer, plain)
    is_rows = layer.kind in _EMBEDDINGS
    matrix = _matrix(layer, plain) if layer.kind == "EinsumDense" else plain
    if layer.mode == I8 and case.shape(case.payload) != plain:
        raise case.wrong(case.payload, f"the shape {plain}")
    scheme, block = f"{layer.mode}_channel", (1, 0)
    if layer.block is not None:
        if layer.mode == I8:
            raise case.unknown()
        scheme, block = "int4_group", (1, layer.block)
        _check_groups(case, layer.block)
    return WeightForm(
        scheme,
        block,
        matrix,
        axis=-1 if is_rows else 0,
        plain=plain,
        names=_names(case, "embeddings" if is_rows else "kernel"),
    )


def _with_mode(case: StoredWeight, layer: KerasLayer) -> KerasLayer:
    """Tell the mode of a kernel whose shape is stated: int4 is packed in rows of a matrix."""
    plain, shape = _einsum(case, layer), case.shape(case.payload)
    if case.format == U8:
        return _with_mode_by_parts(case, layer)
    if len(plain) > MATRIX and case.format == I8:
        if shape == plain:
            return layer._replace(mode=I8)
        rows, columns = _matrix(layer, plain)
        if shape == (rows, ceil_div(columns, 2)):
            groups = next((n for n, role in case.weight.parts.items() if role == OTHER), None)
            numbers = () if groups is None else case.lazy(groups)[...]
            size = int(np.count_nonzero(numbers == 0)) if len(numbers) else None
            if size == 0:
                raise Undecodable(f"{groups!r} names no input of group 0; save it with Keras again")
            return layer._replace(mode=_I4, block=size)
    raise Undecodable(
        f"it has the shape {shape}, and the model states a kernel of {reprlib.repr(plain)} in an "
        "attention layer, which no mode stores so; save it with Keras again"
    )


def _with_mode_by_parts(case: StoredWeight, layer: KerasLayer) -> KerasLayer:
    """Tell GPTQ and AWQ, which has scales of inputs, by their variables, and bits by the shapes."""
    extras, outputs = len(_indices_of(case)), case.shape(case.scale())[:1]
    if ZERO not in case.weight.parts.values() or extras not in (1, 2):
        raise Undecodable(_LACKS)
    bits = BYTE_BITS if outputs == case.shape(case.payload)[:1] else BYTE_BITS // 2
    return layer._replace(mode=_CALIBRATED[extras - 1], bits=bits)


def _form_alone(case: StoredWeight, path: str) -> WeightForm:
    """Describe a kernel of which nothing is stated: only some of dense layers are certain."""
    # Certain are int8 with a scale per output, and what GPTQ and AWQ store. int4 of one output, or
    # int8 of an embedding, may have the very same shapes as the first.
    shape, scale = case.shape(case.payload), case.weight.scale
    outputs = () if scale is None else case.shape(scale)
    if re.fullmatch(r"(?:.*/)?dense(?:_[0-9]+)?/vars", path) and len(shape) == MATRIX:
        is_alone = list(case.weight.parts) == [scale] and shape[1] > 1
        if case.format == I8 and is_alone and outputs == (shape[1],):
            return WeightForm("int8_channel", (1, 0), shape, axis=0, names=_names(case, "kernel"))
        has_groups = ZERO in case.weight.parts.values() and max(outputs, default=0) > 1
        if case.format == U8 and has_groups:
            layer = _with_mode_by_parts(case, KerasLayer("Dense", None, None, None, {}, {}))
            return _calibrated_form(case, layer, (shape[1], outputs[0]))
    raise Undecodable(
        f"nothing states how the layer {path!r} is quantized, and shapes do not tell; {_REMEDY}"
    )


def _calibrated_form(case: StoredWeight, layer: KerasLayer, plain: tuple[int, ...]) -> WeightForm:
    """Describe codes of GPTQ and AWQ, (outputs, inputs), beside the group of each input."""
    # Keras makes an integer of a group by leaving out its fraction.
    extras, scale = _indices_of(case), case.scale()
    zero = next((name for name, role in case.weight.parts.items() if role == ZERO), None)
    if zero is None or len(extras) != 1 + (layer.mode == _CALIBRATED[1]):
        raise Undecodable(_LACKS)
    if len(case.shape(scale)) != MATRIX:
        raise case.wrong(scale, "a shape of two axes")
    rows, (columns, groups) = case.matrix()[1], case.shape(scale)
    bits = BYTE_BITS if layer.bits != BYTE_BITS // 2 else layer.bits
    _check_split(case, plain, (rows, columns))
    size = layer.block or ceil_div(rows, max(groups, 1))
    shapes = {
        case.payload: (ceil_div(columns * bits, BYTE_BITS), rows),
        scale: (columns, ceil_div(rows, size) if layer.block else groups),
        zero: case.shape(scale),
        **dict.fromkeys(extras, (rows,)),
    }
    for name, shape in shapes.items():
        if case.shape(name) != shape:
            raise case.wrong(name, f"the shape {shape}")
    group_numbers = case.lazy(extras[-1])[...]
    wrong_places = np.flatnonzero(~((group_numbers > -1) & (group_numbers < groups)))
    if len(wrong_places):
        raise Undecodable(
            f"{extras[-1]!r} has the group {group_numbers[wrong_places[0]]}, and there are {groups}"
        )
    in_order = np.array_equal(group_numbers.astype(np.int64), np.arange(rows) // size)
    kernel = "quantized_kernel"
    names = {case.payload: kernel, scale: f"{kernel}_scale", zero: f"{kernel}_zero"}
    names |= dict.fromkeys(extras[:-1], "awq_scales")
    return WeightForm(
        f"int{bits}_group",
        (1, size if in_order else 1),
        (rows, columns),
        axis=0,
        plain=plain,
        names=names,
        groups=None if in_order else extras[-1],
    )


def _check_split(case: StoredWeight, plain: tuple[int, ...], matrix: tuple[int, int]) -> None:
    """Refuse a kernel whose axes Keras does not join to these rows and columns."""
    # Keras takes the longest of three axes, the first of several, for the inputs or the outputs.
    inputs = plain[: 1 if len(plain) == MATRIX or plain.index(max(plain)) == 0 else MATRIX]
    joined_shape = math.prod(inputs), math.prod(plain[len(inputs) :])
    if len(plain) not in (MATRIX, MATRIX + 1) or matrix != joined_shape:
        raise case.wrong(case.payload, f"a kernel of the shape {plain}")


def _indices_of(case: StoredWeight) -> list[str]:
    """Name the variables after the zero points: AWQ's scales of inputs, then the groups."""
    names = (name for name, role in case.weight.parts.items() if role == OTHER)
    return sorted(names, key=list(case.tensors).index)


def _names(case: StoredWeight, kernel: str) -> dict[str, str]:
    """Name the parts as Keras does; indices of groups are checked, and not needed."""
    names = {case.payload: kernel}
    for name, role in case.weight.parts.items():
        if role in (SCALE, ZERO):
            names[name] = kernel + ("_scale" if role == SCALE else "_zero")
    return names


def _check_variables(case: StoredWeight, layer: KerasLayer, path: str) -> None:
    """Refuse a layer whose variables are not as many as its configuration says."""
    has_bias = bool(layer.config.get("use_bias") or layer.config.get("bias_axes"))
    is_calibrated = layer.mode in _CALIBRATED
    has_groups = is_calibrated or layer.block is not None
    count = 2 + has_bias + 2 * has_groups + (layer.mode == _CALIBRATED[1])
    variables = [name for name in case.tensors if name.rpartition("/")[0] == path]
    if {*variables} != {f"{path}/{number}" for number in range(count)}:
        raise Undecodable(
            f"it has {len(variables)} variables, and the model states a layer of {count} (with "
            "scales, zero points and indices of groups)" + (f"; {_LOSES}" if is_calibrated else "")
        )


def _check_groups(case: StoredWeight, size: int) -> None:
    """Refuse groups that are not blocks of neighbors."""
    indices = next((name for name, role in case.weight.parts.items() if role == OTHER), None)
    if indices is None or ZERO not in case.weight.parts.values():
        raise Undecodable("it lacks zero points, or the indices of groups")
    numbers = case.lazy(indices)[...]
    if numbers.ndim != 1 or not np.array_equal(numbers, np.arange(len(numbers)) // size):
        raise Undecodable(f"{indices!r} are not the indices of blocks of {size}")


def _dense(case: StoredWeight, layer: KerasLayer) -> tuple[int, ...]:
    return case.matrix()[layer.mode in _CALIBRATED], _count(layer, "units")


def _embedding(case: StoredWeight, layer: KerasLayer) -> tuple[int, ...]:
    del case
    return _count(layer, "input_dim"), _count(layer, "output_dim")


def _einsum(case: StoredWeight, layer: KerasLayer) -> tuple[int, ...]:
    """Return the shape of a kernel, whose letters are those of inputs and outputs."""
    inputs, kernel, outputs = _letters(layer)
    if layer.mode == I8:
        return case.shape(case.payload)
    sizes: dict[str, int] = {}
    output_shape = layer.config.get("output_shape")
    ends = output_shape if isinstance(output_shape, list) else [output_shape]
    starts = layer.build_config.get("input_shape")
    for letters, shape in ((outputs, ends), (inputs, starts if isinstance(starts, list) else [])):
        pairs = zip(reversed(letters), reversed(shape), strict=False)
        sizes |= {letter: size for letter, size in pairs if isinstance(size, int)}
    if not set(kernel) <= sizes.keys():
        raise Undecodable("the model does not state the shape of its kernel")
    return tuple(sizes[letter] for letter in kernel)


_SHAPES = {"Dense": _dense, "EinsumDense": _einsum, **dict.fromkeys(_EMBEDDINGS, _embedding)}


def _letters(layer: KerasLayer) -> tuple[str, str, str]:
    """Return the letters of inputs, kernel and outputs of an equation."""
    equation = layer.config.get("equation")
    match = re.fullmatch(_EQUATION, equation) if isinstance(equation, str) else None
    if match is None:
        raise Undecodable(f"castwise cannot read its equation {equation!r}")
    return match[1], match[2], match[3]


def _matrix(layer: KerasLayer, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a kernel's shape as (inputs, outputs), where its axes are in this order."""
    _, kernel, outputs = _letters(layer)
    ends = [letter for letter in kernel if letter in outputs]
    count = len(kernel) - len(ends)
    in_order = "".join(letter for letter in outputs if letter in kernel)
    if kernel[count:] != "".join(ends) or (layer.mode == I8 and in_order != kernel[count:]):
        raise Undecodable(
            f"the axes of its kernel, {kernel!r}, are not those that are summed and then those of "
            "the outputs; castwise cannot decode it yet; Keras reads it"
        )
    return math.prod(shape[:count]), math.prod(shape[count:])


def _count(layer: KerasLayer, key: str) -> int:
    value = layer.config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Undecodable(f"the model states {key}={value!r} of its layer")
    return value
