"""Names of a package whose modules are imported when a name is first used."""

import importlib
from collections.abc import Callable, Mapping, Sequence


def on_demand(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that finds its public names in other modules.

    Parameters
    ----------
    package : str
        The package.
    names : mapping of str to sequence of str
        By module, the names that it defines.

    """
    homes = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(package)
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(module, name, value)  # found without asking from now on
        return value

    return get
