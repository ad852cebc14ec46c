"""The two sets of rules, of Keras 3 and of TF 2. A layer has those of its dialect."""

from __future__ import annotations

from castwise.autocast._keras_rules import KerasRules
from castwise.autocast._rules import Rules
from castwise.autocast._tf_keras_rules import TfKerasRules

_RULES: dict[str, Rules] = {"keras": KerasRules(), "tf_keras": TfKerasRules()}


def rules_of(dialect: str) -> Rules:
    """Return the rules of a dialect. ValueError if there is no such dialect."""
    if not isinstance(dialect, str) or dialect not in _RULES:
        raise ValueError(
            f"dialect={dialect!r} is not known; use one of {', '.join(map(repr, _RULES))}."
        )
    return _RULES[dialect]
