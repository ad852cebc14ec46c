"""Ranks of a data-parallel run reach the same next state: real processes, one MAX all-reduce."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from castwise.loss_scale import DynamicLossScale, LossScaler, agree, merge, pack

RANK = Path(__file__).parents[1] / "helpers" / "loss_scale" / "rank.py"
COMMUNICATIONS = (pytest.param("gloo", marks=pytest.mark.frameworks), "files")
ROLES = [*itertools.permutations(range(2)), (0, 1, 2), (2, 0, 1), (1, 2, 0, 3), (3, 2, 1, 0)]


def run(roles: tuple[int, ...], communication: str, folder: Path) -> list[object]:
    """Start a process per role, in an order of ranks; return each role's trace."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, RANK, *map(str, (rank, len(roles), role, folder, communication))],
            env=environment,
        )
        for rank, role in enumerate(roles)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0] * len(roles)
    return [json.loads((folder / f"trace-{role}.json").read_text()) for role in sorted(roles)]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("communication", COMMUNICATIONS)
@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_every_rank_takes_the_same_steps(
    roles: tuple[int, ...],
    communication: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if communication == "gloo":
        request.getfixturevalue("framework")("torch")
    traces = run(roles, communication, tmp_path)
    assert all(trace == traces[0] for trace in traces)
    applied = [step[0] for step in traces[0]]  # type: ignore[index, attr-defined]
    # NaN and infinity on one rank alone stop all, ranks without parameters included.
    assert [step for step, applies in enumerate(applied) if not applies] == [3, 4, 9]
    assert traces[0][-1][2] != [1.0] * 3  # type: ignore[index]


@pytest.mark.exhaustive
def test_the_order_of_ranks_means_nothing(tmp_path: Path) -> None:
    seen = []
    for number, roles in enumerate(itertools.permutations(range(3))):
        folder = tmp_path / str(number)
        folder.mkdir()
        seen.append(run(roles, "files", folder))
    assert all(traces == seen[0] for traces in seen)


def test_what_is_packed() -> None:
    assert pack(True).tolist() == [0]
    assert pack(False, [1.5, math.nan, 0.0]).tolist() == [1, 1.5, math.inf, 0]
    assert pack(True, np.ones(3)).dtype == np.float32
    finite, amaxes = merge(np.maximum(pack(True, [1, 5]), pack(False, [3, 2])))
    assert not finite
    assert amaxes.tolist() == [3, 5]


def test_reduce_may_work_in_place_or_return() -> None:
    other = pack(False, [7.0])
    assert agree(True, [1.0], reduce=lambda mine: np.maximum(mine, other))[0] is False

    def in_place(mine: np.ndarray) -> None:
        np.maximum(mine, other, out=mine)

    finite, amaxes = agree(True, [1.0], reduce=in_place)
    assert (finite, amaxes.tolist()) == (False, [7.0])
    scaler = LossScaler(DynamicLossScale(8.0))
    assert not scaler.update(True, reduce=lambda mine: np.maximum(mine, pack(False)))
    assert scaler.scale == 4.0


@pytest.mark.parametrize("finite", ["no", "False", 1, None, np.array([True, True])])
def test_what_is_not_a_flag(finite: object) -> None:
    scaler = LossScaler(8.0)
    for call in (
        lambda: pack(finite),  # type: ignore[arg-type]
        lambda: agree(finite, reduce=lambda mine: mine),  # type: ignore[arg-type]
        lambda: scaler.update(finite, reduce=lambda mine: mine),
    ):
        with pytest.raises(TypeError, match="finite="):
            call()
    assert scaler.steps == 0


def test_what_is_not_a_maximum() -> None:
    with pytest.raises(ValueError, match=r"amaxes=-1\.0"):
        pack(True, [-1.0])
    with pytest.raises(ValueError, match="one number per tensor"):
        pack(True, [[1.0]])
    for wrong in ([2.0, 1.0], [0.0, math.nan], [math.nan], [-1.0], [0.0, -1.0]):
        with pytest.raises(ValueError, match="reduce them with MAX"):
            merge(wrong)
    with pytest.raises(ValueError, match="give the vector"):
        merge([])
    with pytest.raises(ValueError, match=r"reduced='0\.5x' is not valid; give the vector"):
        merge("0.5x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every rank must give as many"):
        agree(True, [1.0], reduce=lambda _: pack(True))
