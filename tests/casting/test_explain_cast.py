"""What castwise says about the way a cast takes."""

from __future__ import annotations

import itertools
import os
import re

import castwise
import numpy as np
import oracle
import pytest
import support
from processes import run_python
from support import AVAILABLE


def explained(*arguments: object, **options: object) -> dict[str, str]:
    """The lines, by what stands before the colon."""
    first, *lines = castwise.explain_cast(*arguments, **options).splitlines()
    return {"": first, **dict(line.split(": ", 1) for line in lines if ": " in line)}


def test_formats_and_level() -> None:
    assert explained("float32", np.float16)[""] == f"float32 -> float16 on {castwise.cpu_level()}"
    assert explained(np.zeros(3, "i4"), "float8_e5m2")[""].startswith("int32 -> float8_e5m2 on")


def test_few_elements_are_cast_one_by_one() -> None:
    few, more = (explained(np.ones(count, "f4"), "bfloat16")[""] for count in (4, 5))
    assert few.endswith(" on portable")
    assert more.endswith(f" on {castwise.cpu_level()}")


@pytest.mark.parametrize("level", castwise.cpu_levels())
def test_the_level_in_use(level: str) -> None:
    with support.at_level(level):
        said = explained("float32", "bfloat16", verbose=True)
    assert said[""].endswith(f" on {level}")
    assert ("InSteps<" in said["route"]) == (level != "portable")
    assert level == "portable" or f"<{level.title()}," in said["route"]


def test_routes() -> None:
    assert explained("float32", "float32")["route"] == "a copy"
    with support.at_level("portable"):
        assert (
            explained("bfloat16", "float8_e4m3fn", rounding="towards-zero")["route"].count("then")
            == 1
        )
        scaled = explained("float16", "float8_e4m3fn", scale=0.3)["route"]
        assert (
            scaled == "decode to float64, then multiply by the scale, then round to float8_e4m3fn"
        )
        assert "Scale" in explained("float16", "float8_e4m3fn", scale=0.3, verbose=True)["route"]
    both = castwise.explain_cast("complex64", "complex128")
    assert both.startswith("complex64 -> complex128 on")
    assert both.count("two parts of complex numbers: float32 -> float64\n") == 1
    assert "imaginary parts" in castwise.explain_cast("float32", "complex64")


OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"scale": 0.3},
    {"scale": [0.3, 2.0]},
    {"overflow": "raise", "nan": "raise", "report": True},
    {"rounding": "stochastic", "overflow": "saturate", "nan": "zero"},
)


@pytest.mark.parametrize("level", castwise.cpu_levels())
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_words_name_no_types_for_any_pair_of_formats(
    level: str, options: dict[str, object]
) -> None:
    """Types of Rust have angle brackets, or names of several words; `verbose` adds them."""
    pairs = itertools.product(AVAILABLE, AVAILABLE)
    with support.at_level(level):
        for source, target in pairs:
            if source.kind == "complex" != target.kind:
                continue
            if options.get("nan") == "zero" and not oracle.component(target).has_zero:
                continue  # refused
            said = castwise.explain_cast(source.name, target.name, **options)  # type: ignore[arg-type]
            assert not re.search(r"[<>(](?<!->)|\b[A-Z]", said), said
            verbose = castwise.explain_cast(source.name, target.name, verbose=True, **options)  # type: ignore[arg-type]
            assert [
                re.sub(r" \(.*\)", "", line) for line in verbose.splitlines()
            ] == said.splitlines()


def test_a_scale_for_all_and_one_for_each() -> None:
    one, each = (explained("float32", "float16", scale=scale) for scale in (0.5, [0.5, 0.25]))
    assert one["route"] != each["route"]
    assert explained("float32", "float16", scale=np.array([0.5]))["route"] == one["route"]


def test_what_is_refused_and_reported() -> None:
    plain = explained("float32", "bfloat16")
    assert not {"refuses", "reports"} & plain.keys()
    assert explained("float32", "bfloat16", overflow="raise")["refuses"].startswith(
        "a look at the codes"
    )
    # Nothing is beyond the range.
    assert "refuses" not in explained("bfloat16", "float32", overflow="raise")
    assert "refuses" in explained("bfloat16", "float32", nan="raise")
    assert "reports" in explained("float32", "bfloat16", report=True)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="complex"):
        castwise.explain_cast("complex64", "float32")
    with pytest.raises(ValueError, match='rounding="up"'):
        castwise.explain_cast("float32", "float16", rounding="up")
    with pytest.raises(TypeError, match="float23"):
        castwise.explain_cast("float23", "float16")


def test_the_log() -> None:
    program = (
        "import castwise, numpy; castwise.cast(numpy.ones(3), 'bfloat16', overflow='saturate')"
    )
    environment = os.environ | {"CASTWISE_LOG": "cast"}
    done = run_python("-c", program, env=environment)
    (line,) = done.stderr.splitlines()
    assert line.startswith("castwise: float64 -> bfloat16 on ")
    assert "; route: " in line
    quiet = run_python("-c", program, env=os.environ | {"CASTWISE_LOG": ""})
    assert (quiet.returncode, quiet.stderr) == (0, "")
