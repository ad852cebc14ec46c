"""Names, shapes and sizes, as all reports write them."""

import re

_KILO = 1000
_NUMBER = re.compile(r"(?<![^./_])[0-9]+(?![^./])")


def group_name(name: str) -> str:
    """Return the name of a tensor with a star for each number of a layer, block or expert."""
    return _NUMBER.sub("*", name)


def shape_text(shape: tuple[int, ...]) -> str:
    """Write a shape as 2x3, and an empty one as "scalar"."""
    return "x".join(map(str, shape)) if shape else "scalar"


def size_text(nbytes: int) -> str:
    """Write a number of bytes as people say it, in powers of 1000."""
    if nbytes < _KILO:
        return f"{nbytes} B"
    size, units = nbytes / _KILO, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= _KILO and unit != "TB":
        size, unit = size / _KILO, next(units)
    return f"{size:.1f} {unit}"


def printable(text: str) -> str:
    """Escape control characters: names come from files that nobody trusts."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
