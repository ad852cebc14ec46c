"""Let Ctrl-C end the command line in a word while Python still imports it.

`castwise` imports this first: what is imported after it takes a tenth of a second.
"""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def is_command_line() -> bool:
    """Tell whether this process runs `castwise` or `python -m castwise`."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    name = os.path.splitext(os.path.basename(program))[0]
    return name == "castwise" or (program == "-m" and "castwise" in sys.orig_argv)


def end_quietly() -> None:
    """Until `interrupt_as_usual`, end a command line on SIGINT with a message."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_command_line() and usual:  # not ignored, as under nohup
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, _end)


def interrupt_as_usual() -> None:
    """Let SIGINT raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    os.write(2, b"castwise: interrupted\n")
    os._exit(128 + number)
