"""The command line as a user meets it: a process, its two streams, its exit code."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from checkpoint_samples import assert_same, floats, safetensors_file, write_sharded


def run(*arguments: Any, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run castwise; the exit code is checked, and that no error shows a traceback."""
    result = subprocess.run(
        [sys.executable, "-m", "castwise", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small checkpoint with everything in it."""
    path = tmp_path / "model.safetensors"
    arrays = {
        "dense/kernel": floats(12).reshape(3, 4),
        "dense/bias": floats(4, 1),
        "step": np.array(7),
    }
    checkpoint.save(path, arrays, metadata={"format": "np", "author": "test"})
    return path


def test_cast_prints_an_account(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    result = run("cast", model, out, "--dtype", "bf16")
    assert result.stderr == ""
    header, rule, bias, kernel, _, total, last = result.stdout.splitlines()
    assert header.split() == [
        *("tensor", "shape", "from", "to", "exact", "overflowed", "saturated", "underflowed"),
        *("NaN", "max", "rel", "error", "SQNR", "dB"),
    ]
    assert set(rule) == {"-", " "}
    assert bias.split()[:4] == ["dense/bias", "4", "float32", "bfloat16"]
    assert kernel.split()[:4] == ["dense/kernel", "3x4", "float32", "bfloat16"]
    assert total.split()[:3] == ["total", "2", "tensors"]
    assert last == f"{model} -> {out}: 2 tensors cast, 1 kept (1 int64), 72 B -> 40 B"
    assert len({len(line) for line in (header, rule, kernel)}) == 1  # aligned
    assert_same(
        checkpoint.load(out)["dense/kernel"],
        castwise.cast(floats(12).reshape(3, 4), "bfloat16"),
    )


def test_cast_prints_and_writes_json(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = run(
        *("cast", model, tmp_path / "out.npz", "--dtype", "float16", "--json"),
        *("--report", report, "--rounding", "stochastic", "--threads", 1),
    )
    account = json.loads(result.stdout)
    assert json.loads(report.read_text()) == account
    assert account["options"]["rounding"] == "stochastic"
    assert isinstance(account["options"]["seed"], int)
    rows = {row["name"]: row for row in account["tensors"]}
    assert rows["step"]["to"] is None
    assert rows["dense/kernel"]["report"]["count"] == 12
    assert account["total"]["count"] == 16
    assert account["new_nonfinite"] == 0


def test_json_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, exact=np.ones(2), zero=np.zeros(2), infinite=np.array([np.inf]))
    result = run("cast", path, tmp_path / "out.npz", "--dtype", "float32", "--json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    account = json.loads(result.stdout, parse_constant=refuse)
    reports = {row["name"]: row["report"] for row in account["tensors"]}
    assert reports["exact"]["sqnr_db"] == "inf"
    assert reports["zero"]["sqnr_db"] == "nan"


def test_a_map_and_its_unused_keys(model: Path, tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text("default = 'float8_e5m2'\n'.*bias' = 'keep'\ndense = 'bf61'")
    result = run("cast", model, tmp_path / "out.npz", "--map", tmp_path / "map.toml", code=2)
    assert re.search(r"key 'dense': .*bf61.*bfloat16", result.stderr)
    (tmp_path / "map.toml").write_text("default = 'float8_e5m2'\n'.*bias' = 'keep'\ndense = 'bf16'")
    result = run("cast", model, tmp_path / "out.npz", "--map", tmp_path / "map.toml")
    assert result.stderr == (
        f"castwise: warning: key 'dense' of {tmp_path / 'map.toml'} matched no tensor\n"
    )
    assert checkpoint.load(tmp_path / "out.npz")["dense/bias"].dtype == np.float32


def test_findings_give_exit_code_1(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, w=np.array([1e6, 2, np.nan]))
    result = run("cast", path, out, "--dtype", "float16", code=1)
    assert "1 value became infinite or NaN" in result.stderr
    assert np.isinf(checkpoint.load(out)["w"][0])
    run("cast", path, out, "--dtype", "float16", "--overflow", "saturate")
    assert checkpoint.load(out)["w"][0] == np.finfo(np.float16).max
    result = run("cast", path, out, "--dtype", "float16", "--overflow", "raise", code=2)
    assert re.match(r"castwise: error: tensor 'w': .*1000000.* index 0", result.stderr)


def test_errors_are_one_line_and_code_2(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    (tmp_path / "bad.safetensors").write_bytes(safetensors_file(b"{"))
    (tmp_path / "text.bin").write_text("")
    for arguments, message in (
        (("cast", tmp_path / "none.safetensors", out, "--dtype", "bf16"), "No such file"),
        (("cast", tmp_path / "bad.safetensors", out, "--dtype", "bf16"), "JSON"),
        (("cast", tmp_path / "text.bin", out, "--dtype", "bf16"), "no container"),
        (("cast", model, tmp_path / "none" / "x.npz", "--dtype", "bf16"), "No such file"),
        (("cast", model, out, "--dtype", "bfloat61"), "bfloat16"),
        (("cast", model, out, "--dtype", "bf16", "--seed", "1"), "seed"),
        (("cast", model, out, "--map", tmp_path / "none.json"), "No such file"),
        (("cast", model, out, "--dtype", "bf16", "--report", out), "--report"),
        (("cast", model, out, "--dtype", "bf16", "--report", "none/r.json"), "no folder"),
        (("inspect", tmp_path), "safetensors"),
    ):
        result = run(*arguments, code=2)
        assert result.stdout == ""
        assert re.fullmatch(r"castwise: error: [^\n]+\n", result.stderr)
        assert message in result.stderr
    for arguments in (
        (),
        ("cast", model, out),
        ("cast", model, out, "--dtype", "bf16", "--map", "m.json"),
        ("cast", model, out, "--dtype", "bf16", "--rounding", "up"),
    ):
        assert "usage: " in run(*arguments, code=2).stderr
    assert not out.exists()


def test_standard_output_that_is_full_is_an_error(model: Path) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "castwise", "inspect", model],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr == "castwise: error: No space left on device\n"


def test_a_reader_that_leaves_is_no_error(model: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-m", "castwise", "inspect", model],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_inspect(model: Path) -> None:
    lines = run("inspect", model).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["tensor", "dtype", "shape", "bytes"],
        [*(["-" * 12, "-" * 7, "-" * 6, "-" * 5])],
        ["step", "int64", "scalar", "8"],
        ["dense/bias", "float32", "4", "16"],
        ["dense/kernel", "float32", "3x4", "48"],
        [],
        ["dtype", "tensors", "bytes", "size"],
        [*(["-" * 7, "-" * 7, "-" * 5, "-" * 4])],
        ["int64", "1", "8", "8", "B"],
        ["float32", "2", "64", "64", "B"],
        ["total", "3", "72", "72", "B"],
        [],
        ["metadata"],
        ["format:", "np"],
        ["author:", "test"],
    ]
    described = json.loads(run("inspect", model, "--json").stdout)
    assert described["totals"] == {
        "int64": {"tensors": 1, "nbytes": 8},
        "float32": {"tensors": 2, "nbytes": 64},
    }
    assert described["metadata"] == {"format": "np", "author": "test"}
    assert [one["shape"] for one in described["tensors"]] == [[], [4], [3, 4]]


def test_inspect_reads_the_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    size = 1 << 40
    entry = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header = safetensors_file(entry)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)  # a terabyte of nothing
    described = json.loads(run("inspect", path, "--json").stdout)
    assert described["nbytes"] == size


def test_inspect_a_folder_and_names_that_would_write_on_the_terminal(tmp_path: Path) -> None:
    write_sharded(tmp_path / "model", {"one.safetensors": {"a\x1b[2J\n": floats(2)}})
    result = run("inspect", tmp_path / "model")
    assert "\x1b" not in result.stdout
    assert r"a\x1b[2J\n" in result.stdout


def test_formats() -> None:
    names = [line.split()[0] for line in run("formats").stdout.splitlines()[2:]]
    assert tuple(names) == castwise.formats()
    rows = json.loads(run("formats", "--json").stdout)
    assert tuple(row["name"] for row in rows) == castwise.formats()
    assert all(
        row["max"] == castwise.finfo(row["name"]).max for row in rows if row["kind"] == "float"
    )


def test_help_tells_the_exit_codes() -> None:
    assert "1  it was written, but" in run("cast", "--help").stdout


def _on_a_terminal(*arguments: Any) -> tuple[int, str]:
    """Exit code and what standard error shows if it is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "castwise", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # how Linux says that the other side is gone
            pass
    os.close(ours)
    return process.returncode, seen.decode()


def test_progress_is_shown_on_a_terminal_and_gone_afterwards(model: Path, tmp_path: Path) -> None:
    code, seen = _on_a_terminal("cast", model, tmp_path / "out.npz", "--dtype", "bf16")
    assert code == 0
    assert "0%  0 B of 72 B  step" in seen
    assert "100%  72 B of 72 B" in seen
    assert seen.endswith("\r\x1b[K")
    assert "\n" not in seen


def test_the_script_and_the_module_are_the_same(model: Path) -> None:
    script = Path(sys.executable).with_name("castwise")
    if not script.exists():
        pytest.skip("castwise is not installed beside this Python")
    by_script = subprocess.run([script, "inspect", model], capture_output=True, check=True)
    assert by_script.stdout.decode() == run("inspect", model).stdout
