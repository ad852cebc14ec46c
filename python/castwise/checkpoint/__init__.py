"""Checkpoint files: load, save, inspect, compare and convert whole models.

Containers: `.safetensors` (a file, or a folder of shards with its index, also one with others
inside, such as a pipeline of diffusers), `.npz` and `.npy`, in which all formats of castwise's
table survive; `.h5` and `.keras`, which hold those that Keras reads; and the files of torch
(`.pt`, `.pth`, `.bin`, `.ckpt`), which are only read.

Files are untrusted: headers are checked before anything they claim is allocated, and no pickle is
ever unpickled. A written file appears under its name only when it is complete.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.arrays.casting import tensor_seed
    from castwise.arrays.dtype_map import DtypeMap
    from castwise.checkpoint._errors import CheckpointError
    from castwise.checkpoint._tensors import TensorInfo
    from castwise.checkpoint.advice.advice import Advice, Choice
    from castwise.checkpoint.advice.advise import advise
    from castwise.checkpoint.arrays import inspect, load, metadata, save
    from castwise.checkpoint.comparison.diff import diff
    from castwise.checkpoint.comparison.explanations import CastExplanation
    from castwise.checkpoint.comparison.loading import LoadingCheck, verify_loading
    from castwise.checkpoint.comparison.results import Diff, TensorDiff
    from castwise.checkpoint.comparison.verification import Difference, Verification
    from castwise.checkpoint.comparison.verify import verify
    from castwise.checkpoint.conversions import (
        cast_file,
        dequantize_file,
        finish,
        quantize_file,
        transcode_file,
    )
    from castwise.checkpoint.maps import map_names
    from castwise.checkpoint.results.inspection import Inspection
    from castwise.checkpoint.results.preview import CastPlan
    from castwise.checkpoint.results.report import CastRow, DecodeReport, Finding, Progress
    from castwise.checkpoint.results.summary import CastSummary
    from castwise.checkpoint.surveying import CheckpointSurvey, TensorSurvey, survey_file
    from castwise.quantization import Orphan, Quantization, QuantizedWeight
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.arrays.dtype_map": ("DtypeMap",),
            "castwise.arrays.casting": ("tensor_seed",),
            "castwise.checkpoint._errors": ("CheckpointError",),
            "castwise.checkpoint._tensors": ("TensorInfo",),
            "castwise.checkpoint.results.inspection": ("Inspection",),
            "castwise.checkpoint.arrays": (
                "inspect",
                "load",
                "metadata",
                "save",
            ),
            "castwise.checkpoint.conversions": (
                "cast_file",
                "dequantize_file",
                "finish",
                "quantize_file",
                "transcode_file",
            ),
            "castwise.checkpoint.maps": ("map_names",),
            "castwise.checkpoint.results.preview": ("CastPlan",),
            "castwise.checkpoint.results.report": (
                "CastRow",
                "DecodeReport",
                "Finding",
                "Progress",
            ),
            "castwise.checkpoint.results.summary": ("CastSummary",),
            "castwise.checkpoint.surveying": (
                "CheckpointSurvey",
                "TensorSurvey",
                "survey_file",
            ),
            "castwise.checkpoint.advice.advice": (
                "Advice",
                "Choice",
            ),
            "castwise.checkpoint.advice.advise": ("advise",),
            "castwise.checkpoint.comparison.explanations": ("CastExplanation",),
            "castwise.checkpoint.comparison.results": (
                "Diff",
                "TensorDiff",
            ),
            "castwise.checkpoint.comparison.verification": (
                "Difference",
                "Verification",
            ),
            "castwise.checkpoint.comparison.loading": (
                "LoadingCheck",
                "verify_loading",
            ),
            "castwise.checkpoint.comparison.diff": ("diff",),
            "castwise.checkpoint.comparison.verify": ("verify",),
            "castwise.quantization": (
                "Orphan",
                "Quantization",
                "QuantizedWeight",
            ),
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
