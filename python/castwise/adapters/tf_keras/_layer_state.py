"""Copy the state of TF 2's layers that is not in their weights."""

from __future__ import annotations

import tempfile
from typing import Any


def give_state(old: Any, new: Any) -> None:
    """Copy the rest of a layer's state to another layer of its class, after the weights.

    Lookup layers hold a vocabulary in a table, which is neither a weight nor, after `adapt`, in the
    config. `Normalization` and `Discretization` compute with constants that they derive from their
    weights.
    """
    if hasattr(old, "save_assets"):
        store: dict[str, Any] = {}
        old.save_own_variables(store)
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)
        new.load_own_variables(store)
    elif new.built:
        new.finalize_state()
