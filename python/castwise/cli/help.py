"""`castwise help`: the help of a command, or a manual page of all."""

from __future__ import annotations

import argparse

from castwise.cli._manual import manual_page
from castwise.cli._output import OK, show
from castwise.cli._parser import COMMANDS, command_parsers, describe, make_parser

_HELP = """\
Print the help of a command, or of castwise, or with --man a manual page of all.
"""
_EXAMPLES = ("help", "help cast", "help --man > castwise.1")


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _HELP, examples=_EXAMPLES)
    parser.add_argument(
        "topic",
        metavar="COMMAND",
        nargs="?",
        choices=tuple(COMMANDS),
        help=f"one of {', '.join(COMMANDS)}",
    )
    parser.add_argument(
        "--man", action="store_true", help="print a manual page, as man and mandoc read it"
    )
    parser.set_defaults(run=_help, refuse=parser.error)


def _help(options: argparse.Namespace) -> int:
    """Run `castwise help`; returns the exit code."""
    if options.man and options.topic is not None:
        options.refuse(f"--man is a page of all commands; leave {options.topic} out")
    parser = make_parser([options.topic])
    command = command_parsers(parser).get(options.topic, parser)
    text = manual_page() if options.man else command.format_help()
    show([text.removesuffix("\n")])
    return OK
