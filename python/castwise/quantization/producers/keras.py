"""Keras, whose files number the variables of layers: see `keras_layers` for the layers."""

import re
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from castwise.quantization.producers.keras_layers import describe_kernel
from castwise.quantization.producers.layouts import (
    BYTES,
    MATRIX,
    OF_I8,
    OF_REAL,
    OF_U8,
    ZERO,
    Layout,
    Part,
    Storage,
    scale_part,
)
from castwise.quantization.producers.names import Described
from castwise.quantization.producers.producer import Producer

# The names of variables, which files of Keras number

# `layers/dense/vars/0`: the layer, and the number of its variable.
_VARIABLE = r"(?s)(.*)/vars/([0-9]{1,9})"


# What Keras keeps of a layer that computes in float8, after its float32 weights, in its order
# (`variable_serialization_spec` of Dense): each scale with the maxima that it follows from.
KERAS_FLOAT8 = tuple(
    f"keras_float8_{of}_{kind}"
    for of in ("inputs", "kernel", "outputs_grad")
    for kind in ("scale", "amax_history")
)

Info = TypeVar("Info", bound=Described)


def plain_names(tensors: Iterable[Info]) -> dict[str, Info]:
    """Map the names by which the recipes know tensors to them."""
    # Tensors have their own names, but Keras' files number the variables of layers: where one
    # is of bytes, or the last ones are those of float8, the order says which is the scale of what.
    infos = list(tensors)
    layers: dict[str, dict[int, Info]] = {}
    for info in infos:
        if "/vars/" in info.name and (match := re.fullmatch(_VARIABLE, info.name)):
            layers.setdefault(match[1], {})[int(match[2])] = info
    new_names: dict[str, str] = {}
    for layer, variables in layers.items():
        in_order = [variables[number] for number in sorted(variables)]
        new_names.update((info.name, f"{layer}/{name}") for info, name in _roles(in_order))
    return {new_names.get(info.name, info.name): info for info in infos}


def numbered_kernel(name: str) -> str | None:
    """Return the name that a numbered kernel has in an unquantized model; None for others."""
    match = re.fullmatch(_VARIABLE, name) if "/vars/" in name else None
    return f"{match[1]}/vars/0" if match else None


def _roles(variables: list[Info]) -> list[tuple[Info, str]]:
    """Name the variables of one layer: kernel, scale, zero point, indices."""
    # A bias may stand before the scale, and only the last of two vectors after a kernel is one.
    kernels = [info for info in variables if info.format in BYTES and len(info.shape) >= MATRIX]
    if not kernels:
        state = variables[-len(KERAS_FLOAT8) :]
        return [*zip(state, KERAS_FLOAT8, strict=True)] if _is_float8_state(state) else []
    later_variables = variables[variables.index(kernels[0]) + 1 :]
    zeros = [place for place, info in enumerate(later_variables) if info.format in BYTES]
    end = zeros[0] if zeros else len(later_variables)
    roles = [(kernels[0], "kernel")]
    if end > 0:
        roles.append((later_variables[end - 1], "kernel_scale"))
    if zeros:
        roles.append((later_variables[end], "kernel_zero"))
    rest = later_variables[end + 1 :]
    names = ("awq_scales", "g_idx") if len(rest) > 1 else ("g_idx",)
    return [*roles, *zip(rest, names, strict=False)]


def _is_float8_state(variables: list[Info]) -> bool:
    """Return True for three scalars, each before a vector of the same length."""
    ranks = [len(info.shape) for info in variables]
    lengths = {info.shape for info in variables[1::2]}
    return ranks == [0, 1] * (len(KERAS_FLOAT8) // 2) and len(lengths) == 1


KERAS = Producer(
    "keras",
    (
        *(
            Layout(
                "int_{}",
                "",
                (*OF_U8, *OF_I8),
                (
                    scale_part("_scale"),
                    Part("_zero", ZERO, (*OF_U8, *OF_I8)),
                    Part("g_idx", formats=OF_REAL, use="group index"),
                    Part("awq_scales", formats=OF_REAL, use="divisor"),
                ),
                parameters=parameters,
                storage=storage,
            )
            for parameters, storage in (
                (("kernel",), Storage(np.int8, divides=True, orientation="weight")),
                (("embeddings",), Storage(np.int8, divides=True)),
                (("quantized_kernel",), Storage(np.uint8, is_unsigned=True, orientation="pairs")),
            )
        ),
    ),
    scales="weight",
    channels=1,
    rule=describe_kernel,
    is_evident=True,
    axis=0,
    short_groups=True,
)
