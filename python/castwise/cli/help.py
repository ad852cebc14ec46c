"""`castwise help`: the help of a command."""

import argparse

from castwise.cli._output import OK, show
from castwise.cli._parser import COMMANDS, command_parsers, describe, make_parser

_EXAMPLES = ("help", "help cast")


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, "Print the help of a command, or of castwise.\n", examples=_EXAMPLES)
    parser.add_argument(
        "topic",
        metavar="COMMAND",
        nargs="?",
        choices=tuple(COMMANDS),
        help=f"one of {', '.join(COMMANDS)}",
    )
    parser.set_defaults(run=_help)


def _help(options: argparse.Namespace) -> int:
    """Run `castwise help`; returns the exit code."""
    parser = make_parser([options.topic])
    command = command_parsers(parser).get(options.topic, parser)
    show([command.format_help().removesuffix("\n")])
    return OK
