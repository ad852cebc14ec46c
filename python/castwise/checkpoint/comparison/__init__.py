"""Compare two checkpoints: their structure, their values, and what makes the second of the first.

`verify` and `diff` are the two questions asked of one walk over pairs of pieces. These names are
what other rooms of castwise take from this one; all else is private to it.
"""

from typing import TYPE_CHECKING

from castwise._on_demand import on_demand

if TYPE_CHECKING:
    from castwise.checkpoint.comparison._diff import diff
    from castwise.checkpoint.comparison._explanations import CastExplanation
    from castwise.checkpoint.comparison._results import Diff, TensorDiff
    from castwise.checkpoint.comparison._verify import Difference, Verification, verify
else:
    __getattr__ = on_demand(
        __name__,
        {
            "castwise.checkpoint.comparison._diff": ("diff",),
            "castwise.checkpoint.comparison._explanations": ("CastExplanation",),
            "castwise.checkpoint.comparison._results": ("Diff", "TensorDiff"),
            "castwise.checkpoint.comparison._verify": ("Difference", "Verification", "verify"),
        },
    )

__all__ = ["CastExplanation", "Diff", "Difference", "TensorDiff", "Verification", "diff", "verify"]
