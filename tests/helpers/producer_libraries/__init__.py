"""The producers' own libraries, a module for each: gigabytes, which `.ci/peers` installs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import (
    bitsandbytes,
    comfy,
    compressed_tensors,
    gguf,
    keras,
    mlx,
    modelopt,
    torchao,
    transformers,
)
from ._arrays import Producer, array, tensor
from ._llama import llama

__all__ = ["LIBRARIES", "WRITERS", "Producer", "array", "llama", "tensor"]

LIBRARIES: dict[str, dict[str, Producer]] = {
    "compressed-tensors": compressed_tensors.SCHEMES,
    "modelopt": modelopt.SCHEMES,
    "torchao": torchao.SCHEMES,
    "comfy": comfy.SCHEMES,
    "transformers": transformers.SCHEMES,
    "mlx": mlx.SCHEMES,
    "gguf": gguf.SCHEMES,
    "bitsandbytes": bitsandbytes.SCHEMES,
    "keras": keras.SCHEMES,
}
"""For each library its schemes, of weights."""

WRITERS: dict[str, Callable[[Path, Path], None]] = {
    **transformers.WRITERS,
    **bitsandbytes.WRITERS,
    **torchao.WRITERS,
    **compressed_tensors.WRITERS,
    **modelopt.WRITERS,
    **mlx.WRITERS,
    **comfy.WRITERS,
    **keras.WRITERS,
}
"""What saves a quantized model in a folder, of an unquantized one in another."""
