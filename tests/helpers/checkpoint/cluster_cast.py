"""Cast a checkpoint by the workers of a cluster on this machine; a script, not a test.

Usage: cluster_cast.py ray|mpi SRC DST, for mpi by `mpiexec -n 3 python -m mpi4py.futures`. Prints
what became of the tensors, as JSON. Batches are small, so that every worker has some.
"""

import json
import logging
import re
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from castwise import checkpoint
from castwise.checkpoint.running import _executors

PACKAGE = Path(__file__).parents[3] / "python" / "castwise"


def by_ray(cast: Callable[[Any], None]) -> None:
    """Cast with the class on the page about clusters."""
    import ray  # noqa: PLC0415

    page = (PACKAGE / "checkpoint" / "cluster.md").read_text("utf-8")
    code = re.findall(r"```python\n(class RayExecutor.*?)\n\n\w", page, re.DOTALL)
    names: dict[str, Any] = {"ray": ray}
    exec(code[0], names)  # noqa: S102  (of our page)
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    cast(names["RayExecutor"]())
    ray.shutdown()


def by_mpi(cast: Callable[[Executor], None]) -> None:
    from mpi4py.futures import MPIPoolExecutor  # noqa: PLC0415

    with MPIPoolExecutor() as executor:
        cast(executor)


def main(kind: str, source: str, destination: str) -> None:
    logging.basicConfig()
    _executors.BATCH_BYTES = 20_000

    def cast(executor: Any) -> None:
        summary = checkpoint.cast_file(
            *(source, destination, "float8_e4m3fn"),
            rounding="stochastic",
            seed=3,
            executor=executor,
        )
        print(json.dumps(summary.to_dict()["tensors"]))

    {"ray": by_ray, "mpi": by_mpi}[kind](cast)


if __name__ == "__main__":
    main(*sys.argv[1:])
