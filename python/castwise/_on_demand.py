"""Names of a package whose modules are imported when a name is first used."""

import importlib
from collections.abc import Callable, Mapping, Sequence

from castwise._core import likely_names


def on_demand(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that finds its public names in other modules."""
    homes = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(_missing(package, name, list(homes)))
        module = importlib.import_module(package)
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(module, name, value)  # found without asking from now on
        return value

    return get


def _missing(package: str, name: str, known: list[str]) -> str:
    """Say that a package has no attribute, and which one may be meant: for `cast`, `cast_file`."""
    of_files = f"{name}_file"
    likely = [of_files] if of_files in known else likely_names(name, known)
    hint = f"; did you mean {' or '.join(map(repr, likely))}?" if likely and name[0] != "_" else ""
    return f"module {package!r} has no attribute {name!r}{hint}"
