"""`castwise inspect`: what a checkpoint holds."""

import argparse
from functools import partial

from castwise import checkpoint
from castwise.checkpoint.results.inspection import inspection_sheet
from castwise.cli._arguments import PLACES, add_arguments, add_output, path_argument
from castwise.cli._output import OK
from castwise.cli._parser import describe
from castwise.cli._results import shown_result

_INSPECT = """\
List the tensors of a checkpoint from its headers, and which weights are quantized:
scheme, payload and scales, payloads without a scale, and scales without a payload.
"""
_EXAMPLES = ("inspect model", "inspect model.safetensors --all", "inspect model --json")


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _INSPECT, examples=_EXAMPLES)
    parser.add_argument(
        "file", metavar="FILE", type=path_argument, help=f"the checkpoint: {PLACES}"
    )
    add_arguments(parser, "--assume")
    add_output(parser, "--html", formats=("--json", "--all"))
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    """Run `castwise inspect`; returns the exit code."""
    with shown_result(options, partial(inspection_sheet, every=options.all)) as output:
        output.result = checkpoint.inspect(options.file, assume=options.assume)
    return OK
