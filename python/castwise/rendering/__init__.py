"""Reports that people look at: one description of what a value shows, as text and as HTML."""

from __future__ import annotations

from abc import abstractmethod

from castwise.rendering._exponents import BARS, FormatRange, Histogram, joint_axis
from castwise.rendering._html import PAGE_START, html_of, page_lines
from castwise.rendering._sheet import (
    Exponents,
    Front,
    Lines,
    MakeRows,
    Part,
    Section,
    Sheet,
    Table,
)
from castwise.rendering._text import text_lines, text_of, unused_lines
from castwise.rendering._words import group_name, printable, shape_text, size_text


class Rendered:
    """A value that prints as a table, and that notebooks show as HTML."""

    __slots__ = ()

    @abstractmethod
    def __sheet__(self) -> Sheet:
        """Return what the value shows."""

    def __str__(self) -> str:
        """Return the tables and lines as text."""
        return text_of(self.__sheet__())

    def _repr_html_(self) -> str:
        """Return the same as HTML, with pictures, for notebooks."""
        return html_of(self.__sheet__())
