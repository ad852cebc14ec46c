"""The one exception that the checkpoint package raises for what it was given; texts for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from castwise.text.wording import join, parenthesis

# Names in a message; how many are left is counted behind them.
_MAX_LISTED = 8

FETCH = "fetch the file again"
"""The remedy for a file that is cut off or damaged."""

LEAVE = "leave it as it is " + parenthesis("ignore")
"""The remedy for what is better not quantized."""


class CheckpointError(ValueError):
    """A checkpoint, or a map for one, that cannot be used as asked.

    The message names the file, the tensor or key at fault, and what to do about it. The destination
    is as it was, unless the message says that it was written.
    """


def damage(fault: str) -> CheckpointError:
    """Return the refusal of a file that is cut off, or that its format does not allow."""
    return CheckpointError(f"{fault}; {FETCH}")


@contextmanager
def name_file(path: Path | str) -> Iterator[None]:
    """Put the file in front of every refusal in a block."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def join_names(names: Sequence[str]) -> str:
    """Write names in a row: the first ones, and how many more there are."""
    more = len(names) - _MAX_LISTED
    return join(", ", names[:_MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")
