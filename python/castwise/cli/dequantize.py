"""`castwise dequantize`: decode the quantised weights of a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

from castwise import checkpoint
from castwise._spelling import typed_format
from castwise.checkpoint import CastSummary
from castwise.checkpoint.planning import ARITHMETIC, FORMATS
from castwise.checkpoint.report import LOSSES
from castwise.cli import _arguments
from castwise.cli._conversion import run_conversion

_DEQUANTIZE = """\
Decode the quantised weights of a checkpoint, a file or a folder of shards, and write
it as the unquantised model: its names and shapes, without scales, and without what
states the quantisation (in config.json, hf_quant_config.json, quantize_config.json,
quant_config.json and metadata). All other tensors stay as they are, byte for byte.

DST appears, or with --overwrite is replaced, when it is complete; it may be SRC
itself, which a loss leaves as it was. Weights pass through memory in slabs of whole
blocks; their scales may be in other shards.

Read are FP8 of DeepSeek, AutoFP8, fbgemm and Mistral, compressed-tensors, ModelOpt,
gpt-oss, DeepSeek-V4, ComfyUI, AWQ, GPTQ, bitsandbytes, MLX, Quark, torchao, Keras and
GGUF, as far as the documentation says. Nothing is guessed: what is incomplete or
contradicts itself is refused. A GGUF file, also a plain one, becomes a folder that
transformers loads, if castwise knows its architecture, or a .safetensors file with the
names of llama.cpp.
"""
_FINDINGS = """\
  1  it was written, but values were lost as --fail-on says: they are infinite or NaN, or
     more nonzero codes of a weight became zero than --max-zeros allows; each is said on
     standard error
"""
_ERROR = """\
  2  an error, such as a weight without its scale; DST is as it was, unless the message
     says that it was written
"""

_EXAMPLES = (
    "dequantize small plain",
    "dequantize small plain --dtype float32 --arithmetic exact",
)


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    _arguments.describe_conversion(
        parser, _DEQUANTIZE, findings=_FINDINGS, error=_ERROR, examples=_EXAMPLES
    )
    _arguments.add_arguments(parser, *_arguments.PATHS)
    target = parser.add_argument_group("target")
    target.add_argument(
        "--dtype",
        metavar="D",
        default=FORMATS[0],
        help=f"what the weights become: {', '.join(FORMATS)} (default: {FORMATS[0]})",
    )
    target.add_argument(
        "--arithmetic",
        choices=ARITHMETIC,
        default=ARITHMETIC[0],
        help="as the producer's library does it, bit for bit (peer, the default), or the product "
        "of real numbers, rounded once (exact)",
    )
    target.add_argument(
        "--only",
        metavar="REGEX",
        help="decode only the weights whose whole names, as of the unquantised model, match",
    )
    _arguments.add_losses(parser, kinds=LOSSES)
    _arguments.add_conversion_output(parser)
    _arguments.add_files(parser)
    parser.set_defaults(run=_dequantize, map=None)


def _dequantize(options: argparse.Namespace) -> int:
    """Run `castwise dequantize`; returns the exit code."""
    return run_conversion(options, _dequantize_file)


def _dequantize_file(options: argparse.Namespace, shared: dict[str, Any]) -> CastSummary:
    """Decode by the arguments of this command and those that commands share."""
    summary: CastSummary = checkpoint.dequantize_file(
        options.source,
        options.destination,
        typed_format(options.dtype, "--dtype"),
        arithmetic=options.arithmetic,
        only=options.only,
        **shared,
    )
    return summary
