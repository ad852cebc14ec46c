#!/usr/bin/env -S python3 -IS
"""Runs rustc for cargo (RUSTC_WRAPPER), and appends to CASTWISE_BUILD_LOG what each crate took."""

import os
import resource
import sys
import time
from subprocess import call


def main() -> int:
    """Compile; append package, seconds of CPU time and of the clock, and MiB at most."""
    start, command = time.monotonic(), sys.argv[1:]
    # With cargo's pipes, by which compilers agree on how many run.
    code = call(command, close_fds=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    log, package = os.environ.get("CASTWISE_BUILD_LOG"), os.environ.get("CARGO_PKG_NAME")
    # Without a package, cargo asks which compiler it is.
    if log is not None and package is not None and "--crate-name" in command:
        mib = used.ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1 << 10)
        cpu, clock = used.ru_utime + used.ru_stime, time.monotonic() - start
        # One write, so that lines of several compilers stay whole.
        with open(log, "a") as file:
            file.write(f"{package} {cpu:.3f} {clock:.3f} {mib}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
