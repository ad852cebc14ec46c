"""Which peers a run has: those that were asked for, or all that are installed."""

from __future__ import annotations

from collections.abc import Sequence

from frameworks import Jax, NumKong, TensorFlow, Torch
from peers import Astype, Castwise, Memcpy, Peer, installed

LIMIT = Memcpy.name

# castwise first: it is the reference of every ratio.
PEERS: tuple[Peer, ...] = (
    Castwise(),
    Astype(),
    Torch(),
    Jax(),
    TensorFlow(),
    NumKong(),
    Memcpy(),
)

FIXED = (Castwise.name, Astype.name, Memcpy.name)
"""Always there: what is compared, what everybody has, and the limit."""


def load(names: Sequence[str] | None, threads: int) -> tuple[Peer, ...]:
    """The peers of these names besides the fixed ones, loaded; all that are installed for None.

    Raises
    ------
    ValueError
        A name that no peer has, or a peer that is asked for by name and not installed.

    """
    known = [peer.name for peer in PEERS]
    for name in names or ():
        if name not in known:
            raise ValueError(f"--peers: {name!r} is none of {', '.join(known)}")
    found = installed(
        (peer for peer in PEERS if names is None or peer.name in (*FIXED, *names)), threads
    )
    for name in names or ():
        if name not in [peer.name for peer in found]:
            raise ValueError(f"--peers: {name} is not installed.")
    return found
