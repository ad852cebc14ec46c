"""`castwise conformance`: what other libraries make of every cast, as a page."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager

from castwise.cli._output import FINDINGS, OK, json_text, say, show
from castwise.cli._parser import describe

_CONFORMANCE = """\
Cast every pair of formats by every library that is installed, in the conditions in
which libraries differ, and print a page in Markdown: what each gives, which options
of castwise.cast give the same, and what the standard says.
"""
_EXIT_CODES = """\
exit codes:
  0  every library casts as the table of castwise.cast(..., like=) says
  1  some do not; each is said on standard error
  2  an error
"""
_STANDARD_ERROR = 2
"""Its descriptor."""
_EXAMPLES = ("conformance --library numpy", "conformance --library numpy --json")


def define(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    describe(parser, _CONFORMANCE, _EXIT_CODES, examples=_EXAMPLES)
    parser.add_argument(
        "--library",
        metavar="NAME",
        action="append",
        help="numpy, torch, jax, tensorflow, onnxruntime or numkong; may be given several times "
        "(default: all that are installed)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_conformance)


@contextmanager
def _libraries_silenced() -> Iterator[None]:
    """Send what libraries write to the standard error to nowhere: a line for each missing pair."""
    try:
        kept = os.dup(_STANDARD_ERROR)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STANDARD_ERROR)
        yield
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(nowhere)
        os.close(kept)


def _conformance(options: argparse.Namespace) -> int:
    """Run `castwise conformance`; returns the exit code."""
    from castwise import conformance  # noqa: PLC0415  (which imports the libraries)

    with _libraries_silenced():
        libraries, missing = conformance.installed(options.library)
        measured = [conformance.measure(library) for library in libraries]
    if missing:
        say(
            f"warning: {', '.join(missing)} cannot be imported, so the page is without; "
            f"pip install 'castwise[{conformance.EXTRA}]'"
        )
    today = datetime.datetime.now(tz=datetime.UTC).date()
    if options.json:
        show([json_text([library.to_dict() for library in measured])])
    else:
        show([conformance.markdown(measured, today)])
    differing = [text for library in measured for text in library.disagreements]
    for text in differing:
        say(text)
    return FINDINGS if differing else OK
