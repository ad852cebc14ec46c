"""Two checkpoints are compared, and what made one of the other is named and proved."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import Diff, TensorDiff
from castwise.checkpoint.comparison import _sides, explanations
from castwise.cli import main
from numpy.typing import NDArray

BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn


def spread(dtype: Any = np.float32, size: int = 6000) -> NDArray[Any]:
    """Numbers of all magnitudes with halfway cases, infinities, NaN, zeros and subnormals."""
    random = np.random.default_rng(7)
    numbers = random.standard_normal(size) * np.exp2(random.uniform(-160, 135, size))
    numbers[1::4] = random.standard_normal(numbers[1::4].size)
    numbers[2::8] *= np.exp2(random.uniform(-20, 20, numbers[2::8].size))
    halfway = np.float32(1) + np.arange(200, dtype=np.float32) / 512
    numbers[1000:1200] = halfway * np.where(np.arange(200) % 2, -1, 1)
    numbers[1200:1400] = numbers[1000:1200] * (1 + 2.0**-40)  # halfway in float32 alone
    numbers[:6] = np.nan, np.inf, -np.inf, -0.0, 0, 65520
    with np.errstate(over="ignore"):
        return numbers.astype(dtype).reshape(-1, 60)


def written(path: Path, **tensors: Any) -> Path:
    checkpoint.save(path, tensors, overwrite=True)
    return path


def compared(tmp_path: Path, a: Any, b: Any, **options: Any) -> TensorDiff:
    left, right = (tmp_path / f"{name}.safetensors" for name in "ab")
    result = checkpoint.diff(written(left, x=a), written(right, x=b), **options)
    (tensor,) = result.tensors
    return tensor


ROUNDINGS = (
    *("nearest-even", "nearest-away", "towards-zero"),
    *("towards-positive", "towards-negative"),
)
PLAIN = [
    ("float32", target, {"rounding": rounding, "overflow": overflow})
    for target in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
    for rounding in ROUNDINGS
    for overflow in ("ieee", "saturate")
]
THROUGH = [
    (source, target, {"through": step, "overflow": overflow})
    for source, target, step in (
        ("float64", "bfloat16", "float32"),
        ("float64", "float16", "float32"),
        ("float32", "bfloat16", "float16"),
        ("float32", "float8_e4m3fn", "bfloat16"),
        ("float32", "float8_e5m2", "float16"),
        ("float64", "float8_e4m3fn", "float32"),
    )
    for overflow in ("ieee", "saturate")
]
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("float32", "bfloat16", {"nan": "zero"}),
    ("float32", "float8_e4m3fn", {"nan": "zero", "overflow": "saturate"}),
    ("float32", "float16", {"flushed": "result"}),
    ("float32", "bfloat16", {"flushed": "source"}),
    ("float32", "float32", {"through": "bfloat16"}),
    ("float32", "float32", {"through": "float16"}),
    ("float32", "float32", {"flushed": "source"}),
    ("float32", "bfloat16", {"scale": 0.25}),
]
CONVERSIONS = [*PLAIN, *THROUGH, *OTHERS]


def flushed(array: NDArray[Any]) -> NDArray[Any]:
    tiny = castwise.finfo(array.dtype).smallest_normal
    wide = array.astype(np.float64)
    return np.where(np.abs(wide) < tiny, np.copysign(0, wide), wide).astype(array.dtype)


def made(array: NDArray[Any], target: str, options: dict[str, Any]) -> NDArray[Any]:
    """What a recipe makes of an array, step by step."""
    arguments = {
        key: options[key] for key in ("rounding", "overflow", "nan", "scale") if key in options
    }
    if options.get("flushed") == "source":
        array = flushed(array)
    if "through" in options:
        steps = {key: value for key, value in arguments.items() if key != "scale"}
        array = castwise.cast(array, options["through"], **steps)
    result = castwise.cast(array, target, **arguments)
    return flushed(result) if options.get("flushed") == "result" else result


def test_there_are_60_conversions() -> None:
    assert len(CONVERSIONS) == 60


@pytest.mark.parametrize(
    ("source", "target", "options"),
    CONVERSIONS,
    ids=[f"{a}-{b}-{'-'.join(map(str, c.values()))}" for a, b, c in CONVERSIONS],
)
def test_a_recipe_is_named(
    tmp_path: Path, source: str, target: str, options: dict[str, Any]
) -> None:
    array = spread(castwise.finfo(source).dtype)
    result = made(array, target, options)
    tensor = compared(tmp_path, array, result)
    explanation = tensor.explanation
    assert explanation is not None
    assert explanation.every_element
    assert explanation.count == array.size
    plain = {"rounding": "nearest-even", "overflow": "ieee", "nan": "keep", "through": None}
    named = {key: explanation.options.get(key) for key in (plain | options)}
    assert named == plain | options
    arguments = {key: explanation.options[key] for key in ("rounding", "overflow", "nan")}
    if options.keys() <= arguments.keys():  # castwise.cast takes what it is given
        again = castwise.cast(array, target, **arguments)
        assert again.tobytes() == result.tobytes()


def test_casts_of_ml_dtypes(tmp_path: Path) -> None:
    wide = np.array([1 + 2.0**-8 + 2.0**-40, 1.999, 1.1, np.nan, -1 - 2.0**-8 - 2.0**-40])
    by_float32 = wide.astype(np.float32).astype(BF16)  # as before ml_dtypes 0.7
    twice = compared(tmp_path, wide, by_float32).explanation
    assert twice is not None
    assert str(twice) == "B is A rounded twice, through float32 (every element)"
    assert twice.options["through"] == "float32"
    array = np.array([1.3, 447, 1000, -1e9, np.nan, 0.001], np.float32)
    plain = compared(tmp_path, array, array.astype(E4M3))
    assert plain.explanation is not None
    assert plain.explanation.options["overflow"] == "ieee"
    clipped = np.clip(array, -448, 448).astype(E4M3)  # as torch from 2.12
    saturated = compared(tmp_path, array, clipped).explanation
    assert saturated is not None
    assert saturated.options["overflow"] == "saturate"
    assert "saturated where ml_dtypes gives NaN" in str(saturated)


def test_truncation_by_bits(tmp_path: Path) -> None:
    array = spread()[1:]
    bits = (array.view(np.uint32) >> 16).astype(np.uint16).view(BF16)
    explanation = compared(tmp_path, array, bits).explanation
    assert explanation is not None
    assert explanation.options["rounding"] == "towards-zero"
    assert explanation.every_element


def test_stochastic_rounding_is_not_taken_for_another(tmp_path: Path) -> None:
    array = np.random.default_rng(1).standard_normal((50, 60)).astype(np.float32)
    result = castwise.cast(array, "bfloat16", rounding="stochastic", seed=3)
    explanation = compared(tmp_path, array, result).explanation
    assert explanation is not None
    assert explanation.options == {"rounding": "stochastic", "seed": None}
    noise = compared(tmp_path, array, array[::-1].astype(BF16))
    assert noise.explanation is None
    assert "no recipe explains x" in str(
        checkpoint.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    )


@pytest.mark.parametrize("fault", range(16))
def test_a_fault_of_one_bit_is_found(
    tmp_path: Path, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sides, "_PIECE_BYTES", 4000)
    random = np.random.default_rng(fault)
    array = random.standard_normal((60, 70)).astype(np.float32)
    target: Any = (np.float32, BF16, np.float16, E4M3)[fault % 4]
    result = array.astype(target)
    place = int(random.integers(array.size))
    bits = result.reshape(-1).view(f"u{result.dtype.itemsize}")
    bits[place] ^= 1 << int(random.integers(8 * result.dtype.itemsize))
    explanation = compared(tmp_path, array, result).explanation
    assert explanation is not None
    assert (explanation.disagreeing, explanation.count) == (1, array.size)
    assert explanation.index == tuple(map(int, np.unravel_index(place, array.shape)))
    assert explanation.options["rounding"] == "nearest-even"
    assert not explanation.every_element


def test_a_recipe_is_proved_on_what_came_before_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sides, "_PIECE_BYTES", 2048)
    exact = np.arange(3000, dtype=np.float32) % 256
    exact[1500:] += np.float32(0.3)  # exact in bfloat16 before
    truncated = castwise.cast(exact, "bfloat16", rounding="towards-zero")
    explanation = compared(tmp_path, exact, truncated).explanation
    assert explanation is not None
    assert (explanation.options["rounding"], explanation.disagreeing) == ("towards-zero", 0)
    nearest = castwise.cast(exact, "bfloat16")
    nearest[7] = 9
    nearest[1500:] = truncated[1500:]
    explanation = compared(tmp_path, exact, nearest).explanation
    assert explanation is not None
    assert (explanation.disagreeing, explanation.index) == (1, (7,))


def test_all_tensors_that_are_right_but_for_a_few_elements_are_explained(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    source, result = {}, {}
    for name in map(str, range(12)):
        source[name] = (random.standard_normal((100, 300)) * 0.02).astype(np.float32)
        result[name] = castwise.cast(source[name], BF16, rounding="towards-zero")
        result[name].reshape(-1)[[5, 700, 9000]] *= BF16(1.5)
    left, right = (tmp_path / f"{name}.safetensors" for name in "ab")
    for tensor in checkpoint.diff(written(left, **source), written(right, **result)).tensors:
        assert tensor.explanation is not None, tensor.name
        assert (tensor.explanation.disagreeing, tensor.explanation.index) == (3, (0, 5))


def test_measures(tmp_path: Path) -> None:
    a = np.array([[1, 2, 0.5], [100, -4, 0]], np.float32)
    b = a + np.array([[0, 2.0**-20, 0], [1, 0, 0]], np.float32)
    tensor = compared(tmp_path, a, b)
    assert (tensor.reason, tensor.count, tensor.different) == ("values", 6, 2)
    assert (tensor.max_abs, tensor.max_abs_index, tensor.max_abs_values) == (1, (1, 0), (100, 101))
    assert (tensor.max_rel, tensor.max_rel_index) == (0.01, (1, 0))
    assert tensor.max_ulp == 2**17
    signal, noise = float(np.sum(np.square(a, dtype=float))), 1 + 2.0**-40
    assert tensor.sqnr_db == pytest.approx(10 * np.log10(signal / noise))
    rounded = compared(tmp_path, a, (b * 1.1).astype(E4M3))
    expected = compared(tmp_path, a.astype(E4M3), (b * 1.1).astype(E4M3))
    assert rounded.max_ulp == expected.max_ulp
    one_nan = compared(tmp_path, a, np.where(a == 2, np.nan, a))
    assert (one_nan.max_abs, one_nan.max_abs_index, one_nan.different) == (np.inf, (0, 1), 1)
    assert compared(tmp_path, one_nan_array := np.where(a == 2, np.nan, a), one_nan_array).same


@pytest.mark.parametrize("piece", [1 << 20, 40_000])
def test_the_largest_relative_difference_is_of_finite_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(_sides, "_PIECE_BYTES", piece)
    a = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    b = a * np.float32(1.001)
    b[70_000], b[1], b[30_000] = a[70_000] * 9, np.nan, np.inf
    tensor = compared(tmp_path, a, b)
    assert (tensor.max_rel, tensor.max_rel_index) == (8, (70_000,))
    assert tensor.max_rel_values == (a[70_000], b[70_000])


@pytest.mark.parametrize("place", [None, 0, 700_000, -1])
def test_bytes_of_large_tensors(tmp_path: Path, place: int | None) -> None:
    """Files are compared by their bytes first; NaN are equal to themselves."""
    a = np.random.default_rng(0).standard_normal(1_500_001).astype(np.float32)
    a[17] = np.nan
    b = a.copy()
    if place is not None:
        b[place] += 0.5
    seen: list[Any] = []
    tensor = compared(tmp_path, a, b, progress=seen.append)
    places = [] if place is None else [(place % a.size,)]
    assert (tensor.count, tensor.different) == (a.size, len(places))
    assert ([] if tensor.same else [tensor.max_abs_index]) == places
    assert tensor.max_ulp == compared(tmp_path, a[-3:], b[-3:]).max_ulp or place in {0, 700_000}
    if place is not None:
        finite = np.isfinite(a)
        noise = np.sum(np.square(a[finite].astype(float) - b[finite]))
        signal = np.sum(np.square(a[finite], dtype=float))
        assert tensor.sqnr_db == pytest.approx(10 * np.log10(signal / noise))
    done = [progress.done for progress in seen]
    assert (done[0], done[-1]) == (0, a.nbytes)
    assert done == sorted(done)


def test_signal_counts_pieces_that_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sides, "_PIECE_BYTES", 400)
    a = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    b = a.copy()
    b[[250, 777]] += 1
    tensor = compared(tmp_path, a, b)
    noise = np.sum(np.square(a.astype(float) - b))
    ratio = 10 * np.log10(np.sum(np.square(a, dtype=float)) / noise)
    assert tensor.sqnr_db == pytest.approx(ratio)
    assert (tensor.different, tensor.max_abs_index) == (2, tensor.max_abs_index)


def test_tolerances(tmp_path: Path) -> None:
    a = np.array([1, 10, 100, 0], np.float32)
    b = np.array([1.01, 10.01, 100, 1e-6], np.float32)
    for options in ({"rtol": 0.02, "atol": 1e-5}, {"rtol": 0.001}, {"atol": 0.001}, {}):
        tensor = compared(tmp_path, a, b, **options)
        near = np.isclose(b, a, **({"rtol": 0, "atol": 0} | options))
        assert tensor.same == bool(near.all())
        assert tensor.beyond == (int((~near).sum()) if options else None)
    assert compared(tmp_path, a, a.astype(np.float64), rtol=0).same
    assert not compared(tmp_path, a, a.astype(np.float64)).same
    with pytest.raises(ValueError, match=r"rtol must be a number from 0 on, not -1"):
        compared(tmp_path, a, a, rtol=-1)


def structure(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], **options: Any) -> Diff:
    left, right = written(tmp_path / "a.npz", **a), written(tmp_path / "b.npz", **b)
    return checkpoint.diff(left, right, **options)


def test_structure(tmp_path: Path) -> None:
    eye, ones = np.eye(3, dtype=np.float32), np.ones((2, 3), np.float32)
    same = {"same": ones}
    result = structure(
        tmp_path,
        same | {"old": eye, "gone": ones * 2, "head": ones, "t": ones, "n": np.array("text")},
        same | {"new": eye.astype(BF16), "extra": ones * 3, "t": ones.T, "n": ones},
    )
    found = {tensor.name: tensor for tensor in result.tensors}
    assert {name: tensor.reason for name, tensor in found.items()} == {
        **{"same": "equal", "old": "dtype", "gone": "only in A", "head": "only in A"},
        **{"t": "shapes", "n": "shapes", "extra": "only in B"},
    }
    assert found["old"].renamed == "new"
    assert found["head"].tied_to == "same"
    assert found["t"].shapes == ((2, 3), (3, 2))
    text = str(result)
    assert "old: is new in B" in text
    assert "the transpose of the other" in text
    assert "head: only in A, with the bytes of same there (tied)" in text
    assert all(len(line) <= 80 for line in text.split("\n"))
    assert [tensor.name for tensor in result.tensors][-1] == "same"
    assert json.loads(json.dumps(result.to_dict()))["tensors"][0]["remedy"] is not None


def test_renamed_by_a_file(tmp_path: Path) -> None:
    ones = np.ones(4, np.float32)
    a, b = {"old": ones, "w": ones}, {"new": ones * 2, "w": ones}
    names = tmp_path / "names.json"
    names.write_text('{"old": "new"}')
    tensor = structure(tmp_path, a, b, rename=names).tensors[0]
    assert (tensor.name, tensor.renamed, tensor.different) == ("old", "new", 4)
    for mapping, words in (
        ({"olds": "new"}, "rename: 'olds' is not a tensor of A.*nearest is 'old'"),
        ({"old": "news"}, "'news' is not a tensor of B.*nearest is 'new'"),
        ({"old": "new", "w": "new"}, "'old' and 'w' would both be 'new'"),
    ):
        with pytest.raises(checkpoint.CheckpointError, match=words):
            structure(tmp_path, a, b, rename=mapping)
    names.write_text('{"old": ["new"]}')
    with pytest.raises(TypeError, match=r"json: \['new'\] is not a name of a tensor"):
        structure(tmp_path, a, b, rename=names)
    with pytest.raises(FileNotFoundError):
        structure(tmp_path, a, b, rename=tmp_path / "missing")


def test_names_of_a_file_are_not_read_as_formats(tmp_path: Path) -> None:
    names = tmp_path / "names.json"
    names.write_text('{"w": "b"}')  # numpy calls int8 so
    ones = np.ones(4, np.float32)
    (tensor,) = structure(tmp_path, {"w": ones}, {"b": ones * 2}, rename=names).tensors
    assert (tensor.name, tensor.renamed, tensor.different) == ("w", "b", 4)


BEYOND = 2**53 + 1 + np.arange(9)
"""Integers of which float64 holds every second."""


@pytest.mark.parametrize("order", [1, -1], ids=["integers first", "floats first"])
@pytest.mark.parametrize(
    ("integers", "floats"),
    [
        (np.arange(9), np.arange(9, dtype=np.float16)),
        (np.arange(3000), np.arange(3000, dtype=np.float16)),
        (BEYOND, BEYOND.astype(np.float64)),
        (BEYOND.astype(np.uint64), BEYOND.astype(np.float32)),
        (np.array([True, False]), np.array([1, 0.5], ml_dtypes.bfloat16)),
        (np.array(2**64 - 1, np.uint64), np.array(2.0**64)),
        (np.arange(3), np.array([0, np.nan, np.inf], np.float32)),
        (BEYOND, BEYOND.astype(np.int32)),
    ],
)
def test_integers_beside_floats_are_compared_by_their_values(
    tmp_path: Path, integers: Any, floats: Any, order: int
) -> None:
    pair = [integers, floats][::order]
    tensor = compared(tmp_path, *pair)
    exact = [[as_exact(value) for value in array.reshape(-1)] for array in pair]
    differing = [(a, b) for a, b in zip(*exact, strict=True) if a != b]
    assert (tensor.reason, tensor.different) == (
        "values" if differing else "dtype",
        len(differing),
    )
    finite = [abs(a - b) for a, b in differing if a is not None and b is not None]
    expected = max(finite, default=0) if len(finite) == len(differing) else np.inf
    assert tensor.max_abs == float(expected)


def as_exact(value: Any) -> Fraction | None:
    return Fraction(value.item()) if np.isfinite(value) else None


def test_formats_that_cannot_be_compared(tmp_path: Path) -> None:
    result = structure(tmp_path, {"x": np.ones(3, np.complex64)}, {"x": np.ones(3, np.float32)})
    (tensor,) = result.tensors
    assert (tensor.reason, tensor.formats) == ("formats", ("complex64", "float32"))
    assert "cannot be compared" in str(result)
    (tensor,) = structure(tmp_path, {"x": np.arange(3)}, {"x": np.arange(3) + 1}).tensors
    assert (tensor.reason, tensor.different) == ("values", 3)


def test_metadata(tmp_path: Path) -> None:
    tensors = {"x": np.ones(2, np.float32)}
    for name, text in (("a", "1"), ("b", "2")):
        checkpoint.save(tmp_path / f"{name}.safetensors", tensors, metadata={"v": text, "w": "3"})
    result = checkpoint.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert result.metadata == {"v": ("1", "2")}
    assert not result.same
    assert checkpoint.diff(result.first, result.second, atol=0).same
    assert "metadata 'v': '1' and '2'" in str(result)


def test_a_folder_beside_a_file(tmp_path: Path) -> None:
    tensors = {f"layers.{n}.w": np.full((20, 20), n + 0.1, np.float32) for n in range(4)}
    source = written(tmp_path / "a.safetensors", **tensors)
    checkpoint.cast_file(source, tmp_path / "b", "bfloat16", max_shard_size=1000)
    result = checkpoint.diff(source, tmp_path / "b")
    assert {tensor.reason for tensor in result.tensors} == {"values"}
    assert all(
        str(tensor.explanation) == "B is A rounded once (every element)"
        for tensor in result.tensors
    )
    with pytest.raises(FileNotFoundError):
        checkpoint.diff(source, tmp_path / "c")


def test_a_map(tmp_path: Path) -> None:
    tensors = {"w": spread()[1:], "bias": np.linspace(0, 1, 9, dtype=np.float32)}
    source = written(tmp_path / "a.safetensors", **tensors)
    dtypes = {"default": "bfloat16", "bias": "keep"}
    checkpoint.cast_file(source, tmp_path / "b.safetensors", dtype_map=dtypes)
    assert checkpoint.diff(source, tmp_path / "b.safetensors", dtype_map=dtypes).same
    assert not checkpoint.diff(source, tmp_path / "b.safetensors").same


def test_errors_over_the_unavoidable(tmp_path: Path) -> None:
    exact = np.random.default_rng(2).standard_normal((40, 50))
    reference = written(tmp_path / "r.safetensors", x=exact)
    once = castwise.cast(exact, "bfloat16")
    cut = castwise.cast(exact, "bfloat16", rounding="towards-zero")
    tensor = compared(tmp_path, once, cut, reference=reference)
    assert tensor.error_ratios is not None
    errors = [np.sqrt(np.sum((exact - array.astype(float)) ** 2)) for array in (once, cut)]
    assert tensor.error_ratios == pytest.approx((1, errors[1] / errors[0]))


def test_names_of_several_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = spread()
    left = written(tmp_path / "a.safetensors", **{"a\nb": array, "c\td": array[:2]})
    right = written(tmp_path / "b.safetensors", **{"a\nb": array.astype(BF16), "e\nf": array[:2]})
    assert main(["diff", str(left), str(right)]) == 1
    said = capsys.readouterr().out
    assert "\na\\nb: at " in said
    assert "c\\td: is e\\nf in B" in said


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = spread()
    a = str(written(tmp_path / "a.safetensors", x=array, y=array[:2]))
    b = str(written(tmp_path / "b.safetensors", x=array.astype(BF16), y=array[:2]))
    assert main(["diff", a, a]) == 0
    assert capsys.readouterr().out == "2 tensors compared: the same\n"
    assert main(["diff", a, b]) == 1
    assert "B is A rounded once (every element)" in capsys.readouterr().out
    assert main(["diff", a, b, "--json", "--top", "1"]) == 1
    (tensor,) = json.loads(capsys.readouterr().out)["tensors"]
    assert tensor["explanation"]["options"] == {
        **{"rounding": "nearest-even", "overflow": "ieee", "nan": "keep", "through": None}
    }
    assert tensor["explanation"]["every_element"] is True
    assert main(["diff", a, b, "--quiet"]) == 1
    assert capsys.readouterr().out == ""
    assert main(["diff", a, str(tmp_path / "missing.safetensors")]) == 2
    names = tmp_path / "names.toml"
    names.write_text('z = "x"')
    assert main(["diff", a, b, "--rename", str(names)]) == 2
    assert "'z' is not a tensor of A" in capsys.readouterr().err
    near = str(written(tmp_path / "near.safetensors", x=array[:, ::-1], y=array[:2] / 2))
    assert main(["diff", a, near, "--rtol", "1e-3"]) == 1
    near = str(written(tmp_path / "near.safetensors", x=array * np.float32(0.9999), y=array[:2]))
    assert main(["diff", a, near, "--rtol", "1e-3", "--quiet"]) == 0


def test_the_sample_takes_extreme_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One subnormal among many elements decides between two recipes."""
    monkeypatch.setattr(explanations, "_SPREAD", 64)
    array = np.random.default_rng(5).standard_normal(4000).astype(np.float32)
    array[1234], array[17] = 1e-40, 1e9
    result = castwise.cast(array, "bfloat16", rounding="towards-zero")
    result[1234] = 0
    explanation = compared(tmp_path, array, result).explanation
    assert explanation is not None
    assert explanation.every_element
    assert explanation.options["flushed"] in {"source", "result"}


@pytest.mark.parametrize(
    "name", [name for name in castwise.formats() if castwise.finfo(name).dtype]
)
def test_every_format(tmp_path: Path, name: str) -> None:
    dtype: Any = castwise.finfo(name).dtype
    array = np.array([0, 1, 1, 0, 1, 1, 0, 1] * 40).astype(dtype).reshape(16, 20)
    other = array.copy()
    other[3, 4] = 1 if array[3, 4] == 0 else np.zeros((), dtype)
    for b, count in ((array, 0), (other, 1)):
        tensor = compared(tmp_path, array, b)
        assert (tensor.different, tensor.reason) == (count, "values" if count else "equal")
    assert tensor.explanation is not None
    assert (tensor.explanation.disagreeing, tensor.explanation.index) == (1, (3, 4))
    for b in (array[:0], array[0, 0]):
        assert compared(tmp_path, b, b).same


def test_tensors_without_elements_or_axes(tmp_path: Path) -> None:
    for a in (np.empty((0, 3), np.float32), np.float32(1.1)):
        tensor = compared(tmp_path, np.asarray(a), np.asarray(a).astype(BF16))
        assert tensor.explanation is not None
        assert tensor.explanation.every_element
