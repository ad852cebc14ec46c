"""The tables of the command line: what a row stands for, and how wide they are."""

import re
from pathlib import Path

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise.rendering.text import group_name
from checkpoint_samples import floats, write_sharded
from processes import run_on_terminal
from support import run_castwise as run

LAYERS = 12


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of layers, one of which has another shape and one that overflows."""
    path = tmp_path / "model.safetensors"
    arrays = {f"model.layers.{i}.mlp.up_proj.weight": floats(8, i) for i in range(LAYERS)}
    arrays["model.layers.3.mlp.up_proj.weight"][0] = 1e6
    arrays |= {f"model.layers.{i}.norm": floats(4, i) for i in range(LAYERS)}
    arrays["model.layers.12.norm"] = floats(6)
    checkpoint.save(path, {**arrays, "model.embed.weight": floats(8), "ids": np.arange(3)})
    return path


def table(text: str) -> list[list[str]]:
    """The rows of a table, its header first and its total last."""
    lines = text.splitlines()
    rules = [index for index, line in enumerate(lines) if set(line) == {"-", " "}]
    return [line.split() for line in lines[rules[0] - 1 : rules[-1] + 2] if "---" not in line]


def test_a_row_is_for_all_layers(model: Path, tmp_path: Path) -> None:
    arguments = ("cast", model, tmp_path / "out.safetensors", "--dtype", "float16")
    header, *rows, total = table(run(*arguments, code=1).stdout)
    assert header[:5] == ["tensor", "shape", "from", "to", "tensors"]
    assert {row[0]: [*row[1:5], row[6]] for row in rows} == {
        "model.layers.*.mlp.up_proj.weight": ["8", "float32", "float16", "12", "0.0%"],
        "model.layers.*.norm": ["4", "float32", "float16", "12", "0.0%"],
        "model.layers.12.norm": ["6", "float32", "float16", "1", "0.0%"],
        "model.embed.weight": ["8", "float32", "float16", "1", "0.0%"],
    }
    (up_proj,) = [row for row in rows if row[0].endswith("up_proj.weight")]
    assert (up_proj[7], up_proj[5], up_proj[-1]) == ("1", "-inf", "inf")
    assert total[:5] == ["total", "26", "-inf", "0.0%", "1"]
    every = table(run(*arguments, "--all", "--overwrite", code=1).stdout)
    assert len(every) == 2 + 26
    assert every[0][4:7] == ["SQNR", "dB", "exact"]
    assert every[-1][:3] == ["total", "26", "tensors"]


def test_summary_and_quiet(model: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.safetensors", tmp_path / "report.json"
    (tmp_path / "map.toml").write_text("default = 'float16'\n'.*norm' = 'bf16'\nids = 'int8'")
    arguments = ("cast", model, out, "--map", tmp_path / "map.toml", "--overwrite")
    result = run(*arguments, "--summary", code=1)
    _, *rows, total = table(result.stdout)
    assert sorted(row[:4] for row in rows) == [
        ["*", "float32", "bfloat16", "13"],
        ["*", "float32", "float16", "13"],
        ["*", "int64", "int8", "1"],
    ]
    assert total[:2] == ["total", "27"]
    quiet = run(*arguments, "--quiet", "--report", report, code=1)
    assert quiet.stdout == ""
    assert quiet.stderr == result.stderr
    assert "1 value became infinite or NaN in 'model.layers.3.mlp.up_proj.weight'" in quiet.stderr
    assert report.stat().st_size > 0
    code, seen = run_on_terminal(*arguments, "--quiet")
    assert code == 1
    assert "%" not in seen
    assert "usage: " in run(*arguments, "--quiet", "--json", code=2).stderr


@pytest.mark.parametrize("columns", [80, 100, 300])
def test_a_table_fits_the_terminal(model: Path, tmp_path: Path, columns: int) -> None:
    out = tmp_path / "out.safetensors"
    arguments = ("cast", model, out, "--dtype", "float16")
    code, seen = run_on_terminal(*arguments, columns=columns, stream="stdout")
    assert code == 1
    header, *rows, _ = table(seen)
    assert max(map(len, seen.splitlines()[:-1])) <= columns
    assert "overflowed" in header  # what was lost is never left out
    assert "saturated" in header or columns < 300
    assert rows[0][0].endswith("weight")
    code, seen = run_on_terminal("inspect", model, columns=columns, stream="stdout")
    assert max(map(len, seen.splitlines())) <= columns
    assert "model.layers.*.mlp.up_proj.weight" in seen


def test_narrow_tables_leave_out_columns_of_zeros_first(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, **{"w" * 30: np.array([1e6, 1e-9, np.nan])})
    arguments = (
        "cast",
        path,
        tmp_path / "out.npz",
        "--dtype",
        "float16",
        "--exit-zero",
        "--overwrite",
    )
    whole = table(run_on_terminal(*arguments, columns=200, stream="stdout")[1])[0]
    assert "saturated" in whole
    narrow = table(run_on_terminal(*arguments, columns=90, stream="stdout")[1])[0]
    assert {"overflowed", "underflowed", "SQNR"} < set(narrow)
    assert "saturated" not in narrow
    assert "shape" not in narrow


def test_inspect_has_a_row_for_all_layers(model: Path) -> None:
    header, *rows, _ = table(run("inspect", model).stdout.split("\n\n")[0] + "\n--- ---\nend")
    assert header == ["tensor", "dtype", "shape", "tensors", "bytes"]
    assert ["model.layers.*.mlp.up_proj.weight", "float32", "8", "12", "384"] in rows
    assert ["model.layers.12.norm", "float32", "6", "1", "24"] in rows
    lines = run("inspect", model, "--all").stdout.splitlines()
    assert sum(line.startswith("model.layers.") for line in lines) == 2 * LAYERS + 1
    assert re.search(r"^model\.layers\.7\.norm +float32 +4 +16$", "\n".join(lines), re.MULTILINE)


def test_names_are_grouped_by_the_numbers_between_their_parts() -> None:
    for name, group in (
        ("model.layers.10.mlp.experts.3.w1.weight", "model.layers.*.mlp.experts.*.w1.weight"),
        ("encoder/layer_7/dense/kernel", "encoder/layer_*/dense/kernel"),
        ("h.0.ln_1.weight", "h.*.ln_*.weight"),
        ("conv1.weight", "conv1.weight"),
        ("dense_12", "dense_*"),
        ("7", "*"),
        ("rank0.half", "rank0.half"),
    ):
        assert group_name(name) == group


@pytest.fixture
def transformer(tmp_path: Path) -> Path:
    """A folder with the matrices of two layers under the names of transformers, in two shards."""
    suffixes = [
        *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    ]
    shards = [
        {
            f"model.layers.{layer}.{suffix}": floats(32 * 32, index).reshape(32, 32)
            for index, suffix in enumerate(suffixes)
        }
        for layer in range(2)
    ]
    folder = tmp_path / "llama"
    write_sharded(folder, {f"model-{index}.safetensors": one for index, one in enumerate(shards)})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def rows_at_80_columns(*arguments: object, code: int = 0) -> list[list[str]]:
    """Run a command on a terminal of 80 columns; the rows of its last table."""
    found, seen = run_on_terminal(*arguments, columns=80, stream="stdout")
    assert found == code, seen
    lines = seen.splitlines()
    # What follows a table is a sentence with paths, which the terminal wraps.
    first_cells = ("tensor ", "weight ", "format ")
    starts = [index for index, line in enumerate(lines) if line.startswith(first_cells)]
    assert all(len(line) <= 80 for line in lines if " -> " not in line), seen
    end = next((i for i in range(starts[-1], len(lines)) if " -> " in lines[i]), len(lines))
    return [line.split() for line in lines[starts[-1] : end] if line]


def test_80_columns_tell_weights_apart(transformer: Path, tmp_path: Path) -> None:
    quantized, other = tmp_path / "quantized", tmp_path / "other"
    dtypes = tmp_path / "map.toml"
    dtypes.write_text("'.*down_proj.*' = 'float16'\ndefault = 'bfloat16'")
    commands = [
        ("cast", transformer, other, "--map", dtypes, "--dry-run"),
        ("quantize", transformer, quantized, "--scheme", "nvfp4", "--dry-run"),
        ("quantize", transformer, quantized, "--scheme", "nvfp4"),
        ("inspect", quantized),
        ("dequantize", quantized, other, "--dry-run"),
        ("dequantize", quantized, other),
        ("transcode", quantized, tmp_path / "modelopt", "--to", "modelopt"),
    ]
    for command in commands:
        header, _, *rows = rows_at_80_columns(*command)
        names = [row[0] for row in rows if row[0].endswith(("proj", "weight", "weight_packed"))]
        assert len(set(names)) == len(names) == 7, (command, header, rows)
        assert "tensors" in header or "number" in header, command  # a row for both layers
    header, _, *rows = rows_at_80_columns("verify", transformer, quantized, code=1)
    assert len({row[0] for row in rows if "proj" in row[0]}) == 14
    assert {"different", "max"} <= set(header)
    planned = ("cast", transformer, tmp_path / "new", "--dtype", "float16", "--dry-run", "--all")
    every = rows_at_80_columns(*planned)
    assert len(every) == 2 + 14


def test_formats_fit_80_columns() -> None:
    header, _, *rows = rows_at_80_columns("formats")
    assert header[:4] == ["format", "kind", "bits", "max"]
    assert ["float8_e4m3b11fnuz", "float", "8", "30"] in [row[:4] for row in rows]


def test_a_dry_run_names_the_files_and_keys_of_a_group(transformer: Path, tmp_path: Path) -> None:
    dtypes = tmp_path / "map.toml"
    dtypes.write_text(
        "'.*down_proj.*' = 'float16'\n'.*[.]0[.].*up.*' = 'bf16'\n'.*1.*up.*' = 'bf16'"
    )
    printed = run("cast", transformer, tmp_path / "out", "--map", dtypes, "--dry-run").stdout
    rows = {line.split("  ")[0]: line for line in printed.splitlines()}
    assert "2 files" in rows["model.layers.*.mlp.down_proj.weight"]
    assert ".*down_proj.*" in rows["model.layers.*.mlp.down_proj.weight"]
    assert "2 keys" in rows["model.layers.*.mlp.up_proj.weight"]
    summary = run(
        "cast", transformer, tmp_path / "out", "--dtype", "bf16", "--dry-run", "--summary"
    ).stdout.splitlines()
    assert summary[2].split() == [
        *("*", "2", "files", "float32", "bfloat16", "14"),
        *("57,344", "28,672"),
    ]


def test_verify_shows_shapes_and_formats_that_differ(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.npz", {"w": floats(6).reshape(2, 3), "n": floats(3) + 0j})
    checkpoint.save(tmp_path / "b.npz", {"w": floats(6).reshape(3, 2), "n": floats(3)})
    lines = run("verify", tmp_path / "a.npz", tmp_path / "b.npz", code=1).stdout.splitlines()
    assert "w: the shapes differ: 2x3 and 3x2" in lines
    formats = "n: the formats differ, and their values cannot be compared: complex64 and float32"
    assert formats in lines
    found = {
        one.name: one
        for one in checkpoint.verify(tmp_path / "a.npz", tmp_path / "b.npz").differences
    }
    assert found["w"].to_dict()["shapes"] == [[2, 3], [3, 2]]
    assert found["n"].to_dict()["formats"] == ["complex64", "float32"]


def test_values_that_differ_are_told_apart(tmp_path: Path) -> None:
    """As many digits as the format needs, and no more."""
    one = np.array([0.1, 1.0], np.float32)
    other = np.nextafter(one, np.float32(2))
    for dtype, first, second in (
        ("float32", "0.100000001", "0.100000009"),
        ("bfloat16", "0.1001", "0.1011"),
    ):
        values = np.array([0.1, 0.1011], np.float32) if dtype == "bfloat16" else (one[0], other[0])
        paths = [tmp_path / f"{name}-{dtype}.npz" for name in "ab"]
        for path, value in zip(paths, values, strict=True):
            checkpoint.save(path, {"w": castwise.cast([value], dtype)})
        row = run("verify", *paths, code=1).stdout.splitlines()[2]
        assert row.split()[3:5] == [first, second]
