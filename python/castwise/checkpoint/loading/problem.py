"""What keeps a consumer from loading a checkpoint as it stands."""

from collections.abc import Sequence
from dataclasses import dataclass

from castwise.checkpoint._errors import CheckpointError
from castwise.quantization.producers.layouts import BF16


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


class UnloadableError(CheckpointError):
    """A result that would not be loaded, with the modules that would not."""

    def __init__(self, message: str, problems: Sequence[LoadingProblem] = ()) -> None:
        super().__init__(message)
        self.problems = problems


def loads_by_default(consumer: str, recipe: str, scheme: str, dtype: str | None) -> bool:
    """Return False if a consumer loads a scheme only with an option that it has not by default.

    `dtype` is the format of most tensors that are not quantized; None if there are none.
    """
    is_narrow = consumer == "transformers" and recipe == "compressed-tensors"
    return not (is_narrow and is_decoded_alone(scheme, dtype))


def is_decoded_alone(scheme: str, dtype: str | None) -> bool:
    """Return True for what is decoded to bfloat16 where the model is computed in another dtype."""
    return scheme.startswith(("nvfp4", "mxfp")) and dtype not in {None, BF16}
