"""Copy the state of TF 2's layers that is not in their weights."""

from __future__ import annotations

import tempfile
from typing import Any


def give_state(source: Any, target: Any) -> None:
    """Copy the rest of a layer's state to another layer of its class, after the weights.

    Lookup layers hold a vocabulary in a table, which is neither a weight nor, after `adapt`, in the
    config. `Normalization` and `Discretization` compute with constants that they derive from their
    weights.
    """
    if hasattr(source, "save_assets"):
        store: dict[str, Any] = {}
        source.save_own_variables(store)
        with tempfile.TemporaryDirectory() as folder:
            source.save_assets(folder)
            target.load_assets(folder)
        target.load_own_variables(store)
    elif target.built:
        target.finalize_state()
