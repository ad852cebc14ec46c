"""Count the instructions of hot casts: `python benches/instructions.py` (by valgrind and cargo).

Clocks vary from run to run; counts do not. One line per pair: instructions per element, as
callgrind counts them at the best level that it supports, and the committed record's. Exit code 1 if
one grew by more than the tolerance; --record writes a new record, as a wanted change does. The
record is of wheels' profile, and what is compared of the profile of development, which inlines
least.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).with_name("record") / "instructions.json"
PAIRS = (
    "float32:bfloat16",
    "bfloat16:float32",
    "float32:float16",
    "float16:float32",
    "float32:float8_e4m3fn",
    "float8_e4m3fn:float32",
    "float32:float8_e5m2",
    "bfloat16:float8_e4m3fn",
    "float8_e4m3fn:bfloat16",
    "float64:float32",
    "float32:float4_e2m1fn",
    "int8:float32",
)
PROFILE = "develop"
RECORDED_PROFILE = "wheel"
ELEMENTS = 65_536
TIMES = 8


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name} anew")
    parser.add_argument(
        "--tolerance", type=float, default=0.1, help="growth that is forgiven (0.1)"
    )
    return parser.parse_args()


def program(profile: str = PROFILE) -> Path:
    """Build the program that casts again and again."""
    command = ["cargo", "build", "--quiet", "--locked", "--profile", profile]
    build = [*command, "-p", "castwise-core", "--example", "repeat_cast", "--message-format=json"]
    done = subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True)
    built = [json.loads(line) for line in done.stdout.splitlines()]
    return Path(next(found["executable"] for found in built if found.get("executable")))


def rustc() -> str:
    """The compiler: another one makes other code, which is nobody's regression."""
    done = subprocess.run(
        ["rustc", "--version"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def count(executable: Path, pair: str, times: int, elements: int = ELEMENTS) -> int:
    """Instructions of a whole run."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [str(executable), *pair.split(":"), str(elements), str(times)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if not found:
        raise ValueError(f"callgrind has not said how many: {done.stderr}")
    return int(found[1])


def per_element(executable: Path, pair: str) -> float:
    """Instructions per element; what comes before the first cast is in both runs."""
    once, often = (count(executable, pair, times) for times in (1, 1 + TIMES))
    return round((often - once) / TIMES / ELEMENTS, 4)


def main() -> int:
    """Count, compare, record."""
    options = arguments()
    if shutil.which("valgrind") is None:
        print("instructions.py: no valgrind here, so nothing is counted")
        return 0
    executable = program(RECORDED_PROFILE) if options.record else program()
    compiler = rustc()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    old = record.get("instructions per element", {})
    if record.get("compiler") != compiler:
        print(f"the record is of {record.get('compiler')}, this is {compiler}: not compared")
        old = {}
    new = {pair: per_element(executable, pair) for pair in PAIRS}
    grown = [pair for pair in PAIRS if new[pair] > old.get(pair, 1e9) * (1 + options.tolerance)]
    for pair in PAIRS:
        verdict = "GROWN" if pair in grown else ""
        print(
            f"{pair:<30}{new[pair]:>9.3f} instructions per element, was {old.get(pair)} {verdict}"
        )
    if options.record:
        written = {
            "compiler": compiler,
            "profile": RECORDED_PROFILE,
            "instructions per element": new,
        }
        RECORD.write_text(json.dumps(written, indent=2) + "\n")
        return 0
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
