"""What layers of TF 2 have learnt beside their weights."""

from __future__ import annotations

import tempfile
from typing import Any


def give_state(old: Any, new: Any) -> None:
    """Give a layer what another of its class has learnt, after the weights.

    Lookups keep a vocabulary in a table, which is neither a weight nor, once they were adapted, in
    the config. `Normalization` and `Discretization` compute with constants that they make of their
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
