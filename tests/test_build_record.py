"""What compiling takes beside the record, which `.ci/run` compares, and the profile of wheels."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHES = ROOT / "benches"
CORE = "castwise-core"


def recorded() -> dict[str, float]:
    lines = (BENCHES / "record" / "build.csv").read_text("utf-8").splitlines()
    rows = [line.split(",") for line in lines if not line.startswith("#")]
    return {row[0]: float(row[1]) for row in rows[1:]}


def compare(log: Path, crates: dict[str, float]) -> tuple[int, str]:
    log.write_text("".join(f"{name} {cpu} 1.0 100\n" for name, cpu in crates.items()))
    done = subprocess.run(
        [sys.executable, BENCHES / "build.py", "--log", log],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_slower_machine_is_no_growth(tmp_path: Path) -> None:
    code, text = compare(tmp_path / "log", {name: 3 * cpu for name, cpu in recorded().items()})
    assert code == 0
    assert "1.00 of the record's" in text


@pytest.mark.parametrize("name", [CORE, "another-crate"])
def test_growth_by_more_than_a_tenth_is_refused(tmp_path: Path, name: str) -> None:
    crates = recorded()
    total = sum(crates.values())
    for growth, expected in ((0.09, 0), (0.12, 1)):
        code, text = compare(
            tmp_path / "log", crates | {name: crates.get(name, 0) + growth * total}
        )
        assert code == expected, text


@pytest.mark.parametrize("missing", [CORE, "reference"])
def test_a_build_of_some_crates_is_not_compared(tmp_path: Path, missing: str) -> None:
    crates = {name: 9 * cpu for name, cpu in recorded().items() if name != missing}
    code, text = compare(tmp_path / "log", crates)
    assert code == 0
    assert "nothing is compared or recorded" in text


@pytest.mark.skipif(sys.platform == "win32", reason="cargo runs a script there by another way")
def test_a_compiler_is_run_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys; sum(range(10**7)); sys.exit(3)"
    for package in (CORE, "regex-automata", CORE, "another-crate"):
        settings = {"CASTWISE_BUILD_LOG": str(log), "CARGO_PKG_NAME": package}
        command = [BENCHES / "rustc.py", sys.executable, "-c", code, "--crate-name", package]
        done = subprocess.run(
            [*command, "--out-dir", tmp_path], env={**os.environ, **settings}, check=False
        )
        assert done.returncode == 3
    rows = [line.split() for line in log.read_text().splitlines()]
    assert [row[0] for row in rows] == [CORE, "regex-automata", CORE, "reference", "another-crate"]
    assert all(float(row[1]) > 0.05 and float(row[2]) > 0.05 and int(row[3]) > 1 for row in rows)


def test_every_wheel_has_the_profile_of_wheels_and_is_tested() -> None:
    profiles = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["profile"]
    assert profiles["wheel"]["inherits"] == "release"
    assert profiles["wheel"]["lto"] == "fat"
    scripts = [path for path in (ROOT / ".ci").iterdir() if path.is_file()]
    workflows = [*(ROOT / ".github" / "workflows").glob("*.yml")]
    texts = {path.name: path.read_text("utf-8") for path in [*scripts, *workflows]}
    commands = {
        name: re.findall(r"^[^#\n]*\bmaturin build.*", text, re.M) for name, text in texts.items()
    }
    assert [name for name, found in commands.items() if found] == ["wheels"]
    assert all("--profile wheel" in command for command in commands["wheels"])
    jobs = [job for path in workflows for job in re.split(r"\n  (?=[\w-]+:\n)", texts[path.name])]
    building = [job for job in jobs if "run: .ci/wheels" in job]
    assert len(building) == 2
    assert all(".ci/use-wheel dist/*.whl" in job for job in building)
