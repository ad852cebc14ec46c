"""What keeps a consumer from loading a checkpoint as it stands."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadingProblem:
    """One module that a consumer does not load as the file has it."""

    # The module, or the parameter of a stack of experts; "" for the whole checkpoint.
    module: str
    # What the consumer would do with it.
    problem: str
    # What to do.
    remedy: str
    # The option of the consumer with which it loads; None if it loads with none.
    option: str | None = None
    # True if it lacks a weight that its other layers have, which no way of storing it causes.
    is_lacking: bool = False

    def __str__(self) -> str:
        where = f"{self.module!r}: " if self.module else ""
        return where + self.problem + "; " + self.remedy
