"""A survey counts what numpy counts, whatever the layout, level and number of threads."""

from __future__ import annotations

import json
import pickle
from collections import Counter

import castwise
import numpy as np
import pytest
from castwise._core import survey_rows
from castwise.surveys import Survey
from oracle import Array, Format
from support import FLOATS, LEVELS, array_of, at_level

SHAPES = ((1, 16), (1, 32), (1, 128), (128, 128), (1, 0))
SMALLEST = 2.0**-1022
FEW = 128
RNG = np.random.default_rng(5)


def exponents(magnitudes: Array) -> Array:
    """The exponents of the binades that magnitudes are in."""
    return np.frexp(magnitudes)[1] - 1


def expected_blocks(values: Array, shape: tuple[int, int]) -> tuple[Counter, Counter]:
    """Count blocks by the eighth of their maximum, and elements by it and their depth."""
    magnitudes = np.abs(values)
    magnitudes = np.where(np.isfinite(magnitudes) & (magnitudes >= SMALLEST), magnitudes, 0)
    matrices = magnitudes.reshape(-1, *np.atleast_2d(magnitudes).shape[-2:])
    blocks: Counter = Counter()
    elements: Counter = Counter()
    rows, columns = matrices.shape[1:]
    width = shape[1] or columns
    for matrix in matrices:
        for row in range(0, rows, shape[0]):
            for column in range(0, columns, width):
                block = matrix[row : row + shape[0], column : column + width].ravel()
                block = block[block > 0]
                if not block.size:
                    continue
                highest = int(exponents(block.max()))
                eighth = 8 * highest + int(8 * (np.ldexp(block.max(), -highest) - 1))
                blocks[eighth] += 1
                depths = np.minimum(highest - exponents(block), 63)
                for depth, count in Counter(depths.tolist()).items():
                    elements[eighth, depth] += count
    return blocks, elements


def check(x: Array) -> Survey:
    """Compare a survey with counts by numpy, and with itself at other levels and threads."""
    survey = castwise.survey(x, threads=1)
    with np.errstate(invalid="ignore"):  # signaling NaN
        values = x.astype(np.float64)
    magnitudes = np.abs(values)
    finite = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
    assert survey.count == values.size
    assert survey.zeros == np.count_nonzero(magnitudes == 0)
    assert survey.infinities == np.count_nonzero(np.isinf(magnitudes))
    assert survey.nans == np.count_nonzero(np.isnan(magnitudes))
    assert survey.amax == finite.max(initial=0)
    assert survey.amin_nonzero == (finite.min() if finite.size else 0)
    places = exponents(finite)
    found, counts = np.unique(places, return_counts=True)
    binades = survey.binades
    assert binades.exponents.tolist() == found.tolist()
    assert binades.counts.tolist() == counts.tolist()
    squares = np.square(np.ldexp(finite, -places))
    sums = [squares[places == exponent].sum() for exponent in found]
    np.testing.assert_allclose(binades.squares, sums, rtol=2.0**-22)
    assert sum(survey.significant_bits.values()) == finite.size
    magnitudes, counts = np.unique(finite, return_counts=True)
    few = dict(zip(magnitudes.tolist(), counts.tolist(), strict=True))
    assert survey.values == (few if len(few) <= FEW else None)
    for shape in SHAPES:
        table = survey.blocks(shape)
        blocks, elements = expected_blocks(values, shape)
        assert dict(zip(table.eighths.tolist(), table.blocks.tolist(), strict=True)) == blocks
        cells = np.argwhere(table.counts)
        assert {
            (int(table.eighths[row]), int(depth)): int(table.counts[row, depth])
            for row, depth in cells
        } == elements
    for level in LEVELS:
        for threads in (1, 2, 5):
            with at_level(level):
                assert castwise.survey(x, threads=threads) == survey, (level, threads)
        check_rows(x[:4] if x.ndim == 2 else x.reshape(1, -1), level)
    return survey


def check_rows(matrix: Array, level: str) -> None:
    """Compare the magnitudes of rows, which are found together, with their surveys."""
    with at_level(level):
        rows = survey_rows(matrix)
    for row, found in zip(matrix, rows, strict=True):
        survey = castwise.survey(row, threads=1)
        exponents, counts, _ = survey.binades
        assert found == (
            *(survey.zeros, survey.infinities, survey.nans, survey.amax, survey.amin_nonzero),
            dict(zip(exponents.tolist(), counts.tolist(), strict=True)),
        )


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_every_float_format(row: Format) -> None:
    codes = RNG.integers(0, 1 << row.bits, (5, 300), dtype=np.uint64)
    check(array_of(codes, row))


@pytest.mark.parametrize(
    "x",
    [
        RNG.standard_normal((300, 700), dtype=np.float32),
        RNG.standard_t(3, (3, 70, 130)),
        RNG.standard_normal((257, 129), dtype=np.float32).T,
        RNG.standard_normal((40, 200), dtype=np.float32)[:, ::-3],
        RNG.standard_normal((40, 200)).astype(">f4"),
        RNG.integers(-128, 128, (64, 100)).astype(np.int8),
        np.ldexp(RNG.standard_normal((130, 1100)), RNG.integers(-200, 200, (130, 1100))),
        np.ldexp(1.0, RNG.integers(-1080, 1000, (3, 400))),
        RNG.standard_normal((2, 70_000)).astype(np.float16),
        RNG.standard_normal((30, 40, 3, 3), dtype=np.float32),
        RNG.standard_normal((200, 17)),
        RNG.standard_normal((5, 300, 40)).astype(np.float32),
        np.zeros((3, 3)),
        np.full((260, 520), 1.5, np.float32),
        np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e-310, 3.0]),
        np.array(2.5),
        np.array(["1.5"]).astype(bool),
    ],
    ids=lambda x: f"{x.dtype} {x.shape}",
)
def test_every_layout(x: Array) -> None:
    check(x)


@pytest.mark.parametrize("columns", [1, 24, 25, 128, 130, 500, 513, 1100])
@pytest.mark.parametrize("rare", [0.0, np.nan, np.inf, 1e-40, 2.0**-80, 0.999999])
def test_float32_is_surveyed_as_float64_of_the_same_values(columns: int, rare: float) -> None:
    x = RNG.standard_normal((30, columns), dtype=np.float32)
    x[RNG.random(x.shape) < 1 / 300] = rare
    x[::7, -1] = rare
    assert castwise.survey(x) == castwise.survey(x.astype(np.float64))


def test_rows_of_others_than_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x has shape \(3,\); give a matrix"):
        survey_rows(np.zeros(3))
    with pytest.raises(TypeError, match="x has dtype complex128"):
        survey_rows(np.zeros((3, 3), complex))


@pytest.mark.parametrize("length", [2**45, 2**59])
def test_more_rows_than_memory_holds_are_refused(length: int) -> None:
    for rows in (np.empty((length, 0), "f4"), np.broadcast_to(np.int8(1), (length, 1))):
        with pytest.raises(
            ValueError, match=rf"x has {length} items along its first axis, .* a part"
        ):
            survey_rows(rows)
    assert survey_rows(np.zeros((2, 0))) == [(0, 0, 0, 0.0, 0.0, {})] * 2


def test_rows_are_counted_apart() -> None:
    rows = [[1, 1e-40], [np.nan, 0], [0, 0], [np.inf, -4], [5e-324, 3], [np.nan, np.inf], [1, 2]]
    check_rows(np.array(rows), LEVELS[0])


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    survey = castwise.survey(np.zeros(shape, np.float32))
    assert (survey.count, survey.amax, survey.histogram()) == (0, 0.0, "")
    assert str(survey) == "no magnitudes\n0 elements"
    assert np.isnan(survey.predict("bfloat16").sqnr_db)
    assert np.isnan(survey.predict("nvfp4").sqnr_db)


def test_surveys_of_parts_add_up_in_any_order() -> None:
    x = RNG.standard_t(2, (7 * 128, 300)).astype(np.float32)
    parts = [castwise.survey(x[start : start + 128]) for start in range(0, len(x), 128)]
    whole = castwise.survey(x)
    assert sum(parts) == whole
    assert sum(RNG.permutation(np.array(parts, dtype=object))) == whole
    assert castwise.survey(x[:128]) != whole
    with pytest.raises(TypeError):
        whole + 1


def test_a_row_in_parts_of_threads() -> None:
    x = RNG.standard_normal(400_000, dtype=np.float32)
    survey = castwise.survey(x, threads=1)
    assert survey.blocks((1, 0)).blocks.tolist() == [1]
    assert survey.blocks((1, 0)).counts.sum() == np.count_nonzero(x)
    assert all(castwise.survey(x, threads=threads) == survey for threads in (2, 3, 7))


def test_significant_bits_are_those_of_the_longest_in_128_elements() -> None:
    x = np.ones((2, 256), np.float32)
    x[0, 3], x[1, 200] = 1.75, 1 + 2.0**-7
    assert castwise.survey(x).significant_bits == {1: 256, 3: 128, 8: 128}


def test_surveys_are_saved() -> None:
    survey = castwise.survey(RNG.standard_normal((30, 300)))
    assert Survey.from_dict(json.loads(json.dumps(survey.to_dict()))) == survey
    assert pickle.loads(pickle.dumps(survey)) == survey  # noqa: S301 - our own
    with pytest.raises(ValueError, match="schema=None"):
        Survey.from_dict({})
    with pytest.raises(ValueError, match="damaged"):
        Survey.from_dict({**survey.to_dict(), "blocks": 3})


@pytest.mark.parametrize(
    "change",
    [
        {"magnitudes": ["x", "0x1p0"]},
        {"magnitudes": ["0x1p99999", "0x1p0"]},
        {"magnitudes": None},
        {"binades": [[1, 2, 3, 4]]},
        {"binades": [[1 << 40, 2, 3]]},
        {"significant_bits": [[300, 1]]},
        {"blocks": [[[0]]] * 5},
        {"values": None},
        {"values": [["0x1p0", 90]]},
        {"values": [["nan", 1]]},
        {"values": [["0x1p0", -1]]},
        {"blocks": []},
        {"counts": [-1, 0, 0, 0]},
    ],
)
def test_damaged_surveys_are_refused(change: dict[str, object]) -> None:
    saved = castwise.survey(RNG.standard_normal((3, 30))).to_dict()
    with pytest.raises(ValueError, match=r"saved survey is damaged \(.+\); give what to_dict"):
        Survey.from_dict({**saved, **change})


@pytest.mark.parametrize("saved", [[], None, 3, "{}"])
def test_what_is_no_saved_survey_is_refused(saved: object) -> None:
    with pytest.raises(ValueError, match="saved survey has schema=None"):
        Survey.from_dict(saved)  # type: ignore[arg-type]


def test_few_values_of_parts_that_have_more_together() -> None:
    parts = [castwise.survey(np.arange(start, start + 100.0)) for start in (1, 60, 101)]
    assert all(len(part.values or ()) == 100 for part in parts)
    assert len((parts[0] + parts[0]).values or ()) == 100
    assert (parts[0] + parts[2]).values is None
    assert (parts[0] + parts[1]).values is None
    assert (parts[1] + parts[0] + parts[2]).values is None


def test_what_a_survey_prints() -> None:
    survey = castwise.survey([1.0, 1.5, 4.0, 0.0, np.nan])
    assert len(repr(survey)) < 240
    assert "3 elements" not in str(survey)
    assert str(survey).splitlines()[-1] == "5 elements, of these 1 zero, 1 NaN"
    assert max(map(len, str(survey).splitlines())) <= 80


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="x has dtype complex64; survey its real"):
        castwise.survey(np.zeros(3, np.complex64))
    with pytest.raises(TypeError, match="mask"):
        castwise.survey(np.ma.masked_array([1.0], mask=[True]))
    with pytest.raises(ValueError, match="threads"):
        castwise.survey([1.0], threads=0)
    survey = castwise.survey([1.0])
    with pytest.raises(ValueError, match=r"shape=\(2, 2\) is not surveyed"):
        survey.blocks((2, 2))
    with pytest.raises(ValueError, match=r"scale=2\.0 does not go with a scheme"):
        survey.predict("nvfp4", scale=2.0)
    with pytest.raises(ValueError, match="recipe='mlx' goes with a scheme"):
        survey.predict("bfloat16", recipe="mlx")
    with pytest.raises(ValueError, match="scale=0"):
        survey.predict("bfloat16", scale=0)
    with pytest.raises(TypeError, match="target=complex64 has no prediction"):
        survey.predict("complex64")
