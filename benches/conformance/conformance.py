"""Write the page of conformance: `python benches/conformance/conformance.py`.

It casts every pair of formats by every library that is installed, in the conditions in which
libraries differ, and prints `python/castwise/conformance.md`: what each gives, which options of
`castwise.cast` give the same, and what the standard says. `--library NAME` takes one of them alone.

Exit code 1 if a library does not cast as the table of `castwise.cast(..., like=)` says.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from libraries import EXTRA, installed
from page import markdown, measure


@contextmanager
def silenced_libraries() -> Iterator[None]:
    """Send what libraries write to the standard error to nowhere: a line for each missing pair."""
    descriptor = sys.stderr.fileno()
    copy, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, descriptor)
        yield
    finally:
        os.dup2(copy, descriptor)
        os.close(nowhere)
        os.close(copy)


def main() -> int:
    """Measure the libraries, and print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--library", metavar="NAME", action="append", help="by default all")
    try:
        with silenced_libraries():
            libraries, missing = installed(parser.parse_args().library)
            sections = [measure(library) for library in libraries]
    except ValueError as error:
        parser.error(str(error))
    if missing:
        absent = ", ".join(missing)
        print(f"without {absent}: pip install 'castwise[{EXTRA}]'", file=sys.stderr)
    sys.stdout.write(markdown(sections, datetime.datetime.now(tz=datetime.UTC).date()))
    differences = [text for section in sections for text in section.disagreements]
    print(*differences, sep="\n", end="\n" * bool(differences), file=sys.stderr)
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
