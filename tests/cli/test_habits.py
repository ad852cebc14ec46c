"""Habits of command lines: suggestions, usage, help and examples, colors, completion, manual."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise.cli._parser import COMMANDS, make_parser, parse_arguments
from checkpoint_samples import floats, write_sharded
from processes import run_on_terminal
from support import run_castwise as run

CONVERSIONS = ("cast", "quantize", "dequantize", "transcode")


def examples(command: str) -> list[list[str]]:
    """What the help of a command shows at its end, as arguments of castwise."""
    _, _, lines = run(command, "--help").stdout.partition("\nexamples:\n")
    return [shlex.split(line.partition(">")[0])[1:] for line in lines.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "usage", "said"),
    [
        (
            "quantise a b",
            "COMMAND [OPTIONS]",
            "'quantise' is not a command; did you mean 'quantize'?",
        ),
        ("xyzzy a b", "COMMAND [OPTIONS]", "is not a command; the commands are survey, advise,"),
        ("convert a b", "COMMAND [OPTIONS]", "did you mean 'cast'? the commands are survey,"),
        ("cast a b --force", "cast SRC DST [OPTIONS]", "did you mean '--overwrite'?"),
        ("cast a b -f", "cast SRC DST [OPTIONS]", "did you mean '--overwrite'?"),
        ("inspect a --force", "inspect FILE [OPTIONS]", "--help lists them"),
        ("--vresion", "COMMAND [OPTIONS]", "did you mean '--version'?"),
        (
            "--dtype bf16 cast a b",
            "COMMAND [OPTIONS]",
            "--dtype is not an option of castwise; it is one of castwise cast, castwise dequantize",
        ),
        ("cast a b --dtyp bf16", "cast SRC DST [OPTIONS]", "did you mean '--dtype'?"),
        ("cast a b --dty=bf16", "cast SRC DST [OPTIONS]", "did you mean '--dtype'?"),
        ("quantize a b --sch nvfp4", "quantize SRC DST [OPTIONS]", "did you mean '--scheme'?"),
        ("diff a b --ato 1e-3", "diff A B [OPTIONS]", "did you mean '--atol'?"),
        ("cast a b --scheme nvfp4", "cast SRC DST [OPTIONS]", "it is one of castwise quantize"),
        ("--vers", "COMMAND [OPTIONS]", "did you mean '--version'?"),
        ("cast a b --dytpe bf16", "cast SRC DST [OPTIONS]", "did you mean '--dtype'?"),
        ("cast a b -dtype bf16", "cast SRC DST [OPTIONS]", "did you mean '--dtype'?"),
        ("cast a b --xyzzy=1", "cast SRC DST [OPTIONS]", "castwise cast --help lists them"),
        ("cast a", "cast SRC DST [OPTIONS]", "DST is missing; castwise cast --help shows examples"),
        ("cast a b c", "cast SRC DST [OPTIONS]", "too many arguments: c"),
        ("cast a b bf16", "cast SRC DST [OPTIONS]", "bf16; did you mean --dtype bf16?"),
        (
            "cast a b q4_k",
            "cast SRC DST [OPTIONS]",
            "too many arguments: q4_k; did you mean castwise quantize --scheme q4_k?",
        ),
        ("cast a b mxfp4", "cast SRC DST [OPTIONS]", "mean castwise quantize --scheme mxfp4?"),
        ("quantize a b q4_k_m", "quantize SRC DST [OPTIONS]", "did you mean --scheme q4_k_m?"),
        ("quantize a b nvfp4", "quantize SRC DST [OPTIONS]", "did you mean --scheme nvfp4?"),
        (
            "cast a b --rounding nearest-evne",
            "cast SRC DST [OPTIONS]",
            "did you mean 'nearest-even'",
        ),
        ("cast a b --rounding up", "cast SRC DST [OPTIONS]", "choose from nearest-even, nearest-"),
        ("cast a b --fail-on none,nan", "cast SRC DST [OPTIONS]", "none stands alone"),
        ("cast a b --fail-on overflo", "cast SRC DST [OPTIONS]", "did you mean 'overflow'?"),
        # What is not known is said before what is missing.
        ("transcode a b --too gguf", "transcode SRC DST --to R [OPTIONS]", "did you mean '--to'"),
        (
            "advise a",
            "advise SRC (--budget SIZE | --bits B | --error E) [OPTIONS]",
            "one of the arguments --budget --bits --error is required",
        ),
        ("help cats", "help [COMMAND] [OPTIONS]", "did you mean 'cast'?"),
        ("completion fsh", "completion SHELL [OPTIONS]", "did you mean 'zsh'"),
        ("cast a b --\x1b[2J", "cast SRC DST [OPTIONS]", r"--\x1b[2J is not an option"),
    ],
)
def test_errors_have_a_line_of_usage_and_a_suggestion(words: str, usage: str, said: str) -> None:
    result = run(*words.split(), code=2)
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first == f"usage: castwise {usage}"
    command = words.split(maxsplit=1)[0] if usage[0].islower() else ""
    assert second.startswith(f"castwise {command}".strip() + ": error: ")
    assert said in second


def test_no_words_show_what_to_type() -> None:
    result = run(code=2)
    assert (result.stdout, result.stderr) == ("", run("--help").stdout)
    for words in ("castwise help COMMAND shows", "castwise quantize MODEL OUT --scheme nvfp4"):
        assert words in result.stderr


def test_a_missing_file_may_have_a_neighbor(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "model.safetensors", {"w": floats(4)})
    line = run("inspect", tmp_path / "mdel.safetensors", code=2).stderr
    assert line.endswith(
        f"No such file or directory; did you mean {tmp_path / 'model.safetensors'}?\n"
    )
    # That two names end alike means nothing.
    for name in ("other.npz", "other.safetensors", "moe-q8.safetensors"):
        assert "did you mean" not in run("inspect", tmp_path / name, code=2).stderr


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ("--scheme fp8_channel", True),
        ("--scheme int8_channel --for vllm", True),
        ("--scheme fp8_block --recipe compressed-tensors", True),
        ("--scheme fp8_block --recipe compressed-tensors --for vllm", False),  # which needs dynamic
        ("--scheme fp8_channel --inputs dynamic", False),
        ("--scheme fp8_channel --inputs none", False),
        ("--scheme fp8_channel --quiet", False),
        ("--scheme fp8_block", False),  # of deepseek, whose inputs always are
        ("--scheme nvfp4", False),
        ("--scheme fp8_block --recipe compressed-tensors --block 64x64", False),
        ("--scheme fp8_channel --map MAP", False),  # with int8_group, which cannot state it
    ],
)
def test_inputs_that_keep_engines_from_multiplying_codes(
    tmp_path: Path, options: str, is_said: bool
) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out"
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = {each: floats(1 << 14).reshape(128, 128) for each in (name, name.replace("q_", "o_"))}
    checkpoint.save(source, tensors)
    mixed = tmp_path / "map.json"
    mixed.write_text('{".*o_proj.*": "int8_group"}')
    options = options.replace("MAP", str(mixed))
    line = run("quantize", source, out, "--max-shard-size", "1GB", *options.split()).stderr
    assert ("--inputs dynamic (--inputs none for this result)" in line) == is_said


def test_what_is_no_unknown_option() -> None:
    options = parse_arguments(["diff", "a", "b", "--rtol", "-1", "--atol", "1e-3", "--quiet"])
    assert (options.rtol, options.atol, options.quiet) == (-1.0, 1e-3, True)
    assert parse_arguments(["advise", "a", "--bits=4", "-oout.toml"]).output == Path("out.toml")
    assert parse_arguments(["inspect", "--", "--all"]).file == Path("--all")


@pytest.mark.parametrize("arguments", [[], ["--"]])
def test_without_a_command_there_is_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments)
    printed = capsys.readouterr()
    assert (caught.value.code, printed.out) == (2, "")
    assert printed.err == make_parser([]).format_help()


def test_counts_that_no_machine_has(tmp_path: Path) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(source, {"w": floats(16).reshape(4, 4)})
    for count in ("9" * 19, "9" * 5000):
        for words, said in (
            (("cast", "--dtype", "bf16", "--top", count), "is not a number of rows"),
            (("cast", "--dtype", "bf16", "--max-shard-size", f"{count}GB"), "is not a size"),
            (("quantize", "--scheme", "fp8_block", "--block", count), "is not a block"),
        ):
            assert said in run(words[0], source, out, *words[1:], code=2).stderr
            assert not out.exists()
    run("cast", source, out, "--dtype", "bf16", "--top", "9" * 18)


def test_json_has_every_row(tmp_path: Path) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(source, {"w": floats(16).reshape(4, 4)})
    for words in (
        ("cast", source, out, "--dtype", "bf16"),
        ("survey", source),
        ("advise", source, "--bits", "16"),
    ):
        assert "--top is for the table" in run(*words, "--json", "--top", "1", code=2).stderr
        assert not out.exists()


def test_version_and_help() -> None:
    assert run("-V").stdout == run("--version").stdout == f"castwise {castwise.__version__}\n"
    assert run("help").stdout == run("--help").stdout
    for command in COMMANDS:
        assert run("help", command).stdout == run(command, "--help").stdout
        assert f"  {command} " in run("help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command(command: str) -> None:
    text = run(command, "--help").stdout
    first, second = text.splitlines()[:2]
    assert re.fullmatch(rf"usage: castwise {command} .*\[OPTIONS\]", first)
    assert second == ""
    assert examples(command)
    for arguments in examples(command):
        assert arguments[0] == command
        parse_arguments(arguments)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("command", CONVERSIONS)
def test_options_stand_in_groups(command: str) -> None:
    text = run(command, "--help").stdout
    places = [text.index(f"\n{name}:\n") for name in ("target", "losses", "output", "files", "run")]
    assert places == sorted(places)
    general = text[text.index("\noptions:\n") : places[0]]
    assert general.count("  -") == 1, general  # --help


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each beside a model, the same quantized, and a map, but without its target."""
    monkeypatch.chdir(tmp_path)
    name = "model.layers.{}.mlp.{}_proj.weight"
    shards = {
        f"model-{layer}.safetensors": {
            name.format(layer, part): floats(128 * 128, layer).reshape(128, 128)
            for part in ("up", "down")
        }
        for layer in range(2)
    }
    write_sharded(Path("model"), shards)
    Path("model/config.json").write_text('{"model_type": "llama"}')
    Path("map.toml").write_text('default = "bfloat16"')
    checkpoint.save("model.safetensors", {"w": floats(12)})
    checkpoint.cast_file("model.safetensors", "cast.safetensors", "bfloat16")
    checkpoint.quantize_file("model", "quantized", "nvfp4")
    for part in ("1/2", "2/2"):
        run("cast", "model", "parted", "--dtype", "bfloat16", "--part", part)
    kept = set(os.listdir())
    for command in COMMANDS:
        is_made = command in {"cast", "quantize"}  # small, of the others' examples
        for given in examples(command):
            if not is_made:
                shutil.copytree("quantized", "small")
                shutil.copyfile("cast.safetensors", "small.safetensors")
            if command in {"verify", "diff"}:
                shutil.copytree("quantized", "other")
            run(*given, code=int(given[:3] == ["diff", "model", "small"]))
            for path in set(os.listdir()) - kept:
                shutil.rmtree(path) if Path(path).is_dir() else os.remove(path)


def test_colors(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, w=np.array([1e6]))
    arguments = ("cast", path, out, "--dtype", "float16", "--exit-zero", "--overwrite")
    assert "\x1b" in run(*arguments, "--color", "always").stdout
    assert "\x1b" not in run(*arguments).stdout
    for color in (True, False):  # False: NO_COLOR is set
        seen = {
            when: run_on_terminal(
                *arguments, "--color", when, columns=100, stream="stdout", color=color
            )[1]
            for when in ("auto", "always", "never")
        }
        assert ("\x1b" in seen["auto"]) == color
        assert "\x1b" in seen["always"]
        assert "\x1b" not in seen["never"]
    assert run("formats", "--color", "never").stdout == run("formats").stdout


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last word of a command line."""
    program = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()\n'
        '_shtab_castwise; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", program, "bash", script, *words]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not there")
def test_completion_in_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "castwise.bash"
    script.write_text(run("completion", "bash").stdout)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").touch()
    for words, offered in (
        (("qu",), {"quantize"}),
        (("cast", "--ro"), {"--role", "--rounding"}),
        (("cast", "--overflow", ""), {"ieee", "saturate", "raise"}),
        (("cast", "mod"), {"model.safetensors"}),
        (("cast", "a", "b", "--map", "mod"), {"model.safetensors"}),
        (("cast", "a", "b", "--dtype", "bf"), {"bfloat16"}),
        (("dequantize", "a", "b", "--dtype", ""), {"bfloat16", "float16", "float32"}),
        (("quantize", "a", "b", "--scheme", "nv"), {"nvfp4"}),
        (("advise", "a", "--for", "vl"), {"vllm"}),
        (("help", "tra"), {"transcode"}),
    ):
        assert completed(script, "castwise", *words) == offered, words


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_scripts_of_all_shells(shell: str) -> None:
    script = run("completion", shell).stdout
    for command in COMMANDS:
        assert command in script
    assert "nearest-away" in script
    if shell == "zsh":
        for command, text in COMMANDS.items():
            assert f"{command}:'{text.partition(chr(39))[0]}" in script


def test_completion_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    result = run("completion", "bash", code=2)
    assert result.stdout == ""
    assert result.stderr == (
        "castwise: error: castwise completion needs the package shtab: "
        "pip install 'castwise[completion]'\n"
    )


def test_warnings_of_each_call_go_to_its_standard_error(tmp_path: Path) -> None:
    """As of a program that calls `main` several times, each with another stream."""
    write_sharded(tmp_path / "in", {"model.safetensors": {"w": floats(4)}})
    (tmp_path / "in" / "optimizer.pt").write_bytes(b"")
    program = (
        "import contextlib, io; from castwise.cli import main\n"
        "for name in 'ab':\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as text:\n"
        "        main(['cast', 'in', name, '--dtype', 'bfloat16'])\n"
        "    print('optimizer.pt' in text.getvalue())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = result.stdout.splitlines()
    assert [line for line in lines if line in {"True", "False"}] == ["True", "True"]
    assert result.stderr == ""
