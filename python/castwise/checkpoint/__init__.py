"""Checkpoint files: load, save, look into, and cast whole models.

Containers: `.safetensors` (a file, or a folder of shards with its index, also one with others
inside, such as a pipeline of diffusers), `.npz` and `.npy`, in which all formats of castwise's
table survive; `.h5` and `.keras`, which hold those that Keras reads; and the files of torch
(`.pt`, `.pth`, `.bin`, `.ckpt`), which are only read.

Files are untrusted: headers are checked before anything they claim is allocated, and no pickle is
ever unpickled. What is written appears under its name only when it is complete.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise._dtype_map import DtypeMap
    from castwise._seeding import tensor_seed
    from castwise.checkpoint._errors import CheckpointError
    from castwise.checkpoint._inspection import Inspection
    from castwise.checkpoint._tensors import TensorInfo
    from castwise.checkpoint.advice import Advice, Choice, advise
    from castwise.checkpoint.arrays import inspect, load, metadata, save
    from castwise.checkpoint.comparison import (
        CastExplanation,
        Diff,
        Difference,
        LoadingCheck,
        TensorDiff,
        Verification,
        diff,
        verify,
        verify_loading,
    )
    from castwise.checkpoint.conversions import (
        cast_file,
        dequantize_file,
        finish,
        quantize_file,
        transcode_file,
    )
    from castwise.checkpoint.maps import map_names
    from castwise.checkpoint.preview import CastPlan
    from castwise.checkpoint.report import CastRow, DecodeReport, Finding, Progress
    from castwise.checkpoint.summary import CastSummary
    from castwise.checkpoint.surveying import CheckpointSurvey, TensorSurvey, survey_file
    from castwise.quantization import Orphan, Quantization, QuantizedWeight
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise._dtype_map": ("DtypeMap",),
            "castwise._seeding": ("tensor_seed",),
            "castwise.checkpoint._errors": ("CheckpointError",),
            "castwise.checkpoint._tensors": ("TensorInfo",),
            "castwise.checkpoint._inspection": ("Inspection",),
            "castwise.checkpoint.arrays": ("inspect", "load", "metadata", "save"),
            "castwise.checkpoint.conversions": (
                "cast_file",
                "dequantize_file",
                "finish",
                "quantize_file",
                "transcode_file",
            ),
            "castwise.checkpoint.maps": ("map_names",),
            "castwise.checkpoint.preview": ("CastPlan",),
            "castwise.checkpoint.report": (
                "CastRow",
                "DecodeReport",
                "Finding",
                "Progress",
            ),
            "castwise.checkpoint.summary": ("CastSummary",),
            "castwise.checkpoint.surveying": ("CheckpointSurvey", "TensorSurvey", "survey_file"),
            "castwise.checkpoint.advice": ("Advice", "Choice", "advise"),
            "castwise.checkpoint.comparison": (
                "CastExplanation",
                "Diff",
                "Difference",
                "LoadingCheck",
                "TensorDiff",
                "Verification",
                "diff",
                "verify",
                "verify_loading",
            ),
            "castwise.quantization": ("Orphan", "Quantization", "QuantizedWeight"),
        },
    )

__all__ = [
    "Advice",
    "CastExplanation",
    "CastPlan",
    "CastRow",
    "CastSummary",
    "CheckpointError",
    "CheckpointSurvey",
    "Choice",
    "DecodeReport",
    "Diff",
    "Difference",
    "DtypeMap",
    "Finding",
    "Inspection",
    "LoadingCheck",
    "Orphan",
    "Progress",
    "Quantization",
    "QuantizedWeight",
    "TensorDiff",
    "TensorInfo",
    "TensorSurvey",
    "Verification",
    "advise",
    "cast_file",
    "dequantize_file",
    "diff",
    "finish",
    "inspect",
    "load",
    "map_names",
    "metadata",
    "quantize_file",
    "save",
    "survey_file",
    "tensor_seed",
    "transcode_file",
    "verify",
    "verify_loading",
]


def __dir__() -> list[str]:
    return __all__
