"""Reports that people look at: one description of what a value shows, as text and as HTML."""

from abc import abstractmethod

from castwise.rendering.sheet import Sheet
from castwise.rendering.text import text_of


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
        from castwise.rendering.html import html_of  # noqa: PLC0415  (3 milliseconds)

        return html_of(self.__sheet__())
