"""Checkpoint files: load, save, inspect, compare and convert whole models.

Containers: `.safetensors` (a file, or a folder of shards with its index, also one with others
inside, such as a pipeline of diffusers), `.npz` and `.npy`, in which all formats of castwise's
table survive; `.h5` and `.keras`, which hold those that Keras reads; and the files of torch
(`.pt`, `.pth`, `.bin`, `.ckpt`), which are only read.

Files are untrusted: headers are checked before anything they claim is allocated, and no pickle is
ever unpickled. A written file appears under its name only when it is complete.
"""

from castwise._on_demand import on_demand

# Type checkers read `__init__.pyi`, which has the same.
_NAMES = {
    "castwise.arrays.casting": ("tensor_seed",),
    "castwise.arrays.dtype_map": ("DtypeMap",),
    "castwise.checkpoint._errors": ("CheckpointError",),
    "castwise.checkpoint._tensors": ("TensorInfo",),
    "castwise.checkpoint.advice.advice": ("Advice", "Choice"),
    "castwise.checkpoint.advice.advise": ("advise",),
    "castwise.checkpoint.arrays": ("inspect", "load", "metadata", "save"),
    "castwise.checkpoint.comparison.diff": ("diff",),
    "castwise.checkpoint.comparison.explanations": ("CastExplanation",),
    "castwise.checkpoint.comparison.loading": ("LoadingCheck", "verify_loading"),
    "castwise.checkpoint.comparison.results": ("Diff", "TensorDiff"),
    "castwise.checkpoint.comparison.verification": ("Difference", "Verification"),
    "castwise.checkpoint.comparison.verify": ("verify",),
    "castwise.checkpoint.conversions": (
        "cast_file",
        "dequantize_file",
        "finish",
        "quantize_file",
        "transcode_file",
    ),
    "castwise.checkpoint.maps": ("map_names",),
    "castwise.checkpoint.results.inspection": ("Inspection",),
    "castwise.checkpoint.results.report": ("CastRow", "DecodeReport", "Finding", "Progress"),
    "castwise.checkpoint.results.summary": ("CastPlan", "CastSummary"),
    "castwise.checkpoint.surveying": ("CheckpointSurvey", "TensorSurvey", "survey_file"),
    "castwise.quantization": ("Orphan", "Quantization", "QuantizedWeight"),
}
__getattr__ = on_demand(__name__, _NAMES)
__all__ = tuple(sorted(name for names in _NAMES.values() for name in names))


def __dir__() -> list[str]:
    return [*__all__]
