"""Carry out a conversion: files, shards, parts and pieces, and what makes a run resumable.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from castwise.checkpoint.running._journal import resumed_options
from castwise.checkpoint.running._other_files import OtherFiles, Patterns
from castwise.checkpoint.running._output_options import OutputOptions
from castwise.checkpoint.running._parts import RunPart, RunParts, convert_part, refuse_parts
from castwise.checkpoint.running._sizes import shard_bytes, size_in_bytes
from castwise.checkpoint.running._to_file import ToFile
from castwise.checkpoint.running._to_folder import ToFolder

__all__ = [
    "OtherFiles",
    "OutputOptions",
    "Patterns",
    "RunPart",
    "RunParts",
    "ToFile",
    "ToFolder",
    "convert_part",
    "refuse_parts",
    "resumed_options",
    "shard_bytes",
    "size_in_bytes",
]
