"""torch and jax on the CPU, for files of tests that are about nothing else."""

from __future__ import annotations

from types import ModuleType

import peers


def torch() -> ModuleType:
    """The real torch."""
    return peers.torch()


def jax() -> ModuleType:
    """The real jax, with its numpy."""
    return peers.jax()
