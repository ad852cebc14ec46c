"""Files that lie or are damaged, and what must be said of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from castwise import checkpoint


def damaged(content: bytes, cuts: Iterable[int], changes: int, seed: int) -> list[bytes]:
    """Cut a file off at places, and change up to eight of its bytes so many times."""
    generator = random.Random(seed)
    files = [content[:end] for end in cuts]
    for _ in range(changes):
        changed = bytearray(content)
        for _ in range(generator.choice((1, 1, 2, 8))):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        files.append(bytes(changed))
    return files


def assert_refused(path: Path, out: Path, message: str) -> None:
    """Check that neither loading, inspecting nor casting takes a file, and that it is named."""
    for action in (
        checkpoint.load,
        checkpoint.inspect,
        lambda path: checkpoint.cast_file(path, out, "bfloat16"),
    ):
        with pytest.raises(checkpoint.CheckpointError, match=message) as refusal:
            action(path)
        assert str(path) in str(refusal.value)
        assert len(str(refusal.value)) < 1000
