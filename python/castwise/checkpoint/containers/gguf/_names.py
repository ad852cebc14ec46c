"""What llama.cpp calls the tensors of a model of transformers: by the map of the package gguf."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.gguf._architectures import (
    AXES,
    READ,
    GgufArchitecture,
    experts_of,
    gguf_package,
    stated_key,
)
from castwise.checkpoint.containers.whole_models import MappedTensor, Place, Rows
from castwise.models.architecture import Parameter, find_architecture

_LAYER, _EXPERT = "layers.#.", "experts.#."
_ENDS = (".weight", ".bias")
_JOINT, _HALVES = "gate_up_proj", ("gate_proj", "up_proj")
"""A tensor that the map lacks, and the two that it has; the first has the even rows."""


def tensors(row: GgufArchitecture, config: Mapping[str, Any]) -> Iterator[MappedTensor]:
    """List the tensors of a model, layer by layer; there may be more than any file has."""
    patterns = _patterns(row, config)
    yield from (pattern for pattern in patterns if "{layer}" not in pattern.name)
    inner = [pattern for pattern in patterns if "{layer}" in pattern.name]
    for layer in range(config["num_hidden_layers"]):
        for pattern in inner:
            experts = range(experts_of(config)) if "{expert}" in pattern.name else [None]
            yield from (_fill_numbers(pattern, layer, expert) for expert in experts)


def _fill_numbers(pattern: MappedTensor, layer: int | None, expert: int | None) -> MappedTensor:
    places = [
        place._replace(name=place.name.format(layer=layer), expert=expert)
        for place in pattern.places
    ]
    return pattern._replace(name=pattern.name.format(layer=layer, expert=expert), places=places)


def _patterns(row: GgufArchitecture, config: Mapping[str, Any]) -> list[MappedTensor]:
    """Map the parameters of a class, in the order of `AXES`, with {layer} and {expert} in names."""
    package = gguf_package()
    kind = next((kind for kind, name in package.MODEL_ARCH_NAMES.items() if name == row.name), None)
    model = find_architecture({"architectures": [row.model]})
    if kind is None or model is None:
        raise CheckpointError(
            f"the package gguf that is installed does not know {row.name}; update it: "
            "pip install -U 'castwise[gguf]'"
        )
    names = name_map(kind)
    stack_names = {*model.modules.values()}  # of experts that files have one by one
    patterns: dict[tuple[int, bool], MappedTensor] = {}
    for parameter in model.parameters.values():
        becomes = _becomes(names, parameter) if parameter.name not in stack_names else []
        stem, _, end = "".join(becomes[:1]).removeprefix("blk.{layer}.").partition(".")
        is_bias = end == "bias"
        if stem in AXES and not (is_bias and stem not in row.biases):
            patterns[[*AXES].index(stem), is_bias] = _pattern(row, config, parameter, becomes, stem)
    return [patterns[key] for key in sorted(patterns)]


def name_map(kind: Any) -> Any:  # noqa: ANN401  (without types)
    """Return the package's names of an architecture, for its first layer."""
    # The package adds names of few architectures (ARCTIC) to those that all maps share, which other
    # architectures would have from then on. So each map gets names of its own.
    package = gguf_package()
    shared = package.TensorNameMap
    own = {"block_mappings_cfg": {**shared.block_mappings_cfg}}
    return type(shared.__name__, (shared,), own)(kind, 1)


def _becomes(names: Any, parameter: Parameter) -> list[str]:  # noqa: ANN401  (without types)
    """Return what a parameter becomes; nothing if the architecture has none of it."""
    name = parameter.name.replace(_LAYER, "layers.0.").replace(_EXPERT, "experts.")
    if name.endswith("_bias"):
        name = f"{name.removesuffix('_bias')}.bias"
    elif not name.endswith(_ENDS):
        name += ".weight"
    is_joint = (
        _JOINT in name and parameter.joint != "halves" and names.get_name(name, _ENDS) is None
    )
    spellings = [name.replace(_JOINT, half) for half in _HALVES] if is_joint else [name]
    becomes = [names.get_name(spelling, _ENDS) for spelling in spellings]
    return [] if None in becomes else [name.replace("blk.0.", "blk.{layer}.") for name in becomes]


def _pattern(
    row: GgufArchitecture,
    config: Mapping[str, Any],
    parameter: Parameter,
    becomes: list[str],
    stem: str,
) -> MappedTensor:
    """Describe a parameter: what of the configuration states its axes, and where its rows are."""
    keys = {key.name: stated_key(config, key.config_key) for key in (*row.keys, *READ)}
    axes = [
        " * ".join(keys[factor] for factor in axis.split(" * "))
        for axis in row.axes.get(stem, AXES[stem]).split(", ")
    ]
    is_bias = becomes[0].endswith(".bias")
    axes = axes[_EXPERT in parameter.name : len(axes) - (is_bias and len(axes) > 1)]
    axis, count = len(axes) - (1 if is_bias or len(axes) == 1 else 2), len(becomes)
    rows = [Rows(count, index) for index in range(count)]
    if count > 1:
        axes[axis] = f"{count} * {axes[axis]}"
    if stem in row.rotated:
        rows = [Rows(config["head_dim"], None)]
        if config["head_dim"] % 2:
            raise CheckpointError(f"head_dim is {config['head_dim']}, and heads have two halves")
    name = parameter.name.replace(_LAYER, "layers.{layer}.").replace(_EXPERT, "experts.{expert}.")
    places = [Place(new_name, None, picks) for new_name, picks in zip(becomes, rows, strict=True)]
    return MappedTensor(name, tuple(_size(axis, config) for axis in axes), axes, axis, places)


def _size(axis: str, config: Mapping[str, Any]) -> Any:  # noqa: ANN401  (of JSON)
    """Return the length of an axis that a configuration with all hyperparameters states."""
    sizes = [
        int(factor) if factor.isdecimal() else config.get(factor) for factor in axis.split(" * ")
    ]
    return math.prod(sizes) if len(sizes) > 1 else sizes[0]
