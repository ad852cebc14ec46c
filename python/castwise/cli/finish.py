"""`castwise finish`: make a checkpoint of the parts that runs of `cast --part` have cast."""

from __future__ import annotations

import argparse
from pathlib import Path

from castwise import checkpoint
from castwise.checkpoint._parts import Parts
from castwise.cli import _findings
from castwise.cli._findings import say_findings
from castwise.cli._paths import path_argument
from castwise.cli._showing import add_arguments, shown


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Make DST of its parts, when all are cast, and print what the cast lost. Exit "
        "codes are those of castwise cast."
    )
    parser.add_argument(
        "destination", metavar="DST", type=path_argument, help="as given to castwise cast"
    )
    add_arguments(parser)
    _findings.add_arguments(parser)
    parser.set_defaults(run=_finish, source=None, map=None, dry_run=False)


def _finish(options: argparse.Namespace) -> int:
    if options.report is not None:  # which must not replace the source
        options.source = Path(Parts(options.destination).arguments["source"])
    summary = shown(options, lambda: checkpoint.finish(options.destination))
    return say_findings(summary, options)
