"""`castwise dequantize`: decode the quantised weights of a checkpoint."""

from __future__ import annotations

import argparse
import sys

from castwise import checkpoint
from castwise._spelling import typed_format
from castwise.checkpoint import CastSummary
from castwise.checkpoint.decoding._decode import ARITHMETIC, FORMATS
from castwise.checkpoint.report import LOSSES
from castwise.cli import _findings, _folder_options
from castwise.cli._decode_table import decode_lines
from castwise.cli._findings import say_findings
from castwise.cli._output import OK
from castwise.cli._progress import ProgressLine
from castwise.cli._showing import add_arguments, shown

_DEQUANTIZE = """\
Decode the quantised weights of a checkpoint, a file or a folder of shards, and write
it as the plain model: names and shapes as of that, without scales, and without what
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
_EXIT_CODES = """\
exit codes:
  0  the checkpoint was written, or a part of it, or it is a dry run
  1  it was written, but values were lost as --fail-on says: they are infinite or NaN, or
     more nonzero codes of a weight became zero than --max-zeros allows; each is said on
     standard error
  2  an error, such as a weight without its scale; DST is as it was, unless the message
     says that it was written
  129, 130, 143  hung up, interrupted, terminated; DST is as it was, or complete
  141  it was written, but whoever read standard output had gone
"""


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description, parser.epilog = _DEQUANTIZE, _EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _folder_options.add_paths(parser)
    parser.add_argument(
        "--dtype",
        metavar="D",
        default=FORMATS[0],
        help=f"what the weights become: {', '.join(FORMATS)} (default: {FORMATS[0]})",
    )
    parser.add_argument(
        "--arithmetic",
        choices=ARITHMETIC,
        default=ARITHMETIC[0],
        help="as the producer's library does it, bit for bit (peer, the default), or the product "
        "of real numbers, rounded once (exact)",
    )
    parser.add_argument(
        "--only",
        metavar="REGEX",
        help="decode only the weights whose whole names, as of the plain model, match",
    )
    parser.add_argument("--threads", metavar="N", type=int, help="default: all cores")
    add_arguments(parser)
    _findings.add_arguments(parser, kinds=LOSSES)
    _folder_options.add_arguments(parser)
    parser.set_defaults(run=_dequantize, map=None)


def _dequantize(options: argparse.Namespace) -> int:
    summary = shown(options, lambda: _dequantize_file(options), decode_lines)
    if options.dry_run or _folder_options.say_part(options):
        return OK
    return say_findings(summary, options)


def _dequantize_file(options: argparse.Namespace) -> CastSummary:
    with ProgressLine(sys.stderr, quiet=options.quiet) as progress:
        summary: CastSummary = checkpoint.dequantize_file(
            options.source,
            options.destination,
            typed_format(options.dtype, "--dtype"),
            arithmetic=options.arithmetic,
            only=options.only,
            threads=options.threads,
            progress=progress.show if progress.visible else None,
            **_folder_options.folder_options(options),
        )
    return summary
