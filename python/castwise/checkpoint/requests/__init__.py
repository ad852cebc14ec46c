"""What a conversion is to do, and how it is carried out; `options.py` has every option.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.checkpoint.requests._cast import chosen_dtypes
    from castwise.checkpoint.requests._conversion import finish_conversion, run_conversion
    from castwise.checkpoint.requests._functions import conversion, finishing
    from castwise.checkpoint.requests._quantize import checked_embeddings, checked_encode
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.checkpoint.requests._cast": ("chosen_dtypes",),
            "castwise.checkpoint.requests._conversion": ("finish_conversion", "run_conversion"),
            "castwise.checkpoint.requests._functions": ("conversion", "finishing"),
            "castwise.checkpoint.requests._quantize": ("checked_embeddings", "checked_encode"),
        },
    )

__all__ = [
    "checked_embeddings",
    "checked_encode",
    "chosen_dtypes",
    "conversion",
    "finish_conversion",
    "finishing",
    "run_conversion",
]
