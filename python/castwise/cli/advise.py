"""`castwise advise`: which format or scheme each weight gets."""

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from castwise import checkpoint
from castwise.checkpoint import Advice, CheckpointError
from castwise.checkpoint.advice.advice import advice_sheet, check_map_file
from castwise.cli._arguments import add_arguments, add_output, local_path_argument, names_argument
from castwise.cli._output import OK, say
from castwise.cli._parser import describe
from castwise.cli._results import ProgressLine, shown_result
from castwise.quantization import consumers
from castwise.quantization.producers.schemes import SCALES
from castwise.text.parsed_files import parsed_file

_ADVISE = """\
Advise a format or scheme for each weight of a checkpoint. The checkpoint takes at most
the given bytes, or bits a parameter, or has at most the given error. Among the choices
that fit, castwise takes those with the least sum of relative squared errors. It reads
every weight once, and needs no data and no GPU. Weights that engines fuse, and the
experts of a layer, share a choice. Routers get at least 16 bits, and so do embeddings
and heads for consumers that do not load them quantized. Norms do not change.

The map is for castwise quantize SRC DST --map FILE; a map without schemes is for
castwise cast SRC DST --map FILE. With -o, castwise prints this command.
"""
_EXIT_CODES = """\
exit codes:
  0  a map was made
  2  an error, such as a budget that nothing fits
"""

_EXAMPLES = (
    "advise model --bits 10 -o advised.toml",
    "advise model --budget 24GB --for vllm --formats nvfp4,fp8_channel,bfloat16",
    "advise model --error 1e-3 --html advice.html",
)

_FLAGS = {"yes": True, "no": False}


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _ADVISE, _EXIT_CODES, examples=_EXAMPLES)
    add_arguments(parser, "source")
    budget = parser.add_argument_group("budget (exactly one of these)")
    limits = budget.add_mutually_exclusive_group(required=True)
    limits.add_argument(
        "--budget",
        metavar="SIZE",
        help="bytes of the whole checkpoint, such as 24GB or 22GiB: scales, headers and copied "
        "files included",
    )
    limits.add_argument(
        "--bits",
        metavar="B",
        type=float,
        help="bits of the whole checkpoint per element of its floating tensors, such as 4.5",
    )
    limits.add_argument(
        "--error",
        metavar="E",
        type=float,
        help="the largest mean relative squared error of the weights, in the fewest bytes: 1e-3 is "
        "about that of float8, 1e-2 that of 4 bits",
    )
    choice = parser.add_argument_group("choice")
    choice.add_argument(
        "--formats",
        metavar="S,S",
        type=names_argument,
        help="the schemes and formats to choose from (default: all that the recipe writes, and "
        "bfloat16 and float16 beside those of other recipes than gguf)",
    )
    choice.add_argument(
        "--recipe",
        metavar="R",
        help="the producer of the schemes: compressed-tensors (default), modelopt, deepseek, ...",
    )
    choice.add_argument(
        "--for",
        dest="consumer",
        metavar="WHO",
        help="the program that will load the result, with only the schemes that it loads: "
        f"{', '.join(consumer.name for consumer in consumers())}",
    )
    choice.add_argument(
        "--groups",
        metavar="FILE",
        type=local_path_argument,
        help="JSON or TOML: a list of regular expressions, or a table of them by name; weights "
        "that match the same expression with the same text in its groups share a choice",
    )
    choice.add_argument(
        "--importance",
        metavar="FILE",
        type=local_path_argument,
        help="JSON, npz or safetensors: a number for each weight: how much the loss of the model "
        "grows with the weight's relative squared error",
    )
    choice.add_argument(
        "--ignore",
        metavar="REGEX",
        action="append",
        default=[],
        help="weights that you do not use: if their whole names, or those of modules that hold "
        "them, match, their errors do not count, and they get the fewest bytes; as often as needed",
    )
    choice.add_argument(
        "--quantize-embeddings",
        metavar="yes|no",
        choices=("yes", "no"),
        help="whether embeddings and heads may get schemes (default: yes without --for, and for "
        f"{', '.join(row.name for row in consumers() if row.embeddings)}; else no)",
    )
    choice.add_argument(
        "--scales",
        choices=SCALES,
        default="amax",
        help="which scale each block gets, as in castwise quantize: what schemes lose is predicted "
        "with it (default: amax)",
    )
    add_arguments(parser, "--architecture", "--threads")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=local_path_argument,
        help="write the map as TOML; the name ends with .toml",
    )
    add_output(parser, "--html", "--top", formats=("--json", "--quiet", "--all"))
    parser.set_defaults(run=_advise)


def _read_groups(path: Path | None) -> Any:  # noqa: ANN401  (a list or a mapping)
    """Read regular expressions from a file."""
    if path is None:
        return None
    patterns = parsed_file(path)
    values = patterns.values() if isinstance(patterns, dict) else patterns
    if not isinstance(patterns, dict | list) or not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{path} is not a list of regular expressions, nor names of them")
    return patterns


def _advise(options: argparse.Namespace) -> int:
    if options.output is not None:
        check_map_file(options.output)
    with (
        shown_result(
            options,
            partial(advice_sheet, every=options.all),
            files={"output": lambda advice: [advice.to_toml()]},
        ) as output,
        ProgressLine(sys.stderr, quiet=options.quiet) as progress,
    ):
        output.result = checkpoint.advise(
            options.source,
            budget=options.budget,
            bits=options.bits,
            error=options.error,
            formats=options.formats,
            recipe=options.recipe,
            consumer=options.consumer,
            architecture=options.architecture,
            groups=_read_groups(options.groups),
            importance=options.importance,
            ignore=options.ignore,
            quantize_embeddings=_FLAGS.get(options.quantize_embeddings),
            scales=options.scales,
            threads=options.threads,
            progress=progress.show if progress.visible else None,
        )
    if options.output is not None and not options.quiet:
        _say_next(output.result, options.output)
    return OK


def _say_next(advice: Advice, path: Path) -> None:
    """Print where the map is, and the commands that take it."""
    if not advice.map:
        say(f"{path}: a map without keys: every weight may stay as it is")
        return
    commands = [command.replace("THIS", shlex.quote(str(path))) for command in advice.commands]
    say(f"{path} has the map; next: {' && '.join(commands)}")
