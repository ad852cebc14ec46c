"""`castwise transcode`: convert a quantized checkpoint to another producer's layout."""

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
biases in float32. Such a file becomes a folder that transformers loads (--to gpt-oss for
a model of gpt-oss, else --to compressed-tensors), or a file that ends with
.safetensors, with the names of llama.cpp.
Names, shapes and the statements of the quantization change. A global scale that divides
for one producer becomes a reciprocal with which every value decodes to the same number
in bfloat16 and float16; if there is none, nothing is written. The bytes of all other
tensors do not change. castwise verify --arithmetic exact shows that the values are the
same; without the option it decodes each checkpoint as its producer does, and producers
may round differently.

With --scheme, MXFP4 becomes NVFP4, and DeepSeek-V4's experts become FP8 in blocks, if
the scheme represents all values. If not, the message names the block, and nothing is
written.

DST appears, or with --overwrite is replaced, when it is complete. DST may be SRC
itself; a loss then leaves SRC unchanged. For other producers, run castwise dequantize,
then castwise quantize.
"""
_FINDINGS = """\
  1  DST was written, but has losses that --fail-on names: values that decode to infinity
     or NaN, or nonzero codes that decode to zero; standard error lists the losses
"""
_ERROR = """\
  2  an error, such as a part for which the other producer has no place; DST is
     unchanged, unless the message reports that it was written
"""


_UNREAD = (
    "codes and scales were not read: a value that the other form cannot hold is found, and "
    "refused, when they are written"
)

_EXAMPLES = ("transcode small other --to modelopt", "transcode small other --to modelopt --dry-run")


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
