"""Change the calling thread's floating-point environment, as torch.set_flush_denormal does.

glibc's fenv_t on x86-64 is 28 bytes of x87 state, then the MXCSR register, which holds the
flush-to-zero (FTZ), denormals-are-zero (DAZ) and rounding bits of SSE and AVX; fesetenv loads both.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

FLUSH_TO_ZERO, DENORMALS_ARE_ZERO = 0x8000, 0x0040
DOWN, UP, TRUNCATE = 0x2000, 0x4000, 0x6000
MXCSR_WORD = 7

SUPPORTED = platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"


@contextmanager
def mxcsr(bits: int) -> Iterator[None]:
    """Set these bits of MXCSR until the end of the block."""
    libm = ctypes.CDLL("libm.so.6")
    before, changed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    libm.fegetenv(before)
    libm.fegetenv(changed)
    changed[MXCSR_WORD] |= bits
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(before)


ENVIRONMENTS = {
    "FTZ": FLUSH_TO_ZERO,
    "DAZ": DENORMALS_ARE_ZERO,
    "FTZ and DAZ": FLUSH_TO_ZERO | DENORMALS_ARE_ZERO,
    "round down": DOWN,
    "round up": UP,
    "truncate, FTZ and DAZ": TRUNCATE | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO,
}
