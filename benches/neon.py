"""Count NEON's instructions beside AVX2's: `python benches/neon.py` (by qemu, valgrind and cargo).

There is no arm64 machine here to time, so instructions per step are counted: a step converts as
many elements as a register has bytes, 16 of them in NEON and 32 in AVX2. One line per pair whose
NEON step takes more than 1.5 times AVX2's, the greatest first; with pairs named, one for each of
them. --record writes what was counted into the record.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path

from instructions import ROOT, count, program

RECORD = Path(__file__).with_name("record") / "instructions-neon.csv"
FORMATS = (
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3",
    "float8_e3m4",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3b11fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "int8",
    "uint8",
)
STEPS = {"avx2": 32, "neon": 16}
"""Elements per step."""
ELEMENTS = 1 << 14
BOUND = 1.5


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write them into {RECORD.name}")
    parser.add_argument("pairs", nargs="*", help="SOURCE:TARGET (those of all formats)")
    return parser.parse_args()


def emulated() -> Path:
    """Build the program for arm64."""
    command = [".ci/emulate", "aarch64", "build", "--quiet", "--example", "repeat_cast"]
    done = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    built = [json.loads(line) for line in done.stdout.splitlines()]
    return Path(next(found["executable"] for found in built if found.get("executable")))


def emulated_count(executable: Path, pair: str, elements: int) -> int:
    """Instructions of a whole run: qemu translates one at a time, and logs what it executes."""
    command = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", "-singlestep"]
    command += ["-d", "exec,nochain", "-D", "/dev/stdout", str(executable), *pair.split(":")]
    done = subprocess.run([*command, str(elements), "1"], check=True, capture_output=True)
    return done.stdout.count(b"Trace ")


def per_step(executables: dict[str, Path], pair: str) -> dict[str, float]:
    """Instructions per step; what is not part of the loop is in both runs."""
    runs: dict[str, Callable[[int], int]] = {
        "avx2": lambda elements: count(executables["avx2"], pair, 1, elements),
        "neon": lambda elements: emulated_count(executables["neon"], pair, elements),
    }
    steps = {level: ELEMENTS // size for level, size in STEPS.items()}
    return {
        level: round((run(2 * ELEMENTS) - run(ELEMENTS)) / steps[level], 2)
        for level, run in runs.items()
    }


def write(rows: list[dict[str, str | float]]) -> None:
    """Replace the rows of these pairs in the record."""
    known = {}
    if RECORD.exists():
        with RECORD.open(newline="") as file:
            known = {row["pair"]: row for row in csv.DictReader(file)}
    known |= {row["pair"]: row for row in rows}
    with RECORD.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(known.values())


def main() -> int:
    """Count, compare, record."""
    options = arguments()
    executables = {"avx2": program(), "neon": emulated()}
    pairs = options.pairs or [":".join(pair) for pair in permutations(FORMATS, 2)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counted = list(pool.map(lambda pair: per_step(executables, pair), pairs))
    rows = [
        {"pair": pair, **counts, "ratio": round(counts["neon"] / counts["avx2"], 2)}
        for pair, counts in zip(pairs, counted, strict=True)
    ]
    above = [row for row in rows if row["ratio"] > BOUND]
    for row in sorted(above if not options.pairs else rows, key=lambda row: -row["ratio"]):
        print("{pair:<40}avx2 {avx2:>8.2f}  neon {neon:>8.2f}  ratio {ratio:.2f}".format(**row))
    print(f"{len(above)} of {len(rows)} pairs above {BOUND}")
    if options.record:
        write(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
