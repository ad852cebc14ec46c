#!/usr/bin/env -S python3 -IS
"""Runs rustc for cargo (RUSTC_WRAPPER), and appends to CASTWISE_BUILD_LOG what each crate took.

After each crate of castwise it compiles REFERENCE once more: the machine is then as busy as it was.
"""

import os
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory

REFERENCE = "regex-automata"


def run(command: list[str], log: str, package: str, output: int | None = None) -> int:
    """Compile; append package, seconds of CPU time and of the clock, and MiB at most."""
    start = time.monotonic()
    # With cargo's pipes, by which compilers agree on how many run.
    process = Popen(command, close_fds=False, stdout=output, stderr=output)
    _, status, used = os.wait4(process.pid, 0)
    mib = used.ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1 << 10)
    cpu, clock = used.ru_utime + used.ru_stime, time.monotonic() - start
    # One write, so that lines of several compilers stay whole.
    with open(log, "a") as file:
        file.write(f"{package} {cpu:.3f} {clock:.3f} {mib}\n")
    return os.waitstatus_to_exitcode(status)


def run_reference(command: list[str], log: str) -> None:
    """Compile it once more, without the messages, which cargo would take for the crate's."""
    with TemporaryDirectory() as folder:
        folders = {command.index("--out-dir") + 1: folder}
        parts = [folders.get(place, part) for place, part in enumerate(command)]
        run(parts, log, "reference", DEVNULL)


def main() -> int:
    """Compile a crate; then the reference, if the crate has code of castwise."""
    command = sys.argv[1:]
    log, package = os.environ.get("CASTWISE_BUILD_LOG"), os.environ.get("CARGO_PKG_NAME")
    # Without a package, cargo asks which compiler it is.
    if log is None or package is None or "--crate-name" not in command:
        os.execvp(command[0], command)  # noqa: S606
    code = run(command, log, package)
    reference = Path(f"{log}.reference")
    if package == REFERENCE:
        reference.write_text("\0".join(command))
    elif (
        package.startswith("castwise-")
        and "build_script_build" not in command
        and reference.exists()
    ):
        run_reference(reference.read_text().split("\0"), log)
    return code


if __name__ == "__main__":
    sys.exit(main())
