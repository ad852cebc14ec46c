"""Compare two checkpoints: their structure, their values, and what makes the second of the first.

`verify` and `diff` are the two questions asked of one walk over pairs of pieces. These names are
what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.checkpoint.comparison._diff import diff
    from castwise.checkpoint.comparison._explanations import CastExplanation
    from castwise.checkpoint.comparison._loading import LoadingCheck, verify_loading
    from castwise.checkpoint.comparison._results import Diff, TensorDiff, diff_sheet
    from castwise.checkpoint.comparison._verification import Difference, Verification
    from castwise.checkpoint.comparison._verify import verify
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.checkpoint.comparison._diff": ("diff",),
            "castwise.checkpoint.comparison._explanations": ("CastExplanation",),
            "castwise.checkpoint.comparison._loading": ("LoadingCheck", "verify_loading"),
            "castwise.checkpoint.comparison._results": ("Diff", "TensorDiff", "diff_sheet"),
            "castwise.checkpoint.comparison._verification": ("Difference", "Verification"),
            "castwise.checkpoint.comparison._verify": ("verify",),
        },
    )

__all__ = [
    "CastExplanation",
    "Diff",
    "Difference",
    "LoadingCheck",
    "TensorDiff",
    "Verification",
    "diff",
    "diff_sheet",
    "verify",
    "verify_loading",
]
