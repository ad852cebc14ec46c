"""Rename arguments and classes in errors, from castwise's names to those of a dialect."""

from collections.abc import Iterator
from contextlib import contextmanager

# What errors of saved states call castwise's class, on which a dialect's class is built.
_OWNER = "DynamicLossScale with preset="


@contextmanager
def rename_arguments(*, owner: str | None = None, **names: str) -> Iterator[None]:
    """Rename the argument that an error of the block begins with, as in ``argument=value ...``.

    `owner` is the class whose state is loaded, for errors about its keys. Other errors than
    TypeError and ValueError, and subclasses of these, pass as they are.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        name, equals, rest = text.partition("=")
        if equals and name in names:
            text = f"{names[name]}={rest}"
        if owner is not None and _OWNER in text:
            prefix, _, rest = text.partition(_OWNER)
            _, _, keys = rest.partition(" ")
            text = f"{prefix}{owner} {keys}".replace("class and preset", "class")
        if text == str(error) or type(error) not in {TypeError, ValueError}:
            raise
        raise type(error)(text) from error.__cause__
