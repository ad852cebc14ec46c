"""Transformer Engine."""

from __future__ import annotations

from ._headers import Layouts, Model

LAYOUTS: Layouts = {
    "transformer-engine": (
        Model({"a.weight": ("F8_E4M3", (8, 8)), "a._extra_state": ("U8", (100,))}, {}, {}),
        "fp8_tensor",
        None,
        "transformer-engine",
    ),
}
