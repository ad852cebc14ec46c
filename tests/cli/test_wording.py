"""Messages of the command line speak of its options, and those of Python of arguments."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.comparison.loading import LoadingCheck, LoadingProblem
from castwise.rendering.sheet import Table
from castwise.text.wording import argument, for_command, join, parenthesis, quote
from checkpoint_samples import floats, write_sharded
from support import log_of_command
from support import run_castwise as run

WEIGHT = "model.layers.0.self_attn.q_proj.weight"
PYTHON = re.compile(
    r"castwise\.\w+\(|checkpoint\.\w+_file|\\\\|"
    r"\b(dtype_map|max_shard_size|dry_run|as_bytes|keep_config|fail_on|max_zeros)\b|"
    r"\b(part|seed|threads|dtype|policy|role|rounding|overflow|scheme|recipe|block|raw)=|"
    r"\(\w+, --"
)
"""Words of Python: names of functions and arguments, and backslashes that are doubled."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("cast a o --dtype foo", "castwise formats lists all"),
        ("cast a o --dtype bf16 --part 3", "--part 3 is not a part"),
        ("cast a o --dtype bf16 --part 5/3", "--part 5/3: parts of 3"),
        ("cast a o --dtype bf16 --part 1/2 --dry-run", "--part and --dry-run"),
        ("cast a o --dtype bf16 --resumable", "--resumable and --resume are for"),
        ("cast a o --dtype bf16 --threads 0", "--threads 0 is not valid"),
        ("cast a o --dtype bf16 --seed 1", "--seed has no effect without --rounding stochastic"),
        ("cast a o --dtype bf16 --rounding stochastic --part 1/2", "give one (--seed)"),
        ("cast m o --dtype bf16 --max-shard-size 5XB", "--max-shard-size 5XB is not a size"),
        ("cast a o --dtype bf16 --include *.x", "--include *.x: this is for folders"),
        ("cast m o --dtype bf16 --exclude *.x", "--exclude *.x matches nothing"),
        ("cast a o --map bad.json", r"key 'a\.b'"),
        ("cast a o --map keep.json", "key 'a': \"kepe\" is not a format"),
        ("cast a o --map keep.json", "Did you mean 'keep'?"),
        ("cast a o --map open.json", r"key '(\.' is not a regular expression"),
        ("cast a o --map unused.json", r"unused pattern 'x\.y'"),
        ("cast a o --map llama", "(--dtype)"),
        ("cast a o --policy foo", "--policy foo is not a policy"),
        ("cast a o --dtype bf16 --role compute", "--role compute chooses"),
        ("cast a o --dtype bf16 --assume bf16", "--assume is for arrays"),
        ("cast a m --dtype bf16", "or give --max-shard-size"),
        ("cast a a --dtype bf16", "(--overwrite)"),
        ("cast a new --dtype bf16", "name one such as new.safetensors, or give --max-shard-size"),
        ("quantize a new --scheme nvfp4", "name one such as new.safetensors, or give"),
        ("cast big o --dtype float16 --overflow raise", "Use --overflow saturate or ieee."),
        ("cast nan o --dtype float16 --nan raise", "Use --nan keep or zero."),
        ("cast q o --dtype bf16", "(--raw)"),
        ("quantize a o --scheme foo", "--scheme foo is not known"),
        ("quantize a o --scheme nvfp4 --recipe foo", "--recipe foo and --scheme nvfp4"),
        ("cast a o --dtype bf16 --map default.json", "and --dtype bf16 is another"),
        ("cast a o --rounding stochastic --part 1/2 --dtype bf16", "give one (--seed) with --part"),
        ("quantize a o --scheme fp8_block --block 0", "--block 0 is not valid; use ROWSxCOLUMNS"),
        ("quantize a o --scheme fp8_block --block 0x1", "--block 0x1 is not valid"),
        ("verify a a --seed 3", "--seed: options of a cast go with its map (--map)"),
        ("diff a a --rtol -1", "--rtol must be a number from 0 on"),
        ("quantize a o --scheme nvfp4 --block 64", "--block 1x64 is not one of"),
        (r"quantize a o --scheme nvfp4 --ignore (\.", r"--ignore (\. is not a regular expression"),
        (r"quantize a o --scheme nvfp4 --ignore lm\.head", r"--ignore lm\.head matches no tensor"),
        (r"dequantize q o --only (\.", r"--only (\. is not a regular expression"),
        (r"dequantize q o --only a\.b", r"--only a\.b matches no"),
        ("dequantize q o --dtype int8", "--dtype int8: weights"),
        ("dequantize q o --threads 0", "--threads 0 is not valid; use an int of 1 or more"),
        ("transcode q o --to foo", "--to foo: castwise transcodes"),
        ("transcode q o --to modelopt --scheme foo", "--scheme foo: without rounding"),
    ],
)
def test_no_words_of_python(
    tmp_path: Path,
    words: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.save("a.safetensors", {WEIGHT: np.full((64, 64), 0.5, np.float32)})
    checkpoint.save("big.safetensors", {"w": np.full(3, 1e6, np.float32)})
    checkpoint.save("nan.safetensors", {"w": np.full(3, np.nan, np.float32)})
    if " q " in words:
        checkpoint.quantize_file("a.safetensors", "q.safetensors", "nvfp4")
    write_sharded(Path("m"), {"one.safetensors": {"a": floats(4)}})
    maps = {"bad": (r"a\.b", "bf61"), "keep": ("a", "kepe"), "default": ("default", "bf16")}
    maps |= {"unused": (r"x\.y", "bf16"), "open": (r"(\.", "bf16")}
    for name, (key, value) in maps.items():
        Path(f"{name}.json").write_text(json.dumps({key: value}))
    command, source, target, *options = words.split()
    if source != "m":
        source = f"{source}.safetensors"
        target = target if target in {"m", "new"} else f"{target}.safetensors"
    code = 0 if "matches nothing" in said or "unused" in said else 2
    text = run(command, source, target, *options, code=code).stderr
    text += log_of_command(caplog)
    assert said in text
    assert PYTHON.search(text) is None


def test_remedies_of_a_comparison(tmp_path: Path) -> None:
    left, right = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    checkpoint.save(left, {"only": floats(3), "both": floats(4)})
    checkpoint.save(right, {"both": floats(5)})
    said = " ".join(run("diff", left, right, code=1).stdout.split())
    assert "with a tensor of another name (--rename)" in said
    assert "or pair names (--rename)" in said
    assert "(--rename)" in run("diff", left, right, "--json", code=1).stdout
    remedies = [tensor.remedy or "" for tensor in checkpoint.diff(left, right).tensors]
    assert all("(rename)" in remedy for remedy in remedies)


def test_python_keeps_its_words(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"w": floats(3)})
    for _ in range(2):
        with pytest.raises(checkpoint.CheckpointError, match=r"\(overwrite=True\)$"):
            checkpoint.cast_file(path, path, "bfloat16")
        run("cast", path, path, "--dtype", "bf16", code=2)


def strings(value: object) -> list[str]:
    """All texts in plain values."""
    if isinstance(value, dict):
        return [text for pair in value.items() for member in pair for text in strings(member)]
    if isinstance(value, list | tuple):
        return [text for member in value for text in strings(member)]
    return [value] if isinstance(value, str) else []


def test_plain_values_have_one_wording(tmp_path: Path) -> None:
    """Those of Python its own, of the type str, and JSON of the command that of the command."""
    left, right, out = (tmp_path / f"{name}.safetensors" for name in ("a", "b", "out"))
    array = np.full((64, 64), 0.5, np.float32)
    checkpoint.save(left, {WEIGHT: array, "b.weight": array})
    checkpoint.save(right, {WEIGHT: array[:32]})
    summary = checkpoint.quantize_file(left, out, "nvfp4", ignore="^b")
    problem = LoadingProblem("w", "it is no str", "convert it " + parenthesis("recipe"))
    check = LoadingCheck(str(left), "vllm", ["x"], 1, [problem])
    for values in (summary.to_dict(), checkpoint.diff(left, right).to_dict(), check.to_dict()):
        texts = strings(values)
        assert {*map(type, texts)} == {str}
        assert not [text for text in texts if "--" in text]
        assert [text for text in texts if re.search(r"ignore names|\(rename\)|\(recipe\)", text)]
    arguments = ["quantize", left, out, "--scheme", "nvfp4", "--ignore", "^b"]
    assert "--ignore names them" in run(*arguments, "--json", "--overwrite").stdout
    assert "--ignore names them" in run(*arguments, "--overwrite").stdout
    assert "--ignore names them" in run(*arguments, "--json", "--overwrite", "--dry-run").stdout


def test_sums_keep_both_texts() -> None:
    size, key = argument("max_shard_size", "5GB"), quote(r"a\.b")
    text = "key " + key + ": give " + join(" and ", [size, parenthesis("part")]) + " too"
    assert text == r"key 'a\\.b': give max_shard_size='5GB' and (part) too"
    assert for_command(text) == r"key 'a\.b': give --max-shard-size 5GB and (--part) too"
    assert for_command("no argument") == "no argument"


def test_an_error_keeps_both_texts_in_another_process() -> None:
    error = checkpoint.CheckpointError("there is one " + parenthesis("overwrite", True))
    error.__cause__ = OSError("the reason")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy)) == (type(error), "there is one (overwrite=True)")
    assert for_command(str(copy)) == "there is one (--overwrite)"


def test_words_of_a_thread_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"w": floats(3)})

    def refuse() -> None:
        with pytest.raises(checkpoint.CheckpointError, match=r"\(overwrite=True\)$"):
            checkpoint.cast_file(path, path, "bfloat16")

    def refuse_in_thread(rows: Sequence[object]) -> Table:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(refuse).result()
        return Table.of(("rows",), [(str(len(rows)),)])

    monkeypatch.setattr("castwise.cli.formats._table", refuse_in_thread)
    assert run("formats").stdout.startswith("rows")
