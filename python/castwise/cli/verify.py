"""`castwise verify`: compare the values of two checkpoints, or check who loads one."""

import argparse
import sys
from typing import get_args

from castwise import checkpoint
from castwise._options import Like, Nan, Overflow, Rounding
from castwise.checkpoint import CheckpointError, LoadingCheck, Verification
from castwise.checkpoint.loading.check import CHECKED
from castwise.checkpoint.requests.options import Quantize
from castwise.cli._arguments import (
    add_arguments,
    add_compared,
    add_option,
    add_output,
    compared_options,
)
from castwise.cli._output import FINDINGS, OK
from castwise.cli._parser import describe
from castwise.cli._results import ProgressLine, shown_result

_VERIFY = """\
Compare the values of two checkpoints, each unquantized or quantized in any way that
castwise dequantize reads. castwise decodes quantized weights in slabs, and matches
tensors by their names in the unquantized model. Values are the same if all their bits
are the same; any NaN equals any other NaN.

With --for and one checkpoint, check whether this consumer loads the checkpoint as it
is, from headers, by the consumer's own rules for quantized weights.
"""
_EXIT_CODES = """\
exit codes:
  0  all values are the same; the consumer loads it, or castwise does not know the model
  1  values differ, or one checkpoint lacks a tensor; the consumer does not load it
  2  an error, such as a weight without its scale
"""

_EXAMPLES = (
    "verify small other",
    "verify model.safetensors small.safetensors --map map.toml",
    "verify small --for vllm",
)

_OF_QUANTIZATIONS = ("recipe", "inputs", "scales", "zero_points", "importance")


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _VERIFY, _EXIT_CODES, examples=_EXAMPLES)
    add_compared(
        parser,
        "check that B is exactly what this map makes of A, by castwise cast, or by castwise "
        "quantize if the map names schemes; print one line to keep, with digests",
        one=True,
    )
    parser.add_argument(
        "--for",
        dest="consumer",
        metavar="CONSUMER",
        help=f"the consumer that will load A: {', '.join(CHECKED)}; instead of B",
    )
    cast = parser.add_argument_group("options of the cast, with --map")
    cast.add_argument("--rounding", choices=get_args(Rounding), help="as for castwise cast")
    cast.add_argument("--overflow", choices=get_args(Overflow), default="ieee")
    cast.add_argument("--nan", choices=get_args(Nan), default="keep")
    cast.add_argument("--seed", metavar="S", type=int, help="the seed of stochastic rounding")
    cast.add_argument("--like", choices=get_args(Like), help="as for castwise cast")
    quantization = parser.add_argument_group("options of the quantization, with --map")
    for name, option in Quantize.options.items():
        if name in _OF_QUANTIZATIONS:
            add_option(quantization, option)
    add_arguments(parser, "--architecture", "--threads")
    add_output(parser, "--html", formats=("--json", "--quiet"))
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    """Run `castwise verify`; returns 1 if the checkpoints differ, or are not loaded."""
    if options.consumer is not None:
        _refuse_others(options)
        with shown_result(options, LoadingCheck.__sheet__) as check:
            check.result = checkpoint.verify_loading(
                options.first, options.consumer, architecture=options.architecture
            )
        return FINDINGS if check.result.loads is False else OK
    if options.second is None:
        raise CheckpointError(
            "castwise verify compares two checkpoints: add B, or name a consumer that is to load A "
            "(--for)"
        )
    with (
        shown_result(options, Verification.__sheet__) as output,
        ProgressLine(sys.stderr, quiet=options.quiet) as progress,
    ):
        output.result = checkpoint.verify(
            options.first,
            options.second,
            **compared_options(options),
            rounding=options.rounding,
            overflow=options.overflow,
            nan=options.nan,
            seed=options.seed,
            like=options.like,
            architecture=options.architecture,
            **{name: getattr(options, name) for name in _OF_QUANTIZATIONS},
            threads=options.threads,
            progress=progress.show if progress.visible else None,
        )
    return OK if output.result.equal else FINDINGS


def _refuse_others(options: argparse.Namespace) -> None:
    """Refuse what goes with a comparison alone."""
    usual_scales = Quantize.options["scales"].default
    others = {
        "B": options.second,
        "--map": options.dtype_map,
        "--dtype": options.dtype,
        "--rounding": options.rounding,
        "--seed": options.seed,
        "--like": options.like,
        "--recipe": options.recipe,
        "--inputs": options.inputs,
        "--scales": None if options.scales == usual_scales else options.scales,
        "--zero-points": options.zero_points or None,
        "--importance": options.importance,
    }
    for name, value in others.items():
        if value is not None:
            raise CheckpointError(
                f"--for and {name} do not go together: --for asks who loads A; leave out {name}"
            )
