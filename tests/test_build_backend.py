"""What pip answers where castwise cannot be compiled: one line that names the remedy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("maturin")

ROOT = Path(__file__).parents[1]


def answer(path: Path, hook: str = "get_requires_for_build_wheel()") -> tuple[int, str]:
    """Ask the backend with these programs only; return code and what it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", f"import build_backend; build_backend.{hook}"],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": str(path),
            "CARGO_HOME": str(path),
            "PYTHONPATH": str(ROOT / "rust"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def add_program(path: Path, name: str, prints: str = "") -> None:
    program = path / name
    program.write_text(f"#!/bin/sh\necho '{prints}'\n")
    program.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="the programs are shell scripts")
class TestBuildBackend:
    def test_no_compiler(self, tmp_path: Path) -> None:
        code, error = answer(tmp_path)
        assert code != 0
        assert error.count("\n") == 1
        assert "no cargo" in error
        assert "https://rustup.rs" in error

    @pytest.mark.parametrize("version", ["1.63.0", "1.88.2-nightly"])
    def test_an_old_compiler(self, tmp_path: Path, version: str) -> None:
        add_program(tmp_path, "cargo")
        add_program(tmp_path, "rustc", f"rustc {version} (4b91a6ea7 2022-08-08)")
        code, error = answer(tmp_path)
        assert code != 0
        assert error.count("\n") == 1
        assert "needs Rust 1.89, but here is rustc 1." in error
        assert "rustup update" in error

    def test_a_compiler_that_fails(self, tmp_path: Path) -> None:
        add_program(tmp_path, "cargo")
        add_program(tmp_path, "rustc")
        code, error = answer(tmp_path)
        assert code != 0
        assert error.count("\n") == 1
        assert "rustc --version fails" in error

    def test_no_linker(self, tmp_path: Path) -> None:
        add_program(tmp_path, "cargo")
        add_program(tmp_path, "rustc", "rustc 1.89.0 (29483883e 2025-08-04)")
        code, error = answer(tmp_path)
        assert code != 0
        assert error.count("\n") == 1
        assert "apt install gcc" in error

    def test_too_little_memory(self, tmp_path: Path) -> None:
        for name in ("cargo", "cc"):
            add_program(tmp_path, name)
        add_program(tmp_path, "rustc", "rustc 1.95.0 (59807616e 2026-04-14)")
        code, error = answer(
            tmp_path, "memory = lambda: 1.0; build_backend.get_requires_for_build_wheel()"
        )
        assert code != 0
        assert error.count("\n") == 1
        assert "GiB of memory, but here are 1.0; give it more, or install" in error

    def test_what_is_needed(self, tmp_path: Path) -> None:
        for name in ("cargo", "cc"):
            add_program(tmp_path, name)
        add_program(tmp_path, "rustc", "rustc 1.89.0 (29483883e 2025-08-04)")
        assert answer(tmp_path) == (0, "")
