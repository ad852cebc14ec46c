"""Weights are decoded, quantized and transcoded by executors and in parts: as in one run."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.running import _executors
from castwise.checkpoint.running._conversion import Conversion
from castwise.cli import main
from producer_models import MODELS
from producer_models import write as write_quantized
from producer_models.gguf import gguf_file, sample
from producer_models.keras import calibrated, saved
from sharded_folder import contents
from small_llama import DOWN, WEIGHTS, Q
from small_llama import write as write_plain

QUANTIZED: dict[str, dict[str, Any]] = {
    "deepseek": {"scheme": "fp8_block"},
    "nvfp4": {"scheme": "nvfp4"},
    "one scale, cast": {
        "scheme": "fp8_tensor",
        "recipe": "modelopt",
        "dtype_map": {r".*down_proj.*": "float16"},
    },
    "int4, zero points": {"scheme": "int4_group", "recipe": "mlx", "max_shard_size": 60_000},
}
"""Arguments of `quantize_file`: scales of blocks, shared by three weights, and of whole tensors."""

Run = Callable[..., checkpoint.CastSummary]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_executors, "BATCH_BYTES", 50_000)


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    """Two others, for all tests here: each takes long to start."""
    # Not forked: this process has threads.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        yield executor


def in_parts(run: Run, new: Path, count: int) -> checkpoint.CastSummary:
    """Convert in parts, in another order, and one of them again."""
    sizes = {}
    for number in (*range(count, 0, -1), 1):
        part = run(new, part=(number, count), threads=number)
        sizes[number] = nbytes(part)
        assert not new.exists()
    summary = checkpoint.finish(new)
    assert sum(sizes.values()) == nbytes(summary)
    return summary


def nbytes(summary: checkpoint.CastSummary) -> int:
    return sum(row.nbytes_before + row.nbytes_after for row in summary.rows)


def assert_alike(tmp_path: Path, run: Run, executor: Executor, count: int) -> None:
    """Check that bytes and report are those of one run."""
    alone, new, divided = (tmp_path / name for name in ("alone", "new", "divided"))
    expected = run(alone)
    for made, summary in (
        (new, run(new, executor=executor)),
        (divided, in_parts(run, divided, count)),
    ):
        assert contents(made) == contents(alone)
        assert summary.rows == expected.rows
        assert summary.options == expected.options
        assert summary.unused_patterns == expected.unused_patterns


@pytest.mark.thinned(2)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("options", QUANTIZED.values(), ids=QUANTIZED)
def test_quantized(tmp_path: Path, workers: int, options: dict[str, Any]) -> None:
    source = write_plain(tmp_path / "model")

    def run(new: Path, **more: Any) -> checkpoint.CastSummary:
        return checkpoint.quantize_file(source, new, **options, **more)

    with ThreadPoolExecutor(workers) as executor:
        assert_alike(tmp_path, run, executor, workers)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", MODELS)
def test_decoded(tmp_path: Path, name: str) -> None:
    source = write_quantized(tmp_path / "model", MODELS[name]())

    def run(new: Path, **more: Any) -> checkpoint.CastSummary:
        return checkpoint.dequantize_file(source, new, **more)

    with ThreadPoolExecutor(2) as executor:
        assert_alike(tmp_path, run, executor, 2)


def test_transcoded(tmp_path: Path) -> None:
    source = tmp_path / "source"
    checkpoint.quantize_file(write_plain(tmp_path / "model"), source, "nvfp4")

    def run(new: Path, threads: int | None = None, **more: Any) -> checkpoint.CastSummary:
        del threads
        return checkpoint.transcode_file(source, new, "modelopt", **more)

    with ThreadPoolExecutor(3) as executor:
        assert_alike(tmp_path, run, executor, 3)


@pytest.mark.parametrize("kind", ["safetensors", "gguf", "keras"])
def test_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, processes: Executor, kind: str
) -> None:
    """Other processes open a file by themselves, as often as they have batches of it."""
    source = tmp_path / f"source.{kind.replace('keras', 'safetensors')}"
    if kind == "gguf":
        gguf_file(source, {f"{name}.weight": sample(name)[0] for name in ("Q8_0", "MXFP4")})
    elif kind == "keras":
        made = calibrated(300, 130, 4, 128, ordered=False, awq=True).variables
        saved(source, {"bias": np.arange(130, dtype=np.float32)} | made)  # which is renamed
    else:
        plain = {name: WEIGHTS[name] for name in (Q, DOWN)}
        checkpoint.save(tmp_path / "plain.safetensors", plain)
        checkpoint.quantize_file(tmp_path / "plain.safetensors", source, "nvfp4")
    alone, new, divided = (tmp_path / f"{name}.safetensors" for name in ("alone", "new", "divided"))
    expected = checkpoint.dequantize_file(source, alone)
    made_by_others = checkpoint.dequantize_file(source, new, executor=processes)

    def run(to: Path, **more: Any) -> checkpoint.CastSummary:
        return checkpoint.dequantize_file(source, to, **more)

    for path, summary in ((new, made_by_others), (divided, in_parts(run, divided, 3))):
        assert path.read_bytes() == alone.read_bytes()
        assert summary.rows == expected.rows
    assert "in this process" not in caplog.text


def test_processes_plan_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    processes: Executor,
) -> None:
    """Paths that hold only in the folder of this process are those of the others, too."""
    source = write_plain(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    given_map = {Q: "int8_channel", ".*": "keep"}
    Path("map.json").write_text(json.dumps(given_map))
    for given in ("model", source):
        maps: tuple[Any, ...] = ("map.json", MappingProxyType(given_map))
        for arguments in ({"scheme": "nvfp4"}, *({"dtype_map": one} for one in maps)):
            expected = checkpoint.quantize_file(given, "alone", overwrite=True, **arguments)
            made = checkpoint.quantize_file(
                given, "new", overwrite=True, executor=processes, **arguments
            )
            assert made.rows == expected.rows
            assert contents(Path("new")) == contents(Path("alone"))
    plain = checkpoint.dequantize_file("new", "plain", ml_dtypes.bfloat16, executor=processes)
    assert plain.rows == checkpoint.dequantize_file("new", "alone", overwrite=True).rows
    assert contents(Path("plain")) == contents(Path("alone"))
    assert "in this process" not in caplog.text


def test_a_worker_finds_that_the_source_was_changed(tmp_path: Path) -> None:
    source = tmp_path / "model.safetensors"
    checkpoint.save(source, {"a.weight": WEIGHTS[DOWN]})
    new = tmp_path / "new.safetensors"

    class Changing(ThreadPoolExecutor):
        """Changes the source before anything is converted."""

        def submit(self, *call: Any, **keywords: Any) -> Any:
            source.write_bytes(source.read_bytes())
            return super().submit(*call, **keywords)

    with Changing(1) as executor, pytest.raises(CheckpointError, match="was changed while it was"):
        checkpoint.quantize_file(source, new, "mxfp4", executor=executor)
    assert not new.exists()


def test_parts_of_another_scheme(tmp_path: Path) -> None:
    source, new = write_plain(tmp_path / "model"), tmp_path / "new"
    checkpoint.quantize_file(source, new, "nvfp4", part="1/2")
    with pytest.raises(
        CheckpointError, match=r"conversion: scheme is 'nvfp4' there and 'mxfp4' here;"
    ):
        checkpoint.quantize_file(source, new, "mxfp4", part="2/2")
    with pytest.raises(
        CheckpointError, match=r"conversion: the command is 'quantize' there and 'cast' h"
    ):
        checkpoint.cast_file(source, new, "float16", part="2/2")
    with pytest.raises(CheckpointError, match=r"not complete: 2/2; make them"):
        checkpoint.finish(new)


def test_a_configuration_that_was_changed(tmp_path: Path) -> None:
    """Scales of blocks of 128 and of 136 rows may have one shape; parts must mean the same."""
    source = write_quantized(tmp_path / "model", MODELS["deepseek, scales of float32"]())
    new, config = tmp_path / "new", source / "config.json"
    checkpoint.dequantize_file(source, new, part="1/2")
    config.write_text(config.read_text() + " ")
    for do in (
        lambda: checkpoint.dequantize_file(source, new, part="2/2"),
        lambda: checkpoint.dequantize_file(source, new, part="1/2"),
    ):
        with pytest.raises(CheckpointError, match=r"another conversion: config\.json was changed;"):
            do()
    assert not new.exists()


def test_a_folder_that_is_named_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_quantized(tmp_path / "model", MODELS["deepseek, scales of float32"]())
    monkeypatch.chdir(tmp_path)
    alone = checkpoint.dequantize_file("model", "alone")
    for part, source in (("1/2", "model"), ("2/2", tmp_path / "model")):
        checkpoint.dequantize_file(source, "new", part=part)
    assert checkpoint.finish("new").rows == alone.rows
    assert contents(Path("new")) == contents(Path("alone"))


def test_an_infinite_weight_in_a_part(tmp_path: Path) -> None:
    array = np.ones((64, 64), np.float32)
    array[3, 5] = np.inf
    source, new, other = (tmp_path / f"{name}.safetensors" for name in ("model", "new", "other"))
    checkpoint.save(source, {"a.weight": np.ones((64, 64), np.float32), "b.weight": array})
    checkpoint.quantize_file(source, new, "mxfp4", part="1/2")
    with pytest.raises(CheckpointError, match=r"'b\.weight' cannot be quantized: .* infinite"):
        checkpoint.quantize_file(source, new, "mxfp4", part="2/2")
    with (
        ThreadPoolExecutor(2) as executor,
        pytest.raises(CheckpointError, match=r"'b\.weight' cannot be quantized: .* infinite"),
    ):
        checkpoint.quantize_file(source, other, "mxfp4", executor=executor)
    assert not new.exists()
    assert not other.exists()


def test_what_cannot_be_told_to_other_parts(tmp_path: Path) -> None:
    source = write_plain(tmp_path / "model")
    dtypes = {".*norm.*": np.dtype("float16")}
    with pytest.raises(TypeError, match="with part, dtype_map must be text, or a mapping of text"):
        checkpoint.quantize_file(source, tmp_path / "new", "nvfp4", dtype_map=dtypes, part="1/2")
    for option in ("dry_run", "resumable"):
        with pytest.raises(CheckpointError, match=f"part and {option} do not go together"):
            checkpoint.quantize_file(
                source, tmp_path / "new", "nvfp4", part="1/2", **{option: True}
            )  # type: ignore[arg-type]
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_workers_of_a_cluster(
    tmp_path: Path, framework: Callable[[str], ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    distributed = framework("distributed")
    source = write_plain(tmp_path / "model")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor(pure=False)

        def run(new: Path, **more: Any) -> checkpoint.CastSummary:
            return checkpoint.quantize_file(source, new, "nvfp4", **more)

        assert_alike(tmp_path, run, executor, 2)
    assert "in this process" not in caplog.text


@pytest.mark.parametrize("command", ["quantize", "dequantize", "transcode"])
def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    source = write_plain(tmp_path / "model")
    if command != "quantize":
        checkpoint.quantize_file(source, tmp_path / "quantized", "nvfp4")
        source = tmp_path / "quantized"
    options = {"quantize": ["--scheme", "mxfp4"], "transcode": ["--to", "modelopt"]}
    given = [command, str(source)], options.get(command, [])
    new, alone = (str(tmp_path / name) for name in ("new", "alone"))
    for part in ("1/2", "2/2"):
        assert main([*given[0], new, *given[1], "--part", part]) == 0
        out = capsys.readouterr()
        assert f"part {part} is done; when all are: castwise finish {new}" in out.err
    code = main(["finish", new])
    text = capsys.readouterr().out
    assert main([*given[0], alone, *given[1]]) == code
    assert capsys.readouterr().out == text.replace(new, alone)
    assert contents(Path(new)) == contents(Path(alone))


def test_ranges_may_be_asked_for_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, here = write_plain(tmp_path / "model"), Conversion.run
    expected = checkpoint.quantize_file(source, tmp_path / "alone", "nvfp4")

    def asked(self: Conversion, *arguments: Any) -> Any:
        assert self.is_placed
        reports = here(self, *arguments)
        assert self.is_placed
        return reports

    monkeypatch.setattr(Conversion, "run", asked)
    made = checkpoint.quantize_file(source, tmp_path / "new", "nvfp4")
    assert made.rows == expected.rows
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")


def test_a_payload_that_is_made_again_reports_once(tmp_path: Path) -> None:
    """A worker makes it from the start where a batch is given to it twice."""
    source = write_plain(tmp_path / "model")
    expected = checkpoint.quantize_file(source, tmp_path / "alone", "int8_channel")

    class Twice(ThreadPoolExecutor):
        """Lets every batch be made twice."""

        def submit(self, *call: Any, **keywords: Any) -> Any:
            super().submit(*call, **keywords).result()
            return super().submit(*call, **keywords)

    with Twice(1) as executor:
        made = checkpoint.quantize_file(source, tmp_path / "new", "int8_channel", executor=executor)
    assert made.rows == expected.rows
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")
