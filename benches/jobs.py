"""What whole jobs take beside `cp`, by the seconds of all cores: `python benches/jobs.py`.

README.md in this folder says how it is measured. A row is a command on a file of bfloat16, which is
in memory (`/dev/shm`), in a process of its own, less the same command on a tiny file.

A row is right if the command ends with the code that it should, and writes what arrays become: of
`diff` the scheme that it names, of files their values.

Exit code 1 if a row is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import castwise
import command
import files
import ml_dtypes
import numpy as np
from castwise import checkpoint, quantization
from numpy.typing import NDArray
from weights import CASTWISE, cpu_seconds

SHAPE, QUICK_SHAPE, TINY_SHAPE = (4096, 12288), (256, 1024), (128, 128)
NAMES = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(4)]
SCHEMES = {
    "fp8_block": "deepseek",
    "nvfp4": "modelopt",
    "mxfp8_e4m3": "modelopt",
    "int4_group": "compressed-tensors",
}
PLAIN, EQUAL, OUT = (f"{name}.safetensors" for name in ("plain", "equal", "out"))
MEMORY = Path("/dev/shm")  # noqa: S108  (files that no disk has)
MARKER = "jobs"

Weights = Mapping[str, NDArray[Any]]


class Job(NamedTuple):
    """A command, its arguments, the CPU time over that of `cp` that is aimed at, its exit code."""

    name: str
    arguments: Sequence[str]
    aim: float
    code: int = 0
    # The format or the scheme of what is written or compared.
    target: str = "bfloat16"


def jobs() -> Iterator[Job]:
    """Yield all jobs."""
    float8 = "float8_e4m3fn"
    yield Job("cast", ("cast", PLAIN, OUT, "--dtype", float8, "--exit-zero"), 1.6, target=float8)
    for scheme, recipe in SCHEMES.items():
        options = ("--scheme", scheme, "--recipe", recipe, "--exit-zero")
        yield Job("quantize", ("quantize", PLAIN, OUT, *options), 3, target=scheme)
    for scheme in SCHEMES:
        yield Job("dequantize", ("dequantize", f"{scheme}.safetensors", OUT), 2, target=scheme)
    yield Job("diff", ("diff", PLAIN, EQUAL, "--json"), 1.2)
    for scheme in SCHEMES:
        arguments = ("diff", PLAIN, f"{scheme}.safetensors", "--json")
        yield Job("diff", arguments, 3, 1, scheme)
    yield Job("survey", ("survey", PLAIN), 2.5)
    yield Job("advise", ("advise", PLAIN, "--bits", "8"), 4)


@dataclass(frozen=True)
class Row:
    """A job: CPU seconds beyond those of a tiny file, and over those of `cp`."""

    job: str
    target: str
    cpu_seconds: float = field(metadata={"digits": 3})
    of_cp: float = field(metadata={"digits": 3})
    aim: float
    correct: bool


def make(folder: Path, shape: tuple[int, int]) -> Weights:
    """Write a model of weights of a shape, and the same quantized; returns the weights."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    weights = {
        name: castwise.cast(draw.standard_normal(shape, np.float32) * 0.02, "bfloat16")
        for name in NAMES
    }
    for name in (PLAIN, EQUAL):
        checkpoint.save(folder / name, weights)
    for job in jobs():
        if job.name == "quantize":
            if run(folder, job, 1)[1] is None:
                sys.exit(f"jobs.py: {job.name} {job.target} does not end with {job.code}")
            (folder / OUT).rename(folder / f"{job.target}.safetensors")
    return weights


def run(folder: Path, job: Job, threads: int) -> tuple[float, str | None]:
    """Run a job; returns its CPU seconds, and what it prints if it ends as it should."""
    (folder / OUT).unlink(missing_ok=True)
    arguments = [*CASTWISE, *job.arguments, "--threads", str(threads)]
    seconds, process = cpu_seconds(arguments, folder)
    return seconds, process.stdout if process.returncode == job.code else None


def is_right(folder: Path, job: Job, text: str, weights: Weights) -> bool:
    """Tell whether the result of a job is what arrays become."""
    if job.name == "diff":
        tensors = json.loads(text)["tensors"]
        explanations = [tensor["explanation"] for tensor in tensors if tensor["different"]]
        schemes = [each and each["options"]["scheme"] for each in explanations]
        return schemes == [job.target] * (job.code and len(NAMES))
    if job.name == "cast":
        results: Weights = checkpoint.load(folder / OUT)
        return all(
            results[name].tobytes() == weight.astype(ml_dtypes.float8_e4m3fn).tobytes()
            for name, weight in weights.items()
        )
    if job.name not in ("quantize", "dequantize"):
        return True
    plain = folder / OUT
    if job.name == "quantize":
        plain = folder / "decoded.safetensors"
        checkpoint.dequantize_file(folder / OUT, plain, overwrite=True)
    results = checkpoint.load(plain)
    options: Any = {"scheme": job.target, "recipe": SCHEMES[job.target]}
    return all(
        results[name].tobytes()
        == quantization.dequantize(quantization.quantize(weight, **options), "bfloat16").tobytes()
        for name, weight in weights.items()
    )


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure every job and `cp` by turns, and the jobs on a tiny file."""
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder, tiny = Path(place) / "whole", Path(place) / "tiny"
        weights = make(folder, QUICK_SHAPE if options.quick else SHAPE)
        make(tiny, TINY_SHAPE)
        turns = range(1 if options.quick else options.repeats)
        selection = [job for job in jobs() if job.name in options.jobs]
        starts = {job: min(run(tiny, job, options.threads)[0] for _ in turns) for job in selection}
        copies: list[float] = []
        seconds: dict[Job, list[float]] = {job: [] for job in selection}
        are_right = dict.fromkeys(selection, True)
        for turn in turns:
            (folder / OUT).unlink(missing_ok=True)
            copies.append(cpu_seconds(["cp", PLAIN, OUT], folder)[0])
            for job in selection:
                duration, text = run(folder, job, options.threads)
                seconds[job].append(duration)
                are_right[job] &= text is not None
                if turn == 0 and text is not None:
                    are_right[job] = is_right(folder, job, text, weights)
        copy = min(copies)
        yield Row("cp", "bfloat16", copy, 1, 1, correct=True)
        for job in selection:
            beyond = max(min(seconds[job]) - starts[job], 0)
            ratio = beyond / max(copy, 1e-9)
            yield Row(job.name, job.target, beyond, ratio, job.aim, are_right[job])


def line(row: Row) -> str:
    """Describe a row."""
    text = f"{row.job:<12}{row.target:<14}{row.cpu_seconds:>8.3f} s{row.of_cp:>8.2f} of cp"
    return f"{text}  (aim {row.aim:g}){'' if row.correct else '  WRONG'}"


def tables(facts: command.Facts, rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Yield the table of the README."""
    lines = [
        f"CPU time over that of `cp`, {facts['megabytes']} MB of bfloat16 in memory, "
        f"{facts['threads']} threads. {facts['cpu']}, {facts['cores']} cores, {facts['level']}; "
        f"{facts['versions']}; {facts['date']}.",
        "",
        "| job | format or scheme | CPU s | of `cp` | aim | right |",
        "|---|---|--:|--:|--:|---|",
    ]
    lines += (
        f"| {row.job} | {row.target} | {row.cpu_seconds:.3f} | {row.of_cp:.2f} | {row.aim:g} "
        f"| {'yes' if row.correct else 'NO'} |"
        for row in rows
    )
    yield MARKER, "\n".join(lines)


def carry_out(options: argparse.Namespace) -> tuple[command.Facts, list[Any]]:
    """Measure, and print a line for each row."""
    versions = {name: version(name) for name in ("numpy", "ml_dtypes")}
    shape = QUICK_SHAPE if options.quick else SHAPE
    facts = files.environment(
        {**versions, "castwise": castwise.__version__},
        level=castwise.cpu_level(),
        threads=str(options.threads),
        megabytes=f"{2 * len(NAMES) * np.prod(shape) / 1e6:.0f}",
    )
    return facts, command.print_rows(measure(options), line)


def main() -> int:
    """Measure or load, then report; returns the exit code."""
    parser = command.parser(__doc__ or "")
    memory = MEMORY if MEMORY.is_dir() else None
    parser.add_argument("--folder", type=Path, default=memory, help="where files are written")
    names = [*dict.fromkeys(job.name for job in jobs())]
    parser.add_argument(
        "--jobs", nargs="+", choices=names, default=names, help="names of jobs (default: all)"
    )
    parser.set_defaults(threads=os.cpu_count() or 1, repeats=3)
    return command.carry_out(parser.parse_args(), Row, carry_out, line, tables)


if __name__ == "__main__":
    sys.exit(main())
