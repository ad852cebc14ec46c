"""What castwise knows of models: the role of each tensor, its axes, and what engines join."""

from castwise.models._architecture import (
    ROLES,
    Architecture,
    Parameter,
    expand_name,
    find_architecture,
    normalize_name,
    pattern_of_names,
    read_architecture,
)
from castwise.models._engines import EngineRules, find_engines
from castwise.models._model import (
    EXPERTS,
    LINEAR,
    MATRIX,
    STACK,
    UNKNOWN,
    WEIGHT,
    Model,
    has_last_outputs,
)

__all__ = [
    "EXPERTS",
    "LINEAR",
    "MATRIX",
    "ROLES",
    "STACK",
    "UNKNOWN",
    "WEIGHT",
    "Architecture",
    "EngineRules",
    "Model",
    "Parameter",
    "expand_name",
    "find_architecture",
    "find_engines",
    "has_last_outputs",
    "normalize_name",
    "pattern_of_names",
    "read_architecture",
]
