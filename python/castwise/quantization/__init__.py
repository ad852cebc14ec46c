"""Quantized weights: arrays of codes that share scales, as every producer stores them.

`quantize` and `dequantize` compute as the producers do, bit for bit; `QuantizedArray` holds the
parts as stored. The other classes describe what a checkpoint holds.

Inside are three rooms. `producers` has a module for each producer, with its layouts and what it
states. In `arrays`, `views` says where codes and scales lie, `row_slices` what of them belongs to
some rows; `named_parts` names parts, `from_parts` recognizes them; `arrays`, `quantize` and
`decode` put them together, `conversion` converts them to another producer's layout. `weights` finds
the quantized weights of a checkpoint, and plans each as an array of lazy parts.
"""

from typing import TYPE_CHECKING

from castwise._core import UnfitError
from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.quantization.arrays.arrays import QuantizedArray, dequantize
    from castwise.quantization.arrays.packing import pack, swizzle_scales, unpack, unswizzle_scales
    from castwise.quantization.arrays.quantize import quantize
    from castwise.quantization.arrays.report import QuantizationReport
    from castwise.quantization.producers.consumers import Consumer, Loading, consumers
    from castwise.quantization.producers.found import Orphan, Quantization, QuantizedWeight
    from castwise.quantization.producers.schemes import Scheme, schemes
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.quantization.arrays.arrays": ("QuantizedArray", "dequantize"),
            "castwise.quantization.producers.consumers": ("Consumer", "Loading", "consumers"),
            "castwise.quantization.producers.found": ("Orphan", "Quantization", "QuantizedWeight"),
            "castwise.quantization.arrays.packing": (
                "pack",
                "swizzle_scales",
                "unpack",
                "unswizzle_scales",
            ),
            "castwise.quantization.arrays.quantize": ("quantize",),
            "castwise.quantization.arrays.report": ("QuantizationReport",),
            "castwise.quantization.producers.schemes": ("Scheme", "schemes"),
        },
    )

__all__ = [
    "Consumer",
    "Loading",
    "Orphan",
    "Quantization",
    "QuantizationReport",
    "QuantizedArray",
    "QuantizedWeight",
    "Scheme",
    "UnfitError",
    "consumers",
    "dequantize",
    "pack",
    "quantize",
    "schemes",
    "swizzle_scales",
    "unpack",
    "unswizzle_scales",
]

UnfitError.__module__ = __name__  # where users find it, and pickles


def __dir__() -> list[str]:
    return __all__
