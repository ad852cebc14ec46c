"""maturin for pip, after a look at what compiling needs: its own errors about that take pages."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

# Everything that pip asks of a backend.
from maturin import *  # noqa: F403
from maturin import get_requires_for_build_wheel as requires_of_maturin

ROOT = Path(__file__).parents[1]
GIB = 1 << 30
# The compiler of the largest crate takes 1.2 GiB at most, that of any other one 0.6 beside it.
FEWEST_GIB, GIB_OF_TWO = 1.3, 2.5
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def fault() -> str | None:
    """Return what keeps castwise from being compiled here, and the remedy."""
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    oldest = workspace["package"]["rust-version"]
    remedy = f"install Rust {oldest} or newer from https://rustup.rs, or castwise from a wheel"
    if not shutil.which("cargo") or not shutil.which("rustc"):
        return f"castwise is compiled from Rust, but there is no cargo; {remedy}"
    command = ["rustc", "--version"]  # of the version that rustup chooses for this folder
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    version = re.match(r"rustc (\d+)\.(\d+)", answer.stdout)
    if version is None:
        reasons = answer.stderr.strip().splitlines()[-1:]
        return f"{': '.join(['rustc --version fails', *reasons])}; {remedy}"
    if (int(version[1]), int(version[2])) < tuple(map(int, oldest.split("."))):
        return (
            f"castwise needs Rust {oldest}, but here is {version[0]}; `rustup update`, or {remedy}"
        )
    chosen = [*filter(re.compile("CARGO_TARGET_.*_LINKER").match, os.environ)]
    if os.name == "posix" and not (shutil.which("cc") or chosen or configured()):
        return (
            "Rust links by cc, a C compiler, but there is none; install one, as `apt install gcc`"
        )
    if memory() < FEWEST_GIB:
        return (
            f"compiling castwise takes {FEWEST_GIB} GiB of memory, but here are {memory():.1f}; "
            "give it more, or install castwise from a wheel"
        )
    return None


def configured() -> bool:
    """Return whether cargo has settings of the user's, which may name a linker."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    return any((home / name).exists() for name in ("config", "config.toml"))


def memory() -> float:
    """Return the GiB that this process may use, swap included as far as that is known."""
    sizes = [Path(limit).read_text().strip() for limit in LIMITS if Path(limit).exists()]
    limits = [int(size) / GIB for size in sizes if size.isdecimal()]
    try:
        found = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text()))
        limits.append((int(found["MemTotal"]) + int(found["SwapTotal"])) * 1024 / GIB)
    except (OSError, KeyError):
        pass
    return min(limits, default=float("inf"))


def get_requires_for_build_wheel(config_settings: dict[str, str] | None = None) -> list[str]:
    """Refuse by one line what would fail."""
    reason = fault()
    if reason is not None:
        sys.exit(f"error: {reason}.")
    return requires_of_maturin(config_settings)


get_requires_for_build_editable = get_requires_for_build_wheel

if memory() < GIB_OF_TWO:
    os.environ.setdefault("CARGO_BUILD_JOBS", "1")
