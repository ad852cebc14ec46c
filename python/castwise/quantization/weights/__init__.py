"""The quantised weights of a checkpoint: found, judged, and decoded slab by slab.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.quantization.weights._decoding import Decoding, Slab, decoding
    from castwise.quantization.weights._recognition import recognized
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.quantization.weights._decoding": ("Decoding", "Slab", "decoding"),
            "castwise.quantization.weights._recognition": ("recognized",),
        },
    )

__all__ = [
    "Decoding",
    "Slab",
    "decoding",
    "recognized",
]
