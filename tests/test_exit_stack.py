"""A signal at any bytecode of a stack's end is raised as what its handler makes of it."""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest
from castwise._exit_stack import SafeExitStack


class Interrupt(BaseException):
    """What the handler of a signal raises."""


class Fault(BaseException):
    """What a context raises."""


class Tracer:
    """Raise `Interrupt` at a bytecode of contextlib's `__exit__`."""

    def __init__(self, place: int) -> None:
        self.place, self.count = place, 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code
        if code.co_filename != contextlib.__file__ or code.co_name != "__exit__":
            return self if event == "call" else None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.count += 1
            if self.count == self.place:
                raise Interrupt
        return self


def fail() -> None:
    raise Fault


def outcomes(make: type[ExitStack]) -> list[type[BaseException]]:
    """What leaving a stack raises, for a signal at each bytecode in turn; last without one.

    In a thread of its own: such a signal may leave an exception in `sys.exc_info()`.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_outcomes, make).result()


def _outcomes(make: type[ExitStack]) -> list[type[BaseException]]:
    raised: list[type[BaseException]] = []
    while True:
        tracer = Tracer(len(raised) + 1)
        sys._getframe().f_trace_opcodes = True
        before = sys.gettrace()
        try:
            sys.settrace(tracer)
            try:
                with make() as stack:
                    stack.callback(fail)
            finally:
                sys.settrace(before)
        except BaseException as error:
            raised.append(type(error))
        if tracer.count < tracer.place:
            return raised


def test_a_signal_at_any_bytecode_is_raised() -> None:
    *interrupted, whole = outcomes(SafeExitStack)
    assert whole is Fault
    assert set(interrupted) == {Interrupt}
    assert len(interrupted) > 20


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="it is not seen in 3.13 and later")
def test_the_stack_of_python_has_the_flaw() -> None:
    assert UnboundLocalError in outcomes(ExitStack)
