"""What a test could leave in its process, where a later test, or a program it starts, finds it."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import castwise
import numpy as np
from castwise.environment import defaults
from castwise.environment.acceleration import Acceleration
from numpy._core.multiarray import get_handler_name

SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGXFSZ")
    if hasattr(signal, name)
)


def process_state() -> dict[str, object]:
    """What one test must leave as it found it, by what a message calls it."""
    return {
        "environment variables": _environment(),
        "working directory": os.getcwd(),
        "module search path": _search_path(),
        "signal handlers": {number: signal.getsignal(number) for number in SIGNALS},
        "log handlers": [
            one for one in logging.root.handlers if type(one).__module__ != "_pytest.logging"
        ],
        "garbage collection": gc.isenabled(),
        "trace function": sys.gettrace(),
        "recursion limit": sys.getrecursionlimit(),
        "streams": (sys.__stdout__, sys.__stderr__),
        "numpy's errstate": np.geterr(),
        "numpy's allocator": get_handler_name(),
        "castwise's floatx": defaults.floatx(),
        "castwise's policy": _policy(),
        "castwise's threads": castwise.get_num_threads(),
        "castwise's CPU level": castwise.cpu_level(),
        "castwise.accelerate()": Acceleration.switch._calls,
    }


def _policy() -> object:
    """The global policy; the default, which takes its place once it is read, by its name."""
    policy = defaults.current_policy() or getattr(defaults._thread, "default", None)
    return defaults.floatx() if policy is None else getattr(policy, "name", policy)


def _search_path() -> list[object]:
    return [*sys.path, *sys.meta_path, *sys.path_hooks]


def _environment() -> dict[Any, Any]:
    """The environment variables, undecoded, which takes most of the time, without pytest's own."""
    variables: dict[Any, Any] = os.environ._data.copy()  # type: ignore[attr-defined]
    variables.pop(os.environ.encodekey("PYTEST_CURRENT_TEST"), None)
    return variables


def changes(before: dict[str, object]) -> list[str]:
    """A line for each part of the state that is not as it was `before`."""
    lines = []
    for name, now in process_state().items():
        old = before[name]
        if now == old:
            continue
        if isinstance(old, dict) and isinstance(now, dict):
            for key in {**old, **now}:
                if old.get(key) != now.get(key):
                    lines.append(f"{name}, {key}: {old.get(key)!r} before, {now.get(key)!r} now")
        else:
            lines.append(f"{name}: {old!r} before, {now!r} now")
    return lines


def end_command_line() -> None:
    """Put back the signals that `castwise.cli.main` handles, as the main function of a process."""
    for number in SIGNALS:
        if getattr(signal.getsignal(number), "__module__", "") == "castwise.cli":
            signal.signal(number, signal.SIG_DFL)


def undo_imports(before: dict[str, Any]) -> None:
    """Undo what libraries that a test has imported did to the environment variables."""
    old, now = before["environment variables"], _environment()
    for key in old.keys() | now.keys():
        if key not in old:
            del os.environ[os.environ.decodekey(key)]  # type: ignore[attr-defined]
        elif old[key] != now.get(key):
            name = os.environ.decodekey(key)  # type: ignore[attr-defined]
            os.environ[name] = os.environ.decodevalue(old[key])  # type: ignore[attr-defined]
    before["module search path"] = _search_path()  # left: they may import more


@contextmanager
def environment_kept() -> Iterator[None]:
    """Undo what an import of another's library does to the environment variables and the folder."""
    variables, folder = dict(os.environ), os.getcwd()
    try:
        yield
    finally:
        if os.environ != variables:
            os.environ.clear()
            os.environ.update(variables)
        os.chdir(folder)
