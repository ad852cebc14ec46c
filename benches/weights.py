"""What every command takes for each weight of a model: `python benches/weights.py`.

README.md in this folder says how it is measured. A row is a command on so many small weights, by
the seconds of all cores, in a process of its own, less those of `castwise --version`. Python reads
its modules compiled, as those of an installed package are.

A row is right if the command ends with the code that it should.

Exit code 1 if a row is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import castwise
import command
import files
import numpy as np
from castwise import checkpoint

COUNTS = (1_000, 10_000, 70_000)
QUICK_COUNT = 100
SHAPE = (16, 64)
LAYER = 1_000
PARTS = ("gate_proj", "up_proj", "down_proj")
FP8 = ("--scheme", "fp8_channel", "--recipe", "compressed-tensors")
NVFP4 = ("--scheme", "nvfp4", "--recipe", "compressed-tensors")
COMMANDS: dict[str, tuple[int, Sequence[str]]] = {
    "inspect plain": (0, ("inspect", "plain")),
    "inspect": (0, ("inspect", "fp8")),
    "cast": (0, ("cast", "plain", "out", "--dtype", "bfloat16")),
    "cast, dry": (0, ("cast", "plain", "out", "--dtype", "bfloat16", "--dry-run")),
    "quantize fp8": (0, ("quantize", "plain", "out", *FP8)),
    "quantize fp8, dry": (0, ("quantize", "plain", "out", *FP8, "--dry-run")),
    "quantize nvfp4": (0, ("quantize", "plain", "out", *NVFP4, "--exit-zero")),
    "dequantize fp8": (0, ("dequantize", "fp8", "out")),
    "dequantize fp8, dry": (0, ("dequantize", "fp8", "out", "--dry-run")),
    "dequantize nvfp4": (0, ("dequantize", "fp4", "out")),
    "transcode fp8": (0, ("transcode", "fp8", "out", "--to", "modelopt")),
    "diff plain": (0, ("diff", "plain", "plain")),
    "diff fp8": (1, ("diff", "plain", "fp8")),
    "diff nvfp4": (1, ("diff", "plain", "fp4")),
    "verify": (1, ("verify", "plain", "fp8")),
    "survey": (0, ("survey", "plain")),
    "advise": (0, ("advise", "plain", "--bits", "14")),
}
CASTWISE = (sys.executable, "-m", "castwise")
MARKER = "weights"
COMPILED = tempfile.TemporaryDirectory(prefix="compiled-")
"""Where Python writes compiled modules, and finds them from the second run of a command on."""


@dataclass(frozen=True)
class Row:
    """A command on so many weights: seconds of all cores, and milliseconds for each weight."""

    command: str
    weights: int
    cpu_seconds: float = field(metadata={"digits": 3})
    milliseconds: float = field(metadata={"digits": 3})
    correct: bool


def make(folder: Path, count: int) -> None:
    """Write a model of so many weights, and the same quantized."""
    draw = np.random.default_rng(0)
    weights = {
        f"model.layers.{number // LAYER}.mlp.experts.{number % LAYER // 3}.{PARTS[number % 3]}"
        ".weight": draw.standard_normal(SHAPE, np.float32) * np.float32(0.05)
        for number in range(count)
    }
    checkpoint.save(folder / "plain.safetensors", weights)
    for name, options in (("fp8", FP8), ("fp4", NVFP4)):
        if run(folder, ("quantize", "plain", name, *options, "--exit-zero", "--quiet"))[1]:
            sys.exit(f"weights.py: quantize {name} does not end with 0")


def run(folder: Path, arguments: Sequence[str]) -> tuple[float, int]:
    """Run a command; returns the seconds of all cores, and its exit code."""
    names = {name: f"{name}.safetensors" for name in ("plain", "fp8", "fp4", "out")}
    texts = (names.get(text, text) for text in arguments)
    seconds, process = cpu_seconds([*CASTWISE, *texts], folder)
    (folder / names["out"]).unlink(missing_ok=True)
    return seconds, process.returncode


def cpu_seconds(
    arguments: Sequence[str], folder: Path
) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a program in a folder; returns the seconds of all cores, and how it ended."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, "PYTHONPYCACHEPREFIX": COMPILED.name, "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, process


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure every command on every number of weights."""
    for count in (QUICK_COUNT,) if options.quick else options.counts:
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=options.folder))
        try:
            make(folder, count)
            turns = range(options.repeats)
            run(folder, ("--version",))
            start = min(run(folder, ("--version",))[0] for _ in turns)
            for name, (code, arguments) in COMMANDS.items():
                run(folder, arguments)  # compiles the modules
                results = [run(folder, arguments) for _ in turns]
                seconds = min(duration for duration, _ in results)
                right = all(exit_code == code for _, exit_code in results)
                yield Row(name, count, seconds, 1000 * max(seconds - start, 0) / count, right)
        finally:
            shutil.rmtree(folder)


def line(row: Row) -> str:
    """Describe a row."""
    text = f"{row.command:<22}{row.weights:>8,}{row.cpu_seconds:>9.2f} s"
    return f"{text}{row.milliseconds:>8.3f} ms{'' if row.correct else '  WRONG'}"


def tables(facts: command.Facts, rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Yield the table of the README: a row for each command, a column for each number."""
    counts = sorted({row.weights for row in rows})
    table = {(row.command, row.weights): row for row in rows}
    lines = [
        f"CPU milliseconds for each weight of {SHAPE[0]}x{SHAPE[1]}. {facts['cpu']}, "
        f"{facts['cores']} cores, {facts['level']}; {facts['versions']}; {facts['date']}.",
        "",
        f"| command | {' | '.join(f'{count:,}' for count in counts)} |",
        f"|---|{'--:|' * len(counts)}",
    ]
    for name in dict.fromkeys(row.command for row in rows):
        cells = (f"{table[name, count].milliseconds:.3f}" for count in counts)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    yield MARKER, "\n".join(lines)


def carry_out(options: argparse.Namespace) -> tuple[command.Facts, list[Any]]:
    """Measure, and print a line for each row."""
    versions = {name: version(name) for name in ("numpy", "ml_dtypes")}
    facts = files.environment(
        {**versions, "castwise": castwise.__version__},
        level=castwise.cpu_level(),
        threads=str(options.threads),
    )
    return facts, command.print_rows(measure(options), line)


def main() -> int:
    """Measure or load, then report; returns the exit code."""
    parser = command.parser(__doc__ or "")
    parser.add_argument("--folder", type=Path, help="where models are written (default: temporary)")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="numbers of weights")
    parser.set_defaults(repeats=3)
    return command.carry_out(parser.parse_args(), Row, carry_out, line, tables)


if __name__ == "__main__":
    sys.exit(main())
