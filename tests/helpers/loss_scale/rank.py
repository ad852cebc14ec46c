"""One process of a data-parallel run: `python rank.py RANK WORLD ROLE FOLDER COMMUNICATION`.

Ranks agree on each step by one MAX all-reduce, with torch's gloo ("gloo") or files ("files").
Each writes what it decided; the test compares.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from castwise.loss_scale import DelayedScaling, DynamicLossScale, agree, unscale

STEPS = 12
TENSORS = 3


def gradients(step: int, role: int) -> list[Any]:
    """What a role computes: role 0 has no parameters, role 1 meets NaN and infinity."""
    if role == 0:
        return []
    rng = np.random.default_rng([step, role])
    found = [
        (rng.standard_normal(100) * 10.0 ** rng.integers(-3, 3)).astype(np.float16)
        for _ in range(TENSORS)
    ]
    if role == 1 and step in (3, 4, 9):
        found[step % TENSORS][17] = np.nan if step != 4 else np.inf
    return found


@contextmanager
def gloo(rank: int, world: int, folder: Path) -> Iterator[Callable[[Any], Any]]:
    """torch.distributed on the CPU."""
    torch = import_module("torch")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    maximum = torch.distributed.ReduceOp.MAX
    yield lambda vector: torch.distributed.all_reduce(torch.from_numpy(vector), maximum)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@contextmanager
def files(rank: int, world: int, folder: Path) -> Iterator[Callable[[Any], Any]]:
    """A file per rank and step, complete when it has its name."""
    steps = iter(range(10**9))

    def reduce(vector: Any) -> Any:
        step = next(steps)
        part = folder / f"part-{rank}-{step}.npy"
        np.save(part, vector)
        part.rename(folder / f"{rank}-{step}.npy")
        others = [folder / f"{other}-{step}.npy" for other in range(world)]
        while not all(other.exists() for other in others):
            time.sleep(0.005)
        return np.max([np.load(other) for other in others], axis=0)

    yield reduce


def main() -> None:
    """Take part, and write down what was decided."""
    rank, world, role = map(int, sys.argv[1:4])
    folder = Path(sys.argv[4])
    with {"gloo": gloo, "files": files}[sys.argv[5]](rank, world, folder) as reduce:
        trace = run(role, reduce)
    (folder / f"trace-{role}.json").write_text(json.dumps(trace))


def run(role: int, reduce: Callable[[Any], Any]) -> list[Any]:
    """Take the steps, deciding each together."""
    scale = DynamicLossScale(64.0, growth_interval=2, hysteresis=2)
    scalings = [DelayedScaling(4) for _ in range(TENSORS)]
    trace = []
    for step in range(STEPS):
        found = gradients(step, role)
        _, finite = unscale(found, scale)
        amaxes = [scaling.quantize(x)[1] for scaling, x in zip(scalings, found, strict=False)]
        amaxes += [0.0] * (TENSORS - len(amaxes))
        finite, agreed = agree(finite, amaxes, reduce=reduce)
        scale, applies = scale.next(finite)
        scalings = [scaling.next(amax) for scaling, amax in zip(scalings, agreed, strict=True)]
        trace.append([applies, scale.state_dict(), [scaling.scale for scaling in scalings]])
    return trace


if __name__ == "__main__":
    main()
