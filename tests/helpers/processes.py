"""Python programs in new processes, which start in a fifth of the time that an interpreter takes.

On Linux this file, as a script, is a process with one thread that has imported what castwise
needs. It forks for every program; the child has streams, environment, folder and exit code of its
own. A program with another environment than the tests' imports castwise itself, as it may read it;
others find it imported.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

PACKAGES = "castwise.quantization", "castwise.checkpoint", "castwise.cli"
LIMIT = 120  # seconds, after which a program is ended
USED_BY_CASTWISE = (
    "argparse", "ast", "contextvars", "ctypes", "dataclasses", "errno", "fcntl", "hashlib",
    "inspect", "math", "ml_dtypes", "mmap", "numpy.typing", "pickle", "re",
    "resource", "secrets", "shutil", "stat", "struct", "tempfile", "textwrap", "threading",
    "tomllib", "types", "typing", "unicodedata", "weakref", "zipfile",
)  # fmt: skip


def run_python(
    *arguments: Any,
    env: Mapping[str, str] | None = None,
    stdout: Path | None = None,
    forked: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `python [-W error] (-m module | -c code) arguments`, and wait for its end.

    Standard output is what it prints, or goes to a file. With forked=False it has an interpreter
    of its own: for tests of how one starts or ends.
    """
    command = [sys.executable, *map(str, arguments)]
    environment = dict(os.environ if env is None else env)
    if not forked or sys.platform != "linux":
        with nullcontext(subprocess.PIPE) if stdout is None else stdout.open("w") as out_to:
            return subprocess.run(
                command, env=environment, stdout=out_to, stderr=subprocess.PIPE, text=True,
                check=False, timeout=LIMIT,
            )  # fmt: skip
    (out, write_out), (errors, write_errors) = os.pipe(), os.pipe()
    connection = _server(*(PACKAGES if env is None else ()))
    if stdout is not None:
        os.close(write_out)
        write_out = os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    _request(connection, command, environment, (write_out, write_errors))
    os.close(write_out)
    os.close(write_errors)
    with os.fdopen(out) as out_file, os.fdopen(errors) as errors_file, ThreadPoolExecutor() as pool:
        texts = list(pool.map(lambda file: file.read(), (out_file, errors_file)))
    return subprocess.CompletedProcess(command, _exit_code(connection), *texts)


def run_limited(limit: str, size: int, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process with this limit of its resources.

    Of memory, it is that beside what Python has reserved: a GiB, if it is free-threaded. Where the
    system has no such limits, the test is skipped.
    """
    from system_parts import need  # noqa: PLC0415 - imports pytest, which no program needs

    need("resource", *(["/proc/self/status"] if limit == "RLIMIT_DATA" else []))
    program = f"""if True:
        import resource, sys
        from castwise.cli import main
        size = {size}
        if {limit!r} == "RLIMIT_DATA":
            with open("/proc/self/status") as lines:
                size += sum(int(line.split()[1]) << 10 for line in lines if "VmData" in line)
        resource.setrlimit(resource.{limit}, (size, size))
        sys.exit(main())
    """
    return run_python("-c", program, *arguments)


def _request(
    connection: socket.socket, command: list[str], environment: dict[str, str], streams: Any
) -> None:
    """Have a program run with these streams for output and errors."""
    request = json.dumps([command, environment, os.getcwd()]).encode()
    socket.send_fds(connection, [len(request).to_bytes(8, "little")], streams)
    connection.sendall(request)


def _exit_code(connection: socket.socket) -> int:
    """Wait for the end of the program that was requested last."""
    return int.from_bytes(connection.recv(8), "little", signed=True)


def run_on_terminal(
    *arguments: Any, columns: int = 0, stream: str = "stderr", color: bool = False
) -> tuple[int, str]:
    """Run castwise with one stream on a terminal; return the exit code and what that shows."""
    from system_parts import need  # noqa: PLC0415 - imports pytest, which no program needs

    need("pty")
    import fcntl  # noqa: PLC0415
    import pty  # noqa: PLC0415
    import termios  # noqa: PLC0415

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    command = [sys.executable, "-m", "castwise", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "" if color else "1"}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    streams = (theirs, nowhere) if stream == "stdout" else (nowhere, theirs)
    if sys.platform == "linux":
        connection = _server(*PACKAGES)
        _request(connection, command, environment, streams)
        end = partial(_exit_code, connection)
    else:
        end = subprocess.Popen(command, env=environment, stdout=streams[0], stderr=streams[1]).wait
    os.close(nowhere)
    os.close(theirs)
    seen = _read_to_end(ours)
    os.close(ours)
    return end(), seen.decode()


def _read_to_end(terminal: int) -> bytes:
    """Read what the other side of a terminal writes until it is closed there."""
    seen, ends = b"", 0
    # Linux (n_tty_read) looks for output, and then whether the other side is closed. If output is
    # written and the side closed in between, the read fails, and the next one returns the output.
    while ends < 2:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # how Linux reports that the other side is closed
            chunk = b""
        seen += chunk
        ends += not chunk
    return seen


@cache
def _server(*packages: str) -> socket.socket:
    """Start a process that forks, after it has imported packages; it ends with this one."""
    ours, its = socket.socketpair()
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, __file__, str(its.fileno()), *packages],
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path},
    )
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(connection: socket.socket) -> None:
    """Run one program after the other, each in a child, until the other side closes."""
    while True:
        length, streams, _, _ = socket.recv_fds(connection, 8, 2)
        if not length:
            return
        request = connection.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL)
        child = get_context("fork").Process(target=_become, args=(streams, *json.loads(request)))
        child.start()
        for stream in streams:
            os.close(stream)
        child.join()
        connection.sendall((child.exitcode or 0).to_bytes(8, "little", signed=True))


def _become(
    streams: list[int], command: list[str], environment: dict[str, str], folder: str
) -> None:
    """Run a program in this process, with these streams for output and errors."""
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout, sys.stderr = (
        open(number, "w", closefd=False, errors=stream.errors)  # noqa: SIM115 - open to the end
        for number, stream in ((1, sys.stdout), (2, sys.stderr))
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.alarm(LIMIT)
    _run(*command[1:])


def _run(option: str, program: str, *arguments: str) -> None:
    """Run what the arguments of Python name."""
    if option == "-W":
        warnings.resetwarnings()
        warnings.simplefilter(program)  # type: ignore[arg-type]
        _run(*arguments)
    elif option == "-m":
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102


def _import_all(name: str) -> None:
    """Import a module, and all that are in it if it is a package."""
    module = importlib.import_module(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
        _import_all(found.name)


if __name__ == "__main__":
    for module in (*USED_BY_CASTWISE, "numpy"):
        __import__(module)
    for package in sys.argv[2:]:
        _import_all(package)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
