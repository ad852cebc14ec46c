"""What a conversion is asked to do, and the plan that follows.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.checkpoint.requests._cast_request import CastRequest, chosen_dtypes
    from castwise.checkpoint.requests._derive_request import (
        DeriveRequest,
        Make,
        RunOptions,
    )
    from castwise.checkpoint.requests._request import SAFETENSORS, Request, carry_out
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.checkpoint.requests._cast_request": ("CastRequest", "chosen_dtypes"),
            "castwise.checkpoint.requests._derive_request": (
                "DeriveRequest",
                "Make",
                "RunOptions",
            ),
            "castwise.checkpoint.requests._request": ("Request", "SAFETENSORS", "carry_out"),
        },
    )

__all__ = [
    "SAFETENSORS",
    "CastRequest",
    "DeriveRequest",
    "Make",
    "Request",
    "RunOptions",
    "carry_out",
    "chosen_dtypes",
]
