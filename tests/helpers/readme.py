"""The generated parts of the documentation: `python tests/helpers/readme.py` writes them anew.

README.md: ten rows of the table of speed, which `benches/cast.py --readme` writes into
benches/README.md, also as its picture, and a sentence about files. Other pages: the picture of a
survey, the accuracy of the digits model in several formats (needs scikit-learn), and the tables of
formats, schemes, scales and consumers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import castwise
import numpy as np
from castwise import checkpoint, quantization
from castwise._options import Like
from castwise.arrays.library_casts import libraries as library_table
from castwise.quantization import Loading, Scheme
from castwise.quantization.arrays.named_parts import has_names
from castwise.quantization.producers.schemes import SCALES, has_scales
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BENCHES = ROOT / "benches" / "README.md"
PACKAGE = ROOT / "python" / "castwise"
FORMATS = PACKAGE / "formats.md"
CAST = PACKAGE / "checkpoint" / "cast.md"
COMING_FROM = PACKAGE / "coming_from.md"
QUANTIZED = PACKAGE / "quantization" / "quantized.md"
WHICH_SCHEME = PACKAGE / "quantization" / "which_scheme.md"
DIGITS = ROOT / "benches" / "digits"
SHOWN = (
    *(
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float32", "float16"),
        ("float16", "float32"),
    ),
    *(("float32", "float8_e4m3fn"), ("float8_e4m3fn", "float32"), ("float32", "float8_e5m2")),
    *(("float8_e5m2", "float32"), ("float32", "float4_e2m1fn"), ("int8", "float32")),
)
"""The rows of the README's table of speed."""
TRANSFORMERS = "transformers, save_pretrained"
CASE = ["22", "bfloat16"]
"""Tensors and format of the README's checkpoint."""
SCORED = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")


PICTURE = ROOT / ".github" / "digits.svg"
SPEED_PICTURE = ROOT / ".github" / "speed.svg"
COLORS = (
    "svg{--ink:#1b1b1b;--faint:#d9d9d9;--bar:#0b61a4;--mark:#b34700}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e8e8e8;--faint:#444;--bar:#6cb6f5;--mark:#ff9d57}}"
    "text{fill:var(--ink);font:12px system-ui,sans-serif}"
)
"""Those of pages, which give pictures their colors."""

QUANTIZED_AS = ("fp8_channel", "int8_channel")


def section(text: str, name: str) -> str:
    """What stands between the markers of a part."""
    found = re.search(f"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", text, re.DOTALL)
    assert found, f"no part {name!r}"
    return found[1]


def replaced(text: str, name: str, content: str) -> str:
    """The text with another content between the markers of a part."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    return text.replace(begin + section(text, name) + end, begin + content + end)


def castwise_command(*arguments: str) -> str:
    """What the command line prints."""
    command = [sys.executable, "-m", "castwise", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def picture() -> str:
    """The picture of a survey of the digits model, in colors of its own."""
    page = checkpoint.survey_file(DIGITS / "digits.safetensors")._repr_html_()
    drawn = re.search(r"<svg .*?</svg>", page)
    assert drawn
    head, body = drawn[0].split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{COLORS}</style>{body}\n'


def speed_rows(benchmark: str) -> list[tuple[str, ...]]:
    """Some rows and columns of the table of speed."""
    _, *lines = benchmark.strip().splitlines()
    rows = {
        tuple(cells[:2]): cells
        for cells in (line.strip("| ").split(" | ") for line in lines if line)
    }
    return [(*rows[pair][:4], rows[pair][5], rows[pair][7]) for pair in SHOWN]


def speed(benchmark: str) -> str:
    """Markdown: some rows and columns of the table of speed."""
    titles = ("from", "to", "castwise", "memcpy", "numpy with ml_dtypes", "next best")
    shown = [titles, ("---", "---", *["--:"] * 4), *speed_rows(benchmark)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in shown)
    return f"{benchmark.strip().splitlines()[0]}\n\n{table}\n"


def speed_picture(benchmark: str) -> str:
    """Draw the same rows: a bar for castwise, for the next best, and for numpy with ml_dtypes."""
    left, scale, line, group, begin = 170, 4.7, 12, 44, 70
    fills = {
        "castwise": 'fill="var(--bar)"',
        "the fastest of torch, jax, TensorFlow and NumKong": 'fill="var(--mark)"',
        "numpy with ml_dtypes": 'fill="var(--ink)" opacity=".5"',
    }
    alt = f"Speed of casts by {', '.join(fills)}"
    drawn = [
        f"<title>{alt}</title>",
        '<text y="16">GB/s read and written (more is better), 65,536 elements, one thread</text>',
        f'<text y="32">{_machine(benchmark)}</text>',
    ]
    x = 0
    for name, fill in fills.items():
        drawn.append(
            f'<rect x="{x}" y="43" width="11" height="11" {fill}/>'
            f'<text x="{x + 17}" y="53">{name}</text>'
        )
        x += 35 + 7 * len(name)
    for number, (source, target, ours, _, numpy_ratio, best) in enumerate(speed_rows(benchmark)):
        top = begin + number * group
        drawn.append(
            f'<text x="{left - 8}" y="{top + 22}" text-anchor="end">{source} to {target}</text>'
        )
        peer, best_ratio = best.rsplit(" ", 1)
        bars = (
            ("castwise", float(ours)),
            (peer, float(ours) / float(best_ratio.rstrip("x"))),
            ("numpy", float(ours) / float(numpy_ratio.rstrip("x"))),
        )
        for place, (fill, (name, value)) in enumerate(zip(fills.values(), bars, strict=True)):
            y, width = top + place * line, value * scale
            drawn.append(
                f'<rect x="{left}" y="{y}" width="{width:.1f}" height="11" {fill}/>'
                f'<text x="{left + width + 5:.1f}" y="{y + 10}">{name} {value:.1f}</text>'
            )
    height = begin + len(SHOWN) * group
    return (
        f'<svg width="640" height="{height}" viewBox="0 0 640 {height}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg"><style>{COLORS}</style>{"".join(drawn)}</svg>\n'
    )


def _machine(title: str) -> str:
    """The name of the CPU in the line above a table."""
    return re.split(r"[.:] ", title, maxsplit=1)[1].partition("), ")[0] + ")"


def files(benchmark: str) -> str:
    """One case of the table of checkpoints, as a sentence."""
    title, *lines = benchmark.strip().splitlines()
    cells = [line.strip("|").split("|") for line in lines if line]
    rows = [[cell.strip() for cell in row] for row in cells]
    found = {row[2]: row for row in rows if row[:2] == CASE}
    seconds = {name: row[3].partition(" ")[0] for name, row in found.items()}
    ours, torch, transformers = "castwise", "torch, a tensor at a time", TRANSFORMERS
    return (
        "castwise turns a file of 1.5 GB of float32 in 22 tensors into bfloat16 on disk in "
        f"{seconds[ours]} s, with {found[ours][5]} of memory.\ntorch takes {seconds[torch]} s and "
        f"{found[torch][5]}, transformers {seconds[transformers]} s and "
        f"{found[transformers][5]}. A plain read of the source, and a write and sync of\nas many "
        f"bytes as the result has, take {seconds['read + write + sync']} s. {_machine(title)}.\n"
    )


def accuracy() -> str:
    """Markdown: accuracy of the digits model, as trained and cast to several formats."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(DIGITS / "digits.safetensors")]
        for name in SCORED:
            files.append(str(Path(folder) / f"{name}.safetensors"))
            castwise_command("cast", files[0], files[-1], "--dtype", name, "--exit-zero")
        for scheme in QUANTIZED_AS:
            files.append(str(Path(folder) / f"{scheme}.safetensors"))
            castwise_command("quantize", files[0], files[-1], "--scheme", scheme)
        command = [sys.executable, str(DIGITS / "score.py"), "--json", *files]
        rows = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    lines = ["| weights | file | correct | accuracy |", "|---|--:|--:|--:|"]
    for row in rows:
        share = f"{row['correct']} of {row['images']}"
        lines.append(f"| {row['dtype']} | {row['bytes']:,} B | {share} | {row['accuracy']:.2%} |")
    return "\n".join(lines) + "\n"


NEWER = {"float8_e5m3fnu": "from ml_dtypes 0.7 on"}
"""Formats that the oldest ml_dtypes lacks, with the release that has them."""


def formats() -> str:
    """Markdown: one line per row of the table of formats."""
    lines = [
        "| format | also | bits | exponent, mantissa, bias | max | smallest normal | specials |",
        "|---|---|--:|---|--:|--:|---|",
    ]
    for name in castwise.formats():
        row = castwise.finfo(name)
        also = ", ".join(f"`{alias}`" for alias in row.aliases)
        component = row.component or row
        if component.kind == "float":
            sign = "" if component.signed else "unsigned "
            layout = f"{sign}{component.exponent_bits}, {component.mantissa_bits}, {component.bias}"
            numbers = (
                f"{component.max:.6g} | {component.smallest_normal:.6g} | {component.specials}"
            )
        else:
            layout, numbers = "", f"{row.max} | | "
        if row.component:
            layout = f"2 of {row.component.name}"
        missing = f" ({NEWER[name]})" if name in NEWER else ""
        lines.append(f"| `{name}`{missing} | {also} | {row.bits} | {layout} | {numbers} |")
    return "\n".join(lines) + "\n"


def cheatsheet() -> str:
    """Markdown: range, precision and overflow of each format of floats."""
    lines = [
        "| format | bits | max | normal | least | digits | overflow | NaN |",
        "|---|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in map(castwise.finfo, castwise.formats()):
        if row.kind == "float":
            overflow = "infinity" if row.has_infinity else "NaN" if row.has_nan else "max"
            least = f"{row.smallest_normal:.3g} | {row.smallest_subnormal:.3g}"
            digits, nan = row.mantissa_bits + 1, "NaN" if row.has_nan else "0"
            lines.append(
                f"| `{row.name}` | {row.bits} | {row.max:.6g} | {least} | {digits} "
                f"| {overflow} | {nan} |"
            )
    return "\n".join(lines) + "\n"


def overflows() -> str:
    """Markdown: what a float32 beyond the range of each format becomes in each library."""
    libraries = [library.name for library in library_table()]
    lines = [f"| format | {' | '.join(libraries)} |", f"|---|{'---|' * len(libraries)}"]
    beyond = np.array([np.finfo(np.float32).max])
    for row in map(castwise.finfo, castwise.formats()):
        if row.kind == "float" and row.signed and row.dtype is not None and row.bits < 32:
            cells = [overflow_in(library, beyond, row) for library in libraries]
            lines.append(f"| `{row.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def overflow_in(library: Like, beyond: NDArray[np.float32], row: castwise.FormatInfo) -> str:
    """What a library makes of a float32 beyond the range of a format; empty where it lacks it."""
    try:
        (result,) = castwise.cast(beyond, row.dtype, like=library).astype(np.float64)
    except TypeError:
        return ""
    except OverflowError:
        return "it varies"
    names = {np.inf: "infinity", row.max: "max"}
    return "NaN" if np.isnan(result) else names[result]


def block(scheme: Scheme) -> str:
    """Whose elements share a scale."""
    if scheme.block == (0, 0):
        return "the array"
    if scheme.block == (1, 0):
        return "a row"
    return "x".join(map(str, scheme.block))


def schemes() -> str:
    """Markdown: one line per row of the table of schemes; those that differ in bits together."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in quantization.schemes():
        codes = "16 values" if each.element == "map" else each.element
        scale = "the weight's dtype" if each.scale == "weight" else each.scale
        more = ["float32 for the array"] * each.global_scale + ["zero points"] * each.zero_point
        recipes = ", ".join(f"`{name}`" for name in each.recipes)
        nameless = [f"`{name}`" for name in each.recipes if not has_names(each, name)]
        row = (
            codes,
            block(each),
            ", ".join([scale, *more]),
            recipes,
            ", ".join(nameless) or "none",
        )
        rows.setdefault(row, []).append(f"`{each.name}`")
    lines = ["| scheme | codes | block | scales | recipes | without names |", f"|{'---|' * 6}"]
    lines += [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in rows.items()]
    return "\n".join(lines) + "\n"


def scales() -> str:
    """Markdown: the ratio of signal to noise of random weights by each choice of scales, in dB."""
    rng, shape = np.random.default_rng(0), (200, 800)
    weights = {
        "normal": rng.standard_normal(shape),
        "Laplace": rng.laplace(size=shape),
        "Student's t, 5 degrees": rng.standard_t(5, shape),
    }
    arrays = [array.astype(np.float32) for array in weights.values()]
    lines = [
        f"| scheme | `scales` | {' | '.join(weights)} |",
        f"|---|---|{'--:|' * len(weights)}",
    ]
    for scheme in quantization.schemes():
        choices = [choice for choice in SCALES if has_scales(choice, scheme, scheme.recipes[0])]
        for choice in choices if len(choices) > 1 else ():
            ratios = [
                quantization.quantize(array, scheme.name, scales=choice).report(array).sqnr_db
                for array in arrays
            ]
            cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(f"| `{scheme.name}` | `{choice}` | {cells} |")
    return "\n".join(lines) + "\n"


def of_experts(loading: Loading) -> str:
    """Which schemes a consumer loads of experts, beside those of linear layers."""
    missing = [name for name in loading.schemes if name not in loading.experts]
    if loading.stacks and not loading.experts:
        return f"{', '.join(f'`{name}`' for name in loading.stacks)}, all in one tensor"
    if not loading.experts:
        return "none"
    if not missing and loading.schemes:
        return "the same"
    if loading.schemes and len(missing) < len(loading.experts):
        return f"all but {', '.join(f'`{name}`' for name in missing)}"
    return ", ".join(f"`{name}`" for name in loading.experts)


def with_inputs(loading: Loading) -> str:
    """Which schemes a consumer loads with inputs that are quantized."""
    texts = {
        "{}": loading.dynamic,
        "{} only so": loading.only_dynamic,
        "as float8 {}": loading.float8,
        "with a scale {}": loading.constant,
    }
    parts = [
        text.format(", ".join(f"`{name}`" for name in names))
        for text, names in texts.items()
        if names
    ]
    return "; ".join(parts) or "none"


def consumers() -> str:
    """Markdown: one line for each consumer and producer."""
    heads = (
        "`--for`",
        "`--recipe`",
        "schemes",
        "for experts",
        "with `--inputs dynamic`, or a scale",
        "evidence",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for consumer in quantization.consumers():
        for loading in consumer.loads:
            is_cited = loading.source.startswith("https://")
            target = loading.source if is_cited else f"../../../{loading.source}"
            names = ", ".join(f"`{name}`" for name in loading.schemes) or "none"
            cells = (
                f"`{consumer.name}`",
                f"`{loading.recipe}`",
                names,
                of_experts(loading),
                with_inputs(loading),
            )
            how = f"[its source]({target})" if is_cited else f"[a test]({target})"
            lines.append(f"| {' | '.join(cells)} | {how} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all parts anew."""
    benches = BENCHES.read_text("utf-8")
    for page, name, content in (
        (README, "speed", speed(section(benches, "benchmark"))),
        (README, "files", files(section(benches, "checkpoints"))),
        (CAST, "accuracy", accuracy()),
        (WHICH_SCHEME, "consumers", consumers()),
        (FORMATS, "formats", formats()),
        (FORMATS, "cheatsheet", cheatsheet()),
        (FORMATS, "overflows", overflows()),
        (QUANTIZED, "schemes", schemes()),
        (QUANTIZED, "scales", scales()),
    ):
        page.write_text(replaced(page.read_text("utf-8"), name, content), "utf-8")
    PICTURE.write_text(picture(), "utf-8")
    SPEED_PICTURE.write_text(speed_picture(section(benches, "benchmark")), "utf-8")


if __name__ == "__main__":
    main()
