"""Advise which format or scheme each weight of a checkpoint gets.

Weights are surveyed in one pass; candidates are what the planner would write of them, with the
bytes of their codes and scales; a knapsack chooses.

These names are what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.checkpoint.advice._advice import Advice, Choice, check_map_file
    from castwise.checkpoint.advice._advise import advise
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.checkpoint.advice._advice": ("Advice", "Choice", "check_map_file"),
            "castwise.checkpoint.advice._advise": ("advise",),
        },
    )

__all__ = ["Advice", "Choice", "advise", "check_map_file"]
