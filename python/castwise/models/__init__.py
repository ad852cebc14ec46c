"""What castwise knows of models: what each parameter of an architecture is."""

from castwise.models._architecture import (
    ROLES,
    Architecture,
    Parameter,
    find_architecture,
    normalize_name,
    read_architecture,
)

__all__ = [
    "ROLES",
    "Architecture",
    "Parameter",
    "find_architecture",
    "normalize_name",
    "read_architecture",
]
