"""Holding castwise and its peers to AVX2, each by its own switch, on a machine that has more."""

from __future__ import annotations

import os
import sys

SWITCHES = {
    "CASTWISE_CPU_LEVEL": "avx2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "ATEN_CPU_CAPABILITY": "avx2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
"""They are read when a library is loaded. TensorFlow's own loops are compiled for less anyway."""

NUMKONG_CAPABILITIES = ("skylake", "icelake", "genoa", "turin", "sapphire")
"""What NumKong calls machines with more, of which each is switched off by a call."""


HELD = all(os.environ.get(name) == value for name, value in SWITCHES.items())
"""Whether it was started with the switches, which libraries change once they are loaded."""


def hold() -> None:
    """Start the command over with the switches, unless it has them."""
    if not HELD:
        command = [sys.executable, *sys.argv]
        os.execve(sys.executable, command, {**os.environ, **SWITCHES})  # noqa: S606
