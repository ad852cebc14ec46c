"""Convert whole checkpoints: castwise, what others offer, and what the disk allows.

    python benches/checkpoint.py --quick            # a small file, once: does it work
    python benches/checkpoint.py --csv              # 1.5 GB, seven turns, recorded under record/
    python benches/checkpoint.py --from record/SOME.csv --readme benches/README.md

A float32 file of safetensors, as one tensor, 22 or 10,000, becomes bfloat16 and float8_e4m3fn. All
peers take turns, each in a process of its own, which syncs its result to the disk; the source is in
the page cache. The limit reads the source and writes and syncs as many bytes as the result has.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import files
import ml_dtypes
import numpy as np
from castwise import checkpoint

MARKER = "checkpoints"
LIMIT = "read + write + sync"
TENSORS = (1, 22, 10_000)
TARGETS = ("bfloat16", "float8_e4m3fn")
SIZE, QUICK_SIZE = 1_480_000_000, 8_000_000
TURNS = 7
PIECE = 1 << 20

# Each is run with source, target and dtype, says when its imports are done, and syncs its result.
SYNC = """
import os
file = os.open(sys.argv[2], os.O_RDONLY)
os.fsync(file)
"""
TRANSFORMERS = "transformers, save_pretrained"
PROGRAMS = {
    "castwise": """
from castwise.checkpoint import cast_file
begin = perf_counter()
cast_file(*sys.argv[1:], overwrite=True)
""",
    "castwise, one thread": """
from castwise.checkpoint import cast_file
begin = perf_counter()
cast_file(*sys.argv[1:], threads=1, overwrite=True)
""",
    "torch, a tensor at a time": f"""
import torch
from safetensors import safe_open
from safetensors.torch import save_file
begin = perf_counter()
with safe_open(sys.argv[1], "pt") as file:
    dtype = getattr(torch, sys.argv[3])
    tensors = {{name: file.get_tensor(name).to(dtype) for name in file.keys()}}
save_file(tensors, sys.argv[2])
{SYNC}""",
    "safetensors and ml_dtypes": f"""
import ml_dtypes
from safetensors import safe_open
from safetensors.numpy import save_file
begin = perf_counter()
dtype = getattr(ml_dtypes, sys.argv[3])
with safe_open(sys.argv[1], "np") as file:
    tensors = {{name: file.get_tensor(name).astype(dtype) for name in file.keys()}}
save_file(tensors, sys.argv[2])
{SYNC}""",
    TRANSFORMERS: f"""
import os, tempfile
import torch
import transformers
from safetensors import safe_open
transformers.utils.logging.disable_progress_bar()
class Config(transformers.PretrainedConfig):
    model_type = "flat"
class Layer(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(count))
class Model(transformers.PreTrainedModel):
    config_class = Config
    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.ModuleList(Layer(config.count) for _ in range(config.tensors))
        self.post_init()
    def _init_weights(self, module):
        pass
begin = perf_counter()
with safe_open(sys.argv[1], "pt") as file:
    names = list(file.keys())
    count = file.get_slice(names[0]).get_shape()[0]
with tempfile.TemporaryDirectory(dir=os.path.dirname(sys.argv[2])) as folder:
    os.symlink(sys.argv[1], folder + "/model.safetensors")
    config = Config(tensors=len(names), count=count)
    dtype = getattr(torch, sys.argv[3])
    model = Model.from_pretrained(folder, config=config, dtype=dtype)
    model.save_pretrained(folder + "/new", max_shard_size="1TB")
    os.rename(folder + "/new/model.safetensors", sys.argv[2])
{SYNC}""",
}
NEEDS = {
    "torch, a tensor at a time": ("torch",),
    "safetensors and ml_dtypes": ("safetensors",),
    TRANSFORMERS: ("torch", "transformers"),
}
FLOATS_OF_MODELS = ("bfloat16",)  # transformers computes in these only
MOST_LAYERS = 100  # of a model of transformers; 10,000 take it half a minute
PROLOGUE = "import sys\nfrom time import perf_counter\n"
EPILOGUE = """
seconds = perf_counter() - begin
# Not ru_maxrss, which counts the process that this one was forked from.
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(seconds, peak)
"""


@dataclass(frozen=True)
class Row:
    """One peer in one case; times are medians, `ratio` is the median of its time over the limit's.

    `wrong` counts tensors whose bytes are not those of `astype`.
    """

    tensors: int
    target: str
    peer: str
    seconds: float = field(metadata={"digits": 4})
    with_import: float = field(metadata={"digits": 4})
    ratio: float = field(metadata={"digits": 3})
    peak_mb: float = field(metadata={"digits": 4})
    wrong: int | None


@dataclass(frozen=True)
class Time:
    """One run of a peer."""

    seconds: float
    with_import: float
    peak_mb: float


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small file, one turn")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--csv", nargs="?", type=Path, const="", help="write a record")
    parser.add_argument("--from", dest="record", type=Path, help="show a record, measure nothing")
    parser.add_argument("--picture", type=Path, help="draw the record as SVG")
    parser.add_argument("--readme", type=Path, help="refresh the table in this file")
    options = parser.parse_args()
    if options.record:
        environment, rows = files.read(options.record, Row)
    else:
        size, turns = (QUICK_SIZE, 1) if options.quick else (SIZE, options.turns)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            environment = facts(Path(folder), size, turns)
            rows = []
            for case in measured(Path(folder), size, turns):
                print(*lines(case), sep="\n", flush=True)
                rows += case
    if options.csv is not None:
        files.write(
            options.csv if options.csv.name else files.default_path(environment, "checkpoint"),
            environment,
            rows,
        )
    if options.readme:
        files.replace_in(options.readme, MARKER, markdown(environment, rows))
    if options.picture:
        draw(environment, rows).savefig(options.picture, metadata={"Date": None})
    if any(row.wrong for row in rows if row.peer.startswith("castwise")):
        sys.exit("castwise is wrong")


def facts(folder: Path, size: int, turns: int) -> dict[str, str]:
    """Where the numbers come from."""
    packages = ("numpy", "ml_dtypes", "torch", "safetensors", "transformers")
    versions = {name: version(name) for name in packages if find_spec(name)}
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=False
    )
    return files.environment(
        versions, file_system=kind.stdout.strip() or "unknown", bytes=str(size), turns=str(turns)
    )


def measured(folder: Path, size: int, turns: int) -> Iterator[list[Row]]:
    """Measure each case: all peers in turn."""
    source, result = folder / "source.safetensors", folder / "result.safetensors"
    peers = [peer for peer in PROGRAMS if all(map(find_spec, NEEDS.get(peer, ())))]
    for tensors in TENSORS:
        make(source, tensors, size)
        for target in TARGETS:
            times: dict[str, list[Time]] = {
                LIMIT: [],
                **{
                    peer: []
                    for peer in peers
                    if peer != TRANSFORMERS
                    or (target in FLOATS_OF_MODELS and tensors <= MOST_LAYERS)
                },
            }
            wrong: dict[str, int] = {}
            for _ in range(turns):
                for peer, runs in times.items():
                    result.unlink(missing_ok=True)
                    os.sync()
                    if peer == LIMIT:
                        runs.append(limit(source, result, size // (4 // itemsize(target))))
                        continue
                    runs.append(run(PROGRAMS[peer], source, result, target))
                    if peer not in wrong:
                        wrong[peer] = count_wrong(source, result, target)
            yield [
                Row(
                    tensors,
                    target,
                    peer,
                    median(one.seconds for one in runs),
                    median(one.with_import for one in runs),
                    median(
                        one.seconds / of.seconds for one, of in zip(runs, times[LIMIT], strict=True)
                    ),
                    max(one.peak_mb for one in runs),
                    wrong.get(peer),
                )
                for peer, runs in times.items()
            ]


def make(path: Path, count: int, size: int) -> None:
    """Write the source of so many tensors: values as weights have them."""
    elements = size // 4 // count
    some = np.random.default_rng(count).standard_normal(10_000_019, np.float32)
    values = np.resize(some * np.float32(0.02), (count, elements))
    tensors = {f"layers.{index}.weight": row for index, row in enumerate(values)}
    checkpoint.save(path, tensors, overwrite=True)


def itemsize(target: str) -> int:
    """Bytes of an element of the result."""
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, target))
    return dtype.itemsize


def limit(source: Path, result: Path, nbytes: int) -> Time:
    """Read the source; write and sync as many bytes as the result has, none of them zero."""
    buffer, data = bytearray(PIECE), np.random.default_rng(1).integers(1, 256, PIECE, np.uint8)
    begin = perf_counter()
    with source.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    with result.open("wb", buffering=0) as file:
        for done in range(0, nbytes, PIECE):
            file.write(data[: nbytes - done].data)
        os.fsync(file.fileno())
    seconds = perf_counter() - begin
    return Time(seconds, seconds, PIECE / 1e6)


def run(program: str, *arguments: object) -> Time:
    """Run the program of a peer in a process of its own."""
    begin = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + program + EPILOGUE, *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    with_import = perf_counter() - begin
    seconds, peak = done.stdout.split()
    return Time(float(seconds), with_import, int(peak) * 1024 / 1e6)


def count_wrong(source: Path, result: Path, target: str) -> int:
    """Count tensors whose bytes are not those of `astype`."""
    dtype = getattr(ml_dtypes, target)
    names = [info.name for info in checkpoint.inspect(source).tensors]
    wrong = 0
    for begin in range(0, len(names), 100):
        some = names[begin : begin + 100]
        old, new = checkpoint.load(source, some), checkpoint.load(result, some)
        wrong += sum(
            new[name].dtype != dtype or new[name].tobytes() != old[name].astype(dtype).tobytes()
            for name in some
        )
    return wrong


def lines(rows: Iterable[Row]) -> Iterator[str]:
    """Show one case."""
    for row in rows:
        verdict = "" if row.wrong is None else "right" if not row.wrong else f"{row.wrong} WRONG"
        yield (
            f"{row.tensors:>6} {row.target:<14} {row.peer:<28} {row.seconds:>7.2f} s "
            f"{row.with_import:>7.2f} s with import {row.ratio:>6.2f}x {row.peak_mb:>7.0f} MB  "
            f"{verdict}"
        )


def markdown(environment: dict[str, str], rows: Iterable[Row]) -> str:
    """Format the table of the README."""
    table = [
        f"Seconds for {int(environment['bytes']) / 1e9:.1f} GB of float32, with the import of the "
        "library in brackets, times the limit, and the peak of memory. "
        f"{environment['cpu']}, {environment['cores']} cores, {environment['file_system']}; median "
        f"of {environment['turns']} turns; {environment['versions']}; {environment['date']}.",
        "",
        "| tensors | to | | seconds | of the limit | peak | bits right |",
        "|--:|---|---|--:|--:|--:|---|",
    ]
    for row in rows:
        limited = row.peer == LIMIT
        seconds = f"{row.seconds:.2f}" + ("" if limited else f" ({row.with_import:.2f})")
        right = "" if row.wrong is None else "yes" if not row.wrong else f"{row.wrong} wrong"
        peak = "" if limited else f"{row.peak_mb:,.0f} MB"
        table.append(
            f"| {row.tensors:,} | {row.target} | {row.peer} | {seconds} | {row.ratio:.2f}x "
            f"| {peak} | {right} |"
        )
    return "\n".join(table)


def draw(environment: dict[str, str], rows: list[Row]) -> Any:
    """Draw a bar per peer and case: its time over the limit's."""
    import matplotlib as mpl  # noqa: PLC0415  (only for pictures)
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"] = "castwise"  # the same picture for the same record
    cases = list(dict.fromkeys((row.tensors, row.target) for row in rows))
    peers = list(dict.fromkeys(row.peer for row in rows if row.peer != LIMIT))
    figure = Figure(figsize=(8, 0.8 + 0.9 * len(cases)), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(peers)
    for number, peer in enumerate(peers):
        found = [
            (cases.index((row.tensors, row.target)), row.ratio) for row in rows if row.peer == peer
        ]
        places = [place + (number - (len(peers) - 1) / 2) * height for place, _ in found]
        axes.barh(places, [ratio for _, ratio in found], height=height, label=peer)
    axes.axvline(1, color="#222222", linewidth=1, label=LIMIT)
    axes.set_yticks(
        range(len(cases)),
        [f"{count:,} tensor{'s' * (count > 1)}\n→ {target}" for count, target in cases],
    )
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(
        f"times the limit, {int(environment['bytes']) / 1e9:.1f} GB of float32 "
        f"({environment['cpu']}, {environment['file_system']})"
    )
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


if __name__ == "__main__":
    main()
