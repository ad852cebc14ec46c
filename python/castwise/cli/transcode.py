"""`castwise transcode`: lay a quantised checkpoint anew, as another producer stores it."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from castwise import checkpoint
from castwise.checkpoint import CastSummary
from castwise.checkpoint.encoding._written_schemes import changed_schemes, form_names
from castwise.checkpoint.report import LOSSES
from castwise.cli import _findings, _folder_options
from castwise.cli._decode_table import decode_lines
from castwise.cli._findings import say_findings
from castwise.cli._output import OK, show
from castwise.cli._progress import ProgressLine
from castwise.cli._showing import add_arguments, shown

_TRANSCODE = """\
Write a quantised checkpoint, a file or a folder of shards, as another producer stores
it, with the same codes and scales, and so the same values: NVFP4, MXFP8 and FP8 of
ModelOpt, compressed-tensors and ComfyUI, from one to another; MXFP4 of gpt-oss and
compressed-tensors, and of GGUF files; integers of AWQ and GPTQ as compressed-tensors.
--to gguf makes the file that llama.cpp runs of a folder of gpt-oss, Qwen3, Qwen3-MoE,
Llama or Mistral in MXFP4: with its names, hyperparameters and tokens, and norms and
biases in float32. Such a file becomes a folder that transformers loads (--to gpt-oss if
it is of that, else --to compressed-tensors), or a file that ends with .safetensors,
with the names of llama.cpp.
Names, shapes and what states the quantisation change; a global scale that divides in
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
_EXIT_CODES = """\
exit codes:
  0  the checkpoint was written, or a part of it, or it is a dry run
  1  it was written, but has values that are lost as --fail-on says: whoever decodes it
     finds them infinite, NaN, or nonzero codes that become zero; each is said on
     standard error
  2  an error, such as a part that the other producer has no place for; DST is as it
     was, unless the message says that it was written
  129, 130, 143  hung up, interrupted, terminated; DST is as it was, or complete
  141  it was written, but whoever read standard output had gone
"""


_UNREAD = (
    "codes and scales were not read: a value that the other form cannot hold is found, and "
    "refused, when they are written"
)
LINES = partial(decode_lines, done="transcoded")
"""Prints what was transcoded."""


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description, parser.epilog = _TRANSCODE, _EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _folder_options.add_paths(parser)
    parser.add_argument(
        "--to", metavar="R", required=True, help=f"the producer: {', '.join(form_names())}"
    )
    parser.add_argument(
        "--scheme",
        metavar="S",
        help=f"another scheme to hold the values: {' or '.join(changed_schemes())}",
    )
    add_arguments(parser)
    _findings.add_arguments(parser, kinds=LOSSES)
    _folder_options.add_arguments(parser)
    parser.set_defaults(run=_transcode, map=None)


def _transcode(options: argparse.Namespace) -> int:
    summary = shown(options, lambda: _transcode_file(options), LINES)
    if options.dry_run and not options.json:
        show([_UNREAD])
    if options.dry_run or _folder_options.say_part(options):
        return OK
    return say_findings(summary, options)


def _transcode_file(options: argparse.Namespace) -> CastSummary:
    with ProgressLine(sys.stderr, quiet=options.quiet) as progress:
        summary: CastSummary = checkpoint.transcode_file(
            options.source,
            options.destination,
            options.to,
            scheme=options.scheme,
            progress=progress.show if progress.visible else None,
            **_folder_options.folder_options(options),
        )
    return summary
