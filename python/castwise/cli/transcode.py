"""`castwise transcode`: convert a quantized checkpoint to another producer's layout."""

from __future__ import annotations

import argparse

from castwise.checkpoint import CastSummary
from castwise.checkpoint.requests.options import Transcode
from castwise.cli._conversion import ConversionCommand
from castwise.cli._output import show

_TRANSCODE = """\
Write a quantized checkpoint, a file or a folder of shards, as another producer stores
it, with the same codes and scales, and so the same values: NVFP4, MXFP8 and FP8 of
ModelOpt, compressed-tensors and ComfyUI, from one to another; MXFP4 of gpt-oss and
compressed-tensors, and of GGUF files; integers of AWQ and GPTQ as compressed-tensors.
--to gguf makes the file that llama.cpp runs of a folder in MXFP4 (of gpt-oss, Llama,
Mistral, Qwen and others): with its names, hyperparameters and tokens, and norms and
biases in float32. Such a file becomes a folder that transformers loads (--to gpt-oss if
it is of that, else --to compressed-tensors), or a file that ends with .safetensors,
with the names of llama.cpp.
Names, shapes and what states the quantization change; a global scale that divides in
one of them becomes its reciprocal, one with which every value decodes to the same in
bfloat16 and float16, or nothing is written. All other tensors stay, byte for byte.
castwise verify --arithmetic exact shows that the values are the same; without the
option each checkpoint is decoded as its producer does, which may round otherwise.

With --scheme, MXFP4 becomes NVFP4, and DeepSeek-V4's experts FP8 in blocks, if these
have all values; else the block that has one too many is named, and nothing written.

DST appears, or with --overwrite is replaced, when it is complete; it may be SRC
itself, which a loss leaves as it was. For other producers: castwise dequantize, then
castwise quantize.
"""
_FINDINGS = """\
  1  it was written, but has values that are lost as --fail-on says: whoever decodes it
     finds them infinite, NaN, or nonzero codes that become zero; each goes to
     standard error
"""
_ERROR = """\
  2  an error, such as a part that the other producer has no place for; DST is as it
     was, unless the message says that it was written
"""


_UNREAD = (
    "codes and scales were not read: a value that the other form cannot hold is found, and "
    "refused, when they are written"
)

_EXAMPLES = (
    "transcode small other --to modelopt",
    "transcode small other --to modelopt --dry-run",
)


def _warn(_summary: CastSummary, options: argparse.Namespace) -> None:
    """Report what a dry run has not checked."""
    if options.dry_run and not options.json:
        show([_UNREAD])


define = ConversionCommand(
    request=Transcode,
    description=_TRANSCODE,
    findings=_FINDINGS,
    error=_ERROR,
    examples=_EXAMPLES,
    warn=_warn,
).define
