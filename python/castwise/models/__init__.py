"""What castwise knows of models: what each parameter of an architecture is."""

from castwise.models._architecture import (
    ROLES,
    Architecture,
    Parameter,
    find_architecture,
    normalize_name,
    read_architecture,
)
from castwise.models._engines import EngineRules, find_engines, matches

__all__ = [
    "ROLES",
    "Architecture",
    "EngineRules",
    "Parameter",
    "find_architecture",
    "find_engines",
    "matches",
    "normalize_name",
    "read_architecture",
]
