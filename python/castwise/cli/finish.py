"""`castwise finish`: make a checkpoint of the parts that runs with `--part` have converted."""

import argparse
from pathlib import Path

from castwise.checkpoint.requests.conversion import finish_conversion
from castwise.checkpoint.running.parts import RunParts
from castwise.cli._arguments import add_arguments, path_argument
from castwise.cli._conversion import (
    add_conversion_output,
    check_kinds,
    run_of,
    say_findings,
    shown_conversion,
)
from castwise.cli._parser import describe

_FINISH = """\
Make DST from its parts when all are complete, and print the losses of the conversion.
The exit codes are those of castwise cast.
"""
_EXAMPLES = ("finish parted",)


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _FINISH, examples=_EXAMPLES)
    parser.add_argument(
        "destination", metavar="DST", type=path_argument, help="the DST of the runs with --part"
    )
    add_arguments(parser, "--overwrite")
    add_arguments(parser.add_argument_group("losses"), "--fail-on", "--max-zeros", "--exit-zero")
    add_conversion_output(parser)
    parser.set_defaults(run=_finish, source=None, part=None, dry_run=False)


def _finish(options: argparse.Namespace) -> int:
    """Run `castwise finish`, with what the parts tell of their run; returns the exit code."""
    arguments = RunParts(options.destination).arguments
    check_kinds(options, arguments.get("command", ""))
    if options.report is not None:  # which must not replace the source
        options.source = Path(arguments["source"])
    with shown_conversion(options) as output:
        output.result = finish_conversion(run_of(options), overwrite=options.overwrite)
    return say_findings(output.result, options)
