"""Programs and forks of this process, in which the helpers are modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

from processes import run_python


def run_program(
    code: str, *arguments: Any, forked: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in which a warning is an error and the helpers are modules."""
    path = os.pathsep.join(filter(None, sys.path))
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    return run_python("-W", "error", "-c", code, *arguments, env=variables, forked=forked)


def in_a_child(work: Callable[[], bytes]) -> bytes:
    """Return what `work` returns in the child of a fork; nothing if it crashed or took a minute."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 dislikes forks beside threads
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os.close(read)
            with os.fdopen(write, "wb") as pipe:
                pipe.write(work())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer
