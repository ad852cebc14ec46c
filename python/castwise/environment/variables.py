"""Obey the environment variables `CASTWISE_*`."""

import os
import sys
import warnings

from castwise._core import environment_errors
from castwise.environment.acceleration import accelerate_from_environment

# A sentence for each variable whose value is not valid: its name, the value and the remedy.
ERRORS = list(environment_errors)


def follow_environment() -> None:
    """Obey the variables at import; warn of each value that is not valid, and ignore it.

    The command line refuses to work instead, with one message and no warning before it.
    """
    try:
        accelerate_from_environment()
    except ValueError as error:
        ERRORS.append(str(error))
    if not _is_command_line():
        for sentence in ERRORS:
            warnings.warn(f"{sentence} It is ignored.", RuntimeWarning, stacklevel=3)


def _is_command_line() -> bool:
    """Return True if this process runs `castwise` or `python -m castwise`."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    name = os.path.splitext(os.path.basename(program))[0]
    return name == "castwise" or (program == "-m" and "castwise" in sys.orig_argv)
