"""Checkpoint files: load, save, look into, and cast whole models.

Containers: `.safetensors` (a file, or a folder of shards with its index), `.npz`, `.npy`. All
formats of castwise's table survive in all of them. Files are untrusted: headers are checked before
anything they claim is allocated, and no pickle is ever opened. What is written appears under its
name only when it is complete.
"""

from castwise._dtype_map import DtypeMap
from castwise._seeding import tensor_seed
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.arrays import Inspection, inspect, load, metadata, save
from castwise.checkpoint.convert import cast_file
from castwise.checkpoint.report import CastRow, CastSummary, Progress

__all__ = [
    "CastRow",
    "CastSummary",
    "CheckpointError",
    "DtypeMap",
    "Inspection",
    "Progress",
    "TensorInfo",
    "cast_file",
    "inspect",
    "load",
    "metadata",
    "save",
    "tensor_seed",
]


def __dir__() -> list[str]:
    return __all__
