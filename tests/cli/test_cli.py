"""The command line as a user meets it: a process, its two streams, its exit code."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise.cli._results import rate_text
from checkpoint_samples import assert_same, floats, random_array, safetensors_file, write_sharded
from processes import run_limited, run_on_terminal, run_python
from support import run_castwise as run
from system_parts import LINKS, need, no_such_file


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
        *("tensor", "shape", "from", "to", "SQNR", "dB", "exact"),
        *("overflowed", "saturated", "underflowed"),
        *("NaN", "in", "NaN", "out", "max", "rel", "error"),
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
    assert (account["out_of_range"], account["nan_lost"]) == (0, 0)


def test_json_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, exact=np.ones(2), zero=np.zeros(2), infinite=np.array([np.inf]))
    result = run("cast", path, tmp_path / "out.npz", "--dtype", "float32", "--json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    account = json.loads(result.stdout, parse_constant=refuse)
    reports = {row["name"]: row["report"] for row in account["tensors"]}
    assert (reports["exact"]["sqnr_db"], reports["exact"]["infinite"]) == (None, {"sqnr_db": 1})
    assert (reports["zero"]["sqnr_db"], reports["zero"]["infinite"]) == (None, {})
    assert account["schema"] == 1


def test_json_is_indented_by_two_whatever_the_number_of_rows(model: Path, tmp_path: Path) -> None:
    empty, report = tmp_path / "empty.safetensors", tmp_path / "report.json"
    checkpoint.save(empty, {})
    for path in (model, empty):
        arguments = ("cast", path, tmp_path / "out.npz", "--dtype", "bf16")
        text = run(*arguments, "--json", "--report", report, "--overwrite").stdout
        assert text == json.dumps(json.loads(text), indent=2) + "\n"
        assert report.read_text() == text


MEASURE = """
import sys
from castwise.cli import main

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

assert main(sys.argv[1:]) == 0
print(peak(), file=sys.stderr)
"""


def test_json_takes_no_more_memory_than_the_table(tmp_path: Path) -> None:
    need("/proc/self/status")
    source = tmp_path / "in.safetensors"
    checkpoint.save(source, {f"layers.{index}.weight": floats(1) for index in range(2_000)})

    def peak(*options: Any) -> int:
        out = tmp_path / f"out{len(options)}.safetensors"
        arguments = ("cast", source, out, "--dtype", "float64", *options)
        return int(run_python("-c", MEASURE, *arguments).stderr)

    # As a whole, the text and what it is made of took 7 kB more for each tensor.
    assert peak("--json", "--report", tmp_path / "report.json") < peak() + 8e6


def test_a_map_and_its_unused_keys(model: Path, tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text("default = 'float8_e5m2'\n'.*bias' = 'keep'\ndense = 'bf61'")
    result = run("cast", model, tmp_path / "out.npz", "--map", tmp_path / "map.toml", code=2)
    assert re.search(r"key 'dense': .*bf61.*bfloat16", result.stderr)
    (tmp_path / "map.toml").write_text("default = 'float8_e5m2'\n'.*bias' = 'keep'\ndense = 'bf16'")
    result = run("cast", model, tmp_path / "out.npz", "--map", tmp_path / "map.toml")
    assert result.stderr == (
        f"castwise: warning: {tmp_path / 'map.toml'}: unused pattern 'dense'; "
        "nearest is 'dense/bias'\n"
    )
    assert checkpoint.load(tmp_path / "out.npz")["dense/bias"].dtype == np.float32


def test_findings_give_exit_code_1(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, w=np.array([1e6, 2, np.nan]))
    result = run("cast", path, out, "--dtype", "float16", code=1)
    assert "1 value became infinite or NaN" in result.stderr
    assert np.isinf(checkpoint.load(out)["w"][0])
    run("cast", path, out, "--dtype", "float16", "--overflow", "saturate", "--overwrite")
    assert checkpoint.load(out)["w"][0] == np.finfo(np.float16).max
    result = run(
        "cast", path, out, "--dtype", "float16", "--overflow", "raise", "--overwrite", code=2
    )
    assert re.match(r"castwise: error: tensor 'w': .*1000000.* index 0", result.stderr)


def test_errors_are_one_line_and_code_2(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    (tmp_path / "bad.safetensors").write_bytes(safetensors_file(b"{"))
    (tmp_path / "text.txt").write_text("")
    none = tmp_path / "none.json"
    for arguments, message in (
        (("cast", none, out, "--dtype", "bf16"), no_such_file(none)),
        (("cast", tmp_path / "bad.safetensors", out, "--dtype", "bf16"), "JSON"),
        (("cast", tmp_path / "text.txt", out, "--dtype", "bf16"), "no container"),
        (("cast", model, none / "x.npz", "--dtype", "bf16"), f"{none}\n"),
        (("cast", model, out, "--dtype", "bfloat61"), "bfloat16"),
        (("cast", model, out, "--dtype", "bf16", "--seed", "1"), "seed"),
        (("cast", model, out, "--map", none), no_such_file(none)),
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
        ("cast", model, out, "--dtype", "bf16", "--policy", "mixed_bfloat16"),
        ("cast", model, out, "--map", "m.json", "--policy", "mixed_bfloat16"),
        ("cast", model, out, "--dtype", "bf16", "--rounding", "up"),
    ):
        assert "usage: " in run(*arguments, code=2).stderr
    assert not out.exists()


def test_long_names_are_shortened_in_errors(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"default": "q" * 1_000_000}))
    error = run("cast", model, tmp_path / "x.npz", "--map", path, code=2).stderr
    assert error.count("\n") == 1
    assert 4000 < len(error) < 4200
    assert error.startswith(f"castwise: error: {path}: ")
    assert " characters more) ...q" in error


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_that_is_full_is_an_error(model: Path, unbuffered: str) -> None:
    need("/dev/full")
    result = run_python(
        *("-m", "castwise", "inspect", model),
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered} if unbuffered else None,
        stdout=Path("/dev/full"),
        forked=not unbuffered,
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


def test_progress_is_shown_on_a_terminal_and_gone_afterwards(model: Path, tmp_path: Path) -> None:
    code, seen = run_on_terminal("cast", model, tmp_path / "out.npz", "--dtype", "bf16")
    assert code == 0
    assert "0%  0 B of 72 B  step" in seen
    assert "100%  72 B of 72 B" in seen
    assert seen.endswith("\r\x1b[K")
    assert "\n" not in seen


def test_progress_tells_rate_and_time_left() -> None:
    half = checkpoint.Progress(done=500_000_000, total=1_000_000_000, name="w")
    assert rate_text(half, 2.0) == "250.0 MB/s  2 s left  "
    assert rate_text(half, 200.0) == "2.5 MB/s  3 min 20 s left  "
    assert rate_text(half, 20_000.0) == "25.0 kB/s  5 h 33 min left  "
    assert rate_text(half, 0.5) == ""
    assert rate_text(checkpoint.Progress(0, 10, "w"), 2.0) == ""


def test_the_script_and_the_module_are_the_same(model: Path) -> None:
    script = Path(sys.executable).with_name("castwise")
    if not script.exists():
        pytest.skip("castwise is not installed beside this Python")
    by_script = subprocess.run([script, "inspect", model], capture_output=True, check=True)
    assert by_script.stdout.decode() == run("inspect", model).stdout


def _sh(command: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run castwise from a shell, which can close and redirect streams; `"$@"` is the command."""
    need("/bin/sh")
    return subprocess.run(
        ["/bin/sh", "-c", command, "sh", sys.executable, "-m", "castwise", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_reports_that_would_do_harm_are_refused_before_the_work(
    model: Path, tmp_path: Path
) -> None:
    need(LINKS, "os.mkfifo", "/dev/stdout")
    out, keep, kept = tmp_path / "out.safetensors", tmp_path / "keep.json", '{"default": "bf16"}'
    keep.write_text(kept)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.json").symlink_to("keep.json")
    before = model.read_bytes()
    for report in (tmp_path, keep, tmp_path / "link.json", tmp_path / "pipe", model):
        arguments = ("cast", model, out, "--map", keep, "--report", report)
        result = run(*arguments, code=2)
        assert re.fullmatch(r"castwise: error: --report[^\n]+\n", result.stderr)
        assert not out.exists()
    assert model.read_bytes() == before
    assert keep.read_text() == kept
    log = tmp_path / "log"
    command = ("-m", "castwise", "cast", model, out, "--dtype", "bf16", "--report")
    for report, stdout in ((log, log), ("/dev/stdout", None)):
        result = run_python(*command, report, stdout=stdout)
        assert result.returncode == 2
        assert re.fullmatch(r"castwise: error: --report[^\n]+\n", result.stderr)
        assert "is standard output" in result.stderr or report != log
    assert not out.exists()
    write_sharded(tmp_path / "shards", {"one.safetensors": {"a": floats(2)}})
    shard = tmp_path / "shards" / "one.safetensors"
    arguments = ("cast", tmp_path / "shards", tmp_path / "new", "--dtype", "bf16")
    assert "replace the checkpoint" in run(*arguments, "--report", shard, code=2).stderr
    assert not (tmp_path / "new").exists()


def test_a_failed_cast_leaves_the_old_report(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("old")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"")
    run("cast", bad, tmp_path / "out.npz", "--dtype", "bf16", "--report", report, code=2)
    assert report.read_text() == "old"
    names = ["bad.safetensors", "model.safetensors", "report.json"]
    assert sorted(os.listdir(tmp_path)) == names


@pytest.mark.parametrize("options", [(), ("--json",), ("--part", "1/1")])
def test_the_report_survives_a_full_standard_output(
    model: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    need("/dev/full")
    out, report = tmp_path / "out.safetensors", tmp_path / "report.json"
    arguments = ("cast", model, out, "--dtype", "bf16", "--report", report, *options)
    result = run_python("-m", "castwise", *arguments, stdout=Path("/dev/full"))
    assert result.returncode == 2
    part = "part 1/1 of " if "--part" in options else ""
    reason = "was written, but not standard output: No space left on device"
    assert result.stderr == f"castwise: error: {part}{out} {reason}\n"
    assert json.loads(report.read_text())["total"]["count"] == 16
    if part:
        finish = run_python("-m", "castwise", "finish", out, stdout=Path("/dev/full"))
        assert finish.stderr.startswith(f"castwise: error: {out} was written, but not standard")
    assert checkpoint.load(out)["dense/bias"].dtype.itemsize == 2


@pytest.mark.parametrize(
    ("command", "options", "written", "shown"),
    [
        ("cast", ("OUT", "--dtype", "bf16", "--report", "REPORT"), "OUT", "2 tensors cast"),
        ("cast", ("OUT", "--dtype", "bf16", "--dry-run"), None, "would be cast"),
        ("inspect", (), None, "dense/kernel"),
        ("advise", ("--bits", "1000", "-o", "MAP"), None, "dense/kernel"),
    ],
)
def test_a_page_that_a_full_disk_does_not_take_leaves_all_else(  # noqa: PLR0917
    model: Path,
    tmp_path: Path,
    command: str,
    options: tuple[str, ...],
    written: str | None,
    shown: str,
) -> None:
    paths = {
        "OUT": tmp_path / "out.safetensors",
        "REPORT": tmp_path / "r",
        "MAP": tmp_path / "m.toml",
    }
    words, page = [str(paths.get(word, word)) for word in options], tmp_path / "page.html"
    limit = 1500 if command == "inspect" else 3000
    result = run_limited("RLIMIT_FSIZE", limit, command, model, *words, "--html", page)
    assert result.returncode == 2
    beginning = f"{paths[written]} was written, but not" if written else "could not write"
    assert result.stderr == f"castwise: error: {beginning} the page {page}: File too large\n"
    assert shown in result.stdout
    made = {path for word, path in paths.items() if word in options and "--dry-run" not in options}
    assert {*tmp_path.iterdir()} == {model, *made}
    assert all(path.read_bytes() for path in made)


def test_standard_error_that_is_full_changes_no_exit_code(model: Path, tmp_path: Path) -> None:
    need("/dev/full")
    big, out = tmp_path / "big.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(big, {"w": np.full(4, 1e6, np.float32)})
    for source, code in ((model, 0), (big, 1), (tmp_path / "none.safetensors", 2)):
        words = (source, out, "--dtype", "float16", "--overwrite")
        assert _sh('"$@" 2>/dev/full', "cast", *words).returncode == code


@pytest.mark.parametrize("command", ["cast", pytest.param("inspect", marks=pytest.mark.exhaustive)])
def test_closed_standard_output(model: Path, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out.safetensors"
    options = (out, "--dtype", "bf16") if command == "cast" else ()
    result = _sh('"$@" >&-', command, model, *options)
    assert result.returncode == 2
    assert re.fullmatch(r"castwise: error: standard output is closed[^\n]+\n", result.stderr)
    assert not out.exists()


def test_closed_standard_error(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    result = _sh('"$@" 2>&-', "cast", model, out, "--dtype", "bf61")
    assert (result.returncode, result.stdout) == (2, "")
    result = _sh('"$@" 2>&-', "cast", model, out, "--dtype", "bf16")
    assert result.returncode == 0
    assert "2 tensors cast" in result.stdout


def test_the_help_of_exit_code_2_is_true() -> None:
    assert "DST is unchanged, unless the message reports" in run("cast", "--help").stdout


def test_warnings_do_not_write_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, w=floats(2))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("\x1b[2Jowned\n.txt", "")
    new = tmp_path / "out.safetensors"
    result = run_python("-m", "castwise", "cast", path, new, "--dtype", "bf16")
    assert "\x1b" not in result.stderr
    assert r"\x1b[2Jowned\n.txt" in result.stderr


def test_nan_that_became_a_number_is_shown_and_a_finding(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, w=np.array([1, np.nan, 2, np.nan]), v=np.ones(2))
    for dtype in ("float4_e2m1fn", "int8"):
        result = run("cast", path, out, "--dtype", dtype, "--overwrite", code=1)
        row = next(line.split() for line in result.stdout.splitlines() if line.startswith("w "))
        assert row[9:11] == ["2", "0"]
        assert "2 NaN became numbers" in result.stderr
        account = json.loads(
            run("cast", path, out, "--dtype", dtype, "--json", "--overwrite", code=1).stdout
        )
        assert (account["nan_lost"], account["out_of_range"]) == (2, 0)
        run("cast", path, out, "--dtype", dtype, "--nan", "zero", "--overwrite")  # as asked
    result = run("cast", path, out, "--dtype", "float16", "--overwrite")
    row = next(line.split() for line in result.stdout.splitlines() if line.startswith("w "))
    assert row[9:11] == ["2", "2"]


def test_empty_paths_and_missing_files(model: Path, tmp_path: Path) -> None:
    for arguments in (
        ("inspect", ""),
        ("cast", "", "out.npz", "--dtype", "bf16"),
        ("cast", model, "", "--dtype", "bf16"),
        ("cast", model, tmp_path / "out.npz", "--map", ""),
    ):
        assert "path is empty" in run(*arguments, code=2).stderr
    none, inside = tmp_path / "none", tmp_path / "none" / "x.npy"
    result = run("inspect", none, code=2)
    assert result.stderr == f"castwise: error: {none}: {no_such_file(none)}\n"
    result = run("inspect", inside, code=2)
    assert result.stderr.endswith(f"{no_such_file(inside)}; there is no folder {none}\n")


def test_a_folder_that_is_gone_is_named(model: Path, tmp_path: Path) -> None:
    need("/bin/sh")
    gone = tmp_path / "gone"
    gone.mkdir()
    cast = [sys.executable, "-m", "castwise", "cast", model, "out.npz", "--dtype", "bf16"]
    result = subprocess.run(
        ["/bin/sh", "-c", '/bin/rmdir "$PWD" && "$@"', "sh", *cast],
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "runs in is gone" in result.stderr


def test_version() -> None:
    assert run("--version").stdout == f"castwise {castwise.__version__}\n"


def test_one_tensor_is_one_and_long_names_are_shortened_in_tables(tmp_path: Path) -> None:
    path, name = tmp_path / "in.safetensors", "a" * 300 + "b" * 300
    checkpoint.save(path, {name: floats(2)})
    result = run("cast", path, tmp_path / "out.npz", "--dtype", "bf16")
    assert "1 tensor cast," in result.stdout
    assert re.search(r"^total +1 tensor ", result.stdout, re.MULTILINE)
    for shown in (result.stdout, run("inspect", path).stdout):
        assert re.search(r"^…b+ ", shown, re.MULTILINE)
        assert max(map(len, shown.splitlines()[:4])) < 250
    assert name in run("inspect", path, "--json").stdout


def test_inspect_shows_what_is_stored_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    checkpoint.save(path, {"six": random_array("float6_e2m3fn", (4,)), "u8": np.zeros(2, np.uint8)})
    lines = run("inspect", path).stdout.splitlines()
    assert re.match(r"six +float6_e2m3fn \(as bytes\) ", lines[2])
    assert re.match(r"u8 +uint8 +2 ", lines[3])
    np.save(tmp_path / "raw.npy", random_array("bfloat16", (4,)))
    assert "V2 (raw bytes)" in run("inspect", tmp_path / "raw.npy").stdout


def test_progress_fits_the_terminal_of_standard_error(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, **{"n" * 200: floats(2)})
    _, seen = run_on_terminal("cast", path, tmp_path / "out.npz", "--dtype", "bf16", columns=50)
    drawn = [line for line in seen.split("\r\x1b[K") if line]
    assert drawn
    assert max(map(len, drawn)) == 49


def test_a_map_may_start_with_a_byte_order_mark(model: Path, tmp_path: Path) -> None:
    for name, text in (("m.json", '{"default": "bf16"}'), ("m.toml", "default = 'bf16'")):
        (tmp_path / name).write_text(text, "utf-8-sig")
        run("cast", model, tmp_path / "out.npz", "--map", tmp_path / name, "--overwrite")


def test_a_program_that_calls_the_command_line_keeps_its_garbage_collection() -> None:
    program = """if True:
        import gc, sys
        from castwise.cli import main
        for switch in (gc.enable, gc.disable):
            switch()
            is_enabled = gc.isenabled()
            for word in ("--help", "no-command", "formats"):
                sys.argv[1:] = [word]
                count = gc.get_freeze_count()
                try:
                    assert main() == 0
                    assert word == "formats"
                except SystemExit:
                    assert gc.get_freeze_count() <= count, word
                assert gc.isenabled() is is_enabled, word
    """
    result = run_python("-c", program)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_while_python_imports_ends_the_process(model: Path) -> None:
    """Each import stops at a module that interrupts the process itself.

    Before the command line begins, Python reports it, and the signal ends the process.
    """
    program = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == sys.argv[-1]: os.kill(os.getpid(), signal.SIGINT)\n"
        # Jobs in the background of a shell begin with the signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv[0] = '/usr/bin/castwise'\n"
        "from castwise.cli import main\n"
        "raise SystemExit(main())\n"
    )
    for module in ("numpy", "castwise._core", "json", "castwise.cli.inspect"):
        command = [sys.executable, "-c", program, "inspect", str(model), module]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if module == "castwise.cli.inspect":
            assert (done.returncode, done.stderr) == (130, "castwise: interrupted\n")
        else:
            assert done.returncode == -signal.SIGINT, module
            assert done.stderr.endswith("KeyboardInterrupt\n"), module
