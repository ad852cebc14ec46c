"""Quantised arrays: their parts as stored, made and decoded.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.quantization.arrays._comparison import compare_rows
    from castwise.quantization.arrays._conversion import (
        DATA,
        SCALES,
        ZEROS,
        PowerRange,
        blocks_of,
        common_power,
        converted_part,
        of_rows,
        relative_scales,
        same_parts,
        widened,
        zeros_of,
    )
    from castwise.quantization.arrays._decode import wrapped_zeros
    from castwise.quantization.arrays._lazy import Range
    from castwise.quantization.arrays._losses import losses_of, may_lose
    from castwise.quantization.arrays._named_parts import marker_of
    from castwise.quantization.arrays._quantize import quantize_slab
    from castwise.quantization.arrays._row_slices import rows_of, step_of
    from castwise.quantization.arrays._scale_range import (
        exceeds_scales,
        keeping_scheme,
        lost_to_scales,
    )
    from castwise.quantization.arrays._views import Views, geometry, scale_dtype, views_of
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.quantization.arrays._comparison": ("compare_rows",),
            "castwise.quantization.arrays._conversion": (
                "DATA",
                "PowerRange",
                "SCALES",
                "ZEROS",
                "blocks_of",
                "common_power",
                "converted_part",
                "of_rows",
                "relative_scales",
                "same_parts",
                "widened",
                "zeros_of",
            ),
            "castwise.quantization.arrays._decode": ("wrapped_zeros",),
            "castwise.quantization.arrays._lazy": ("Range",),
            "castwise.quantization.arrays._losses": ("losses_of", "may_lose"),
            "castwise.quantization.arrays._named_parts": ("marker_of",),
            "castwise.quantization.arrays._quantize": ("quantize_slab",),
            "castwise.quantization.arrays._row_slices": ("rows_of", "step_of"),
            "castwise.quantization.arrays._scale_range": (
                "exceeds_scales",
                "keeping_scheme",
                "lost_to_scales",
            ),
            "castwise.quantization.arrays._views": ("Views", "geometry", "scale_dtype", "views_of"),
        },
    )

__all__ = [
    "DATA",
    "SCALES",
    "ZEROS",
    "PowerRange",
    "Range",
    "Views",
    "blocks_of",
    "common_power",
    "compare_rows",
    "converted_part",
    "exceeds_scales",
    "geometry",
    "keeping_scheme",
    "losses_of",
    "lost_to_scales",
    "marker_of",
    "may_lose",
    "of_rows",
    "quantize_slab",
    "relative_scales",
    "rows_of",
    "same_parts",
    "scale_dtype",
    "step_of",
    "views_of",
    "widened",
    "wrapped_zeros",
    "zeros_of",
]
