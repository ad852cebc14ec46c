"""The manual page: the help of all commands as `man` reads it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import castwise
from castwise.cli._parser import COMMANDS, command_parsers, make_parser, usage_word


def manual_page() -> str:
    """Return the manual page of castwise, in the macros of `man`."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    """Make the page line by line."""
    parser = make_parser(COMMANDS)
    name, description = parser.prog, str(parser.description)
    yield f'.TH {name.upper()} 1 "" "{name} {castwise.__version__}" "User Commands"'
    yield from (".SH NAME", rf"{name} \- {_escaped(description.lower().rstrip('.'))}")
    yield from (".SH SYNOPSIS", rf"\fB{name}\fR {_escaped('COMMAND [OPTIONS]')}")
    yield ".SH DESCRIPTION"
    yield from _paragraphs(description)
    yield from _paragraphs(str(parser.epilog))
    yield from _groups(parser)
    yield ".SH COMMANDS"
    for command, text in COMMANDS.items():
        yield from (".TP", rf"\fB{command}\fR", _escaped(text))
    for each in command_parsers(parser).values():
        yield f".SH {_escaped(each.prog)}"
        yield from _example(each.format_usage().removeprefix("usage: "))
        yield from _paragraphs(str(each.description))
        yield from _groups(each)
        for text in str(each.epilog).split("\n\n"):
            yield from _example(text)


def _groups(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Make a list of each group of arguments, without --help."""
    for group in parser._action_groups:
        actions = [
            action
            for action in group._group_actions
            if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        ]
        if not actions:
            continue
        yield f".SS {_escaped(str(group.title))}"
        for action in actions:
            text = (action.help or "") % {**vars(action), "prog": parser.prog}
            yield from (".TP", rf"\fB{_escaped(_names(action))}\fR", _escaped(text))


def _names(action: argparse.Action) -> str:
    """Return how an argument is given: all its names, and its value."""
    return ", ".join([*action.option_strings[:-1], usage_word(action)])


def _paragraphs(text: str) -> Iterator[str]:
    """Make paragraphs, which are filled to the width of the page."""
    for paragraph in text.strip().split("\n\n"):
        yield ".PP"
        yield from map(_escaped, paragraph.splitlines())


def _example(text: str) -> Iterator[str]:
    """Make lines that stay as they are."""
    yield from (".PP", ".nf", *map(_escaped, text.strip("\n").splitlines()), ".fi")


def _escaped(text: str) -> str:
    """Escape what `man` would take for a macro, an escape or a hyphen."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped)
