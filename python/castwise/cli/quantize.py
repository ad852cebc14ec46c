"""`castwise quantize`: quantise the weights of a checkpoint."""

from __future__ import annotations

import argparse
from typing import Any

from castwise import checkpoint
from castwise.checkpoint import CastSummary
from castwise.checkpoint.planning import recipes, scheme_names
from castwise.cli import _arguments
from castwise.cli._conversion import run_conversion
from castwise.cli._output import say
from castwise.cli._paths import map_argument
from castwise.quantization import consumers
from castwise.rendering import unused_lines

_QUANTIZE = """\
Quantise the weights of a checkpoint, a file or a folder of shards, and write it as a
producer's tools do, bit for bit: codes and scales under its names, what states them in
config.json (and hf_quant_config.json), the index. Linear layers and stacked experts
are quantised; embeddings, norms, routers, heads and adapters stay unless the --map
names them (or --quantize-embeddings says yes), and all other tensors stay as they are,
byte for byte.

DST appears, or with --overwrite is replaced, when it is complete; it may be SRC
itself, which a loss leaves as it was. Weights pass through memory in slabs of whole
blocks; for a scale of the whole tensor they are read twice. Scales of inputs, which
need data, are not made.
"""
_FINDINGS = """\
  1  it was written, but of a tensor more nonzero values became zero than --max-zeros
     allows, or what else --fail-on names; each is said on standard error
"""
_ERROR = """\
  2  an error, such as a weight that is infinite; DST is as it was, unless the message
     says that it was written
"""

_EXAMPLES = (
    "quantize model small --scheme nvfp4",
    "quantize model small --scheme fp8_block --ignore '.*down_proj'",
    "quantize model small --scheme mxfp8_e4m3 --map llama --dry-run --measure",
)


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    _arguments.describe_conversion(
        parser, _QUANTIZE, findings=_FINDINGS, error=_ERROR, examples=_EXAMPLES
    )
    _arguments.add_arguments(parser, *_arguments.PATHS)
    target = parser.add_argument_group("target")
    target.add_argument(
        "--scheme",
        metavar="S",
        help=f"what linear layers become: {', '.join(scheme_names())}",
    )
    target.add_argument(
        "--recipe",
        metavar="R",
        help=f"whose checkpoint it is: {', '.join(recipes())} (default: the first of them "
        "that stores the scheme)",
    )
    target.add_argument(
        "--for",
        dest="consumer",
        metavar="WHO",
        help="who is to load the result: what it does not load is refused, and its producer is "
        f"the default: {', '.join(consumer.name for consumer in consumers())}",
    )
    target.add_argument(
        "--block",
        metavar="N|NxM",
        type=_block_argument,
        help="the columns, or rows and columns, that share a scale, where the scheme has a choice",
    )
    target.add_argument(
        "--map",
        metavar="FILE|NAME",
        type=map_argument,
        help='JSON or TOML: {"default": S, REGEX: S, D or "keep", ...}; a key matches whole names, '
        "S is a scheme, D a dtype to cast to. Or what a family of models keeps: "
        f"{', '.join(checkpoint.map_names())}",
    )
    target.add_argument(
        "--ignore",
        metavar="REGEX",
        action="append",
        default=[],
        help="leave the weights whose whole names, or whose modules', match; as often as needed",
    )
    target.add_argument(
        "--quantize-embeddings",
        metavar="yes|no",
        choices=("yes", "no"),
        default="no",
        help="whether embeddings and heads become that, too (default: those that the --map names)",
    )
    _arguments.add_arguments(target, "--architecture")
    _arguments.add_losses(parser)
    _arguments.add_conversion_output(parser)
    _arguments.add_files(parser)
    parser.set_defaults(run=_quantize, refuse=parser.error)


def _block_argument(text: str) -> int | tuple[int, int]:
    """Parse the columns, or rows x columns, of a block."""
    numbers = text.lower().split("x")
    if len(numbers) > 2 or not all(map(_arguments.is_count, numbers)):  # noqa: PLR2004
        raise argparse.ArgumentTypeError(f"{text!r} is not a block, such as 64 or 128x128")
    columns = int(numbers[-1])
    return columns if len(numbers) == 1 else (int(numbers[0]), columns)


def _quantize(options: argparse.Namespace) -> int:
    """Run `castwise quantize`, once its arguments agree; returns the exit code."""
    if options.scheme is None and options.map is None:
        options.refuse("give --scheme or --map")
    return run_conversion(options, _quantize_file, _warn)


def _warn(summary: CastSummary, options: argparse.Namespace) -> None:
    """Say which keys of a map had no effect."""
    for line in unused_lines(summary.unused_patterns):
        say(f"warning: {options.map}: {line}")


def _quantize_file(options: argparse.Namespace, shared: dict[str, Any]) -> CastSummary:
    """Quantise by the arguments of this command and those that commands share."""
    summary: CastSummary = checkpoint.quantize_file(
        options.source,
        options.destination,
        options.scheme,
        recipe=options.recipe,
        consumer=options.consumer,
        block=options.block,
        dtype_map=options.map,
        ignore=options.ignore,
        quantize_embeddings=options.quantize_embeddings == "yes",
        architecture=options.architecture,
        **shared,
    )
    return summary
