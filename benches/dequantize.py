"""Decode a whole model of FP8 blocks: `castwise dequantize`, the plain cast, torch, the disk.

    python benches/dequantize.py --quick            # a small file, once: does it work
    python benches/dequantize.py --csv              # 1.5 GB, recorded under record/
    python benches/dequantize.py --from record/SOME.csv --readme benches/README.md

A file as DeepSeek's, its codes in blocks of 128x128 whose scales are bfloat16 or float32, becomes
bfloat16. The plain cast takes its codes for numbers, so it reads and writes as many bytes. All
peers take turns, each in a process of its own, which syncs its result to the disk; the source is in
the page cache. The limit reads the source, and writes and syncs as many bytes as the result has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import castwise
import command
import files
import ml_dtypes
import numpy as np
from castwise import checkpoint as checkpoints
from checkpoint import LIMIT, SYNC, Time, limit, run
from numpy.typing import NDArray

MARKER = "dequantize"
SCALES = ("bfloat16", "float32")
EXPERTS, QUICK_EXPERTS, QUICK_PART = 29, 2, 16
BLOCK = 128
CONFIG = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
TORCH, CAST = "torch, a tensor at a time", "plain cast of the codes"

# Each is run with source, target and threads, says when its imports are done, and syncs its result.
CASTWISE = """
from castwise.checkpoint import {0}
begin = perf_counter()
{0}(*sys.argv[1:3], threads=int(sys.argv[3]), overwrite=True, {1})
"""
PROGRAMS = {
    CAST: CASTWISE.format("cast_file", "dtype='bfloat16', raw=True"),
    "castwise": CASTWISE.format("dequantize_file", ""),
    TORCH: f"""
import torch
from safetensors import safe_open
from safetensors.torch import save_file
begin = perf_counter()
torch.set_num_threads(int(sys.argv[3]))
tensors = {{}}
with safe_open(sys.argv[1], "pt") as file:
    names = set(file.keys())
    for name in names:
        if name.endswith("_scale_inv"):
            continue
        tensor = file.get_tensor(name)
        if name + "_scale_inv" in names:
            (rows, columns), scale = tensor.shape, file.get_tensor(name + "_scale_inv").float()
            scale = scale.repeat_interleave({BLOCK}, 0)[:rows]
            scale = scale.repeat_interleave({BLOCK}, 1)[:, :columns]
            tensor = (tensor.float() * scale).bfloat16()
        tensors[name] = tensor
save_file(tensors, sys.argv[2])
{SYNC}""",
}


@dataclass(frozen=True)
class Row:
    """One peer on a file of one kind of scales; times are medians.

    `of_limit` and `of_cast` are medians of its time over the limit's and over the plain cast's.
    """

    scales: str
    peer: str
    seconds: float = field(metadata={"digits": 4})
    with_import: float = field(metadata={"digits": 4})
    of_limit: float = field(metadata={"digits": 3})
    of_cast: float = field(metadata={"digits": 3})
    peak_mb: float = field(metadata={"digits": 4})
    correct: bool | None


def main() -> int:
    """Measure, or show what was measured; returns the exit code."""
    parser = command.parser(str(__doc__))
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.set_defaults(threads=os.cpu_count() or 1, repeats=7)
    return command.carry_out(parser.parse_args(), Row, measured, line, tables)


def measured(options: argparse.Namespace) -> tuple[command.Facts, list[Row]]:
    """Time all peers in turn on each file."""
    rows: list[Row] = []
    turns = 1 if options.quick else options.repeats
    packages = ("numpy", "ml_dtypes", "torch", "safetensors")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for scales in SCALES:
            source, result = Path(folder) / "source.safetensors", Path(folder) / "new.safetensors"
            nbytes = make(source, scales, quick=options.quick)
            for row in compared(source, result, scales, turns, options.threads):
                print(line(row), flush=True)
                rows.append(row)
    facts = files.environment(
        {name: version(name) for name in packages if find_spec(name)},
        level=castwise.cpu_level(),
        threads=str(options.threads),
        bytes=str(nbytes),
        turns=str(turns),
    )
    return facts, rows


def shapes(*, quick: bool) -> Iterator[tuple[str, tuple[int, int]]]:
    """Weights of a layer of DeepSeek-V3; not all have whole blocks."""
    part = QUICK_PART if quick else 1
    hidden, inner, query, keys = 7168, 2048, 1536, 576
    yield from (
        (f"self_attn.{name}", (rows // part, columns // part))
        for name, rows, columns in (
            ("q_a_proj", query, hidden),
            ("q_b_proj", 24576, query),
            ("kv_a_proj_with_mqa", keys, hidden),
            ("kv_b_proj", 32768, 512),
            ("o_proj", hidden, 16384),
        )
    )
    for expert in range(QUICK_EXPERTS if quick else EXPERTS):
        for name, rows, columns in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            yield f"mlp.experts.{expert}.{name}", (rows // part, columns // part)


def make(path: Path, scales: str, *, quick: bool) -> int:
    """Write the source, its weights of normal values; returns the bytes of the codes."""
    rng = np.random.default_rng(len(scales))
    values = 100 * rng.standard_normal(10_000_019, np.float32)
    some = castwise.cast(values, "float8_e4m3fn", overflow="saturate")
    tensors: dict[str, NDArray[Any]] = {}
    nbytes = 0
    for name, (rows, columns) in shapes(quick=quick):
        codes = np.resize(some, (rows, columns))
        nbytes += codes.nbytes
        blocks = -(-rows // BLOCK), -(-columns // BLOCK)
        scale = castwise.cast(rng.uniform(1e-5, 1e-3, blocks).astype(np.float32), scales)
        tensors[f"model.layers.3.{name}.weight"] = codes
        tensors[f"model.layers.3.{name}.weight_scale_inv"] = scale
    norm = castwise.cast(rng.standard_normal(7168, np.float32), "bfloat16")
    tensors["model.layers.3.input_layernorm.weight"] = norm
    checkpoints.save(path, tensors, overwrite=True)
    path.with_name("config.json").write_text(json.dumps({"quantization_config": CONFIG}))
    return nbytes


def compared(source: Path, result: Path, scales: str, turns: int, threads: int) -> Iterator[Row]:
    """Time all peers in turn, and check their first results."""
    peers = [peer for peer in PROGRAMS if peer != TORCH or find_spec("torch")]
    times: dict[str, list[Time]] = {LIMIT: [], **{peer: [] for peer in peers}}
    correct: dict[str, bool] = {}
    nbytes = sum(
        2 * one.nbytes for one in checkpoints.inspect(source).tensors if one.stored == "F8_E4M3"
    )
    for _ in range(turns):
        for peer, runs in times.items():
            result.unlink(missing_ok=True)
            os.sync()
            if peer == LIMIT:
                runs.append(limit(source, result, nbytes))
                continue
            runs.append(run(PROGRAMS[peer], source, result, threads))
            if peer not in correct:
                correct[peer] = is_right(source, result, by_scales=peer != CAST)
    for peer, runs in times.items():
        of_limit, of_cast = (
            median(one.seconds / of.seconds for one, of in zip(runs, times[base], strict=True))
            for base in (LIMIT, CAST)
        )
        yield Row(
            scales,
            peer,
            median(one.seconds for one in runs),
            median(one.with_import for one in runs),
            of_limit,
            of_cast,
            max(one.peak_mb for one in runs),
            correct.get(peer),
        )


def is_right(source: Path, result: Path, *, by_scales: bool) -> bool:
    """Compare all weights with numpy's float32 products, or with the codes' own values."""
    new_names = {one.name for one in checkpoints.inspect(result).tensors}
    for info in checkpoints.inspect(source).tensors:
        name = info.name
        if name.endswith("_scale_inv"):
            if by_scales and name in new_names:
                return False
            continue
        old, new = (checkpoints.load(path, [name])[name] for path in (source, result))
        wanted = old.astype(np.float32)
        if by_scales and info.stored == "F8_E4M3":
            scale = checkpoints.load(source, [name + "_scale_inv"])[name + "_scale_inv"]
            spread = scale.astype(np.float32).repeat(BLOCK, 0).repeat(BLOCK, 1)
            wanted *= spread[: wanted.shape[0], : wanted.shape[1]]
        bits = wanted.astype(ml_dtypes.bfloat16).view(np.uint16)
        if new.dtype != ml_dtypes.bfloat16 or not np.array_equal(new.view(np.uint16), bits):
            return False
    return True


def line(row: Row) -> str:
    """Show one row."""
    verdict = {True: "right", False: "WRONG", None: ""}[row.correct]
    seconds = f"{row.seconds:>7.2f} s {row.with_import:>7.2f} s with import"
    ratios = f"{row.of_limit:>6.2f}x the limit {row.of_cast:>6.2f}x the cast"
    return f"{row.scales:<9} {row.peer:<26} {seconds} {ratios} {row.peak_mb:>7.0f} MB  {verdict}"


def tables(facts: command.Facts, rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Format the table of the README."""
    found = [
        f"Seconds for {int(facts['bytes']) / 1e9:.1f} GB of FP8 codes to bfloat16, with the import "
        "of the library in brackets, times the limit and the plain cast, and the peak of memory. "
        f"{facts['cpu']}, {facts['level']}, threads: {facts['threads']}; median of "
        f"{facts['turns']} turns; {facts['versions']}; {facts['date']}.",
        "",
        "| scales | | seconds | of the limit | of the plain cast | peak | bits right |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        limited = row.peer == LIMIT
        seconds = f"{row.seconds:.2f}" + ("" if limited else f" ({row.with_import:.2f})")
        right = {True: "yes", False: "no", None: ""}[row.correct]
        peak = "" if limited else f"{row.peak_mb:,.0f} MB"
        found.append(
            f"| {row.scales} | {row.peer} | {seconds} | {row.of_limit:.2f}x | {row.of_cast:.2f}x "
            f"| {peak} | {right} |"
        )
    yield MARKER, "\n".join(found)


if __name__ == "__main__":
    sys.exit(main())
