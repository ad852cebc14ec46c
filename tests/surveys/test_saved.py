"""Saved surveys and logs that are not what was saved are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from castwise import survey
from castwise.surveys import GradientLog, Survey
from castwise.surveys._survey import sum_of


@pytest.mark.parametrize("cls", [Survey, GradientLog])
@pytest.mark.parametrize("saved", [[], None, "text", 3])
def test_what_is_no_mapping_is_refused(cls: Any, saved: object) -> None:
    with pytest.raises(ValueError, match="has schema=None; this castwise reads 1"):
        cls.from_dict(saved)


@pytest.mark.parametrize(("cls", "kind"), [(Survey, "survey"), (GradientLog, "log")])
def test_another_version_is_named(cls: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=f"saved {kind} has schema=9; this castwise reads 1"):
        cls.from_dict({"schema": 9})


def test_a_sum_is_that_of_the_whole() -> None:
    generator = np.random.default_rng(0)
    whole = generator.standard_normal((3 * 128, 64)).astype(np.float32)
    whole[3, :5] = 0, np.inf, np.nan, -0.0, 1e-40
    parts = [survey(rows) for rows in np.split(whole, 3)]
    assert sum_of(parts) == survey(whole) == sum_of(reversed(parts)) == sum(parts)
    assert sum_of([]) == survey(whole[:0])
    assert sum_of(parts[:1]) == parts[0]
