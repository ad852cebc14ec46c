"""Plan checkpoints whose tensors are derived from those of others: decoded, encoded, transcoded.

A function of each stage (`decode`, `encode`, `transcode`) reads a `SourceComponent` and returns
what it becomes: a frozen `Derived`, which has the tensors with the jobs that make them, and what
states how they are stored. A `DerivedReader` then stands for each shard, and a `DerivedCheckpoint`
for all of them, which a request writes.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.checkpoint.planning._checkpoint_model import (
        CheckpointModel,
        architecture_option,
        checked_architecture,
        component_model,
        model_of,
    )
    from castwise.checkpoint.planning._component import pattern_of
    from castwise.checkpoint.planning._consumers_check import UnloadableError
    from castwise.checkpoint.planning._derived_checkpoint import DerivedCheckpoint
    from castwise.checkpoint.planning._derived_reader import DerivedReader, DerivedTensor
    from castwise.checkpoint.planning._stated_quantization import (
        model_types,
        quantization_of,
        refuse_changes,
        stated_dtype,
        stated_of,
    )
    from castwise.checkpoint.planning._stored_tensors import StoredTensors
    from castwise.checkpoint.planning._written_schemes import (
        changed_schemes,
        consumer_named,
        form_names,
        is_scheme,
        most_versatile_recipe,
        recipe_for,
        recipes,
        scheme_beside,
        scheme_names,
        written,
        written_schemes,
    )
    from castwise.checkpoint.planning.decode._decode import decode_checkpoint, decode_refusal
    from castwise.checkpoint.planning.decode._options import (
        FORMATS,
        checked_threads,
        decoding_of,
    )
    from castwise.checkpoint.planning.encode._encode import (
        TABLES,
        Encode,
        candidate_parts,
        encode_checkpoint,
        statement_sizes,
    )
    from castwise.checkpoint.planning.encode._encoded_weight import compare_decoded
    from castwise.checkpoint.planning.transcode._transcode import transcode_checkpoint
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.checkpoint.planning._checkpoint_model": (
                "CheckpointModel",
                "architecture_option",
                "checked_architecture",
                "component_model",
                "model_of",
            ),
            "castwise.checkpoint.planning._component": ("pattern_of",),
            "castwise.checkpoint.planning._consumers_check": ("UnloadableError",),
            "castwise.checkpoint.planning._derived_checkpoint": ("DerivedCheckpoint",),
            "castwise.checkpoint.planning._derived_reader": ("DerivedReader", "DerivedTensor"),
            "castwise.checkpoint.planning._stated_quantization": (
                "model_types",
                "quantization_of",
                "refuse_changes",
                "stated_dtype",
                "stated_of",
            ),
            "castwise.checkpoint.planning._stored_tensors": ("StoredTensors",),
            "castwise.checkpoint.planning._written_schemes": (
                "changed_schemes",
                "consumer_named",
                "form_names",
                "is_scheme",
                "most_versatile_recipe",
                "recipe_for",
                "recipes",
                "scheme_beside",
                "scheme_names",
                "written",
                "written_schemes",
            ),
            "castwise.checkpoint.planning.decode._decode": (
                "decode_checkpoint",
                "decode_refusal",
            ),
            "castwise.checkpoint.planning.decode._options": (
                "FORMATS",
                "checked_threads",
                "compare_decoded",
                "decoding_of",
            ),
            "castwise.checkpoint.planning.encode._encode": (
                "TABLES",
                "Encode",
                "candidate_parts",
                "encode_checkpoint",
                "statement_sizes",
            ),
            "castwise.checkpoint.planning.encode._encoded_weight": ("compare_decoded",),
            "castwise.checkpoint.planning.transcode._transcode": ("transcode_checkpoint",),
        },
    )

__all__ = [
    "FORMATS",
    "TABLES",
    "CheckpointModel",
    "DerivedCheckpoint",
    "DerivedReader",
    "DerivedTensor",
    "Encode",
    "StoredTensors",
    "UnloadableError",
    "architecture_option",
    "candidate_parts",
    "changed_schemes",
    "checked_architecture",
    "checked_threads",
    "compare_decoded",
    "component_model",
    "consumer_named",
    "decode_checkpoint",
    "decode_refusal",
    "decoding_of",
    "encode_checkpoint",
    "form_names",
    "is_scheme",
    "model_of",
    "model_types",
    "most_versatile_recipe",
    "pattern_of",
    "quantization_of",
    "recipe_for",
    "recipes",
    "refuse_changes",
    "scheme_beside",
    "scheme_names",
    "stated_dtype",
    "stated_of",
    "statement_sizes",
    "transcode_checkpoint",
    "written",
    "written_schemes",
]
