"""What `checkpoint.diff` takes, beside reading both files: `python benches/diff.py`.

README.md in this folder says how it is measured. A row is a pair of checkpoints of one model, in
the page cache: weights of bfloat16 or float32 beside the same ones, cast, or quantized.

A result is right if it is what numpy counts: how many elements differ, and by how much at most, as
both decode to the format in which they are compared; and if it names what made the second file.

Exit code 1 if a result is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import castwise
import command
import files
import numpy as np
from castwise import checkpoint
from numpy.typing import NDArray

SHAPES = {"q_proj": (2048, 2048), "k_proj": (1024, 2048), "up_proj": (8192, 2048)}
SHAPES |= {"gate_proj": (8192, 2048), "down_proj": (2048, 8192), "o_proj": (2048, 2048)}
LAYERS, QUICK_LAYERS = 2, 1
SCHEMES = {
    "fp8_block": "deepseek",
    "fp8_channel": "compressed-tensors",
    "mxfp8_e4m3": "modelopt",
    "nvfp4": "modelopt",
    "mxfp4": "compressed-tensors",
    "int4_group": "compressed-tensors",
}
PAIRS = (
    ("bfloat16", "bfloat16"),
    ("float32", "bfloat16"),
    ("float32", "float8_e4m3fn"),
    *(("bfloat16", scheme) for scheme in SCHEMES),
    ("fp8_block", "mxfp8_e4m3"),
    ("nvfp4", "mxfp4"),
)
SHARED = "nvfp4"
"""Weights that engines fuse share a scale, which is not looked for."""
PIECE = 1 << 20
MARKER = "diff"


@dataclass(frozen=True)
class Row:
    """A pair of checkpoints: seconds of the wall and of all cores, each beside reading."""

    first: str
    second: str
    megabytes: float = field(metadata={"digits": 4})
    seconds: float = field(metadata={"digits": 3})
    ratio: float = field(metadata={"digits": 3})
    cpu_seconds: float = field(metadata={"digits": 3})
    cpu_ratio: float = field(metadata={"digits": 3})
    correct: bool


def make(folder: Path, layers: int) -> dict[str, Path]:
    """Write the checkpoints; returns them by name."""
    source = folder / "float32"
    source.mkdir()
    generator = np.random.default_rng(0)
    weights = {
        f"model.layers.{layer}.{name}.weight": generator.standard_normal(shape, np.float32) * 0.02
        for layer in range(layers)
        for name, shape in SHAPES.items()
    }
    header: dict[str, Any] = {}
    end = 0
    for name, array in weights.items():
        offsets = [end, end := end + array.nbytes]
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    with (source / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in weights.values():
            file.write(array.data)
    (source / "config.json").write_text('{"model_type": "llama"}')
    made = {"float32": source}
    for name in ("bfloat16", "float8_e4m3fn"):
        made[name] = folder / name
        checkpoint.cast_file(source, made[name], name)
    for name, recipe in SCHEMES.items():
        made[name] = folder / name
        options: Any = {"scheme": name, "recipe": recipe}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint.quantize_file(made["bfloat16"], made[name], **options)
    return made


def read(*folders: Path) -> int:
    """Read the weights of checkpoints to one buffer; returns how many bytes they have."""
    buffer = memoryview(bytearray(PIECE))
    total = 0
    for path in (path for folder in folders for path in folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def decoded(folder: Path, to: str) -> Mapping[str, NDArray[Any]]:
    """Return the weights of a checkpoint in a format."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        path = folder
        if folder.name in SCHEMES:
            path = Path(place) / "plain"
            checkpoint.dequantize_file(folder, path, to)
        return dict(checkpoint.load(path))


def is_right(result: checkpoint.Diff, first: Path, second: Path) -> bool:
    """Tell whether a result is that of numpy, and says what made the second."""
    to = "float32" if "float32" in (first.name, second.name) else "bfloat16"
    left, right = decoded(first, to), decoded(second, to)
    for tensor in result.tensors:
        ahead, behind = (np.asarray(side[tensor.name], np.float32) for side in (left, right))
        different = np.count_nonzero(ahead.view(np.uint32) != behind.view(np.uint32))
        difference = float(np.abs(behind.astype(np.float64) - ahead).max())
        if tensor.different != different or tensor.max_abs != difference:
            return False
        explanation = tensor.explanation
        if first.name in SCHEMES or first == second:
            continue
        if explanation is None and second.name == SHARED:
            continue
        if explanation is None or not explanation.every_element:
            return False
        if explanation.options.get("scheme", second.name) != second.name:
            return False
    return result.same == (first == second)


def rows(folder: Path, layers: int, threads: int, repeats: int) -> Iterator[Row]:
    """Measure all pairs, reading and comparing by turns."""
    made = make(folder, layers)
    for names in PAIRS:
        first, second = (made[name] for name in names)
        walls, processors = [], []
        size = read(first, second)
        for _ in range(repeats):
            start, worked = perf_counter(), process_time()
            read(first, second)
            middle, halfway = perf_counter(), process_time()
            result = checkpoint.diff(first, second, threads=threads)
            end, done = perf_counter(), process_time()
            walls.append((middle - start, end - middle))
            processors.append((halfway - worked, done - halfway))
        (reading, comparing), (reading_cpu, comparing_cpu) = (
            np.median(np.array(times), axis=0) for times in (walls, processors)
        )
        yield Row(
            *names,
            size / 1e6,
            float(comparing),
            float(reading / comparing),
            float(comparing_cpu),
            float(threads * reading_cpu / comparing_cpu),
            is_right(result, first, second),
        )


def line(row: Row) -> str:
    """One row for the terminal."""
    return (
        f"{row.first:<12}{row.second:<14}{row.megabytes:>6.0f} MB{row.seconds:>8.3f} s "
        f"{100 * row.ratio:>5.0f} %  cores {row.cpu_seconds:>7.3f} s {100 * row.cpu_ratio:>5.0f} %"
        f"  {'correct' if row.correct else 'WRONG'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    """Measure everything, printing each row as it is done."""
    versions = {name: version(name) for name in ("numpy", "ml_dtypes")}
    versions["castwise"] = castwise.__version__
    level, threads = castwise.cpu_level(), str(options.threads)
    facts = files.environment(versions, level=level, threads=threads)
    for name, value in facts.items():
        print(f"# {name}: {value}")
    layers = QUICK_LAYERS if options.quick else LAYERS
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        return facts, command.print_rows(
            rows(Path(folder), layers, options.threads, options.repeats), line
        )


def tables(facts: dict[str, str], measured: list[Row]) -> Iterator[tuple[str, str]]:
    """Give the README's table, with its marker."""
    lines = [
        f"`checkpoint.diff` on {facts['threads']} threads, and its speed over that of reading both "
        "files on one: by the clock, and by the seconds of all cores divided by the threads. "
        f"{facts['cpu']}, {facts['cores']} cores, {facts['level']}; {facts['versions']}; "
        f"{facts['date']}.",
        "",
        "| A | B | both | seconds | of reading | of cores | of reading | right |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in measured:
        cells = (
            row.first,
            row.second,
            f"{row.megabytes:,.0f} MB",
            f"{row.seconds:.3f}",
            f"{100 * row.ratio:.0f} %",
            f"{row.cpu_seconds:.3f}",
            f"{100 * row.cpu_ratio:.0f} %",
            "yes" if row.correct else "NO",
        )
        lines.append(f"| {' | '.join(cells)} |")
    yield MARKER, "\n".join(lines)


def main() -> int:
    """Measure or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.add_argument("--folder", type=Path, help="where files are made (default: the system's)")
    parser.set_defaults(threads=2)
    return command.carry_out(parser.parse_args(), Row, run, line, tables)


if __name__ == "__main__":
    sys.exit(main())
