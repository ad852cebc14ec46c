"""What other libraries make of every cast, and which options of `castwise.cast` give the same.

A command of the tests' extra: the libraries are imported when it runs.
"""

from castwise.conformance._agreement import differs, disagreement, settled
from castwise.conformance._libraries import CASTS, EXTRA, LibraryCast, NumKong, installed
from castwise.conformance._page import Conformance, Row, markdown, measure, recipe_text

__all__ = [
    "CASTS",
    "EXTRA",
    "Conformance",
    "LibraryCast",
    "NumKong",
    "Row",
    "differs",
    "disagreement",
    "installed",
    "markdown",
    "measure",
    "recipe_text",
    "settled",
]
