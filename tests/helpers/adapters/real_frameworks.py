"""torch and jax on the CPU, for files of tests that are about nothing else."""

from __future__ import annotations

from types import ModuleType

import peers


def torch() -> ModuleType:
    """The real torch, with one thread: two processes test, and its threads wait in loops."""
    module = peers.torch()
    module.set_num_threads(1)
    return module


def jax() -> ModuleType:
    """The real jax, with its numpy."""
    return peers.jax()
