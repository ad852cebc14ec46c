"""Reports are text of any width, fragments for notebooks, and pages that need nothing else."""

from __future__ import annotations

import html.parser
import json
import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.results.report import CastRow
from castwise.checkpoint.results.summary import CastSummary
from castwise.cli import main
from castwise.rendering.html import html_of, page_lines
from castwise.rendering.sheet import Exponents, FormatRange, Front, Histogram, Lines, Section, Table
from castwise.rendering.text import text_lines, text_of
from processes import run_on_terminal

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "<script>alert('&')</script>\x1b[2J\n"
"""A name that a file may have, and that no terminal and no browser may take for more."""


def rows(count: int) -> list[tuple[str, str, str]]:
    return [(f"layers.{index}.weight", "0", f"{index}") for index in range(count)]


def ranked(count: int) -> Table:
    return Table(
        ("tensor", "spare", "lost"),
        lambda: rows(count),
        text_columns=1,
        spare=("spare",),
        losses=frozenset(("lost",)),
        ranked=True,
    )


class Parser(html.parser.HTMLParser):
    """Collects the tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check_stands_alone(page: str) -> Parser:
    """A page has no script and names no other file, and its pictures are XML."""
    parsed = Parser(page)
    assert "script" not in parsed.tags
    assert not {"src", "href", "onload", "onclick", "style"} & {
        name for name, _ in parsed.attributes
    }
    assert "http" not in page
    assert "url(" not in page
    assert "@import" not in page
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        xml.etree.ElementTree.fromstring(picture)  # noqa: S314  (our own)
    return parsed


def test_columns_go_before_names_are_shortened() -> None:
    table = Table(
        ("tensor", "shape", "bytes"),
        lambda: [("model.layers.0.self_attn.q_proj.weight", "4096x4096", "1,024")],
        text_columns=2,
        spare=("shape",),
    )
    whole = [*text_lines([table])]
    assert whole[0].split() == ["tensor", "shape", "bytes"]
    assert whole[2].startswith("model.layers.0.self_attn.q_proj.weight  4096x4096")
    header, _, row = text_lines([table], width=46)
    assert header.split() == ["tensor", "bytes"]
    assert row == "model.layers.0.self_attn.q_proj.weight  1,024"
    *_, cut = text_lines([table], width=30)
    assert cut == "…0.self_attn.q_proj      1,024"


@pytest.mark.parametrize(
    ("start", "width", "shown"),
    [
        ("model.layers.3.self_attn", 25, "3…self_attn.k_proj"),
        ("model.layers.17.mlp.experts.42", 26, "17…42.k_proj"),
        ("model.layers.*.mlp.shared_expert", 22, "*…expert.k_proj"),
        ("blk.0.a_very_long_component", 24, "0…omponent.k_proj"),
        ("decoder", 24, "decoder.k_proj"),
    ],
)
def test_a_short_name_keeps_the_numbers_of_layers(start: str, width: int, shown: str) -> None:
    """Without the last component that all names share, as far as they fit."""
    names = [f"{start}.{name}_proj.weight" for name in "kq"]
    table = Table(("tensor", "bytes"), lambda: [(name, "1,024") for name in names])
    *_, line, other = text_lines([table], width=width)
    assert line.split() == [shown, "1,024"]
    assert other.split()[0].endswith("q_proj")
    assert max(len(line), len(other)) <= width
    names[1] = names[1].replace("weight", "bias")
    *_, line, other = text_lines([table], width=width)
    assert line.split()[0].endswith("weight")
    assert other.split()[0].endswith("bias")


def test_cells_lose_their_second_words_before_columns_of_the_decision_go() -> None:
    table = Table(
        ("weights", "bytes", "cheaper"),
        lambda: [("model.layers.0.self_attn.q_proj.weight", "16 MB", "nvfp4 -7.3 MB")],
        text_columns=1,
        spare=("cheaper",),
        decision=frozenset(("cheaper",)),
        short=frozenset(("cheaper",)),
    )
    assert [*text_lines([table], width=60)][2].endswith("16 MB  nvfp4 -7.3 MB")
    assert [*text_lines([table], width=40)][2].endswith("16 MB    nvfp4")
    header, *_ = text_lines([table], width=22)
    assert header.split() == ["weights", "bytes"]


@pytest.mark.parametrize(("width", "more"), [(60, set()), (80, {"cheaper", "dearer"})])
def test_advice_keeps_the_decision_on_a_narrow_terminal(
    tmp_path: Path, width: int, more: set[str]
) -> None:
    names = [f"model.layers.{layer}.self_attention.output.weight" for layer in range(3)]
    weights = {name: castwise.cast(np.eye(64, 8 << n), "float32") for n, name in enumerate(names)}
    checkpoint.save(tmp_path / "in.safetensors", weights)
    sheet = checkpoint.advise(tmp_path / "in.safetensors", bits=20).__sheet__()
    header, _, *lines = text_lines(sheet, width=width)
    assert {"weights", "becomes", "bytes", "error"} | more <= {*header.split()}
    assert "exponents" not in header
    assert all(len(line) <= width for line in lines[: len(names)])


def test_the_rows_of_ranked_tables_may_be_cut() -> None:
    lines = [*text_lines([ranked(5)], top=2)]
    assert lines[2:] == [
        "layers.0.weight      0     0",
        "layers.1.weight      0     1",
        "and 3 other rows",
    ]
    assert len([*text_lines([ranked(5)], top=5)]) == 7
    assert len([*text_lines([Table.of(("tensor",), [("a",), ("b",)])], top=1)]) == 4


def test_what_is_lost_is_colored_and_nothing_else_moves() -> None:
    plain = [*text_lines([ranked(3)])]
    colored = [*text_lines([ranked(3)], color=True)]
    assert [ESCAPES.sub("", line) for line in colored] == plain
    assert not ESCAPES.search(colored[2])
    assert ESCAPES.search(colored[3])


def test_hostile_names_stay_texts() -> None:
    sheet = [
        Table.of(("tensor",), [(HOSTILE,)]),
        Lines((HOSTILE,)),
        Section(HOSTILE, [Table.of((), [(HOSTILE,)])]),
        Exponents([(HOSTILE, Histogram.of_counts({0: 1}))], [FormatRange.of("float16")]),
    ]
    assert "\x1b" not in text_of(sheet)
    assert len(text_of(sheet).split("\n")) == 4
    parsed = check_stands_alone("".join(page_lines(HOSTILE, sheet)))
    assert "alert" in "".join(parsed.texts)
    assert "\x1b" not in "".join(parsed.texts)


def test_a_histogram_has_the_range_of_a_format() -> None:
    histogram = Histogram.of_counts({-20: 1, -10: 800, -1: 100, 3: 8})
    assert histogram.text() == "▁    █   ▁ ▁    "
    band = FormatRange("a format", -14, -10, 2)
    assert histogram.text((-20, 4), band) == "▁    [█   ▁ ▁]    "
    assert "[" not in histogram.text((-20, 4), FormatRange("wide", -30, -25, 2))
    assert Histogram.of_counts({}).text() == ""


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn"])
def test_the_range_of_a_format_is_that_of_its_numbers(name: str) -> None:
    band, row = FormatRange.of(name), castwise.finfo(name)
    assert 2.0**band.smallest <= row.smallest_subnormal < 2.0 ** (band.smallest + 1)
    assert 2.0**band.normal == row.smallest_normal
    assert 2.0**band.largest <= row.max < 2.0 ** (band.largest + 1)
    moved = band.shift(-3)
    assert (moved.largest, moved.largest - moved.smallest) == (-3, band.largest - band.smallest)


def test_pictures_show_every_tensor_format_and_the_chosen_point() -> None:
    exponents = Exponents(
        [("weights", Histogram.of_counts({-9: 5, -7: 10}))],
        [FormatRange.of("float8_e4m3fn"), FormatRange.of("bfloat16")],
    )
    front = Front([(1000, 1e-2), (2000, 1e-3), (4000, 0.0)], (2000, 1e-3))
    page = "".join(page_lines("pictures", [exponents, front]))
    check_stands_alone(page)
    assert page.count("<svg") == 2
    for text in ("weights", "float8_e4m3fn", "bfloat16 \N{LEFTWARDS ARROW}", "2 kB", "1.00e-03"):
        assert text in page
    assert "nan" not in page
    assert html_of([Exponents([], []), Front([(1, 0.0)], (1, 0.0))]).count("<svg") == 0


def summary_of(count: int) -> CastSummary:
    """A summary of the experts of a large model, whose reports are those of a cast."""
    array = np.geomspace(1e-9, 1, 1000, dtype=np.float32)
    _, report = castwise.cast(array, "float8_e4m3fn", report=True)
    names = (
        f"model.layers.{layer}.mlp.experts.{expert}.{module}_proj.weight"
        for layer in range(count)
        for expert in range(count)
        for module in ("gate", "up", "down")
    )
    shape, shard = (2048, 7168), "model-00001-of-00100.safetensors"
    rows = [
        CastRow(name, shape, "bfloat16", "float8_e4m3fn", 2, 1, report, shard) for name in names
    ]
    return CastSummary("model", "cast", {}, rows)


def test_a_page_takes_less_than_200_bytes_a_tensor() -> None:
    summary = summary_of(50)  # 100,000 tensors must be less than 20 MB
    page = "".join(page_lines("many", summary.__sheet__()))
    assert len(page.encode()) < 200 * len(summary.rows)
    assert Parser(page).tags.count("details") == 3
    assert page.count("experts.7.gate_proj.weight") == 50
    assert len(str(summary).split("\n")) < 12
    assert len(summary._repr_html_()) < 100_000


def test_losses_begin_with_the_decision_and_end_with_the_meanings() -> None:
    array = np.geomspace(1e-3, 1e3, 1000)
    array[0] = np.nan
    beyond = (array > 464).sum()  # the middle between 448 and what would be the next number
    report = castwise.cast(array, "float8_e4m3fn", report=True)[1]
    smooth = np.random.default_rng(0).standard_normal((64, 64))
    decisions: list[tuple[Any, list[str]]] = [
        (
            report,
            [
                f"of 1,000 elements: {beyond} overflowed, 1 NaN in the source",
                "signal to noise: -inf",
            ],
        ),
        (castwise.survey(smooth).predict("int8_channel"), ["expected of int8_channel"]),
        (
            castwise.survey(np.ones(9)).predict("nvfp4"),
            [
                "expected of nvfp4",
                "of 9 elements: none underflowed",
                "signal to noise: not known, as few magnitudes, or magnitudes alike, carry the "
                "signal",
            ],
        ),
    ]
    for losses, decision in decisions:
        fragment = losses._repr_html_()
        parsed = check_stands_alone(fragment)
        texts = [text for text in parsed.texts if text.strip()]
        assert texts[1 : 1 + len(decision)] == decision  # after the style
        (meanings,) = re.findall("<summary>what the rows mean</summary>(.*)</details>", fragment)
        names = re.findall(r"<tr><td>(\w+)", fragment)
        assert [*dict.fromkeys(re.findall(r"<p>(\w+): [A-Z]", meanings))] == names
        assert len(names) >= 6
        lost = {"overflowed", "saturated", "underflowed"}
        bold = set(re.findall(r"<tr><td>(\w+)<td><b>", fragment))
        assert bold == {name for name in lost & {*names} if getattr(losses, name)}
    assert "\n" in str(castwise.survey(smooth).predict("float16"))


def test_a_fragment_has_ink_and_paper_of_its_own() -> None:
    """A notebook may be light on a dark system, whose ink is light."""
    (rule,) = re.findall(
        r"^\.castwise\{([^}]*)\}", html_of([])[len('<div class="castwise"><style>') :]
    )
    assert "color:var(--ink)" in rule
    assert "background:var(--paper)" in rule


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rendered") / "model.safetensors"
    numbers = np.random.default_rng(0)
    arrays = {
        f"model.layers.{layer}.self_attn.{name}_proj.weight": 0.02
        * numbers.standard_normal((64, 128)).astype(np.float32)
        for layer in range(2)
        for name in "qkvo"
    }
    checkpoint.save(path, arrays)
    return path


def commands(model: Path, folder: Path) -> dict[str, list[Any]]:
    out = folder / "out.safetensors"
    return {
        "cast": ["cast", model, out, "--dtype", "fp8", "--exit-zero", "--overwrite"],
        "dry run": ["cast", model, out, "--dtype", "fp8", "--dry-run", "--measure", "--exit-zero"],
        "quantize": ["quantize", model, out, "--scheme", "fp8_channel", "--overwrite"],
        "inspect": ["inspect", model],
        "survey": ["survey", model],
        "advise": ["advise", model, "--bits", "20"],
        "diff": ["diff", model, model],
        "verify": ["verify", model, model],
    }


@pytest.mark.parametrize("command", commands(Path(), Path()))
def test_every_report_is_a_page(
    model: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    arguments = [*map(str, commands(model, tmp_path)[command]), "--html", str(page)]
    assert main(arguments) == 0
    assert capsys.readouterr().out
    parsed = check_stands_alone(page.read_text("utf-8"))
    assert {"table", "h1"} <= set(parsed.tags) or command in {"diff", "verify"}
    assert arguments[0] in "".join(parsed.texts)
    assert main(arguments) == 0  # a page may be replaced
    page.write_text("notes of mine")
    assert main(arguments) == 2
    assert "is there and is not a report" in capsys.readouterr().err
    assert page.read_text() == "notes of mine"


def test_a_page_replaces_no_checkpoint(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model.read_bytes()
    for command in ("inspect", "survey", "advise"):
        arguments = commands(model, tmp_path)[command]
        assert main([*map(str, arguments), "--html", str(model)]) == 2
        assert "would replace the checkpoint" in capsys.readouterr().err
    assert model.read_bytes() == before
    missing = tmp_path / "no" / "page.html"
    assert main(["inspect", str(model), "--html", str(missing)]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", commands(Path(), Path()))
def test_reports_fit_80_columns_and_color_is_for_terminals(
    model: Path, tmp_path: Path, command: str
) -> None:
    arguments = commands(model, tmp_path)[command]
    _, seen = run_on_terminal(*arguments, columns=80, stream="stdout")
    assert not ESCAPES.search(seen)
    tables = [line for line in seen.splitlines() if " -> " not in line and ": " not in line]
    assert all(len(line) <= 80 for line in tables), seen
    _, colored = run_on_terminal(*arguments, columns=80, stream="stdout", color=True)
    assert bool(ESCAPES.search(colored)) == (command not in {"diff", "verify"})
    free = re.compile(r"free: .*")  # the room on the disk, which others take between the two
    assert free.sub("", ESCAPES.sub("", colored)) == free.sub("", seen)


def test_a_survey_of_a_checkpoint(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = checkpoint.survey_file(model, ["fp8", "nvfp4"])
    assert result.targets == ("float8_e4m3fn", "nvfp4")
    arrays = checkpoint.load(model)
    assert {tensor.name for tensor in result.tensors} == set(arrays)
    for tensor in result.tensors:
        counts = castwise.survey(arrays[tensor.name])
        assert [*tensor.predictions] == [*result.targets]
        for name, prediction in tensor.predictions.items():  # so few elements are measured
            assert prediction.sqnr_db == pytest.approx(counts.predict(name).sqnr_db, abs=0.5)
        assert (tensor.amax, tensor.amin_nonzero) == (counts.amax, counts.amin_nonzero)
        assert sum(tensor.exponents.values()) + tensor.zeros == tensor.count
    ratios = [tensor.predictions["nvfp4"].sqnr_db for tensor in result.tensors]
    assert ratios == sorted(ratios)
    assert main(["survey", str(model), "--targets", "fp8,nvfp4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(result.to_dict()))
    assert main(["survey", str(model), "--top", "1"]) == 0
    assert "and 3 other rows" in capsys.readouterr().out
    assert main(["survey", str(model), "--all"]) == 0
    assert "model.layers.1.self_attn.q_proj.weight" in capsys.readouterr().out
    assert main(["advise", str(model), "--bits", "9", "--all"]) == 0
    assert "model.layers.1.self_attn." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--targets", "nvfp5"], "is neither a format nor a scheme"),
        (["--targets", ","], "is not a list"),
        (["--threads", "0"], "threads"),
    ],
)
def test_bad_surveys(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["survey", str(model), *arguments])
    except SystemExit as stop:  # of argparse
        code = int(stop.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err


def test_what_has_no_magnitudes_is_not_surveyed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized = tmp_path / "fp8.safetensors"
    checkpoint.quantize_file(model, quantized, "fp8_channel")
    assert main(["survey", str(quantized)]) == 2
    assert "is quantized" in capsys.readouterr().err
    integers = tmp_path / "integers.npz"
    np.savez(integers, a=np.arange(3))
    assert main(["survey", str(integers)]) == 2
    assert "no floating tensor" in capsys.readouterr().err
    odd = tmp_path / "odd.npz"
    np.savez(odd, scalar=np.float32(3), empty=np.zeros((0, 4), np.float32), nan=np.full(4, np.nan))
    assert main(["survey", str(odd)]) == 0
    assert "4 elements infinite or NaN" in capsys.readouterr().out
