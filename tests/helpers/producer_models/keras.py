"""Keras: its layers' codes and scales, also by GPTQ and AWQ."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from castwise import checkpoint

from ._decodable import Array
from ._headers import Layouts, Model, Recorded

PATH = "model/layers/dense_1/vars"


class Kernel(NamedTuple):
    """The variables of a layer beside its bias, and the kernel that they mean."""

    variables: dict[str, Array]
    plain: Array


def packed(codes: Array) -> Array:
    """Pack two rows of codes of 4 bits into one, the first in the low bits."""
    even = np.concatenate([codes, np.zeros((len(codes) % 2, codes.shape[1]), np.uint8)])
    return np.asarray(even[::2] | even[1::2] << 4, np.uint8)


def calibrated(
    inputs: int, outputs: int, bits: int, size: int, *, ordered: bool = True, awq: bool = False
) -> Kernel:
    """Draw a layer, and decode it as `Dense._gptq_call` and `Dense._awq_call` do."""
    draw = np.random.default_rng([inputs, outputs, bits, size, ordered, awq])
    codes = draw.integers(0, 1 << bits, (outputs, inputs), dtype=np.uint8)
    groups = -(-inputs // size)
    scale = (draw.standard_normal((outputs, groups)) / 9).astype(np.float32)
    zero = draw.integers(0, 256, (outputs, groups), dtype=np.uint8)
    place = np.arange(inputs) / size
    index = (place if ordered else draw.permutation(place)).astype(np.float32)
    if ordered:
        index = np.floor(index)
    of_input = index.astype(int)
    kernel = ((codes - zero[:, of_input].astype(np.float32)) * scale[:, of_input]).T
    variables = {
        "kernel": packed(codes) if bits == 4 else codes,
        "scale": scale,
        "zero": zero,
    }
    if awq:
        variables["awq"] = draw.uniform(0.3, 3, inputs).astype(np.float32)
        kernel = kernel / variables["awq"][:, None]
    return Kernel({**variables, "groups": index}, np.ascontiguousarray(kernel))


def saved(path: Path, variables: dict[str, Array]) -> Path:
    tensors = {f"{PATH}/{place}": one for place, one in enumerate(variables.values())}
    checkpoint.save(path, tensors)
    return path


LAYOUTS: Layouts = {
    "keras, by name": (
        Model({"dense/kernel": ("I8", (8, 4)), "dense/kernel_scale": ("F32", (4,))}, {}, {}),
        "int_channel",
        None,
        "keras",
    ),
    "keras, gptq": (
        Model(
            {
                "layers/dense/vars/0": ("F32", (8,)),
                "layers/dense/vars/1": ("U8", (4, 16)),
                "layers/dense/vars/2": ("F32", (8, 2)),
                "layers/dense/vars/3": ("U8", (8, 2)),
                "layers/dense/vars/4": ("F32", (16,)),
            },
            {},
            {},
        ),
        "int_group",
        None,
        "keras",
    ),
}


RECORDED: Recorded = {
    "keras int8": ("int_channel", None, "keras", 2, {"1", "2"}),
    "keras int4": ("int_group", None, "keras", 2, {"1", "2", "3", "4"}),
}
