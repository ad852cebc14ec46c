"""Saved surveys and logs that are not what was saved are refused."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import survey
from castwise.surveys import GradientLog, Survey
from castwise.surveys._survey import sum_of

WHOLE = np.random.default_rng(0).standard_normal((200, 200)).astype(np.float32)
WHOLE[0, :5] = 0, np.inf, np.nan, -0.0, 1e-40
SHAPES = [(7,), (130, 130), (3, 300, 70), (0, 4), (1, 70_000), (257, 1), ()]


@pytest.mark.parametrize("cls", [Survey, GradientLog])
@pytest.mark.parametrize("saved", [[], None, "text", 3])
def test_what_is_no_mapping_is_refused(cls: Any, saved: object) -> None:
    with pytest.raises(ValueError, match="has schema=None; this castwise reads "):
        cls.from_dict(saved)


@pytest.mark.parametrize(("cls", "kind"), [(Survey, "survey"), (GradientLog, "log")])
def test_another_version_is_named(cls: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=f"saved {kind} has schema=9; this castwise reads "):
        cls.from_dict({"schema": 9})


def test_a_sum_is_that_of_the_whole() -> None:
    generator = np.random.default_rng(0)
    whole = generator.standard_normal((3 * 128, 64)).astype(np.float32)
    whole[3, :5] = 0, np.inf, np.nan, -0.0, 1e-40
    parts = [survey(rows) for rows in np.split(whole, 3)]
    assert sum_of(parts) == survey(whole) == sum_of(reversed(parts)) == sum(parts)
    assert sum_of([]) == survey(whole[:0])
    assert sum_of(parts[:1]) == parts[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "uint8"])
def test_what_is_saved_is_loaded(shape: tuple[int, ...], dtype: str) -> None:
    """No survey is taken for a damaged one, of numbers of any magnitude, nor is a sum of some."""
    generator, total = np.random.default_rng(1), survey(np.zeros((2, 3)))
    for exponent in (-320, -300, -5, 3, 300):
        x = np.asarray(generator.standard_t(2, shape) * 10.0**exponent)
        x = np.where(generator.random(shape) < 0.3, generator.choice([0, np.nan, -np.inf]), x)
        surveyed = survey(castwise.cast(x, dtype))
        total += surveyed
        for each in (surveyed, total):
            assert Survey.from_dict(json.loads(json.dumps(each.to_dict()))) == each
            assert pickle.loads(pickle.dumps(each)) == each  # noqa: S301


def _changed(*path: Any) -> Callable[[Any], None]:
    """Return what changes a number in a saved survey: the last of a path is its new value."""
    *keys, last, value = path

    def change(saved: Any) -> None:
        for key in keys:
            saved = saved[key]
        saved[last] = value(saved[last]) if callable(value) else value

    return change


FINITE = "there are {} that are finite and not zero"
BEYOND = "which is out of range"
DAMAGES: list[tuple[Callable[[Any], None], str]] = [
    (_changed("counts", 0, 40_001), f"binades has 39996 elements, and {FINITE.format(39997)}"),
    (_changed("counts", 1, 7), f"binades has 39996 elements, and {FINITE.format(39991)}"),
    (_changed("counts", 3, 10**9), "counts has 40000 elements, of these 2 zeros, 1 infin.* NaN"),
    (_changed("counts", 3, -1), f"counts has -1 NaN, {BEYOND}"),
    (_changed("counts", 2, -1), f"counts has -1 infinities, {BEYOND}"),
    (_changed("magnitudes", 1, "0x1p9"), "magnitudes has .* as the largest and 512.0 as the small"),
    (_changed("magnitudes", 0, "0x1p-149"), "magnitudes has 1.4.*e-45 as the largest"),
    (_changed("magnitudes", 0, "inf"), "magnitudes has inf as the largest"),
    (_changed("magnitudes", 1, "nan"), ".* NaN as the smallest"),
    (_changed("magnitudes", 1, "-0x1p0"), ".* -1.0 as the smallest"),
    (_changed("binades", 3, 1, lambda count: count + 1), "binades has 39997 elements"),
    (_changed("binades", 3, 1, -3), rf"binades has \(-?\d+, -3, \d+\), {BEYOND}"),
    (_changed("binades", 3, 2, lambda squares: 8 * squares), "binades, exponent .* add up to"),
    (_changed("binades", 3, 0, 10**6), rf"binades has \(1000000, .* {BEYOND}"),
    (_changed("binades", -1, 0, 90), ".* binades does not begin and end there"),
    (
        _changed("significant_bits", 0, 1, 0),
        "significant_bits has .* elements, and there are 39996",
    ),
    (_changed("significant_bits", 0, 0, 60), "significant_bits has 60 bits, and float64 has 1 to"),
    (_changed("blocks", lambda tables: tables[:4]), "blocks has 4 tables instead of 5"),
]
for place, shape in enumerate(("1 x 16", "1 x 32", "1 x 128", "128 x 128", "1 x all")):
    name = f"blocks of {shape}"
    at = ("blocks", place, -1)
    DAMAGES += [
        (
            _changed("blocks", place, lambda rows: rows[1:]),
            f"{name} has .* elements, and there are",
        ),
        (_changed(*at, 1, 10**6), f"{name}, eighth .*: 1000000 blocks have"),
        (_changed(*at, 1, -1), f"blocks has -1 with maxima in the eighth .*, {BEYOND}"),
        (_changed(*at, 0, 30), f"{name}: the largest maximum is in the eighth 30, and"),
        (_changed(*at, 2, 0, 1, lambda count: count + 1), f"{name} has 39997 elements"),
        (_changed(*at, 2, 0, 0, 70), rf"blocks, eighth .*, has \(70, .* {BEYOND}"),
        (_changed(*at, 2, 0, 2, 0), f"{name}, eighth .*, 0 binades down: the squares of"),
    ]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_numbers_that_disagree_are_named(damage: Callable[[Any], None], said: str) -> None:
    saved = copy.deepcopy(survey(WHOLE).to_dict())
    damage(saved)
    with pytest.raises(ValueError, match=rf"^saved survey is damaged \({said}.*what to_dict\(\)"):
        Survey.from_dict(saved)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_changed("by_name", "no"), "by_name is 'no', and not a bool"),
        (_changed("by_name", lambda by_name: not by_name), "step 10: by_name=.* leaves one of"),
        (_changed("every", 7), "step 10 is not a multiple of every=7"),
        (_changed("every", 0), "every=0"),
        (_changed("target", "int8"), "int8"),
        (_changed("steps", 1, "step", 10), "step 10 stands twice"),
        (_changed("steps", 1, "step", -10), "step=-10"),
        (_changed("steps", 1, "loss_scale", "-0x1p3"), "loss_scale=-8.0"),
        (_changed("steps", 1, "unscaled", 1), "step 20: unscaled is 1, and not a bool"),
        (_changed("steps", 1, "by_name", {"x": {}}), "step 20: by_name=False|has schema=None"),
        (_changed("steps", 1, "total", {"schema": 2}), "step 20: by_name=True|survey is damaged"),
    ],
)
def test_logs_that_disagree_are_named(
    damage: Callable[[Any], None], said: str, by_name: bool
) -> None:
    log = GradientLog(every=10, by_name=by_name)
    for step in (10, 20):
        log.record(step, {"a": WHOLE, "b": WHOLE[:3]}, loss_scale=64.0)
    saved = json.loads(json.dumps(log.to_dict()))
    assert GradientLog.from_dict(saved).to_dict() == log.to_dict()
    damage(saved)
    with pytest.raises(ValueError, match=rf"^saved log is damaged \(.*({said})"):
        GradientLog.from_dict(saved)
