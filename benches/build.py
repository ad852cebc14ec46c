"""Count the CPU time of compiling castwise, crate by crate: `python benches/build.py` (by cargo).

It builds the extension in an empty folder and compares what that took with the record, as a ratio:
all crates over a crate of the registry that is compiled once more after each crate of castwise, so
that a slower or busier machine has the same one. Exit code 1 if the ratio grew by more than the
tolerance; --record writes a new record, as a wanted change does, with the bytes of a wheel's
extension. `rustc.py`, beside this file, stands before rustc and writes the log; --log compares the
log of another build.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import files

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).with_name("record") / "build.csv"
REFERENCE = "reference"
"""What `rustc.py` calls the crate of the registry when it is compiled once more."""


@dataclass(frozen=True)
class Crate:
    """What one package took, its build script and macros included."""

    package: str
    cpu_s: float = field(metadata={"digits": 4})
    clock_s: float = field(metadata={"digits": 4})
    peak_mib: int


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name} anew")
    parser.add_argument("--log", type=Path, help="compare this log of a build")
    parser.add_argument(
        "--tolerance", type=float, default=0.1, help="growth that is forgiven (0.1)"
    )
    return parser.parse_args()


def build(folder: Path, profile: str = "release") -> tuple[Path, int]:
    """Build the extension in an empty folder; return the log, and the extension's bytes."""
    log = folder / "build.log"
    settings = {
        "RUSTC_WRAPPER": str(Path(__file__).with_name("rustc.py")),
        "CASTWISE_BUILD_LOG": str(log),
    }
    command = ["cargo", "build", "--quiet", "--locked", "-p", "castwise-extension"]
    choices = ["--profile", profile, "--target-dir", str(folder)]
    subprocess.run([*command, *choices], cwd=ROOT, env={**os.environ, **settings}, check=True)
    library = next((folder / profile).glob("*_core.*[!d]"))
    return log, library.stat().st_size


def read_log(log: Path) -> list[Crate]:
    """Read a log, a row for each package, the dearest first; of the reference, the mean."""
    rows = [line.split() for line in log.read_text().splitlines()]
    crates = []
    for package in {row[0] for row in rows}:
        runs = [[*map(float, row[1:])] for row in rows if row[0] == package]
        count = len(runs) if package == REFERENCE else 1
        cpu, clock = (sum(run[column] for run in runs) / count for column in (0, 1))
        crates.append(Crate(package, cpu, clock, int(max(run[2] for run in runs))))
    return sorted(crates, key=lambda crate: -crate.cpu_s)


def cpu_seconds(crates: Iterable[Crate]) -> float:
    """Sum up what a build takes."""
    return sum(crate.cpu_s for crate in crates if crate.package != REFERENCE)


def ratio(crates: list[Crate]) -> float:
    """Return the time of a build over that of the reference."""
    return cpu_seconds(crates) / next(c.cpu_s for c in crates if c.package == REFERENCE)


def is_whole(new: list[Crate], crates: Iterable[str]) -> bool:
    """Return whether these crates of castwise and the reference were all compiled."""
    names = {name for name in crates if name.startswith("castwise")}
    return {crate.package for crate in new} >= {*names, REFERENCE}


def main() -> int:
    """Build, compare, record."""
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        log, size = (options.log, None) if options.log else build(Path(folder))
        new = read_log(log) if log.exists() else []
    before = {c.package: c for c in files.read(RECORD, Crate)[1]} if RECORD.exists() else {}
    for crate in new:
        was = f", was {before[crate.package].cpu_s}" if crate.package in before else ""
        print(f"{crate.package:<24}{crate.cpu_s:>8.2f} CPU-s{crate.peak_mib:>7} MiB{was}")
    if not is_whole(new, before):
        print("not every crate was compiled, so nothing is compared or recorded")
        return int(options.record)
    if options.record:
        peak = max(crate.peak_mib for crate in new)
        facts = {"cpu_s": f"{cpu_seconds(new):.1f}", "ratio": f"{ratio(new):.2f}", "peak_mib": peak}
        if size is not None:
            facts["extension_bytes"] = size
            with tempfile.TemporaryDirectory() as folder:
                facts["wheel_extension_bytes"] = build(Path(folder), "wheel")[1]
        compiler = subprocess.run(
            ["rustc", "--version"], check=True, capture_output=True, text=True
        )
        versions = {"rustc": compiler.stdout.split()[1]}
        environment = files.environment(versions, **{name: str(x) for name, x in facts.items()})
        files.write(RECORD, environment, new)
        return 0
    grown = ratio(new) / ratio(list(before.values()))
    print(f"{cpu_seconds(new):.1f} CPU-s, {grown:.2f} of the record's beside the reference")
    return int(grown > 1 + options.tolerance)


if __name__ == "__main__":
    sys.exit(main())
