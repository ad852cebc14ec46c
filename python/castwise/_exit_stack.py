"""A stack of contexts that a signal at any moment leaves in order."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType


class SafeExitStack(ExitStack):
    """contextlib's stack, but for what it makes of a signal that comes at its very end.

    Where a context raises another exception, ExitStack gives that the right `__context__`, by a
    local variable. A signal just before it is set becomes an UnboundLocalError there; this raises
    what the signal's handler did, such as KeyboardInterrupt.
    """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool:
        """Leave the contexts, the last one first."""
        try:
            return bool(super().__exit__(kind, error, traceback))
        except UnboundLocalError as flaw:
            if "fixed_ctx" not in str(flaw) or flaw.__context__ is None:
                raise
            raise flaw.__context__ from None
