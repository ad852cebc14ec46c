"""Each option of a command has one default, that of the function that the command calls."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from castwise import checkpoint
from castwise.cli import main
from castwise.cli._parser import COMMANDS, command_parsers, make_parser
from checkpoint_samples import floats

FUNCTIONS = {
    "advise": checkpoint.advise,
    "cast": checkpoint.cast_file,
    "dequantize": checkpoint.dequantize_file,
    "diff": checkpoint.diff,
    "finish": checkpoint.finish,
    "inspect": checkpoint.inspect,
    "quantize": checkpoint.quantize_file,
    "survey": checkpoint.survey_file,
    "transcode": checkpoint.transcode_file,
    "verify": checkpoint.verify,
}
OTHERS = {"completion", "formats", "help"}
"""Commands without a function."""

RENAMED = {"file": "path"}
"""Options whose parameters have other names."""

OF_OTHER_FUNCTIONS = {("advise", "output"), ("verify", "consumer")}
"""Options of what is done with the result, and of `verify_loading`."""

SHOWN = {"all", "color", "exit_zero", "help", "html", "json", "quiet", "report", "summary", "top"}
"""Options of the command line alone: what is printed, and the exit code."""

NOT_TYPED = {"executor", "progress"}
"""Parameters that no text can give."""

PARSERS = command_parsers(make_parser(COMMANDS))


def test_every_command_is_compared() -> None:
    assert {*FUNCTIONS, *OTHERS} == {*PARSERS}


@pytest.mark.parametrize("command", FUNCTIONS)
def test_an_option_has_the_default_of_its_parameter(command: str) -> None:
    parameters = dict(inspect.signature(FUNCTIONS[command]).parameters)
    for action in PARSERS[command]._actions:
        name = RENAMED.get(action.dest, action.dest)
        if action.dest in SHOWN or (command, name) in OF_OTHER_FUNCTIONS:
            assert name not in parameters
            continue
        default = parameters.pop(name).default
        if default is inspect.Parameter.empty:
            assert action.required or action.default is None
            continue
        # Several values are a list for argparse.
        typed = tuple(action.default) if isinstance(action.default, list) else action.default
        assert typed == default, action.option_strings
        told = re.search(r"default: ([\w.,-]+)", action.help or "")
        if told is not None and isinstance(default, str):
            assert told[1].rstrip(",.") == default, action.help
    assert set(parameters) <= NOT_TYPED


@pytest.mark.parametrize("command", ["cast", "dequantize", "finish", "quantize", "transcode"])
def test_a_function_documents_each_of_its_options(command: str) -> None:
    function = FUNCTIONS[command]
    parameters = inspect.signature(function).parameters
    _, _, rest = inspect.getdoc(function).partition("\nParameters\n----------\n")  # type: ignore[union-attr]
    paragraphs, _, _ = rest.partition("\n\nReturns\n")
    assert re.findall(r"^(\w+)\n    \S", paragraphs, re.MULTILINE) == list(parameters)
    assert "{" not in paragraphs
    assert list(get_type_hints(function)) == [*parameters, "return"]
    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301
    wrong = {"overwrit": True}
    with pytest.raises(TypeError, match=r"\w+\(\) got an unexpected .* did you mean 'overwrite'\?"):
        function("a", **wrong)
    with pytest.raises(TypeError, match=r"\w+\(\) got multiple values for argument '\w+'"):
        function("a", **{next(iter(parameters)): "b"})
    required = ["a" for one in parameters.values() if one.default is inspect.Parameter.empty]
    hints = get_type_hints(function)
    switches = [name for name in parameters if hints[name] in (bool, bool | None)]
    others = {"scheme": "nvfp4"} if command == "quantize" else {}
    for name in switches:
        with pytest.raises(TypeError, match=f"{name} 'no' is not valid; use True"):
            function(*required, **others, **{name: "no"})


def quantized_zeros(folder: Path) -> Path:
    """Write a model of which some per cent of the weights become zero in NVFP4."""
    source = folder / "model"
    source.mkdir()
    tensors = {f"layers.{i}.up_proj.weight": floats(4096, i).reshape(32, 128) for i in range(3)}
    checkpoint.save(source / "model.safetensors", tensors)
    (source / "config.json").write_text("{}")
    return source


@pytest.mark.parametrize("max_zeros", [None, 0.01])
def test_findings_of_a_summary_are_those_of_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], max_zeros: float | None
) -> None:
    source = quantized_zeros(tmp_path)
    options: dict[str, Any] = {} if max_zeros is None else {"max_zeros": max_zeros}
    summary = checkpoint.quantize_file(source, tmp_path / "a", "nvfp4", **options)
    words = [] if max_zeros is None else ["--max-zeros", str(max_zeros)]
    code = main(["quantize", str(source), str(tmp_path / "b"), "--scheme", "nvfp4", *words])
    printed = capsys.readouterr()
    assert code == bool(summary.findings())
    assert ("nonzero values became zero" in printed.err) == bool(summary.findings())
    assert len(summary.findings()) == (0 if max_zeros is None else 3)
    assert summary.max_zeros == (0.5 if max_zeros is None else max_zeros)
    assert summary.to_dict()["max_zeros"] == summary.max_zeros
    counted = "3 tensors quantized, 0 kept"
    assert counted in repr(summary)
    assert counted in str(summary)
    assert counted in printed.out
    assert ("lost: underflow" in repr(summary)) == bool(summary.findings())


def test_words_of_every_conversion_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, quantized = quantized_zeros(tmp_path), tmp_path / "quantized"
    checkpoint.quantize_file(source, quantized, "nvfp4", recipe="modelopt")
    for words, action in (
        (["cast", source, "--dtype", "bf16"], "cast"),
        (["quantize", source, "--scheme", "fp8_channel"], "quantized"),
        (["dequantize", quantized], "decoded"),
        (["transcode", quantized, "--to", "compressed-tensors"], "transcoded"),  # scales, too
    ):
        count = 6 if action == "transcoded" else 3
        for extra, said in (
            (["--dry-run"], f": {count} tensors would be {action}, "),
            ([], f": {count} tensors {action}, "),
        ):
            command, path, *options = map(str, words)
            main([command, path, str(tmp_path / f"is {action}"), *options, *extra])
            assert said in capsys.readouterr().out


def test_a_count_of_weights_has_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that a map, or the configuration, casts beside them are counted by themselves."""
    source, quantized, norms = tmp_path / "in", tmp_path / "quantized", tmp_path / "norms.toml"
    source.mkdir()
    tensors = {f"{i}.fc.weight": floats(4096, i).reshape(32, 128) for i in range(3)}
    tensors |= {f"{i}.norm.weight": floats(8).astype(np.float16) for i in range(5)}
    checkpoint.save(source / "model.safetensors", {**tensors, "ids": np.arange(2)})
    (source / "config.json").write_text(json.dumps({"dtype": "float16"}))
    norms.write_text('".*norm.*" = "bfloat16"')
    plain = tmp_path / "plain"
    checkpoint.quantize_file(source, quantized, "nvfp4")
    shutil.copytree(source, plain)
    (plain / "config.json").write_text(
        json.dumps({"dtype": "float16", "quantization_config": {"quant_method": "fp8"}})
    )
    for words, counts in (
        (["quantize", source, "--scheme", "nvfp4", "--map", norms], (3, "quantized", 5)),
        (["dequantize", quantized, "--dtype", "bfloat16"], (3, "decoded", 5)),
        (["dequantize", plain, "--dtype", "bfloat16"], (0, "decoded", 0)),
    ):
        weights, action, others = counts
        beside = f", {others} cast" if others else ""
        command, path, *options = map(str, words)
        for extra, verb in ((["--dry-run"], "would be "), ([], "")):
            main([command, path, str(tmp_path / "out"), "--overwrite", *options, *extra])
            said = capsys.readouterr().out
            kept = 9 - weights - others
            assert f": {weights} tensors {verb}{action}{beside}, {kept} kept" in said
    summary = checkpoint.quantize_file(source, tmp_path / "a", "nvfp4", dtype_map=norms)
    assert "3 tensors quantized, 5 cast, 1 kept" in repr(summary)
    assert "3 tensors quantized, 5 cast, 1 kept" in str(summary)


def test_a_dry_run_obeys_top_and_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = quantized_zeros(tmp_path)
    words = ["cast", str(source), str(tmp_path / "out"), "--dtype", "bf16", "--dry-run"]
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    for top in range(3):
        assert main([*words, "--all", "--top", str(top)]) == 0
        assert capsys.readouterr().out.count("up_proj") == top
    quantized = tmp_path / "quantized"
    checkpoint.quantize_file(source, quantized, "fp8_channel")
    assert main(["dequantize", str(quantized), str(tmp_path / "plain"), "--top", "0"]) == 0
    assert "up_proj" not in capsys.readouterr().out


def test_advice_names_its_map_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, path = quantized_zeros(tmp_path).rename(tmp_path / "a model"), tmp_path / "map.toml"
    size = sum(file.stat().st_size for file in source.iterdir())
    words = ["advise", str(source), "-o", str(path), "--for", "vllm"]
    assert main([*words, "--bits", "8"]) == 0
    said = capsys.readouterr().err
    options = f"--map {path} --recipe compressed-tensors --for vllm"
    command = f"castwise quantize '{source}' DST {options}"
    assert said == f"castwise: {path} has the map; next: {command}\n"
    made = str(tmp_path / "made")
    assert main(shlex.split(command.replace("DST", made))[1:]) == 0
    assert "transformers" not in capsys.readouterr().err
    # What everything fits in.
    advice = checkpoint.advise(source, budget=size)
    assert advice.map == {}
    assert advice.nbytes == advice.nbytes_before == size
    assert main([*words, "--budget", str(size)]) == 0
    assert "every weight may stay as it is" in capsys.readouterr().err
    assert main(["quantize", str(source), made, "--map", str(path), "--overwrite"]) == 2
    assert (
        f"{path} names no scheme; give one for the weights that no key matches (--scheme)"
        in capsys.readouterr().err
    )
    assert main(["cast", str(source), made, "--map", str(path), "--overwrite"]) == 0


def test_casts_within_a_budget_take_no_more_than_predicted(tmp_path: Path) -> None:
    source = quantized_zeros(tmp_path)
    size = sum(file.stat().st_size for file in source.iterdir())
    advice = checkpoint.advise(source, budget=size - 9000, formats=["bfloat16"])
    assert set(advice.map.values()) == {"bfloat16"}
    checkpoint.cast_file(source, tmp_path / "cast", dtype_map=advice.map)
    made = sum(file.stat().st_size for file in (tmp_path / "cast").iterdir())
    assert made <= advice.nbytes < size


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"scheme": "nvfp4", "consumer": "vlm"},
            "consumer 'vlm' is not known: did you mean 'vllm'",
        ),
        (
            {"scheme": "mxfp4", "consumer": "comfyui"},
            r"does not load mxfp4; it loads comfy \(fp8_tensor, nvfp4, mxfp8_e4m3\)",
        ),
        (
            {"scheme": "nvfp4", "consumer": "vllm", "recipe": "comfy"},
            "does not load nvfp4 as comfy stores it",
        ),
        (
            {"dtype_map": {"default": "q4_k", "a": "mxfp4"}, "consumer": "llama.cpp"},
            r"does not load q4_k, mxfp4 together in one checkpoint; it loads gguf \(q4_0,",
        ),
        (
            {"dtype_map": {"default": "q4_k", "a": "int4_group"}, "consumer": "llama.cpp"},
            "does not load q4_k, int4_group; it loads gguf",  # neither with another scheme
        ),
    ],
)
def test_a_consumer_gets_what_it_loads(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    source = quantized_zeros(tmp_path)
    with pytest.raises(checkpoint.CheckpointError, match=words):
        checkpoint.quantize_file(source, tmp_path / "made", **options)
    assert not (tmp_path / "made").exists()
    summary = checkpoint.quantize_file(source, tmp_path / "made", "nvfp4", consumer="mlx-lm")
    assert summary.options["recipe"] == "mlx"


def test_keys_of_a_map_have_no_order_to_choose_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, path = quantized_zeros(tmp_path), tmp_path / "map.toml"
    path.write_text("'.*weight' = 'bf16'\n'.*proj.*' = 'fp16'\n")
    assert main(["cast", str(source), str(tmp_path / "out"), "--map", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.endswith("'.*proj.*'; make them exclude each other.\n")


def test_tables_obey_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["formats"])
    whole = capsys.readouterr().out
    for columns, most in (("70", 70), ("500", 500), ("0", None), ("many", None)):
        monkeypatch.setenv("COLUMNS", columns)
        main(["formats"])
        shown = capsys.readouterr().out
        if most is None or most > 100:
            assert shown == whole
        else:
            assert max(map(len, shown.splitlines())) <= most
