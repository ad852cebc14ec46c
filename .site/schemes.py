"""Pages of the site about schemes: what each stores and keeps, and who loads it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from castwise import quantization
from castwise.checkpoint.planning.written_schemes import scheme_names
from castwise.quantization import Loading, Scheme
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
SHAPE = (256, 1024)
"""Of the random weights."""


@cache
def weights() -> NDArray[np.float32]:
    """Return normally distributed weights."""
    return np.random.default_rng(0).standard_normal(SHAPE, np.float32)


@cache
def measurements() -> list[dict[str, str]]:
    """Return the rows of the newest record of real models."""
    path = max((ROOT / "benches" / "record").glob("*-real.csv"))
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(line for line in file if not line.startswith("#"))]


def page(scheme: Scheme) -> str:
    """Write the page of a scheme."""
    q = quantization.quantize(weights(), scheme.name)
    report = q.report(weights())
    rows = {
        "codes": "an index into 16 values" if scheme.element == "map" else f"`{scheme.element}`",
        "bits of a code": str(scheme.bits),
        "block": _block(scheme),
        "scales": "the weight's dtype" if scheme.scale == "weight" else f"`{scheme.scale}`",
        "global scale": "float32, for the whole array" if scheme.global_scale else "none",
        "zero points": "if `symmetric=False`" if scheme.zero_point else "none",
        "bits per weight": f"{q.bits_per_weight:.4g}, for {SHAPE[0]}x{SHAPE[1]} weights",
        "ratio of signal to noise": f"{report.sqnr_db:.1f} dB, for normal weights; "
        "[is that good?](../checkpoint/reports.md#is-31-db-good)",
        "recipes": ", ".join(f"`{name}`" for name in scheme.recipes),
    }
    lines = [
        f"# {scheme.name}",
        "",
        *_commands(scheme),
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {text} |" for name, text in rows.items()),
        "",
        "[Which scheme?](../quantization/which_scheme.md) compares the schemes, and lists the",
        "machines that compute in them.",
        "",
        *_consumers(scheme),
        *_real_models(scheme),
    ]
    return "\n".join(lines) + "\n"


def _block(scheme: Scheme) -> str:
    """Return the elements that share a scale by default."""
    rows, columns = scheme.block
    if not rows:
        return "the array"
    return f"{rows}x{columns}" if columns else "a row"


def _commands(scheme: Scheme) -> list[str]:
    python = f'castwise.quantization.quantize(array, "{scheme.name}")'
    if scheme.name not in scheme_names():
        return ["```python", python, "```"]
    command = f"castwise quantize MODEL small --scheme {scheme.name}"
    return ["```sh", command, "```", "", "```python", python, "```"]


def _consumers(scheme: Scheme) -> Iterator[str]:
    """Write who loads checkpoints of a scheme."""
    yield from ("## Who loads it", "")
    rows = [
        f"| {consumer.name} | `{loading.recipe}` | {', '.join(_uses(loading, scheme.name))} |"
        for consumer in quantization.consumers()
        for loading in consumer.loads
        if scheme.name in (*loading.schemes, *loading.experts, *loading.stacks)
    ]
    if rows:
        yield from ("| consumer | recipe | weights |", "|---|---|---|", *rows)
        yield from ("", "[Evidence](../quantization/which_scheme.md#who-loads-this) for each row.")
    else:
        yield "castwise knows no program that loads checkpoints of this scheme."
    yield ""


def _uses(loading: Loading, name: str) -> Iterator[str]:
    if name in loading.schemes:
        only = " (only with `--inputs dynamic`)" if name in loading.only_dynamic else ""
        yield f"linear layers{only}"
    if name in loading.experts:
        yield "experts"
    if name in loading.stacks:
        yield "experts in one tensor"


def _real_models(scheme: Scheme) -> Iterator[str]:
    """Write what a scheme for all weights does to real models."""
    rows = [row for row in measurements() if row["choice"] == scheme.name]
    if not rows:
        return
    yield from (
        "## Real models",
        "",
        "Each weight has this scheme, or float16 if the scheme cannot hold it. The models, errors",
        "and tasks are those of the [benchmarks](../benches/index.md#real-models).",
        "",
        "| model | MB | ratio, dB | error | task |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {row['model']} | {int(row['nbytes']) / 1e6:.2f} | {float(row['measured']):.1f} "
            f"| {float(row['error']):.1e} | {float(row['figure']):.3f} |"
            for row in rows
        ),
    )
