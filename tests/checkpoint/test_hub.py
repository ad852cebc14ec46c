"""Models of the Hugging Face Hub: read by ranges, and pushed as one commit with a card."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from checkpoint_samples import floats, write_sharded
from hub import TOKEN, Hub
from sharded_folder import contents
from system_parts import need
from whole_models import dense

pytestmark = pytest.mark.filterwarnings(
    # Of huggingface_hub's uploads.
    "ignore:Use 'content=<...>' to upload raw bytes/text content:DeprecationWarning"
)

CARD = b"""---
license: mit
tags:
- text-generation
base_model: org/older
base_model_relation: finetune
x-unknown: [1, 2]
---

# A model

Its text, with `code`.
"""
NAMES = [f"model.layers.{index}.mlp.up_proj.weight" for index in range(2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of two shards, with a card, a tokenizer and a folder."""
    shards = {
        f"model-{index + 1:05d}-of-00002.safetensors": {
            name: floats(128 * 64, index).reshape(128, 64)
        }
        for index, name in enumerate(NAMES)
    }
    source = tmp_path / "source"
    write_sharded(source, shards)
    (source / "config.json").write_text('{"torch_dtype": "float32", "model_type": "llama"}')
    (source / "README.md").write_bytes(CARD)
    (source / "extra").mkdir()
    (source / "extra" / "notes.txt").write_text("notes")
    return source


def card_of(hub: Hub, name: str) -> tuple[dict[str, Any], str]:
    """The metadata and the text of a repository's card."""
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  (of the Hub's library)

    _, metadata, text = hub.files(name)["README.md"].decode().split("---\n", 2)
    return yaml.safe_load(metadata), text


@pytest.mark.parametrize("source", ["org/model", "hf://org/model", "hf://org/model@main"])
def test_a_source_is_read_by_ranges(
    folder: Path, tmp_path: Path, hub: Hub, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.put("org/model", contents(folder))
    assert checkpoint.inspect(source).tensors == checkpoint.inspect(folder).tensors
    for path in folder.glob("*.safetensors"):
        header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        assert hub.bytes_read[f"org/model/{path.name}"] == header
    hub.bytes_read.clear()
    alone = checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    summary = checkpoint.cast_file(source, tmp_path / "new", "bfloat16")
    made = contents(tmp_path / "new")
    assert made.pop(".gitattributes") == b""
    assert made == contents(tmp_path / "alone")
    assert summary.rows == alone.rows
    assert summary.source.startswith("hf://org/model")
    for path in folder.glob("*.safetensors"):
        assert hub.bytes_read[f"org/model/{path.name}"] == path.stat().st_size


def test_revisions_and_files(folder: Path, tmp_path: Path, hub: Hub) -> None:
    old = hub.put("org/model", {"model.safetensors": b""})
    checkpoint.save(tmp_path / "a.safetensors", {"w": np.full(3, 7.0)})
    hub.put("org/model", {"sub/a.safetensors": (tmp_path / "a.safetensors").read_bytes()}, "other")
    loaded = checkpoint.load("hf://org/model@other/sub/a.safetensors")
    assert loaded["w"].tolist() == [7.0] * 3
    with pytest.raises(FileNotFoundError):
        checkpoint.load("hf://org/model/sub/a.safetensors")
    with pytest.raises(CheckpointError, match="the file is empty"):
        checkpoint.inspect(f"hf://org/model@{old}")


def test_a_source_that_is_changed_meanwhile(tmp_path: Path, hub: Hub) -> None:
    """By a commit that leaves the size of the file."""
    checkpoint.save(tmp_path / "a.safetensors", {"w": floats(2_500_000)})
    data = (tmp_path / "a.safetensors").read_bytes()
    hub.put("org/model", {"model.safetensors": data})

    def change(progress: checkpoint.Progress) -> None:
        if progress.done:
            hub.put("org/model", {"model.safetensors": data[:-1] + b"\0"})

    with pytest.raises(CheckpointError, match="was changed while it was read; run again"):
        checkpoint.cast_file("org/model", tmp_path / "new", "bfloat16", progress=change)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("source", ["folder", "org/model"])
def test_a_conversion_is_pushed_as_one_commit(
    folder: Path, tmp_path: Path, hub: Hub, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    commit = hub.put("org/model", contents(folder))
    given = folder if source == "folder" else source
    alone = checkpoint.quantize_file(folder, tmp_path / "alone", "nvfp4")
    summary = checkpoint.quantize_file(given, "hf://user/small", "nvfp4")
    assert summary.rows == alone.rows
    assert summary.destination == "hf://user/small"
    made = hub.files("user/small")
    assert made.pop(".gitattributes") == b""
    expected = contents(tmp_path / "alone")
    assert made.pop("README.md") != expected.pop("README.md")
    assert made == expected
    title = f"castwise quantize of {'source' if source == 'folder' else source}"
    assert hub.messages("user/small") == ["initial commit", title]
    assert os.listdir(temporary) == []
    metadata, text = card_of(hub, "user/small")
    base = "org/older" if source == "folder" else "org/model"
    relation = "finetune" if source == "folder" else "quantized"
    assert metadata == {
        "license": "mit",
        "tags": ["text-generation", "castwise"],
        "base_model": base,
        "base_model_relation": relation,
        "x-unknown": [1, 2],
    }
    assert list(metadata)[:2] == ["license", "tags"]
    assert text.startswith("\n# A model\n\nIts text, with `code`.\n\n## Conversion\n")
    assert f"`castwise quantize` of castwise {castwise.__version__} made this of " in text
    link = f"[org/model](https://huggingface.co/org/model) at commit `{commit}`"
    assert (link in text) == (source != "folder")
    assert "- scheme: `nvfp4`" in text
    assert "Kinds of losses: none." in text
    assert re.search(r"^total  ", text, re.MULTILINE)
    assert str(tmp_path) not in text


def test_what_a_card_says_of_a_cast(folder: Path, hub: Hub) -> None:
    (folder / "README.md").unlink()
    hub.put("org/model", contents(folder))
    mapping = {r".*0\.mlp.*": "float8_e4m3fn", "default": "bfloat16"}
    checkpoint.cast_file("hf://org/model", "hf://org/cast", dtype_map=mapping)
    metadata, text = card_of(hub, "org/cast")
    assert metadata == {"tags": ["castwise"], "base_model": "org/model"}
    assert text.startswith("\n# cast\n\n## Conversion\n")
    found = re.search(r"- map: `(.*)`", text)
    assert found
    assert json.loads(found[1]) == mapping
    for name, card in (
        ("plain", "Still the text."),
        ("broken", "---\nlicense: [\n---\nStill the text.\n"),
    ):
        (folder / "README.md").write_text(card)
        checkpoint.cast_file(folder, f"hf://org/{name}", "float16")
        metadata, text = card_of(hub, f"org/{name}")
        assert metadata == {"tags": ["castwise"]}
        assert text.startswith("\nStill the text.\n\n## Conversion")


def test_files_of_a_repository_are_replaced_on_request_and_as_a_whole(
    folder: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put("org/there", {"old.safetensors": b"old", "config.json": b"{}"})
    before = hub.files("org/there")
    with pytest.raises(CheckpointError, match=r"hf://org/there has files; .*overwrite=True"):
        checkpoint.cast_file(folder, "hf://org/there", "bfloat16")
    assert hub.files("org/there") == before
    plan = checkpoint.cast_file(folder, "hf://org/there", "bfloat16", dry_run=True)
    assert plan.destination == "hf://org/there"
    assert hub.files("org/there") == before
    checkpoint.cast_file(folder, "hf://org/there", "bfloat16", overwrite=True)
    assert hub.files("org/there").keys() == {".gitattributes", *contents(folder)}
    assert hub.messages("org/there") == ["initial commit", "put", "castwise cast of source"]

    def change(progress: checkpoint.Progress) -> None:
        if progress.name is None:
            hub.put("org/there", {"others.txt": b""})

    with pytest.raises(CheckpointError, match=r"hf://org/there: .*refresh.*; the result is compl"):
        checkpoint.cast_file(folder, "hf://org/there", "bfloat16", overwrite=True, progress=change)
    assert "others.txt" in hub.files("org/there")
    hub.put("org/there", {}, "branch")
    checkpoint.cast_file(folder, "hf://org/there@branch", "bfloat16")
    assert hub.files("org/there", "branch").keys() == {".gitattributes", *contents(folder)}
    assert "others.txt" in hub.files("org/there")


@pytest.mark.parametrize("name", ["a/../../x", "../x", "a\\..\\..\\x"])
def test_a_file_of_a_repository_that_leads_out(
    folder: Path, tmp_path: Path, hub: Hub, name: str
) -> None:
    """Neither read, nor removed by a push that replaces all files."""
    hub.put("org/model", {**contents(folder), name: b"evil"})
    before = hub.files("org/model")
    for source, target in ((folder, "hf://org/model"), ("hf://org/model", tmp_path / "new")):
        with pytest.raises(CheckpointError, match=r"hf://org/model.* lists .*could lead out of it"):
            checkpoint.cast_file(source, target, "bfloat16", overwrite=True)
    assert hub.files("org/model") == before
    assert os.listdir(tmp_path) == ["source"]


def test_a_file_is_not_pushed_under_a_name_that_leads_out(tmp_path: Path, hub: Hub) -> None:
    need("os.fork")  # Windows has no such names
    checkpoint.save(tmp_path / "a\\..\\x.npz", {"w": floats(64)})
    with pytest.raises(CheckpointError, match=r"hf://user/new would have .*could lead out of it"):
        checkpoint.cast_file(tmp_path / "a\\..\\x.npz", "hf://user/new", "bfloat16")
    assert hub.repositories == {}


def test_a_file_becomes_the_file_of_a_repository(tmp_path: Path, hub: Hub) -> None:
    checkpoint.save(tmp_path / "a.npz", {"w": floats(64).reshape(8, 8), "v": floats(64, 2)})
    checkpoint.cast_file(tmp_path / "a.npz", tmp_path / "a.safetensors", "bfloat16")
    checkpoint.cast_file(tmp_path / "a.npz", "hf://user/file", "bfloat16")
    made = hub.files("user/file")
    assert made.keys() == {".gitattributes", "README.md", "a.safetensors"}
    assert made["a.safetensors"] == (tmp_path / "a.safetensors").read_bytes()
    source = tmp_path / "a.safetensors"
    checkpoint.cast_file(source, "hf://user/shards", "float16", max_shard_size=200)
    assert sum(name.endswith(".safetensors") for name in hub.files("user/shards")) == 2


def test_a_map_alone_makes_the_gguf_file_of_a_repository(
    tmp_path: Path, hub: Hub, framework: Callable[[str], ModuleType]
) -> None:
    framework("gguf")
    dense(tmp_path / "model", {})
    dtype_map = {".*_proj.weight": "q8_0"}
    checkpoint.quantize_file(tmp_path / "model", tmp_path / "model.gguf", dtype_map=dtype_map)
    checkpoint.quantize_file(tmp_path / "model", "hf://user/small", dtype_map=dtype_map)
    made = hub.files("user/small")
    assert made.keys() == {".gitattributes", "README.md", "model.gguf"}
    assert made["model.gguf"] == (tmp_path / "model.gguf").read_bytes()


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (b"---\nlicense: mit\n---\ncaf\xe9\n", r"is not UTF-8 \(byte 24\); mend it, or leave it"),
        (b"---\ntags: 5\n---\n", "has tags that are not a list of texts: 5; mend it"),
        (b"---\ntags: [a, [b]]\n---\n", r"has tags that are not a list of texts: \['a', \['b'\]\]"),
        (b"---\ntags: {a: b}\n---\n", "has tags that are not a list of texts: {'a': 'b'}"),
        (
            b"---\nbase_model_relation: x\n---\n",
            "refused by the Hub: .*base_model_relation.*; mend",
        ),
    ],
)
@pytest.mark.parametrize("source", ["folder", "hf://org/model"])
def test_a_card_that_cannot_be_kept_is_refused_before_the_work(  # noqa: PLR0917
    folder: Path, tmp_path: Path, hub: Hub, source: str, card: bytes, message: str
) -> None:
    (folder / "README.md").write_bytes(card)
    hub.put("org/model", contents(folder))
    before = dict(hub.repositories)
    path = folder if source == "folder" else source

    def refuse(progress: checkpoint.Progress) -> None:
        raise AssertionError(progress)

    with pytest.raises(CheckpointError, match=rf"/README\.md, which becomes the .*{message}"):
        checkpoint.cast_file(path, "hf://user/new", "bfloat16", progress=refuse)
    assert hub.repositories == before
    checkpoint.cast_file(path, "hf://user/new", "bfloat16", exclude="README.md")
    assert card_of(hub, "user/new")[0]["tags"] == ["castwise"]
    checkpoint.cast_file(path, tmp_path / "new", "bfloat16")  # without a push it is one more file
    assert (tmp_path / "new" / "README.md").read_bytes() == card


@pytest.mark.parametrize("kind", ["a folder", "a large file"])
@pytest.mark.parametrize("source", ["folder", "hf://org/model"])
def test_what_cannot_become_a_card_is_refused_before_the_work(
    folder: Path, hub: Hub, source: str, kind: str
) -> None:
    card = folder / "README.md"
    if kind == "a folder":
        card.unlink()
        card.mkdir()
        (card / "x.txt").write_text("x")
    else:
        card.write_bytes(bytes(10_000_001))
    hub.put("org/model", contents(folder))
    before = dict(hub.repositories)
    path = folder if source == "folder" else source
    with pytest.raises(
        CheckpointError,
        match=r"README\.md.* (is a folder; rename|has more than .*; mend) it, or leave it out",
    ):
        checkpoint.cast_file(path, "hf://user/new", "bfloat16")
    assert hub.repositories == before
    checkpoint.cast_file(path, "hf://user/new", "bfloat16", exclude=["README.md", "README.md/*"])
    assert card_of(hub, "user/new")[0]["tags"] == ["castwise"]


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("fault", ["a folder .git", "an interrupt"])
def test_whatever_fails_after_the_conversion_leaves_it(  # noqa: PLR0917
    folder: Path,
    tmp_path: Path,
    hub: Hub,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hub.put("user/new", {}, "branch")
    before = dict(hub.files("user/new", "branch"))
    (folder / "README.md").unlink()
    error: type[BaseException] = CheckpointError
    if fault == "an interrupt":
        error, hub.on_commit, hub.refuses_commits = KeyboardInterrupt, _interrupt, True
    else:
        (folder / ".git").mkdir()
        (folder / ".git" / "HEAD").write_bytes(b"")
    before_it = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    with pytest.raises(error) as raised:
        checkpoint.cast_file(folder, "hf://user/new@branch", "bfloat16", include=".git/*")
    signal.signal(signal.SIGINT, before_it)
    text = caplog.text if error is KeyboardInterrupt else str(raised.value)
    found = re.search(r"the result is complete in (\S+)\. To push it: (hf upload .*)", text)
    assert found
    assert checkpoint.load(found[1])[NAMES[0]].dtype == "bfloat16"
    assert found[2].split() == ["hf", "upload", "--revision", "branch", "user/new", found[1]]
    assert hub.files("user/new", "branch") == before


def test_a_result_that_cannot_be_pushed_stays(
    folder: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hub.refuses_commits = True
    with pytest.raises(CheckpointError, match=r"quota exceeded.*complete in .*hf upload") as error:
        checkpoint.cast_file(folder, "hf://user/new", "bfloat16")
    assert "\n" not in str(error.value)
    kept = Path(str(error.value).rpartition(" ")[2])
    assert checkpoint.load(kept)[NAMES[0]].dtype == "bfloat16"
    assert "## Conversion" in (kept / "README.md").read_text()
    checkpoint.save(tmp_path / "large.npz", {"w": np.array([1e30])})
    before = set(os.listdir(tmp_path))
    with pytest.raises(OverflowError):
        checkpoint.cast_file(tmp_path / "large.npz", "hf://user/n", "float16", overflow="raise")
    assert set(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("source", "destination", "options", "message"),
    [
        ("hf://org/model", "hf://org/model", {}, "is the repository that is read; choose another"),
        ("org/model", "hf://org/model@main", {"overwrite": True}, "is the repository that is read"),
        ("source", "hf://datasets/org/x", {}, "is not a repository of models; give one"),
        ("source", "hf://org/x/model.safetensors", {}, "is not a repository of models"),
        ("source", "hf://org/x/folder", {}, "is not a repository of models"),
        ("source", "hf://org/model@none", {"overwrite": True}, "there is no such branch"),
        ("source", "hf://org/none@none", {}, "there is no such branch"),
        ("source", "hf://org/x", {"part": "1/2"}, "that workers share"),
        ("source", "hf://org/x", {"resumable": True}, "are for folders of this machine"),
        ("org/model", "new", {"part": "1/2"}, "that workers share"),
        ("source", "hf://org/x", {"dtype": "bf61"}, "bf61"),
    ],
)
def test_refusals(  # noqa: PLR0917
    folder: Path,
    tmp_path: Path,
    hub: Hub,
    source: str,
    destination: str,
    options: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.put("org/model", contents(folder))
    before = dict(hub.repositories)
    with pytest.raises((CheckpointError, TypeError, ValueError), match=message):
        checkpoint.cast_file(source, destination, **{"dtype": "bfloat16", **options})
    assert hub.repositories == before
    assert os.listdir(tmp_path) == ["source"]
    with pytest.raises(CheckpointError, match="takes what a conversion writes into a whole"):
        checkpoint.save("hf://org/model/a.safetensors", {"w": floats(3)})


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("logged out", "Invalid user token"),
        ("read only", "hf://org/model: .*403.*the result is complete in"),
        ("another's", "hf://other/new: .*rights to create a model"),
        ("private", "hf://org/model: No such file or directory; check the name, and your rights"),
        ("gated", "hf://org/model: GatedRepoError: .*restricted"),
        ("missing", "hf://org/none: No such file or directory; check the name, and your rights"),
    ],
)
def test_rights(  # noqa: PLR0917
    folder: Path,
    tmp_path: Path,
    hub: Hub,
    state: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub.put("org/model", contents(folder))
    arguments = [str(folder), "hf://org/model", "--overwrite"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if state in {"logged out", "private"}:
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    if state == "read only":
        hub.read_only.add("org/model")
    if state == "another's":
        arguments[1] = "hf://other/new"
    if state == "private":
        hub.private.add("org/model")
        arguments = ["hf://org/model", str(tmp_path / "new")]
    if state == "gated":
        hub.gated.add("org/model")
        arguments = ["hf://org/model", str(tmp_path / "new")]
    if state == "missing":
        arguments = ["org/none", str(tmp_path / "new")]
    before = hub.files("org/model")
    assert main(["cast", *arguments, "--dtype", "bfloat16"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said, line), line
    assert hub.files("org/model") == before
    assert not (tmp_path / "new").exists()


def test_names_of_this_machine_come_first(
    folder: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.put("org/model", contents(folder))
    assert len(checkpoint.inspect("org/model").tensors) == 2
    (tmp_path / "org").mkdir()
    with pytest.raises(FileNotFoundError):  # of the folder that is here
        checkpoint.inspect("org/model")
    checkpoint.save("org/model.safetensors", {"w": floats(3)})
    assert [info.name for info in checkpoint.inspect("org/model.safetensors").tensors] == ["w"]
    asked = len(hub.requests)
    for path in ("none/model.safetensors", "/org/model", "a/b/c", "../org", "model"):
        with pytest.raises(FileNotFoundError):
            checkpoint.inspect(path)
    assert len(hub.requests) == asked


def test_a_name_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("castwise.checkpoint.files.hub.find_spec", lambda _: None)
    assert main(["inspect", "org/model"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("castwise: error: org/model: No such file or directory; for a model of")
    assert "pip install 'castwise[hf]'" in line


def test_the_command_in_a_process_of_its_own(
    folder: Path, tmp_path: Path, hub: Hub, framework: Callable[[str], ModuleType]
) -> None:
    """With the environment that users set, and nothing patched."""
    framework("huggingface_hub")
    hub.put("org/model", contents(folder))
    command = ["quantize", "org/model", "hf://user/new", "--scheme", "fp8_block", "--quiet"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}
    said = []
    for code in (0, 2):  # it is there
        result = subprocess.run(
            [sys.executable, "-m", "castwise", *command],
            cwd=tmp_path,
            env={**environment, "HF_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == code, result.stderr
        said += result.stderr.splitlines()
    (line,) = said
    assert line.startswith("castwise: error: hf://user/new has files; ")
    assert line.endswith("(--overwrite)")
    assert hub.messages("user/new")[1:] == ["castwise quantize of org/model"]


@pytest.fixture
def cached(
    folder: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Have a model in the Hub's cache; what this returns takes this process offline."""
    import huggingface_hub  # noqa: PLC0415  (`hub` asks for it)

    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    hub.put("org/model", contents(folder))
    huggingface_hub.snapshot_download("org/model")

    def go_offline() -> None:
        hub.requests.clear()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    return go_offline


@pytest.mark.parametrize(
    "source", ["org/model", "hf://org/model", "hf://org/model@main", "hf://models/org/model"]
)
def test_a_cached_model_is_read_offline(
    folder: Path, hub: Hub, cached: Callable[[], None], source: str
) -> None:
    cached()
    alone = checkpoint.quantize_file(folder, "alone", "mxfp8_e4m3")
    expected = contents(Path("alone"))
    assert checkpoint.inspect(source).tensors == checkpoint.inspect(folder).tensors
    assert checkpoint.diff(source, folder).same
    # Parts and workers are for files of this machine, as the cache is.
    for part in ("1/2", "2/2"):
        checkpoint.quantize_file(source, "parts", "mxfp8_e4m3", part=part)
    with ThreadPoolExecutor(2) as executor:
        checkpoint.quantize_file(source, "whole", "mxfp8_e4m3", executor=executor)
    assert checkpoint.finish("parts").rows == alone.rows
    for name in ("parts", "whole"):
        made = contents(Path(name))
        made.pop(".gitattributes", None)
        assert made == expected
    assert hub.requests == []


def test_one_cached_file_is_read_offline(
    folder: Path, hub: Hub, cached: Callable[[], None]
) -> None:
    cached()
    name = next(folder.glob("*.safetensors")).name
    loaded = checkpoint.load(f"hf://org/model/{name}")
    assert loaded.keys() == checkpoint.load(folder / name).keys()
    assert hub.requests == []


@pytest.mark.parametrize(
    "source",
    [
        "org/other",
        "hf://org/other",
        "hf://org/model@v2",
        "hf://org/model/none.safetensors",
        "hf://datasets/org/model",
    ],
)
def test_what_is_not_cached_is_refused_offline(
    hub: Hub, cached: Callable[[], None], source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cached()
    with pytest.raises(FileNotFoundError, match=r"is offline .*HF_HUB_OFFLINE.*hf download org/"):
        checkpoint.cast_file(source, "new", "bfloat16")
    assert main(["inspect", source]) == 2
    assert "rights" not in (err := capsys.readouterr().err)
    assert "HF_HUB_OFFLINE" in err
    assert hub.requests == []


def test_no_path_leads_out_of_the_cache_offline(hub: Hub, cached: Callable[[], None]) -> None:
    upath = pytest.importorskip("upath")
    cached()
    for path in ("hf://org/model/../../refs/main", upath.UPath("hf://org/model/../../refs/main")):
        with pytest.raises((CheckpointError, FileNotFoundError), match=r"no '\.' or|is offline"):
            checkpoint.inspect(path)
    assert hub.requests == []


def test_nothing_is_pushed_offline(folder: Path, hub: Hub, cached: Callable[[], None]) -> None:
    cached()
    with pytest.raises(OSError, match=r"is offline .*HF_HUB_OFFLINE.* nothing can be pushed"):
        checkpoint.cast_file(folder, "hf://org/new", "bfloat16")
    assert hub.requests == []


def test_the_environment_says_that_the_hub_is_offline(
    tmp_path: Path, cached: Callable[[], None]
) -> None:
    cached()
    program = [sys.executable, "-m", "castwise", "inspect"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for source, code in (("org/model", 0), ("org/other", 2)):
        result = subprocess.run(
            [*program, source],
            env={**os.environ, **offline, **paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == code, result.stderr
        assert ("HF_HUB_OFFLINE" in result.stderr) == bool(code)
